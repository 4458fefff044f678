//! [`DenialCache`]: repeats a denial for as long as it is valid, without asking the service.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sluicegate_core::limit::Unit;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_service::headers::RETRY_AFTER;

use crate::decision::Denial;

/// Maximum number of cached denials.
const ENTRIES_MAX: usize = 10_000;

/// Denials by the text of their request.
pub(super) struct DenialCache {
    longest: Span,
    denials: Mutex<HashMap<String, CachedDenial>>,
}

struct CachedDenial {
    denial: Denial,
    /// Time after which the request would fit.
    start: Timestamp,
    until: Timestamp,
}

impl DenialCache {
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest: longest.into(), denials: Mutex::default() }
    }

    /// Returns the cached denial of a request, with the remaining time as its retry time.
    pub(super) fn get(&self, request: &str, now: Timestamp) -> Option<Denial> {
        let denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = denials.get(request).filter(|cached| now < cached.until)?;
        let left = cached.start.since(now);
        let mut denial = cached.denial.clone();
        denial.retry_after = Some(left.into());
        // The body of the service states the time that was left when the service answered.
        denial.body = None;
        for (name, value) in &mut denial.facts.headers {
            if *name == RETRY_AFTER {
                *value = left.as_secs_ceil().max(1).to_string();
            }
        }
        Some(denial)
    }

    /// Stores a denial, if it says when the request would fit.
    ///
    /// A denial by a concurrency limit is not stored: a slot may be freed at any time.
    pub(super) fn put(&self, request: &str, denial: &Denial, now: Timestamp) {
        let Some(wait) = denial.retry_after.filter(|_| denial.status == 429) else { return };
        let hit = |scope: &&crate::Scope| Some(&scope.rule) == denial.rule.as_ref();
        let by_slots = denial.scopes().iter().filter(hit).any(|scope| scope.unit == Unit::Slots);
        if by_slots || self.longest == Span::ZERO {
            return;
        }
        let wait = Span::from(wait);
        let (start, until) = (now + wait, now + wait.min(self.longest));
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        if denials.len() >= ENTRIES_MAX {
            denials.retain(|_, cached| now < cached.until);
        }
        if denials.len() < ENTRIES_MAX {
            let cached = CachedDenial { denial: denial.clone(), start, until };
            denials.insert(request.to_owned(), cached);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;
    use crate::decision::{DecisionSource, Facts};

    fn denial(unit: Unit, wait: Option<Duration>) -> Denial {
        let scope = Scope {
            rule: "USER".to_owned(),
            limit: String::new(),
            unit,
            max: 1,
            used: 1,
            remaining: 0,
            reset_after: Duration::ZERO,
            shadow: false,
        };
        let headers = vec![(RETRY_AFTER, "3".to_owned())];
        Denial {
            facts: Facts { source: DecisionSource::Store, scopes: vec![scope], headers },
            status: 429,
            reason: String::new(),
            detail: String::new(),
            rule: Some("USER".to_owned()),
            retry_after: wait,
            output_tokens_max: None,
            body: Some("{}".to_owned()),
        }
    }

    #[test]
    fn a_denial_is_repeated_for_its_time_and_at_most_a_second() {
        let at = Timestamp::from_millis;
        let cache = DenialCache::new(Duration::from_secs(1));
        cache.put("a", &denial(Unit::Requests, Some(Duration::from_millis(2_500))), at(0));
        let repeated = cache.get("a", at(999)).expect("it is cached");
        assert_eq!(repeated.retry_after, Some(Duration::from_millis(1_501)));
        assert_eq!(repeated.headers(), [(RETRY_AFTER, "2".to_owned())]);
        assert!(cache.get("a", at(1_000)).is_none() && cache.get("b", at(0)).is_none());
        cache.put("b", &denial(Unit::Requests, Some(Duration::from_millis(300))), at(0));
        assert!(cache.get("b", at(299)).is_some() && cache.get("b", at(300)).is_none());
    }

    #[test]
    fn slots_and_denials_without_an_end_are_not_cached() {
        let cache = DenialCache::new(Duration::from_secs(1));
        cache.put("a", &denial(Unit::Slots, Some(Duration::from_secs(1))), Timestamp::ZERO);
        cache.put("b", &denial(Unit::Requests, None), Timestamp::ZERO);
        assert!(["a", "b"].iter().all(|name| cache.get(name, Timestamp::ZERO).is_none()));
        let off = DenialCache::new(Duration::ZERO);
        off.put("a", &denial(Unit::Requests, Some(Duration::from_secs(1))), Timestamp::ZERO);
        assert!(off.get("a", Timestamp::ZERO).is_none());
    }

    #[test]
    fn the_cache_is_bounded() {
        let cache = DenialCache::new(Duration::from_secs(1));
        let second = denial(Unit::Requests, Some(Duration::from_secs(1)));
        (0..2 * ENTRIES_MAX).for_each(|n| cache.put(&n.to_string(), &second, Timestamp::ZERO));
        assert_eq!(cache.denials.lock().unwrap().len(), ENTRIES_MAX);
        cache.put("new", &second, Timestamp::from_secs(2));
        assert_eq!(cache.denials.lock().unwrap().len(), 1, "expired entries make room");
    }
}

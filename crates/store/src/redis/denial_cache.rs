//! [`DenialCache`] repeats recent denials without asking Redis, so that a flood of denied requests
//! does not become a flood of Redis calls.
//!
//! A full limit stays full until its earliest start, unless usage is returned. So the cache denies
//! a plan again for up to [`Options::deny_cache`], and never past that start, if it knows the
//! readings of all counters of the plan. An entry holds for one counter, for its present limits,
//! and for amounts of at least the denied one; a reload or an override that changes the limits
//! makes a new entry. The cache can only be too strict: it notices late that another node returned
//! usage. Usage that this node returns or resets is removed from the cache at once.
//!
//! Plans that leave a record are not cached, because an admitted id stays admitted. Neither are
//! charges that can be settled in part: tokens, money and leases.
//!
//! [`Options::deny_cache`]: super::Options::deny_cache

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sluicegate_core::algorithm::Reading;
use sluicegate_core::decision::{Deny, Hit, Readings};
use sluicegate_core::limit::Unit;
use sluicegate_core::time::{Clock as _, Span, Timestamp};
use sluicegate_core::{Charge, Plan};
use smallvec::SmallVec;

use super::keys::KeyNames;
use crate::clock::MonotonicClock;

/// Number of cache entries.
const ENTRIES: usize = 1 << 14;

/// A cache of fixed size: a counter replaces another one whose hash collides.
#[derive(Debug)]
pub(super) struct DenialCache {
    /// Lifetime of an entry; zero turns the cache off.
    lifetime: Span,
    entries: Box<[Mutex<DenialEntry>]>,
    hasher: RandomState,
    clock: MonotonicClock,
    /// Time at which the last entry expires. After it, no lookup can succeed.
    until: AtomicU64,
    hits: AtomicU64,
}

/// The last known state of one counter.
#[derive(Debug, Default)]
struct DenialEntry {
    /// Hashes of the key and of the limits.
    hashes: (u64, u64),
    /// Times of request and reply by the clock of this node, and the time in Redis between them.
    /// The time in Redis is extrapolated from the reply, so it is never ahead of the real one: a
    /// caller that waits as long as the denial says does not come too early.
    sent_at: Timestamp,
    received_at: Timestamp,
    server_time: Timestamp,
    readings: SmallVec<[Reading; 2]>,
    /// The denied amount, the index of its limit, and its earliest start.
    denied: Option<(u64, usize, Timestamp)>,
    /// Time of the last return or reset of usage.
    invalidated_at: Timestamp,
}

impl DenialCache {
    pub(super) fn new(lifetime: Span, clock: MonotonicClock) -> Self {
        let entries = if lifetime == Span::ZERO { 0 } else { ENTRIES };
        Self {
            lifetime,
            entries: (0..entries).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            clock,
            until: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    /// Returns the number of denials answered from the cache.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Returns the time of this node, as [`DenialCache::insert`] expects it.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the denial of a plan, if the cache has one.
    pub(super) fn get(&self, plan: &Plan<'_>, names: &KeyNames, now: Timestamp) -> Option<Deny> {
        if now.as_micros() >= self.until.load(Ordering::Relaxed) || !is_cacheable(plan) {
            return None;
        }
        let mut deny: Option<(Timestamp, Hit)> = None;
        let (mut at, mut readings) = (Timestamp::ZERO, Readings::new());
        for (index, charge) in plan.charges().iter().enumerate() {
            self.with_entry(charge, names, |entry, hashes| {
                let known = entry.hashes == hashes && now < entry.sent_at + self.lifetime;
                let then = entry.server_time + now.since(entry.received_at);
                let expired = |reading: &Reading| reading.used > 0 && reading.reset <= then;
                if !known || entry.readings.iter().any(expired) {
                    return None;
                }
                at = at.max(then);
                readings.extend(entry.readings.iter().copied());
                if let Some((need, limit, start)) = entry.denied
                    && need <= charge.need
                    && deny.is_none_or(|(other, _)| other < start)
                {
                    deny = Some((start, Hit { charge: index, limit }));
                }
                Some(())
            })?;
        }
        let (start, hit) = deny.filter(|(start, _)| *start > at)?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(Deny { at, start, hit, readings })
    }

    /// Stores a denial that Redis sent. `sent_at` is the time of the request, `received_at` that of
    /// the reply.
    pub(super) fn insert(
        &self,
        plan: &Plan<'_>,
        names: &KeyNames,
        (sent_at, received_at): (Timestamp, Timestamp),
        deny: &Deny,
    ) {
        if self.lifetime == Span::ZERO || !is_cacheable(plan) {
            return;
        }
        let mut readings = deny.readings.iter().copied();
        for (index, charge) in plan.charges().iter().enumerate() {
            let readings = readings.by_ref().take(charge.meter.len()).collect();
            self.with_entry(charge, names, |entry, hashes| {
                // Usage was returned after the request was sent: the reply may show the state
                // before that.
                if entry.invalidated_at >= sent_at {
                    return;
                }
                let before =
                    entry.denied.filter(|(_, _, start)| entry.hashes == hashes && *start > deny.at);
                let denied = match deny.hit {
                    hit if hit.charge == index => Some((charge.need, hit.limit, deny.start)),
                    _ => before,
                };
                let (server_time, invalidated_at) = (deny.at, entry.invalidated_at);
                *entry = DenialEntry {
                    hashes,
                    sent_at,
                    received_at,
                    server_time,
                    readings,
                    denied,
                    invalidated_at,
                };
            });
        }
        self.until.fetch_max((sent_at + self.lifetime).as_micros(), Ordering::Relaxed);
    }

    /// Removes the counters under a key, because usage was returned. Called after Redis has
    /// confirmed it, so that no older state stays cached.
    pub(super) fn invalidate(&self, log: &[u8]) {
        let now = self.clock.now();
        if self.lifetime > Span::ZERO {
            let mut entry = self.entry(self.hasher.hash_one(log));
            *entry = DenialEntry { invalidated_at: now, ..DenialEntry::default() };
        }
    }

    fn with_entry<T>(
        &self,
        charge: &Charge<'_>,
        names: &KeyNames,
        run: impl FnOnce(&mut DenialEntry, (u64, u64)) -> T,
    ) -> T {
        let name = self.hasher.hash_one(&names.log(&charge.key)[..]);
        let amounts: SmallVec<[u64; 4]> =
            (0..charge.meter.len()).map(|limit| charge.meter.limit(limit)).collect();
        let limits = self.hasher.hash_one((charge.meter.kind(), amounts, charge.texts()));
        run(&mut self.entry(name), (name, limits))
    }

    fn entry(&self, name: u64) -> std::sync::MutexGuard<'_, DenialEntry> {
        self.entries[name as usize % ENTRIES].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if a denial of the plan can only end by time or by returned usage.
fn is_cacheable(plan: &Plan<'_>) -> bool {
    let cacheable = |charge: &Charge<'_>| {
        charge.unit() == Unit::Requests && charge.need == charge.take && !charge.refunds()
    };
    !plan.needs_record() && !plan.charges().is_empty() && plan.charges().iter().all(cacheable)
}

#[cfg(test)]
mod tests {
    use sluicegate_core::query::{Cost, Query, RequestId};
    use sluicegate_core::rule::{Group, Rule};
    use sluicegate_core::ruleset::{Ruleset, Settings};
    use sluicegate_core::{Id, Limit};

    use super::*;
    use crate::redis::keys::Layout;

    const SECOND: Span = Span::from_secs(1);
    const MINUTE: Span = Span::from_secs(60);

    struct Fixture {
        cache: DenialCache,
        names: KeyNames,
        began: Timestamp,
    }

    fn rules(limits: &[&str]) -> Ruleset {
        let group = |(name, limit): (&str, &&str)| {
            Group::new(name, [Rule::new(name, [limit.parse::<Limit>().expect("a limit")])])
        };
        let groups = ["A", "B"].into_iter().zip(limits).map(group).collect();
        Ruleset::new(groups, Settings::default()).expect("rules")
    }

    fn query(requests: u64) -> Query<'static> {
        let mut query = Query::new(RequestId::ours(Id::from_bits(1)));
        query.cost = Cost { requests: Some(requests), ..Cost::default() };
        query
    }

    impl Fixture {
        fn new() -> Self {
            let clock = MonotonicClock::new();
            let cache = DenialCache::new(SECOND, clock);
            Self { cache, names: KeyNames::new("sg:", Layout::SingleServer), began: clock.now() }
        }

        /// Stores a denial of `requests` requests until `start` by the first limit.
        fn learn(&self, rules: &Ruleset, requests: u64, start: Span) {
            let query = query(requests);
            let plan = rules.plan(&query, self.began).expect("a plan");
            let reading = Reading::new(3, at(start));
            let deny = Deny {
                at: at(Span::ZERO),
                start: at(start),
                hit: Hit { charge: 0, limit: 0 },
                readings: plan.scopes().map(|_| reading).collect(),
            };
            self.cache.insert(&plan, &self.names, (self.began, self.began), &deny);
        }

        /// Returns the earliest start of `requests` requests, if it is cached after `later`.
        fn start(&self, rules: &Ruleset, requests: u64, later: Span) -> Option<Timestamp> {
            let query = query(requests);
            let plan = rules.plan(&query, self.began).expect("a plan");
            let deny = self.cache.get(&plan, &self.names, self.began + later)?;
            assert_eq!((deny.at, deny.hit.charge), (at(later), 0));
            assert_eq!(deny.readings.len(), plan.scopes().count());
            Some(deny.start)
        }
    }

    /// Returns a time of the clock in Redis, which differs from that of the node.
    fn at(later: Span) -> Timestamp {
        Timestamp::from_secs(1_000) + later
    }

    #[test]
    fn a_denial_stands_for_a_second_but_not_past_its_start() {
        let (fixture, rules) = (Fixture::new(), rules(&["3/min", "9/min"]));
        assert_eq!(fixture.start(&rules, 1, Span::ZERO), None);
        fixture.learn(&rules, 1, MINUTE);
        assert_eq!(fixture.start(&rules, 1, Span::ZERO), Some(at(MINUTE)));
        assert_eq!(fixture.start(&rules, 1, Span::from_millis(999)), Some(at(MINUTE)));
        assert_eq!(fixture.start(&rules, 1, SECOND), None);
        fixture.learn(&rules, 1, Span::from_millis(40));
        assert!(fixture.start(&rules, 1, Span::from_millis(39)).is_some());
        assert_eq!(fixture.start(&rules, 1, Span::from_millis(40)), None);
        assert_eq!(fixture.cache.hits(), 3);
    }

    #[test]
    fn only_amounts_that_are_not_smaller_are_denied() {
        let (fixture, rules) = (Fixture::new(), rules(&["9/min"]));
        fixture.learn(&rules, 3, MINUTE);
        assert_eq!(fixture.start(&rules, 2, Span::ZERO), None);
        assert!(fixture.start(&rules, 3, Span::ZERO).is_some());
        assert!(fixture.start(&rules, 4, Span::ZERO).is_some());
    }

    #[test]
    fn another_limit_is_another_counter() {
        let fixture = Fixture::new();
        fixture.learn(&rules(&["3/min"]), 1, MINUTE);
        for limit in ["4/min", "3/h", "3/min windowed", "3/min burst 3"] {
            assert_eq!(fixture.start(&rules(&[limit]), 1, Span::ZERO), None, "{limit}");
        }
        // Nothing is cached about the readings of the second limit.
        assert_eq!(fixture.start(&rules(&["3/min", "9/min"]), 1, Span::ZERO), None);
    }

    #[test]
    fn returned_usage_invalidates_the_entry_and_older_replies() {
        let (fixture, rules) = (Fixture::new(), rules(&["3/min"]));
        fixture.learn(&rules, 1, MINUTE);
        let query = query(1);
        let plan = rules.plan(&query, fixture.began).expect("a plan");
        fixture.cache.invalidate(&fixture.names.log(&plan.charges()[0].key));
        assert_eq!(fixture.start(&rules, 1, Span::ZERO), None);
        fixture.learn(&rules, 1, MINUTE);
        assert_eq!(fixture.start(&rules, 1, Span::ZERO), None, "that was sent_at before");
    }

    #[test]
    fn plans_that_can_be_settled_or_replayed_are_not_cached() {
        let fixture = Fixture::new();
        for limit in ["3 tokens/min", "0.1 USD/min", "3 concurrent"] {
            let rules = rules(&[limit]);
            fixture.learn(&rules, 1, MINUTE);
            assert_eq!(fixture.start(&rules, 1, Span::ZERO), None, "{limit}");
        }
        let rules = rules(&["3/min"]);
        fixture.learn(&rules, 1, MINUTE);
        let mut query = query(1);
        query.id.keep = Some(RequestId::KEEP);
        let plan = rules.plan(&query, fixture.began).expect("a plan");
        assert_eq!(fixture.cache.get(&plan, &fixture.names, fixture.began), None);
    }
}

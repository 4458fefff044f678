//! [`EtagCache`]: the entity tags of earlier responses, so that an unchanged one is not processed
//! again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::HeaderValue;
use serde_json::Value;

/// Maximum number of addresses; the oldest are forgotten.
const COUNT_MAX: usize = 10_000;

/// Entity tags by address.
#[derive(Default)]
pub(super) struct EtagCache(Mutex<Etags>);

#[derive(Default)]
struct Etags {
    by_address: HashMap<String, EtagEntry>,
    /// Addresses, the oldest first.
    order: VecDeque<String>,
}

/// An earlier response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EtagEntry {
    /// Its entity tag.
    pub(super) etag: HeaderValue,
    /// Job that it belonged to.
    pub(super) job: String,
    /// Its next page.
    pub(super) next: Option<Value>,
}

impl EtagCache {
    /// Returns the earlier response of an address to another job. A repeated job processes the whole
    /// response, because its result may not have been stored.
    pub(super) fn find(&self, address: &str, job: &str) -> Option<EtagEntry> {
        self.lock().by_address.get(address).filter(|entry| entry.job != job).cloned()
    }

    /// Remembers a response.
    pub(super) fn insert(&self, address: String, entry: EtagEntry) {
        let mut etags = self.lock();
        if etags.by_address.insert(address.clone(), entry).is_some() {
            return;
        }
        etags.order.push_back(address);
        if etags.order.len() > COUNT_MAX
            && let Some(oldest) = etags.order.pop_front()
        {
            etags.by_address.remove(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Etags> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_and_a_repeated_job_gets_nothing_from_it() {
        let cache = EtagCache::default();
        for number in 0..=COUNT_MAX {
            let etag = HeaderValue::from_static("\"a\"");
            let entry = EtagEntry { etag, job: "first".to_owned(), next: None };
            cache.insert(format!("/{number}"), entry);
        }
        assert_eq!(cache.find("/0", "second"), None);
        assert!(cache.find("/1", "second").is_some());
        assert_eq!(cache.find("/1", "first"), None);
        assert_eq!(cache.lock().by_address.len(), COUNT_MAX);
    }
}

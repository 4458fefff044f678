//! [`LogCache`] remembers two facts about recently used logs, so that a call makes Redis do less.
//!
//! **The time at which the log's expiry was set.** A log is kept for two windows from then; for
//! half a window, the expiry need not be set again.
//!
//! **The oldest entry of the log.** While it is inside the window, no entry has to be purged, and
//! Redis only has to count. The oldest entry of a log can only become newer, so a stale cache can't
//! hide an entry that has left the window. It can only be wrong about when the oldest usage leaves,
//! if another node has returned that usage, and for no longer than [`TRUSTED`].
//!
//! Reading either fact from Redis would cost as much as it saves. A node that has no entry asks
//! Redis, and a reload that changes the window makes a new entry.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use sluicegate_core::time::{Clock as _, Span, Timestamp};

use crate::clock::MonotonicClock;

/// Time for which a cached oldest entry is used.
const TRUSTED: Span = Span::from_secs(1);
/// Number of cache entries.
const ENTRIES: usize = 1 << 15;

/// A cache of fixed size: a log replaces another one whose hash collides.
#[derive(Debug)]
pub(super) struct LogCache {
    entries: Box<[Mutex<LogEntry>]>,
    hasher: RandomState,
    clock: MonotonicClock,
}

/// Facts about one log.
#[derive(Clone, Copy, Debug, Default)]
struct LogEntry {
    /// Hash of the log's name.
    hash: u64,
    window: Span,
    expiry_set_at: Timestamp,
    oldest: Timestamp,
    oldest_read_at: Timestamp,
}

/// Facts about a log that a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogFacts {
    /// Set if the call has to set the log's expiry. The cache then assumes that it does.
    pub(super) expiry_due: bool,
    /// The oldest entry of the log, if it is cached.
    pub(super) oldest: Option<Timestamp>,
}

impl LogCache {
    pub(super) fn new() -> Self {
        Self {
            entries: (0..ENTRIES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            clock: MonotonicClock::new(),
        }
    }

    /// Returns the facts that the next call on a log needs.
    pub(super) fn facts(&self, name: &[u8], window: Span) -> LogFacts {
        self.facts_at(name, window, self.clock.now())
    }

    fn facts_at(&self, name: &[u8], window: Span, now: Timestamp) -> LogFacts {
        self.with_entry(name, |entry, hash| {
            if entry.hash != hash || entry.window != window {
                *entry = LogEntry { hash, window, expiry_set_at: now, ..LogEntry::default() };
                return LogFacts { expiry_due: true, oldest: None };
            }
            let half = Span::from_micros(window.as_micros() / 2);
            let expiry_due = entry.expiry_set_at + half <= now;
            if expiry_due {
                entry.expiry_set_at = now;
            }
            let oldest = (now < entry.oldest_read_at + TRUSTED).then_some(entry.oldest);
            LogFacts { expiry_due, oldest }
        })
    }

    /// Stores the oldest entry of a log.
    pub(super) fn set_oldest(&self, name: &[u8], window: Span, oldest: Timestamp) {
        let oldest_read_at = self.clock.now();
        self.with_entry(name, |entry, hash| {
            if entry.hash == hash && entry.window == window {
                (entry.oldest, entry.oldest_read_at) = (oldest, oldest_read_at);
            }
        });
    }

    /// Removes the oldest entry of a log, because it may have been returned.
    pub(super) fn forget_oldest(&self, name: &[u8]) {
        self.with_entry(name, |entry, hash| {
            if entry.hash == hash {
                entry.oldest_read_at = Timestamp::ZERO;
            }
        });
    }

    fn with_entry<T>(&self, name: &[u8], run: impl FnOnce(&mut LogEntry, u64) -> T) -> T {
        let hash = self.hasher.hash_one(name);
        let entry = &self.entries[hash as usize % ENTRIES];
        run(&mut entry.lock().unwrap_or_else(PoisonError::into_inner), hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Span = Span::from_secs(60);

    #[test]
    fn the_expiry_is_set_again_after_half_a_window_or_when_its_window_changes() {
        let cache = LogCache::new();
        let due = |name: &[u8], window, second| {
            cache.facts_at(name, window, Timestamp::from_secs(second)).expiry_due
        };
        assert!(due(b"a", MINUTE, 100));
        assert!(!due(b"a", MINUTE, 129));
        assert!(due(b"a", MINUTE, 130));
        assert!(due(b"a", Span::from_secs(61), 131));
        assert!(due(b"b", MINUTE, 131));
    }

    #[test]
    fn an_oldest_entry_is_used_for_a_second_unless_it_is_returned() {
        let cache = LogCache::new();
        let oldest = |later| cache.facts_at(b"a", MINUTE, cache.clock.now() + later).oldest;
        let entry = Timestamp::from_secs(50);
        assert_eq!(oldest(Span::ZERO), None);
        cache.set_oldest(b"a", MINUTE, entry);
        assert_eq!(oldest(Span::ZERO), Some(entry));
        assert_eq!(oldest(TRUSTED), None);
        cache.forget_oldest(b"a");
        assert_eq!(oldest(Span::ZERO), None);
        cache.set_oldest(b"unknown", MINUTE, entry);
        assert_eq!(cache.facts_at(b"unknown", MINUTE, entry).oldest, None);
    }
}

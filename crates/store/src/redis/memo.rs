//! What this node remembers of the logs that it asked about lately, to ask for less.
//!
//! **When a log was told to expire.** It lives for two windows from then; as long as that was less
//! than half a window ago, nothing has to be said again.
//!
//! **Its oldest entry.** While that is still in the window, nothing has to be purged, and Redis has
//! to be asked for a number only. The oldest of a log can only become newer, so a memory that is out
//! of date can't hide an entry that has left; all that can be wrong is when the oldest part leaves,
//! if somebody else has taken it back, and that for [`TRUSTED`].
//!
//! Both would cost as much to ask for as they save. A node that knows nothing asks, and a window
//! that was changed by a reload is another.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use sluicegate_core::time::{Clock as _, Span, Timestamp};

use crate::clock::MonotonicClock;

/// How long the oldest entry is taken to be what it was.
const TRUSTED: Span = Span::from_secs(1);
const SLOTS: usize = 1 << 15;

/// A bounded memory: a log that collides with another is forgotten.
#[derive(Debug)]
pub(super) struct Memo {
    slots: Box<[Mutex<Slot>]>,
    hasher: RandomState,
    clock: MonotonicClock,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Of the name.
    hash: u64,
    window: Span,
    told: Timestamp,
    oldest: Timestamp,
    learned: Timestamp,
}

/// What to ask about a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// It has to be told how long to live; from now on it is taken to be told.
    pub(super) expiry_due: bool,
    /// Its oldest entry, if that is known.
    pub(super) oldest: Option<Timestamp>,
}

impl Memo {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            clock: MonotonicClock::new(),
        }
    }

    /// What has to be asked about a log.
    pub(super) fn question(&self, name: &[u8], window: Span) -> Question {
        self.question_at(name, window, self.clock.now())
    }

    fn question_at(&self, name: &[u8], window: Span, now: Timestamp) -> Question {
        self.with(name, |slot, hash| {
            if slot.hash != hash || slot.window != window {
                *slot = Slot { hash, window, told: now, ..Slot::default() };
                return Question { expiry_due: true, oldest: None };
            }
            let half = Span::from_micros(window.as_micros() / 2);
            let expiry_due = slot.told + half <= now;
            if expiry_due {
                slot.told = now;
            }
            let oldest = (now < slot.learned + TRUSTED).then_some(slot.oldest);
            Question { expiry_due, oldest }
        })
    }

    /// Remembers the oldest entry of a log.
    pub(super) fn learn(&self, name: &[u8], window: Span, oldest: Timestamp) {
        let learned = self.clock.now();
        self.with(name, |slot, hash| {
            if slot.hash == hash && slot.window == window {
                (slot.oldest, slot.learned) = (oldest, learned);
            }
        });
    }

    /// Forgets the oldest entry of a log: it may be taken back.
    pub(super) fn forget(&self, name: &[u8]) {
        self.with(name, |slot, hash| {
            if slot.hash == hash {
                slot.learned = Timestamp::ZERO;
            }
        });
    }

    fn with<T>(&self, name: &[u8], run: impl FnOnce(&mut Slot, u64) -> T) -> T {
        let hash = self.hasher.hash_one(name);
        let slot = &self.slots[hash as usize % SLOTS];
        run(&mut slot.lock().unwrap_or_else(PoisonError::into_inner), hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Span = Span::from_secs(60);

    #[test]
    fn a_log_is_told_again_after_half_a_window_or_when_its_window_changes() {
        let memo = Memo::new();
        let due = |name: &[u8], window, second| {
            memo.question_at(name, window, Timestamp::from_secs(second)).expiry_due
        };
        assert!(due(b"a", MINUTE, 100));
        assert!(!due(b"a", MINUTE, 129));
        assert!(due(b"a", MINUTE, 130));
        assert!(due(b"a", Span::from_secs(61), 131));
        assert!(due(b"b", MINUTE, 131));
    }

    #[test]
    fn an_oldest_entry_is_trusted_for_a_second_unless_it_is_taken_back() {
        let memo = Memo::new();
        let oldest = |later| memo.question_at(b"a", MINUTE, memo.clock.now() + later).oldest;
        let entry = Timestamp::from_secs(50);
        assert_eq!(oldest(Span::ZERO), None);
        memo.learn(b"a", MINUTE, entry);
        assert_eq!(oldest(Span::ZERO), Some(entry));
        assert_eq!(oldest(TRUSTED), None);
        memo.forget(b"a");
        assert_eq!(oldest(Span::ZERO), None);
        memo.learn(b"unknown", MINUTE, entry);
        assert_eq!(memo.question_at(b"unknown", MINUTE, entry).oldest, None);
    }
}

//! Which logs this node has told to expire lately.
//!
//! A key is told to live for two windows. As long as that was less than half a window ago, nothing
//! has to be said again, which saves a fifth of the work of a decision. It is remembered here and
//! not in Redis, because asking would cost as much as telling; a node that knows nothing, or whose
//! window has changed by a reload, tells.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::time::{Clock as _, Span, Timestamp};

use crate::clock::MonotonicClock;

/// A bounded memory of names and times: one that collides with another is told once more.
#[derive(Debug)]
pub(super) struct Expiries {
    /// The upper half of a hash of name and window, and the tick at which it is due again.
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
    clock: MonotonicClock,
    origin: Timestamp,
}

const SLOTS: usize = 1 << 15;
/// A tick is 65.5 ms: 32 bits of them last for nine years, and then everything is told each time.
const TICK_BITS: u32 = 16;

impl Expiries {
    pub(super) fn new() -> Self {
        let clock = MonotonicClock::new();
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            origin: clock.now(),
            clock,
        }
    }

    /// Whether a log has to be told how long to live; if so, it is taken to be told.
    pub(super) fn due(&self, name: &[u8], window: Span) -> bool {
        self.due_at(name, window, self.clock.now().since(self.origin))
    }

    fn due_at(&self, name: &[u8], window: Span, since: Span) -> bool {
        let tick = since.as_micros() >> TICK_BITS;
        let hash = self.hasher.hash_one((name, window.as_micros()));
        let slot = &self.slots[hash as usize % SLOTS];
        let known = slot.load(Ordering::Relaxed);
        let (tag, due) = (hash >> 32, known & u64::from(u32::MAX));
        if known >> 32 == tag && tick < due {
            return false;
        }
        let next = tick + (window.as_micros() >> (TICK_BITS + 1));
        slot.store(tag << 32 | next.min(u64::from(u32::MAX)), Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_told_again_after_half_a_window_or_when_its_window_changes() {
        let expiries = Expiries::new();
        let minute = Span::from_secs(60);
        let due =
            |name: &[u8], window, second| expiries.due_at(name, window, Span::from_secs(second));
        assert!(due(b"a", minute, 100));
        assert!(!due(b"a", minute, 129));
        assert!(due(b"a", minute, 131));
        assert!(due(b"a", Span::from_secs(61), 132));
        assert!(due(b"b", minute, 132));
        let years = 10 * 366 * 86_400;
        assert!(due(b"a", minute, years) && due(b"a", minute, years), "the count has run out");
    }
}

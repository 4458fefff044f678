//! What is counted of every question, for whoever looks.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate_core::time::Span;

use super::failure::Failure;

/// What Redis is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// See [`sluicegate_core::Store::acquire`].
    Acquire,
    /// See [`sluicegate_core::Store::peek`].
    Peek,
    /// See [`sluicegate_core::Store::book`].
    Book,
    /// See [`sluicegate_core::Store::claim`].
    Claim,
    /// See [`sluicegate_core::Store::cancel`].
    Cancel,
    /// See [`sluicegate_core::Store::settle`].
    Settle,
    /// See [`sluicegate_core::Store::release`].
    Release,
    /// See [`sluicegate_core::Store::renew`].
    Renew,
    /// See [`sluicegate_core::Store::refund`].
    Refund,
    /// See [`sluicegate_core::Store::close`].
    Close,
    /// See [`sluicegate_core::Store::reset`].
    Reset,
    /// See [`sluicegate_core::Store::usage`].
    Usage,
    /// See [`sluicegate_core::shelf::Shelf`].
    Shelf,
}

impl Asked {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 13] = [
        (Self::Acquire, "acquire"),
        (Self::Peek, "peek"),
        (Self::Book, "book"),
        (Self::Claim, "claim"),
        (Self::Cancel, "cancel"),
        (Self::Settle, "settle"),
        (Self::Release, "release"),
        (Self::Renew, "renew"),
        (Self::Refund, "refund"),
        (Self::Close, "close"),
        (Self::Reset, "reset"),
        (Self::Usage, "usage"),
        (Self::Shelf, "shelf"),
    ];
}

/// What was counted of one operation.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Its name.
    pub operation: &'static str,
    /// Attempts that failed, by a word for why.
    pub errors: Vec<(&'static str, u64)>,
    /// How many questions took no longer than so many microseconds and longer than the bound
    /// before, retries included; the last bound is `u64::MAX`.
    pub took: Vec<(u64, u64)>,
    /// How long all of them took together.
    pub micros: u64,
}

/// A promise of 20 ms and a deadline of 45 have to be seen in them.
const BOUNDS_US: [u64; 12] =
    [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 45_000, 100_000, 1_000_000, u64::MAX];

const WORDS: [&str; 6] = ["down", "not_ready", "cut", "timeout", "refused", "moved"];

#[derive(Debug, Default)]
struct Counts {
    took: [AtomicU64; BOUNDS_US.len()],
    micros: AtomicU64,
    errors: [AtomicU64; WORDS.len()],
}

/// The counts of all operations.
#[derive(Debug, Default)]
pub(super) struct Tally([Counts; Asked::ALL.len()]);

impl Tally {
    /// A question has come to its end.
    pub(super) fn took(&self, asked: Asked, latency: Span) {
        let (counts, micros) = (&self.0[asked as usize], latency.as_micros());
        let bucket = BOUNDS_US.iter().take_while(|&&bound| micros > bound).count();
        counts.took[bucket].fetch_add(1, Relaxed);
        counts.micros.fetch_add(micros, Relaxed);
    }

    /// An attempt has failed.
    pub(super) fn failed(&self, asked: Asked, failure: &Failure) {
        let word = match failure {
            Failure::Down => 0,
            Failure::NotReady(_) => 1,
            Failure::Cut => 2,
            Failure::Late => 3,
            Failure::Refused(_) => 4,
            Failure::Moved(_) | Failure::Ask(_) => 5,
        };
        self.0[asked as usize].errors[word].fetch_add(1, Relaxed);
    }

    /// All that was counted.
    pub(super) fn read(&self) -> Vec<Counted> {
        let read = |((_, operation), counts): ((Asked, &'static str), &Counts)| Counted {
            operation,
            errors: WORDS.into_iter().zip(counts.errors.iter().map(|n| n.load(Relaxed))).collect(),
            took: BOUNDS_US.into_iter().zip(counts.took.iter().map(|n| n.load(Relaxed))).collect(),
            micros: counts.micros.load(Relaxed),
        };
        Asked::ALL.into_iter().zip(&self.0).map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_counted_under_its_own_name() {
        let tally = Tally::default();
        for (number, (asked, _)) in Asked::ALL.into_iter().enumerate() {
            assert_eq!(asked as usize, number);
        }
        tally.took(Asked::Claim, Span::from_millis(20));
        tally.took(Asked::Claim, Span::from_secs(9));
        tally.failed(Asked::Claim, &Failure::Late);
        let all = tally.read();
        let claim = all.iter().find(|counted| counted.operation == "claim").expect("claim");
        assert!(claim.took.contains(&(20_000, 1)) && claim.took.contains(&(u64::MAX, 1)));
        assert_eq!(claim.micros, 9_020_000);
        assert!(claim.errors.contains(&("timeout", 1)));
        let counted: u64 = all.iter().flat_map(|counted| &counted.took).map(|(_, n)| n).sum();
        assert_eq!(counted, 2);
    }
}

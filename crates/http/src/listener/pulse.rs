//! Whether a connection lives: the server works for it, or something moved on it lately.
//!
//! Neither holds when the client keeps silent, trickles a header, or doesn't read its answers.
//! A handler that takes long, or a stream of answers in which there is nothing to say, does not
//! count as silence: the client can't help it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The state of one connection, written by its requests and read by its owner.
///
/// Atomic because HTTP/2 runs each request as a task of its own.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Requests for which the next step is ours.
    working: AtomicUsize,
    /// Grows with every request and every part of an answer.
    beats: AtomicU64,
}

impl Pulse {
    /// No request has come yet.
    pub(super) fn is_unborn(&self) -> bool {
        self.beats.load(Relaxed) == 0
    }

    /// Whether nothing happened since the last call with the same `seen`.
    pub(super) fn is_still(&self, seen: &mut u64) -> bool {
        let beats = self.beats.load(Relaxed);
        let before = std::mem::replace(seen, beats);
        before == beats && self.working.load(Relaxed) == 0
    }

    fn beat(&self) {
        self.beats.fetch_add(1, Relaxed);
    }
}

/// A request's share of the pulse.
#[derive(Debug)]
pub(super) struct Work {
    pulse: Arc<Pulse>,
    is_ours: bool,
}

impl Work {
    /// A request came in: the next step is ours.
    pub(super) fn start(pulse: &Arc<Pulse>) -> Self {
        pulse.beat();
        let mut work = Self { pulse: Arc::clone(pulse), is_ours: false };
        work.ours();
        work
    }

    /// The client waits for us.
    pub(super) fn ours(&mut self) {
        if !std::mem::replace(&mut self.is_ours, true) {
            self.pulse.working.fetch_add(1, Relaxed);
        }
    }

    /// A part of the answer is on its way: the client has to take it.
    pub(super) fn theirs(&mut self) {
        self.pulse.beat();
        self.rest();
    }

    fn rest(&mut self) {
        if std::mem::replace(&mut self.is_ours, false) {
            self.pulse.working.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_requests_is_unborn_and_still() {
        let pulse = Pulse::default();
        assert!(pulse.is_unborn());
        assert!(pulse.is_still(&mut 0));
    }

    #[test]
    fn work_of_ours_is_life_however_long_it_takes() {
        let pulse = Arc::new(Pulse::default());
        let mut work = Work::start(&pulse);
        let seen = &mut 0;
        assert!(!pulse.is_unborn());
        assert!(!pulse.is_still(seen));
        assert!(!pulse.is_still(seen));

        work.theirs();
        assert!(!pulse.is_still(seen), "an answer has moved");
        assert!(pulse.is_still(seen), "nobody takes it");

        work.ours();
        assert!(!pulse.is_still(seen));
        drop(work);
        assert!(pulse.is_still(seen));
    }
}

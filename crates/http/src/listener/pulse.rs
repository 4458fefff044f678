//! [`Pulse`] detects idle connections. A connection is active if the server works on one of its
//! requests, or if data moved on it recently.
//!
//! It is idle if the client sends nothing, sends a header too slowly, or does not read its
//! responses. A slow handler, or a response stream without new data, does not count as idle: the
//! client cannot help it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Activity of one connection, written by its requests and read by its owner.
///
/// Atomic because HTTP/2 runs each request as a separate task.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Number of requests that wait for the server.
    working: AtomicUsize,
    /// Number of requests and response frames so far.
    beats: AtomicU64,
}

impl Pulse {
    /// Returns true if no request has arrived yet.
    pub(super) fn is_unborn(&self) -> bool {
        self.beats.load(Relaxed) == 0
    }

    /// Returns true if nothing happened since the last call with the same `seen`.
    pub(super) fn is_still(&self, seen: &mut u64) -> bool {
        let beats = self.beats.load(Relaxed);
        let before = std::mem::replace(seen, beats);
        before == beats && self.working.load(Relaxed) == 0
    }

    fn beat(&self) {
        self.beats.fetch_add(1, Relaxed);
    }
}

/// The activity of one request.
#[derive(Debug)]
pub(super) struct Work {
    pulse: Arc<Pulse>,
    is_ours: bool,
}

impl Work {
    /// Records a new request, which waits for the server.
    pub(super) fn start(pulse: &Arc<Pulse>) -> Self {
        pulse.beat();
        let mut work = Self { pulse: Arc::clone(pulse), is_ours: false };
        work.ours();
        work
    }

    /// Records that the client waits for the server.
    pub(super) fn ours(&mut self) {
        if !std::mem::replace(&mut self.is_ours, true) {
            self.pulse.working.fetch_add(1, Relaxed);
        }
    }

    /// Records a response frame, which now waits for the client to read it.
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
        assert!(pulse.is_still(seen), "the client does not read it");

        work.ours();
        assert!(!pulse.is_still(seen));
        drop(work);
        assert!(pulse.is_still(seen));
    }
}

//! [`Activity`] detects idle connections. A connection is active if the server works on one of its
//! requests, or if data moved on it recently.
//!
//! It is idle if the client sends nothing, sends a header too slowly, or does not read its
//! responses. A slow handler, or a response stream without new data, does not count as idle: the
//! client cannot help it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Activity of one connection, written by its requests and read by its owner.
///
/// Atomic because HTTP/2 runs each request as a separate task.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Number of requests that wait for the server.
    working: AtomicUsize,
    /// Number of requests and response frames so far.
    events: AtomicU64,
    /// True if the application has responded since the last write.
    responded: AtomicBool,
}

impl Activity {
    /// Returns true if no request has arrived yet.
    pub(super) fn has_no_requests(&self) -> bool {
        self.events.load(Relaxed) == 0
    }

    /// Returns true if nothing happened since the last call with the same `seen`.
    pub(super) fn is_idle(&self, seen: &mut u64) -> bool {
        let events = self.events.load(Relaxed);
        let before = std::mem::replace(seen, events);
        before == events && self.working.load(Relaxed) == 0
    }

    /// Records that the application has responded; the response is written next.
    pub(super) fn respond(&self) {
        self.responded.store(true, Relaxed);
    }

    /// Returns true if the application has responded since the last write.
    pub(super) fn has_responded(&self) -> bool {
        self.responded.load(Relaxed)
    }

    /// Records a write.
    pub(super) fn write(&self) {
        if self.responded.load(Relaxed) {
            self.responded.store(false, Relaxed);
        }
    }

    fn record(&self) {
        self.events.fetch_add(1, Relaxed);
    }
}

/// The activity of one request.
#[derive(Debug)]
pub(super) struct RequestActivity {
    activity: Arc<Activity>,
    is_working: bool,
}

impl RequestActivity {
    /// Records a new request, which waits for the server.
    pub(super) fn start(activity: &Arc<Activity>) -> Self {
        activity.record();
        let mut work = Self { activity: Arc::clone(activity), is_working: false };
        work.wait_for_server();
        work
    }

    /// Records that the client waits for the server.
    pub(super) fn wait_for_server(&mut self) {
        if !std::mem::replace(&mut self.is_working, true) {
            self.activity.working.fetch_add(1, Relaxed);
        }
    }

    /// Records that the application has responded.
    pub(super) fn respond(&self) {
        self.activity.respond();
    }

    /// Records a response frame, which now waits for the client to read it.
    pub(super) fn wait_for_client(&mut self) {
        self.activity.record();
        self.stop_working();
    }

    fn stop_working(&mut self) {
        if std::mem::replace(&mut self.is_working, false) {
            self.activity.working.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for RequestActivity {
    fn drop(&mut self) {
        self.stop_working();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_requests_is_idle() {
        let activity = Activity::default();
        assert!(activity.has_no_requests());
        assert!(activity.is_idle(&mut 0));
    }

    #[test]
    fn a_request_in_progress_is_activity_however_long_it_takes() {
        let activity = Arc::new(Activity::default());
        let mut work = RequestActivity::start(&activity);
        let seen = &mut 0;
        assert!(!activity.has_no_requests());
        assert!(!activity.is_idle(seen));
        assert!(!activity.is_idle(seen));

        work.wait_for_client();
        assert!(!activity.is_idle(seen), "a response frame was sent");
        assert!(activity.is_idle(seen), "the client does not read it");

        work.wait_for_server();
        assert!(!activity.is_idle(seen));
        drop(work);
        assert!(activity.is_idle(seen));
    }
}

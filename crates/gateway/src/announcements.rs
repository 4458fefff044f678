//! [`Announcements`]: the limits that an upstream has announced to this replica, for the dashboard.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_core::time::{Span, Timestamp};
use sluicegate_vendors::{AnnouncedWindow, UpstreamResponse};

/// Minimum time between two records: many upstreams announce their limits in every response.
const RECORD_INTERVAL: Span = Span::from_secs(1);

/// The last announcements of the upstream of a route.
#[derive(Debug, Default)]
pub(crate) struct Announcements(Mutex<RouteAnnouncements>);

/// The last announcements of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteAnnouncements {
    /// Time of the response that described the windows, by the clock of this node.
    pub seen: Option<Timestamp>,
    /// The windows.
    pub windows: Vec<AnnouncedWindow>,
    /// The last pause that it asked for: its end by the clock of the store, and the reason.
    pub pause: Option<(Timestamp, String)>,
}

impl Announcements {
    /// Records the windows in a response, at most one response per second.
    pub(crate) fn record(&self, response: &UpstreamResponse<'_>) {
        let mut last = self.lock();
        if last.seen.is_some_and(|seen| response.at.since(seen) < RECORD_INTERVAL) {
            return;
        }
        let windows = sluicegate_vendors::announced(response);
        if !windows.is_empty() {
            last.windows = windows;
            last.seen = Some(response.at);
        }
    }

    /// Records a pause. A pause that ends before the last one changes nothing, as in the store.
    pub(crate) fn closed(&self, until: Timestamp, reason: String) {
        let mut last = self.lock();
        if last.pause.as_ref().is_none_or(|(known, _)| *known <= until) {
            last.pause = Some((until, reason));
        }
    }

    pub(crate) fn read(&self) -> RouteAnnouncements {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, RouteAnnouncements> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_windows_are_recorded_once_a_second_and_the_longest_pause_stays() {
        let announcements = Announcements::default();
        let seen = |remaining: &str, at: u64| {
            let headers = [("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", remaining)];
            let at = Timestamp::from_millis(at);
            announcements.record(&UpstreamResponse {
                status: 200,
                headers: &headers,
                body: &[],
                at,
            });
            announcements.read().windows[0].to_string()
        };
        assert_eq!(seen("59", 1_000_000), "requests: 59 of 60 left");
        assert_eq!(seen("58", 1_000_999), "requests: 59 of 60 left");
        assert_eq!(seen("57", 1_001_000), "requests: 57 of 60 left");
        announcements.closed(Timestamp::from_secs(20), "status 429".to_owned());
        announcements.closed(Timestamp::from_secs(10), "status 503".to_owned());
        let pause = announcements.read().pause;
        assert_eq!(pause, Some((Timestamp::from_secs(20), "status 429".to_owned())));
    }
}

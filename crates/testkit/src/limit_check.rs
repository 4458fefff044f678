//! Checks that a limit was kept: by the times of the store, and by the arrival times at the
//! provider.

use sluicegate_checker::Checker;
use sluicegate_core::{Limit, Span, Timestamp};

/// Returns the longest delay between an admission and the arrival of its request.
#[track_caller]
pub fn longest_delay(admits: &[Timestamp], arrivals: &[Timestamp]) -> Span {
    assert_eq!(admits.len(), arrivals.len(), "every admitted request arrived, and no other");
    let delays = admits.iter().zip(arrivals).map(|(admit, arrival)| arrival.since(*admit));
    delays.max().unwrap_or(Span::ZERO)
}

/// Checks that no window of a limit has more admissions than it allows.
#[track_caller]
pub fn assert_limit(limit: &str, times: &[Timestamp]) {
    let parsed: Limit = limit.parse().unwrap_or_else(|error| panic!("{limit}: {error}"));
    let mut checker = Checker::new();
    checker.scope("limit", parsed).expect("a scope");
    for at in times {
        checker.admit("limit", *at, 1).expect("an event");
    }
    let verdict = checker.check().expect("events").proven();
    verdict.unwrap_or_else(|violation| panic!("{limit}: {violation}"));
}

/// Checks arrivals at a server that were delayed by up to `delay` after their admission.
///
/// Arrivals can be closer together than their admissions: a request with the longest delay may be
/// followed by one without any. So at most `amount` requests may arrive in a window of the length
/// `window - delay`.
#[track_caller]
pub fn assert_arrivals(amount: usize, window: Span, delay: Span, arrivals: &[Timestamp]) {
    let left = window.as_micros().saturating_sub(delay.as_micros());
    assert!(left > 0, "a delay of {delay} leaves nothing of the window {window} to check");
    assert_limit(&format!("{amount}/{left}us"), arrivals);
}

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
    checker.scope("judged", parsed).expect("a scope");
    for at in times {
        checker.admit("judged", *at, 1).expect("an event");
    }
    let verdict = checker.check().expect("events").proven();
    verdict.unwrap_or_else(|violation| panic!("{limit}: {violation}"));
}

/// Checks that at most `amount` requests arrived in any window that is shorter by the longest
/// delay: a request with that delay may be followed by one without a delay.
#[track_caller]
pub fn assert_arrivals(amount: usize, window: Span, delay: Span, arrivals: &[Timestamp]) {
    let left = window.as_micros().saturating_sub(delay.as_micros());
    assert!(left > 0, "a delay of {delay} leaves nothing of the window {window} to check");
    assert_limit(&format!("{amount}/{left}us"), arrivals);
}

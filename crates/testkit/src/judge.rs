//! Proofs that a limit was kept: by the store's own times, and by what arrived where the work went.

use sluicegate_checker::Checker;
use sluicegate_core::{Limit, Span, Timestamp};

/// The longest way from the store to where the work arrived.
#[track_caller]
pub fn longest_way(admits: &[Timestamp], arrivals: &[Timestamp]) -> Span {
    assert_eq!(admits.len(), arrivals.len(), "each that was let through arrived, and no other");
    let ways = admits.iter().zip(arrivals).map(|(admit, arrival)| arrival.since(*admit));
    ways.max().unwrap_or(Span::ZERO)
}

/// Proves that no window of a limit has more than it allows.
#[track_caller]
pub fn judge(limit: &str, times: &[Timestamp]) {
    let parsed: Limit = limit.parse().unwrap_or_else(|error| panic!("{limit}: {error}"));
    let mut checker = Checker::new();
    checker.scope("judged", parsed).expect("a scope");
    for at in times {
        checker.admit("judged", *at, 1).expect("an event");
    }
    let verdict = checker.check().expect("events").proven();
    verdict.unwrap_or_else(|violation| panic!("{limit}: {violation}"));
}

/// Proves that no more arrived than `amount` in any window that is shorter by the longest way:
/// work that took it may be followed by work that took none.
#[track_caller]
pub fn judge_arrivals(amount: usize, window: Span, way: Span, arrivals: &[Timestamp]) {
    let left = window.as_micros().saturating_sub(way.as_micros());
    assert!(left > 0, "a way of {way} leaves nothing of {window} to be judged");
    judge(&format!("{amount}/{left}us"), arrivals);
}

//! Checks that a limit was kept: by the times of the store, and by the arrival times at the
//! provider.

use std::fmt;

use sluicegate_checker::{CheckedScope, Checker};
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

/// Checks arrivals at a server that were delayed by up to `delay` after starts that a token bucket spaces:
/// in any time T at most its capacity + rate · (T + `delay`) may arrive.
#[track_caller]
pub fn assert_bucket_arrivals(limit: &str, delay: Span, arrivals: &[Timestamp]) {
    let bucket: Limit = limit.parse().unwrap_or_else(|error| panic!("{limit}: {error}"));
    let mut checker = Checker::new();
    checker.scope("vendor", CheckedScope::new(bucket).spread(delay)).expect("a scope");
    for at in arrivals {
        checker.admit("vendor", *at, 1).expect("an event");
    }
    let verdict = checker.check().expect("events").proven();
    verdict.unwrap_or_else(|violation| panic!("{limit}: {violation}"));
}

/// The requests that arrived too early for a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Early {
    /// Number of these requests.
    pub count: usize,
    /// Longest time by which one was too early.
    pub by: Span,
}

impl Early {
    fn add(&mut self, by: Span) {
        self.count += usize::from(by > Span::ZERO);
        self.by = self.by.max(by);
    }
}

impl fmt::Display for Early {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, by {}", self.count, self.by)
    }
}

/// Returns the requests that arrived too early for a limit: none if the limit was kept in every
/// interval.
pub fn early(limit: &str, arrivals: &[Timestamp]) -> Early {
    let mut early = Early::default();
    match limit.parse() {
        Ok(Limit::Bucket { rate, capacity }) => {
            let interval = rate.window.span().as_micros() / rate.amount.get();
            let room = Span::from_micros((capacity.get() - 1) * interval);
            // Time at which the bucket is empty.
            let mut empty = Timestamp::ZERO;
            for at in arrivals {
                early.add((empty - room).since(*at));
                empty = empty.max(*at) + Span::from_micros(interval);
            }
        }
        Ok(limit) => {
            let amount = usize::try_from(limit.amount().get()).expect("a small limit");
            for (first, next) in arrivals.iter().zip(arrivals.iter().skip(amount)) {
                early.add(limit.window().saturating_sub(next.since(*first)));
            }
        }
        Err(error) => panic!("{limit}: {error}"),
    }
    early
}

//! [`Report`]: the result of checking a log.

use std::cmp::Reverse;
use std::fmt;

use super::CheckedScope;
use sluicegate_core::limit::Unit;
use sluicegate_core::time::{Span, Timestamp};

/// Result of a check, with one verdict per scope: by key in the order in which keys were added,
/// then by scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The verdicts.
    pub verdicts: Vec<ScopeVerdict>,
}

impl Report {
    /// Returns the first violation of every scope that has one.
    pub fn violations(&self) -> impl Iterator<Item = Violation> {
        self.verdicts.iter().filter_map(ScopeVerdict::violation)
    }

    /// Returns the report if no scope was exceeded, otherwise the first violation.
    pub fn proven(self) -> Result<Self, Box<Violation>> {
        let first = self.violations().next();
        first.map_or(Ok(self), |violation| Err(Box::new(violation)))
    }
}

/// Prints one line per scope.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verdicts.iter().try_for_each(|v| writeln!(f, "{v}"))
    }
}

/// Result for one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeVerdict {
    /// The key.
    pub key: Box<str>,
    /// The checked scope.
    pub scope: CheckedScope,
    /// Number of checked admissions; for a concurrent limit, of leases.
    pub events: usize,
    /// The largest sums so far at any time. Empty if there were no events.
    pub peaks: Peaks,
    /// The first sum that exceeds its bound.
    pub first: Option<Finding>,
    /// Number of windows, intervals, periods or instants above their bound, of those that end with
    /// an event.
    pub exceeded: u64,
}

impl ScopeVerdict {
    /// Returns the sum that exceeds its bound the most, or comes nearest to it. `None` if there were
    /// no events.
    pub fn worst(&self) -> Option<Finding> {
        self.peaks.until(Timestamp::MAX)
    }

    /// Returns the first violation, if there is one.
    pub fn violation(&self) -> Option<Violation> {
        self.first.map(|finding| Violation {
            key: self.key.clone(),
            scope: self.scope.clone(),
            finding,
        })
    }
}

/// Formats it as `K: proven: 73 events, at most 10 admitted in (…, …] where 10/h allows 10`.
impl fmt::Display for ScopeVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, scope, .. } = self;
        if let Some(violation) = self.violation() {
            return write!(f, "{violation}, the first of {}", self.exceeded);
        }
        match self.worst() {
            None => write!(f, "{key}: proven: no events under {scope}"),
            Some(worst) => {
                let events = self.events;
                let worst = worst.in_words(scope);
                write!(f, "{key}: proven: {events} events, at most {worst}")
            }
        }
    }
}

/// The running maximum of a scope: each sum exceeds its bound by more, or comes closer to it, than
/// all sums before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peaks(Vec<(Timestamp, Finding)>);

impl Peaks {
    /// Adds the sum as of `at`, which is no earlier than that of any peak.
    pub(super) fn add(&mut self, at: Timestamp, finding: Finding) {
        if self.0.last().is_none_or(|(_, worst)| finding.is_worse_than(*worst)) {
            self.0.push((at, finding));
        }
    }

    /// Adds the peaks of another check of the same scope.
    pub fn merge(&mut self, other: Self) {
        let mut all = std::mem::take(&mut self.0);
        all.extend(other.0);
        all.sort_by_key(|(at, _)| *at);
        for (at, finding) in all {
            self.add(at, finding);
        }
    }

    /// Returns the worst sum of the events until `at`. `None` if there were none.
    pub fn until(&self, at: Timestamp) -> Option<Finding> {
        let later = self.0.partition_point(|(time, _)| *time <= at);
        later.checked_sub(1).map(|last| self.0[last].1)
    }
}

/// A limit that was exceeded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {}", finding.in_words(scope))]
pub struct Violation {
    /// The key.
    pub key: Box<str>,
    /// The checked scope.
    pub scope: CheckedScope,
    /// The sum that exceeds the limit.
    pub finding: Finding,
}

/// A sum, its interval and the allowed maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The interval.
    pub interval: Interval,
    /// Amount admitted or held.
    pub sum: u128,
    /// Maximum allowed.
    pub allowed: u128,
}

impl Finding {
    /// Returns true if the sum is larger than allowed.
    pub const fn exceeds(self) -> bool {
        self.sum > self.allowed
    }

    pub(super) fn is_worse_than(self, other: Self) -> bool {
        let rank = |it: Self| {
            let over = it.sum.saturating_sub(it.allowed);
            (over, Reverse(it.allowed.saturating_sub(it.sum)))
        };
        rank(self) > rank(other)
    }

    /// Formats it as `101 admitted in (12:00, 13:00] where 100/h allows 100`.
    fn in_words(self, scope: &CheckedScope) -> impl fmt::Display {
        let unit = scope.limit.unit();
        let (sum, allowed) = (Quantity(self.sum, unit), Number(self.allowed, unit));
        fmt::from_fn(move |f| match self.interval {
            Interval::Instant(at) => {
                write!(f, "{} held at {at} where {scope} allows {allowed}", self.sum)
            }
            interval => write!(f, "{sum} admitted in {interval} where {scope} allows {allowed}"),
        })
    }
}

/// Interval of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// A rolling window, without its start: (until − length, until].
    Window {
        /// Its last instant.
        until: Timestamp,
        /// Its length.
        length: Span,
    },
    /// An interval of any length, with both ends: [from, until].
    Stretch {
        /// Its first instant.
        from: Timestamp,
        /// Its last instant.
        until: Timestamp,
    },
    /// A calendar period, without its end: [from, until).
    Period {
        /// Its first instant.
        from: Timestamp,
        /// The first instant of the next one.
        until: Timestamp,
    },
    /// One instant.
    Instant(Timestamp),
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Window { until, length } => {
                write!(f, "({}, {until}]", WindowStart(until, length))
            }
            Self::Stretch { from, until } => write!(f, "[{from}, {until}]"),
            Self::Period { from, until } => write!(f, "[{from}, {until})"),
            Self::Instant(at) => at.fmt(f),
        }
    }
}

/// Start of a window. If a clock starts at zero, windows begin before 1970, which a [`Timestamp`]
/// can't represent.
struct WindowStart(Timestamp, Span);

impl fmt::Display for WindowStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(until, length) = *self;
        let micros = i128::from(until.as_micros()) - i128::from(length.as_micros());
        let at = i64::try_from(micros).ok();
        match at.and_then(|at| jiff::Timestamp::from_microsecond(at).ok()) {
            Some(at) => at.fmt(f),
            None => write!(f, "{micros}us"),
        }
    }
}

/// A number in the notation of its unit: money in dollars.
struct Number(u128, Unit);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NANOS: u128 = 1_000_000_000;
        let Self(number, unit) = *self;
        if unit != Unit::Usd {
            return number.fmt(f);
        }
        // A sum of money may be larger than the maximum of `Money`, and has to be printed anyway.
        let fraction = format!("{:09}", number % NANOS);
        let significant = fraction.trim_end_matches('0').len().max(2);
        write!(f, "{}.{}", number / NANOS, &fraction[..significant])
    }
}

/// A number with its unit; requests have none.
struct Quantity(u128, Unit);

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = Number(self.0, self.1);
        match self.1 {
            Unit::Requests => number.fmt(f),
            unit => write!(f, "{number} {unit}"),
        }
    }
}

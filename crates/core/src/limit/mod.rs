//! [`Limit`]: one limit, written in a configuration as `<amount> [unit] / <window> [shape]`.
//!
//! | text | meaning |
//! |---|---|
//! | `100/h` | 100 requests in any hour, by an exact log |
//! | `20000 tokens/min` | tokens in any minute, counted in hundredths of the window |
//! | `5.00 USD/day` | dollars in any 24 hours |
//! | `25/s burst 50` | a token bucket of 50, refilled at 25 a second |
//! | `25/s smooth` | the same as `burst 1`: evenly spaced |
//! | `500/calendar day Europe/Berlin` | from midnight to midnight in that time zone |
//! | `500/fixed min` | per minute of the clock |
//! | `100 concurrent` | at most 100 at the same time |
//! | `0` | a ban: nothing at all |
//!
//! A rate of zero, an empty window or a shape that does not fit the window can't be represented, so
//! only the parser checks for them. A ban is a variant of its own, because no algorithm can measure
//! a rate of zero.

mod calendar;
mod grammar;

use std::fmt;

pub use calendar::{Boundaries, Calendar, Period};
pub use grammar::LimitError;
use serde::{Deserialize, Serialize};

use crate::time::{EXACT_MAX, Span, Timestamp};

/// Unit that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// Requests.
    Requests,
    /// Input and output tokens together.
    Tokens,
    /// Tokens sent to a model.
    InputTokens,
    /// Tokens received from a model.
    OutputTokens,
    /// Money, in nano-dollars.
    Usd,
    /// Requests in progress at the same time.
    Slots,
}

impl Unit {
    /// Every unit that is allowed before the `/` of a limit.
    pub const RATED: [Self; 5] =
        [Self::Requests, Self::Tokens, Self::InputTokens, Self::OutputTokens, Self::Usd];

    /// Returns its name in a limit.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::Usd => "USD",
            Self::Slots => "concurrent",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Amount of a limit: at least 1, at most [`EXACT_MAX`]. Only a ban has the amount zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(u64);

impl Amount {
    /// The smallest amount.
    pub const ONE: Self = Self(1);
    /// The amount of a [ban](Limit::Banned).
    const NONE: Self = Self(0);

    /// Creates an amount, or `None` if `n` is zero or can't be counted exactly.
    pub const fn new(n: u64) -> Option<Self> {
        if n == 0 || n > EXACT_MAX { None } else { Some(Self(n)) }
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Length of a rolling window, from [`Window::MIN`] to [`Window::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window(Span);

impl Window {
    /// The shortest window. Shorter ones are below the delays of a network.
    pub const MIN: Self = Self(Span::from_millis(1));
    /// The longest window: a leap year.
    pub const MAX: Self = Self(Span::from_secs(366 * 86_400));

    /// Creates a window of this length, or `None` if it is too short or too long.
    pub fn new(span: Span) -> Option<Self> {
        (Self::MIN.0..=Self::MAX.0).contains(&span).then_some(Self(span))
    }

    /// Returns its length.
    pub const fn span(self) -> Span {
        self.0
    }
}

/// Formats it as `min`, `h`, `day` or `5s`, as after the `/` of a limit.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_micros() {
            1_000_000 => f.write_str("s"),
            60_000_000 => f.write_str("min"),
            3_600_000_000 => f.write_str("h"),
            86_400_000_000 => f.write_str("day"),
            _ => self.0.fmt(f),
        }
    }
}

/// An amount of a unit per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The amount.
    pub amount: Amount,
    /// The unit.
    pub unit: Unit,
    /// The window.
    pub window: Window,
}

/// One limit. Each variant is counted by another algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A sliding log: exact at every instant.
    Exact(Rate),
    /// A sliding window in hundredths: capacity returns at most 1 % of the window late.
    Windowed(Rate),
    /// A token bucket: at most `capacity` at once, refilled at the rate.
    Bucket {
        /// The refill rate.
        rate: Rate,
        /// Amount of a full bucket.
        capacity: Amount,
    },
    /// A counter per calendar period.
    Calendar {
        /// Amount per period.
        amount: Amount,
        /// The unit.
        unit: Unit,
        /// The periods and their time zone.
        calendar: Calendar,
    },
    /// Maximum number of leases at the same time.
    Concurrent(Amount),
    /// A ban: nothing is admitted. The limiter decides it without the store.
    Banned {
        /// Time at which the ban ends, if it is an override that expires.
        until: Option<Timestamp>,
    },
}

impl Limit {
    /// The limit of a gate: a bucket that is full until the gate opens, and then empty at once. No
    /// settlement counts in its unit.
    pub(crate) const GATE: Self = Self::Bucket {
        rate: Rate {
            amount: Amount(1_000_000),
            unit: Unit::Slots,
            window: Window(Span::from_secs(1)),
        },
        capacity: Amount::ONE,
    };

    /// The rate by which a ban is counted if it does not deny: in shadow rules and tallies.
    pub const BAN: Rate =
        Rate { amount: Amount::NONE, unit: Unit::Requests, window: Window(Span::from_secs(1)) };

    /// Returns true if it admits nothing.
    pub const fn is_ban(&self) -> bool {
        matches!(self, Self::Banned { .. })
    }

    /// Returns the unit that it counts.
    pub const fn unit(&self) -> Unit {
        match self {
            Self::Exact(rate) | Self::Windowed(rate) | Self::Bucket { rate, .. } => rate.unit,
            Self::Calendar { unit, .. } => *unit,
            Self::Concurrent(_) => Unit::Slots,
            Self::Banned { .. } => Unit::Requests,
        }
    }

    /// Returns the maximum amount at one time, which answers report as the limit.
    pub const fn amount(&self) -> Amount {
        match self {
            Self::Exact(rate) | Self::Windowed(rate) => rate.amount,
            Self::Bucket { capacity, .. } => *capacity,
            Self::Calendar { amount, .. } | Self::Concurrent(amount) => *amount,
            Self::Banned { .. } => Amount::NONE,
        }
    }

    /// Returns the sustained amount per window; for a bucket, the amount that is refilled in it.
    pub const fn rate(&self) -> u64 {
        match self {
            Self::Exact(rate) | Self::Windowed(rate) | Self::Bucket { rate, .. } => {
                rate.amount.get()
            }
            Self::Calendar { amount, .. } | Self::Concurrent(amount) => amount.get(),
            Self::Banned { .. } => 0,
        }
    }

    /// Returns the length of the window. It is the longest possible one for a calendar period, and
    /// zero for concurrency and for a ban.
    pub fn window(&self) -> Span {
        match self {
            Self::Exact(rate) | Self::Windowed(rate) | Self::Bucket { rate, .. } => {
                rate.window.span()
            }
            Self::Calendar { calendar, .. } => calendar.period.longest(),
            Self::Concurrent(_) | Self::Banned { .. } => Span::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_and_too_much_are_not_amounts() {
        assert_eq!(Amount::new(0), None);
        assert_eq!(Amount::new(EXACT_MAX + 1), None);
        assert_eq!(Amount::new(EXACT_MAX).map(Amount::get), Some(EXACT_MAX));
    }

    #[test]
    fn a_window_has_a_length() {
        assert_eq!(Window::new(Span::ZERO), None);
        assert_eq!(Window::new(Span::from_micros(999)), None);
        assert_eq!(Window::new(Span::from_secs(367 * 86_400)), None);
        assert!(Window::new(Span::from_secs(1)).is_some());
    }
}

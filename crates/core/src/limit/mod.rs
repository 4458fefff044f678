//! A limit, as it is written in a configuration: `<amount> [unit] / <window> [shape]`.
//!
//! | text | meaning |
//! |---|---|
//! | `100/h` | 100 requests in any hour, by an exact log |
//! | `20000 tokens/min` | tokens in any minute, in hundredths of the window |
//! | `5.00 USD/day` | dollars in any 24 hours |
//! | `25/s burst 50` | a token bucket of 50, refilled at 25 a second |
//! | `25/s smooth` | the same as `burst 1`: evenly spaced |
//! | `500/calendar day Europe/Berlin` | from midnight to midnight there |
//! | `500/fixed min` | in minutes that follow one another, as by the clock |
//! | `100 concurrent` | at most 100 at the same time |
//! | `0` | a ban: nothing at all |
//!
//! A rate of zero, a window of no length, a shape that a window can't have: none of them can be
//! represented, so nothing behind the parser checks for them. A ban is not a rate: it has a variant
//! of its own, which no algorithm measures.

mod calendar;
mod grammar;

use std::fmt;

pub use calendar::{Boundaries, Calendar, Period};
pub use grammar::LimitError;
use serde::{Deserialize, Serialize};

use crate::time::{EXACT_MAX, Span, Timestamp};

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// Pieces of work.
    Requests,
    /// Input and output tokens together.
    Tokens,
    /// Tokens sent to a model.
    InputTokens,
    /// Tokens that a model answered.
    OutputTokens,
    /// Money, in nano-dollars.
    Usd,
    /// Pieces of work under way at the same time.
    Slots,
}

impl Unit {
    /// Every unit that can stand before the `/` of a limit.
    pub const RATED: [Self; 5] =
        [Self::Requests, Self::Tokens, Self::InputTokens, Self::OutputTokens, Self::Usd];

    /// The word of the limit grammar.
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

/// How much a limit gives: at least 1, at most [`EXACT_MAX`]. Only a ban gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(u64);

impl Amount {
    /// The smallest amount.
    pub const ONE: Self = Self(1);
    /// The amount of a [ban](Limit::Banned), and of nothing else.
    const NONE: Self = Self(0);

    /// `n`, unless it is zero or can't be counted exactly.
    pub const fn new(n: u64) -> Option<Self> {
        if n == 0 || n > EXACT_MAX { None } else { Some(Self(n)) }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The length of a rolling window, from [`Window::MIN`] to [`Window::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window(Span);

impl Window {
    /// Shorter windows are below what a network can deliver.
    pub const MIN: Self = Self(Span::from_millis(1));
    /// A leap year.
    pub const MAX: Self = Self(Span::from_secs(366 * 86_400));

    /// A window of this length, if there can be one.
    pub fn new(span: Span) -> Option<Self> {
        (Self::MIN.0..=Self::MAX.0).contains(&span).then_some(Self(span))
    }

    /// Its length.
    pub const fn span(self) -> Span {
        self.0
    }
}

/// `min`, `h`, `day`, `5s`: what stands behind the `/` of a limit.
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

/// So much of a unit in any window of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// How much.
    pub amount: Amount,
    /// Of what.
    pub unit: Unit,
    /// In which time.
    pub window: Window,
}

/// One limit. The variants are the ways in which usage is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A sliding log: at no instant were there more in the last window.
    Exact(Rate),
    /// A sliding window in hundredths: capacity returns at most 1 % of the window late.
    Windowed(Rate),
    /// A token bucket: at most `capacity` at once, refilled at the rate.
    Bucket {
        /// The refill.
        rate: Rate,
        /// What a full bucket holds.
        capacity: Amount,
    },
    /// A counter per calendar period.
    Calendar {
        /// How much in one period.
        amount: Amount,
        /// Of what.
        unit: Unit,
        /// Which periods, in which time zone.
        calendar: Calendar,
    },
    /// Leases held at the same time.
    Concurrent(Amount),
    /// A ban: nothing is admitted. The limiter decides it without the store.
    Banned {
        /// When the ban ends, if it is an override that expires.
        until: Option<Timestamp>,
    },
}

impl Limit {
    /// What a gate is made of: a bucket that is full until the gate opens, and then empty at once.
    /// Nothing that is settled counts in its unit.
    pub(crate) const GATE: Self = Self::Bucket {
        rate: Rate {
            amount: Amount(1_000_000),
            unit: Unit::Slots,
            window: Window(Span::from_secs(1)),
        },
        capacity: Amount::ONE,
    };

    /// The rate by which a ban is counted where it does not deny: in shadow rules and tallies.
    pub const BAN: Rate =
        Rate { amount: Amount::NONE, unit: Unit::Requests, window: Window(Span::from_secs(1)) };

    /// Whether it admits nothing.
    pub const fn is_ban(&self) -> bool {
        matches!(self, Self::Banned { .. })
    }

    /// What it counts.
    pub const fn unit(&self) -> Unit {
        match self {
            Self::Exact(rate) | Self::Windowed(rate) | Self::Bucket { rate, .. } => rate.unit,
            Self::Calendar { unit, .. } => *unit,
            Self::Concurrent(_) => Unit::Slots,
            Self::Banned { .. } => Unit::Requests,
        }
    }

    /// The most that can be had at once: what a scope reports as its limit.
    pub const fn amount(&self) -> Amount {
        match self {
            Self::Exact(rate) | Self::Windowed(rate) => rate.amount,
            Self::Bucket { capacity, .. } => *capacity,
            Self::Calendar { amount, .. } | Self::Concurrent(amount) => *amount,
            Self::Banned { .. } => Amount::NONE,
        }
    }

    /// The length of its window; a calendar period counts as its longest, concurrency and a ban as
    /// none.
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

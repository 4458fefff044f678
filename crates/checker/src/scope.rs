//! What is to be proven of one key: a limit, how many times over, and how far events may have
//! drifted since they were admitted.

use std::fmt;

use super::Malformed;
use sluicegate_core::limit::Limit;
use sluicegate_core::time::Span;

/// A limit and what of it is to be proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub(super) limit: Limit,
    pub(super) bound: Bound,
    pub(super) spread: Span,
}

impl Scope {
    /// The limit itself, by the instants of the store.
    pub const fn new(limit: Limit) -> Self {
        Self { limit, bound: Bound::WHOLE, spread: Span::ZERO }
    }

    /// So many times the limit: what a degraded state promises.
    #[must_use]
    pub const fn bound(mut self, bound: Bound) -> Self {
        self.bound = bound;
        self
    }

    /// The instants were taken at an upstream, and some took longer to get there than others, by
    /// at most `spread`.
    ///
    /// Arrivals less than W − spread apart were admitted less than W apart, so it is the windows
    /// of that length that are proven; a bucket may have refilled for `spread` longer. Where an
    /// instant lies in a calendar, or who held a slot at it, nothing can be said about.
    #[must_use]
    pub const fn spread(mut self, spread: Span) -> Self {
        self.spread = Span::from_micros(spread.as_micros());
        self
    }

    /// The limit.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The most in one window, one period or at one instant; for a bucket, at once.
    pub(super) fn allowed(&self) -> u128 {
        self.bound.of(u128::from(self.limit.amount().get()))
    }

    pub(super) fn verify(&self, key: &str) -> Result<(), Malformed> {
        let (limit, spread) = (&self.limit, self.spread);
        match limit {
            _ if spread == Span::ZERO => Ok(()),
            Limit::Exact(rate) | Limit::Windowed(rate) if spread >= rate.window.span() => {
                Err(Malformed::Spread { key: key.into(), limit: limit.to_string(), spread })
            }
            Limit::Calendar { .. } | Limit::Concurrent(_) => {
                Err(Malformed::NoSpread { key: key.into(), limit: limit.to_string() })
            }
            _ => Ok(()),
        }
    }
}

impl From<Limit> for Scope {
    fn from(limit: Limit) -> Self {
        Self::new(limit)
    }
}

/// `100/h`, `3/2 of 100/h`, `100/h with a spread of 20ms`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bound != Bound::WHOLE {
            write!(f, "{} of ", self.bound)?;
        }
        self.limit.fmt(f)?;
        if self.spread != Span::ZERO {
            write!(f, " with a spread of {}", self.spread)?;
        }
        Ok(())
    }
}

/// How many times a limit, as an exact ratio: 1 + 1/2 while the store can't be reached, 2 after
/// a fail-over that lost writes, 0 where nothing may go at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    numerator: u32,
    denominator: u32,
}

impl Bound {
    /// The limit as it is.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };
    /// Neither part may be larger, so that products with it are exact.
    pub const PART_MAX: u32 = 1_000_000;

    /// `numerator / denominator`, unless that is no number or a part is too large.
    pub const fn new(numerator: u32, denominator: u32) -> Option<Self> {
        if denominator == 0 || numerator > Self::PART_MAX || denominator > Self::PART_MAX {
            return None;
        }
        Some(Self { numerator, denominator })
    }

    /// So many times `amount`, rounded down: sums are whole, so nothing is lost.
    fn of(self, amount: u128) -> u128 {
        self.over(amount, 1)
    }

    /// So many times `dividend / divisor`, rounded down once.
    ///
    /// The dividend must be below 2^108.
    pub(super) fn over(self, dividend: u128, divisor: u128) -> u128 {
        u128::from(self.numerator) * dividend / (u128::from(self.denominator) * divisor)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

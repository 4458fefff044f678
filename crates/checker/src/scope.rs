//! [`CheckedScope`]: the guarantee to prove for one key. It consists of a limit, a factor, and the
//! inaccuracy of the recorded times.

use std::fmt;

use super::LogError;
use sluicegate_core::limit::Limit;
use sluicegate_core::time::Span;

/// A limit and the guarantee to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedScope {
    pub(super) limit: Limit,
    pub(super) bound: Bound,
    pub(super) spread: Span,
}

impl CheckedScope {
    /// Creates the scope of the limit itself, for times of the store's clock.
    pub const fn new(limit: Limit) -> Self {
        Self { limit, bound: Bound::WHOLE, spread: Span::ZERO }
    }

    /// Sets the factor of the limit that is guaranteed, such as during an outage.
    #[must_use]
    pub const fn bound(mut self, bound: Bound) -> Self {
        self.bound = bound;
        self
    }

    /// Declares that times were recorded at an upstream, where delays differ by at most `spread`.
    ///
    /// Arrivals less than W − spread apart were admitted less than W apart, so windows of that
    /// length are checked. A bucket may have refilled for `spread` longer. Calendar and concurrency
    /// limits can't be checked with such times.
    #[must_use]
    pub const fn spread(mut self, spread: Span) -> Self {
        self.spread = Span::from_micros(spread.as_micros());
        self
    }

    /// Returns the limit.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the largest allowed sum in one window, in one period or at one instant; for a
    /// bucket, at once.
    pub(super) fn allowed(&self) -> u128 {
        self.bound.of(u128::from(self.limit.amount().get()))
    }

    pub(super) fn verify(&self, key: &str) -> Result<(), LogError> {
        let (limit, spread) = (&self.limit, self.spread);
        match limit {
            _ if spread == Span::ZERO => Ok(()),
            Limit::Exact(rate) | Limit::Windowed(rate) if spread >= rate.window.span() => {
                Err(LogError::Spread { key: key.into(), limit: limit.to_string(), spread })
            }
            Limit::Calendar { .. } | Limit::Concurrent(_) => {
                Err(LogError::NoSpread { key: key.into(), limit: limit.to_string() })
            }
            _ => Ok(()),
        }
    }
}

impl From<Limit> for CheckedScope {
    fn from(limit: Limit) -> Self {
        Self::new(limit)
    }
}

/// Formats it as `100/h`, `3/2 of 100/h` or `100/h with a spread of 20ms`.
impl fmt::Display for CheckedScope {
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

/// Factor of a limit, as an exact ratio: 1 + 1/2 while the store is unreachable, 2 after a failover
/// that lost writes, 0 if nothing may be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    numerator: u32,
    denominator: u32,
}

impl Bound {
    /// The limit itself.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };
    /// Maximum of numerator and denominator, which keeps products exact.
    pub const PART_MAX: u32 = 1_000_000;

    /// Creates `numerator / denominator`, or `None` if the denominator is zero or a number is too
    /// large.
    pub const fn new(numerator: u32, denominator: u32) -> Option<Self> {
        if denominator == 0 || numerator > Self::PART_MAX || denominator > Self::PART_MAX {
            return None;
        }
        Some(Self { numerator, denominator })
    }

    /// Returns the product with `amount`, rounded down, which is exact because sums are integers.
    fn of(self, amount: u128) -> u128 {
        self.over(amount, 1)
    }

    /// Returns the product with `dividend / divisor`, rounded down once.
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

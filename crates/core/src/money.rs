//! [`Money`] in whole nano-dollars, and exact [`Price`]s per token.
//!
//! Amounts are never binary floats, because rounding errors such as `0.1 + 0.2` would change a
//! budget.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::time::EXACT_MAX;

const NANOS_PER_USD: u64 = 1_000_000_000;
const ATTOS_PER_NANO: u128 = 1_000_000_000;

/// An amount of US dollars in whole nano-dollars (10⁻⁹ USD), at most about 9 million dollars.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Money(u64);

impl Money {
    /// No money.
    pub const ZERO: Self = Self(0);
    /// The largest amount that can be counted.
    pub const MAX: Self = Self(EXACT_MAX);

    /// Creates an amount of nano-dollars, or `None` if a store can't count it exactly.
    pub const fn from_nanos(nanos: u64) -> Option<Self> {
        if nanos > EXACT_MAX { None } else { Some(Self(nanos)) }
    }

    /// Returns the amount in nano-dollars.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// Formats dollars with at least two decimals and no further trailing zeros: `5.00`, `0.0002606`.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:09}", self.0 % NANOS_PER_USD);
        let significant = fraction.trim_end_matches('0').len().max(2);
        write!(f, "{}.{}", self.0 / NANOS_PER_USD, &fraction[..significant])
    }
}

/// Error of parsing a text that is not an amount of money or a price.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// Not a plain decimal number.
    #[error("{0:?} is not an amount: write a plain decimal such as 5.00 or 0.0002")]
    Form(String),
    /// More decimals than are stored.
    #[error("{text:?} has too many decimals: at most {max} are allowed")]
    Fine {
        /// The text.
        text: String,
        /// Maximum number of decimals.
        max: usize,
    },
    /// An amount that is too large.
    #[error("{0:?} is too large: the maximum is 9,007,199 dollars")]
    Large(String),
    /// A price without its unit.
    #[error(
        "{0:?} is not a price: write dollars per tokens, such as 0.20 USD/1M or 0.0000002 USD/token"
    )]
    Price(String),
}

impl FromStr for Money {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, MoneyError> {
        let nanos = decimal(text, 9)?;
        u64::try_from(nanos)
            .ok()
            .and_then(Self::from_nanos)
            .ok_or_else(|| MoneyError::Large(text.to_owned()))
    }
}

/// Price of one token, exact, in atto-dollars (10⁻¹⁸ USD).
///
/// Atto-dollars represent every published price (the cheapest are around 10⁻⁹ USD per token)
/// without rounding. [`cost`] rounds up once, when tokens become an amount of money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price(u64);

impl Price {
    /// Parses dollars per token as programs write numbers: `2e-07`, `0.0000002`, `1.5E-6`.
    ///
    /// Fractions below 10⁻¹⁸ dollars are rounded up: programs that use binary floats write
    /// `1.2499999999999999e-06`, and no price is that fine.
    pub fn per_token(text: &str) -> Result<Self, MoneyError> {
        let form = || MoneyError::Form(text.to_owned());
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i32 = exponent.parse().map_err(|_| form())?;
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let digits = format!("{whole}{fraction}");
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || fraction.is_empty() || !plain {
            return Err(form());
        }
        let large = || MoneyError::Large(text.to_owned());
        let number: u128 = digits.parse().map_err(|_| large())?;
        // number × 10^power is the price in atto-dollars.
        let power = i64::from(exponent) + 18 - fraction.len() as i64;
        let scale = |power: i64| 10_u128.checked_pow(u32::try_from(power).unwrap_or(u32::MAX));
        let attos = if power >= 0 {
            scale(power).and_then(|scale| number.checked_mul(scale)).filter(|_| number > 0)
        } else {
            // If the divisor is too large for the type, only the rounding remains.
            Some(scale(-power).map_or(u128::from(number > 0), |scale| number.div_ceil(scale)))
        };
        let attos = if number == 0 { Some(0) } else { attos };
        attos.and_then(|attos| u64::try_from(attos).ok()).map(Self).ok_or_else(large)
    }
}

impl FromStr for Price {
    type Err = MoneyError;

    /// Parses `0.20 USD/1M` (per million tokens), `2 USD/1K` or `0.0000002 USD/token`.
    fn from_str(text: &str) -> Result<Self, MoneyError> {
        let form = || MoneyError::Price(text.to_owned());
        let (dollars, unit) = text.split_once("USD").ok_or_else(form)?;
        let shift: usize = match unit.trim().strip_prefix('/').ok_or_else(form)?.trim() {
            "token" => 0,
            "1K" | "1k" => 3,
            "1M" | "1m" => 6,
            _ => return Err(form()),
        };
        // One dollar per 10^shift tokens is 10^(18 - shift) atto-dollars per token.
        let attos = decimal(dollars.trim(), 18 - shift)?;
        u64::try_from(attos).map(Self).map_err(|_| MoneyError::Large(text.to_owned()))
    }
}

/// Returns the cost of several counts of tokens at their prices, rounded up once to a nano-dollar.
///
/// Returns `None` if the total is too large to be counted.
pub fn cost<I: IntoIterator<Item = (u64, Price)>>(parts: I) -> Option<Money> {
    let nanos = attos(parts)?.div_ceil(ATTOS_PER_NANO);
    u64::try_from(nanos).ok().and_then(Money::from_nanos)
}

/// Returns the number of tokens at `price` that `budget` pays for in addition to `parts`, or `None`
/// if `parts` alone cost more. If the price is zero, this is the largest number that can be
/// counted.
pub fn affordable<I: IntoIterator<Item = (u64, Price)>>(
    budget: Money,
    parts: I,
    price: Price,
) -> Option<u64> {
    // A cost is rounded up, so it is within the budget exactly if its atto-dollars are.
    let rest = (u128::from(budget.0) * ATTOS_PER_NANO).checked_sub(attos(parts)?)?;
    let tokens = rest.checked_div(u128::from(price.0)).unwrap_or(u128::MAX);
    Some(u64::try_from(tokens).unwrap_or(u64::MAX).min(EXACT_MAX))
}

fn attos<I: IntoIterator<Item = (u64, Price)>>(parts: I) -> Option<u128> {
    parts.into_iter().try_fold(0_u128, |sum, (tokens, price)| {
        sum.checked_add(u128::from(tokens) * u128::from(price.0))
    })
}

/// Parses `text × 10^places` as an integer, if that is exact.
fn decimal(text: &str, places: usize) -> Result<u128, MoneyError> {
    let form = || MoneyError::Form(text.to_owned());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let has_fraction_mark = whole.len() != text.len();
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return Err(form());
    }
    if has_fraction_mark && fraction.is_empty() {
        return Err(form());
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > places {
        return Err(MoneyError::Fine { text: text.to_owned(), max: places });
    }
    let large = || MoneyError::Large(text.to_owned());
    let digits = format!("{whole}{fraction:0<places$}");
    digits.parse().map_err(|_| large())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(text: &str) -> Price {
        text.parse().expect(text)
    }

    #[test]
    fn the_example_of_the_price_table_is_exact() {
        let (input, output) = (price("0.20 USD/1M"), price("0.60 USD/1M"));
        assert_eq!(input, price("0.0000002 USD/token"));
        let one = cost([(12, input), (856, input), (145, output)]).expect("small");
        assert_eq!(one, "0.00026060".parse().expect("amount"));
        assert_eq!(one.to_string(), "0.0002606");
        assert_eq!(one.as_nanos() * 500, "0.13030".parse::<Money>().expect("amount").as_nanos());
    }

    #[test]
    fn prices_that_programs_write_are_read_exactly() {
        for (text, same) in [
            ("2e-07", "0.20 USD/1M"),
            ("0.0000002", "0.20 USD/1M"),
            ("6E-7", "0.60 USD/1M"),
            ("1.25e-06", "1.25 USD/1M"),
            ("0", "0 USD/1M"),
            ("0.0", "0 USD/1M"),
            ("0e999", "0 USD/1M"),
            ("3e0", "3 USD/token"),
            ("1e-18", "0.000000000000000001 USD/token"),
        ] {
            assert_eq!(Price::per_token(text), Ok(price(same)), "{text}");
        }
        assert_eq!(Price::per_token("1.2499999999999999999e-06"), Ok(price("1.25 USD/1M")));
        assert_eq!(Price::per_token("1e-400"), Ok(Price(1)));
        for text in ["", "-1e-7", "1e", "e-7", "NaN", "1.e-7", ".5", "1e400", "99", "+1", "1e-7x"] {
            assert!(Price::per_token(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn affordable_returns_the_largest_number_that_does_not_cost_more() {
        let (input, output) = (price("0.20 USD/1M"), price("0.70 USD/1M"));
        for budget in [0, 1, 199, 200, 201, 1_000, 123_456_789] {
            let budget = Money::from_nanos(budget).expect("small");
            let Some(most) = affordable(budget, [(1, input)], output) else {
                assert!(cost([(1, input)]) > Some(budget));
                continue;
            };
            assert!(cost([(1, input), (most, output)]) <= Some(budget));
            assert!(cost([(1, input), (most + 1, output)]) > Some(budget));
        }
        assert_eq!(affordable(Money::ZERO, [], Price(0)), Some(EXACT_MAX));
    }

    #[test]
    fn a_cost_is_rounded_up_once() {
        let tiny = price("0.0001 USD/1M");
        assert_eq!(cost([(1, tiny)]), Money::from_nanos(1));
        assert_eq!(cost([(5, tiny), (5, tiny)]), Money::from_nanos(1));
        assert_eq!(cost([(5, tiny), (6, tiny)]), Money::from_nanos(2));
    }

    #[test]
    fn a_cost_that_cannot_be_counted_is_none() {
        assert_eq!(cost([(u64::MAX, price("10 USD/token"))]), None);
        assert_eq!(cost((0..4).map(|_| (u64::MAX, Price(u64::MAX)))), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", ".", "5.", ".5", "-1", "1e3", "1,00", "NaN", "0x10", " 5", "9007200"] {
            assert!(text.parse::<Money>().is_err(), "{text:?}");
        }
        assert!("0.0000000001".parse::<Money>().is_err());
        for text in ["0.2", "0.2 EUR/1M", "0.2 USD", "0.2 USD/1G", "USD/1M"] {
            assert!(text.parse::<Price>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn money_prints_and_reads_back() {
        for nanos in [0, 1, 10, 999_999_999, 1_000_000_000, 5_000_000_001, EXACT_MAX] {
            let money = Money::from_nanos(nanos).expect("in range");
            assert_eq!(money.to_string().parse(), Ok(money));
        }
    }
}

//! [`Timestamp`] and [`Span`]: points in time and durations, in whole microseconds.
//!
//! Nothing in this crate reads a clock: `now` is always an argument. It is the time of the *store*
//! (Redis `TIME`, or the monotonic clock of the memory store), so nodes with different clocks still
//! count in the same window.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The largest integer that every component can store exactly.
///
/// Redis scripts compute in IEEE doubles, which are exact for integers up to 2^53.
pub const EXACT_MAX: u64 = (1 << 53) - 1;

/// A point in time: microseconds since the Unix epoch, by the clock of the store.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(from = "u64")]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const ZERO: Self = Self(0);
    /// The latest representable time.
    pub const MAX: Self = Self(EXACT_MAX);

    /// Creates the time `micros` microseconds after the epoch, at most [`Timestamp::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros > EXACT_MAX { EXACT_MAX } else { micros })
    }

    /// Creates the time `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    /// Creates the time `secs` seconds after the epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Returns the microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Formats it as RFC 3339, for callers that write bytes.
    pub fn rfc3339(self) -> Rfc3339 {
        Rfc3339::new(self)
    }

    /// Returns the time that has passed since `earlier`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// Used for deserialization: limits the number to [`EXACT_MAX`].
impl From<u64> for Timestamp {
    fn from(micros: u64) -> Self {
        Self::from_micros(micros)
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self::from_micros(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A time as text: RFC 3339 in UTC, to the microsecond.
///
/// Formatted by hand, because every response and every line of the decision log contains several.
/// It takes a tenth of the time of a calendar library, against which the tests compare it.
#[derive(Clone, Copy, Debug)]
pub struct Rfc3339 {
    text: [u8; 27],
    length: usize,
}

impl Rfc3339 {
    fn new(at: Timestamp) -> Self {
        const DAY: u64 = 86_400;
        let (seconds, micros) = (at.0 / 1_000_000, at.0 % 1_000_000);
        // The latest time is in the year 2255: four digits are enough.
        let (year, month, day) = civil(seconds / DAY);
        let second = seconds % DAY;
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        for (place, number) in [
            (0, year / 100),
            (2, year % 100),
            (5, month),
            (8, day),
            (11, second / 3_600),
            (14, second / 60 % 60),
            (17, second % 60),
            (20, micros / 10_000),
            (22, micros / 100 % 100),
            (24, micros % 100),
        ] {
            text[place] += (number / 10) as u8;
            text[place + 1] += (number % 10) as u8;
        }
        // Trailing zeros of the fraction are left out, and a whole second has no fraction.
        let mut end = 26;
        while text[end - 1] == b'0' && end > 20 {
            end -= 1;
        }
        let end = if end == 20 { 19 } else { end };
        text[end] = b'Z';
        Self { text, length: end + 1 }
    }

    /// Returns the text, which is ASCII.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

/// RFC 3339 in UTC, to the microsecond.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.rfc3339();
        f.write_str(str::from_utf8(text.as_bytes()).expect("it is ASCII"))
    }
}

/// Parses RFC 3339 in any offset, not before the epoch.
impl std::str::FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let at: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        u64::try_from(at.as_microsecond()).map(Self::from_micros).map_err(|_| TimestampError)
    }
}

/// Error of parsing a text that is not a [`Timestamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a time after 1970: write it as 2026-11-16T08:30:00Z")]
pub struct TimestampError;

/// Returns year, month and day of a number of days since the epoch.
///
/// Years begin in March here, so that the leap day is the last day of its year.
const fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// A duration in microseconds. It may be zero; see [`crate::limit::Window`] for windows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(from = "u64")]
pub struct Span(u64);

impl Span {
    /// Returns the difference, or zero if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The empty duration.
    pub const ZERO: Self = Self(0);

    /// Creates a duration of `micros` microseconds, at most [`EXACT_MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros > EXACT_MAX { EXACT_MAX } else { micros })
    }

    /// Creates a duration of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    /// Creates a duration of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Returns its length in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns its length in whole seconds, rounded up, so that a client that waits this long is
    /// not early.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }
}

/// Used for deserialization: limits the number to [`EXACT_MAX`].
impl From<u64> for Span {
    fn from(micros: u64) -> Self {
        Self::from_micros(micros)
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::from_micros(self.0.saturating_add(other.0))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Duration::from_micros(span.0)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// The largest unit that divides it, as in the limit grammar: `90s`, `2h`, `1500ms`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let (name, unit) = UNITS
            .iter()
            .find(|(_, unit)| self.0.is_multiple_of(*unit))
            .expect("every integer is a multiple of one microsecond");
        write!(f, "{}{name}", self.0 / unit)
    }
}

impl Span {
    /// Formats the span for people: rounded up to seconds, in the two largest units, such as `59m
    /// 20s`.
    pub fn in_words(self) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            if self.0 < 1_000_000 {
                return write!(f, "{}ms", self.0.div_ceil(1_000));
            }
            let seconds = self.as_secs_ceil();
            let parts = [
                (seconds / 86_400, "d"),
                (seconds / 3_600 % 24, "h"),
                (seconds / 60 % 60, "m"),
                (seconds % 60, "s"),
            ];
            let first = parts.iter().position(|(number, _)| *number > 0).unwrap_or(parts.len() - 1);
            let shown = parts[first..].iter().take(2).filter(|(number, _)| *number > 0);
            for (place, (number, unit)) in shown.enumerate() {
                let space = if place == 0 { "" } else { " " };
                write!(f, "{space}{number}{unit}")?;
            }
            Ok(())
        })
    }
}

/// Error of parsing a text that is not a [`Span`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The number or the unit is missing or unknown.
    #[error(
        "{0:?} is not a time span: write a whole number and a unit, such as 500ms, 5s, 1min, 2h or 7d"
    )]
    Form(String),
    /// The span is longer than [`EXACT_MAX`] microseconds.
    #[error("{0:?} is too long: the maximum is 285 years")]
    Long(String),
}

impl std::str::FromStr for Span {
    type Err = SpanError;

    /// Parses `500ms`, `5s`, `1min`, `2h`, `7d`. Before a unit, the number may be left out (`min`).
    fn from_str(text: &str) -> Result<Self, SpanError> {
        let form = || SpanError::Form(text.to_owned());
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let micros = match unit.trim_start() {
            "us" => 1,
            "ms" => 1_000,
            "s" | "sec" | "second" | "seconds" => 1_000_000,
            "m" | "min" | "minute" | "minutes" => 60_000_000,
            "h" | "hour" | "hours" => 3_600_000_000,
            "d" | "day" | "days" => 86_400_000_000_u64,
            "w" | "week" | "weeks" => 604_800_000_000,
            _ => return Err(form()),
        };
        let long = || SpanError::Long(text.to_owned());
        let number: u64 = if number.is_empty() { 1 } else { number.parse().map_err(|_| long())? };
        let total = number.checked_mul(micros).filter(|&n| n <= EXACT_MAX).ok_or_else(long)?;
        Ok(Self(total))
    }
}

/// A source of the current time. Its implementations that read a real clock are outside this crate.
pub trait Clock: Send + Sync {
    /// Returns the current time. It never goes back.
    fn now(&self) -> Timestamp;
}

/// A fixed clock, for callers that have already read the time.
impl Clock for Timestamp {
    fn now(&self) -> Timestamp {
        *self
    }
}

impl<C: Clock + ?Sized> Clock for &C {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_formatted_in_two_units() {
        for (millis, words) in [
            (0, "0ms"),
            (250, "250ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (59_001, "1m"),
            (3_559_313, "59m 20s"),
            (3_600_000, "1h"),
            (3_601_000, "1h"),
            (90_000_000, "1d 1h"),
            (86_400_000 * 3, "3d"),
        ] {
            assert_eq!(Span::from_millis(millis).in_words().to_string(), words, "{millis}");
        }
    }

    #[test]
    fn instants_print_as_a_calendar_library_prints_them() {
        let check = |micros: u64| {
            let expected = jiff::Timestamp::from_microsecond(micros as i64).expect("an instant");
            assert_eq!(Timestamp::from_micros(micros).to_string(), expected.to_string());
        };
        // Every day, with fractions of all lengths.
        for day in 0..EXACT_MAX / 86_400_000_000 {
            check(day * 86_400_000_000 + day * 86_399);
        }
        for micros in [0, 1, 10, 999_999, 1_000_000, 1_500_000, 951_782_400_000_000, EXACT_MAX] {
            check(micros);
        }
    }

    #[test]
    fn spans_print_as_they_are_written() {
        for text in ["5s", "1min", "90s", "2h", "7d", "1500ms", "20us"] {
            let span: Span = text.parse().expect(text);
            assert_eq!(span.to_string(), text);
        }
        assert_eq!("day".parse(), Ok(Span::from_secs(86_400)));
        assert_eq!("m".parse(), Ok(Span::from_secs(60)));
    }

    #[test]
    fn nonsense_is_refused_with_the_right_form() {
        for text in ["", "5", "s5", "5 parsecs", "-5s", "5.5s", "٥s"] {
            let error = text.parse::<Span>().expect_err(text).to_string();
            assert!(error.contains("500ms, 5s, 1min"), "{error}");
        }
        assert!("99999999999999999999d".parse::<Span>().is_err());
        assert!("200000d".parse::<Span>().is_err());
    }

    #[test]
    fn a_timestamp_prints_as_rfc_3339() {
        assert_eq!(Timestamp::from_millis(1_500).to_string(), "1970-01-01T00:00:01.5Z");
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(Timestamp::ZERO - Span::from_secs(1), Timestamp::ZERO);
        assert_eq!(Timestamp::MAX + Span::from_secs(1), Timestamp::MAX);
    }
}

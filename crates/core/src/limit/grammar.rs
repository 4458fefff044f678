//! Parses and formats limits. A formatted limit parses to the same limit.

use std::fmt;
use std::str::FromStr;

use super::{Amount, Calendar, Limit, Period, Rate, Unit, Window};
use crate::algorithm::bucket;
use crate::money::{Money, MoneyError};
use crate::time::{Span, SpanError};

/// Error of parsing a text that is not a limit. Every message shows the right form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// No slash, and not `N concurrent`.
    #[error(
        "{0:?} is not a limit: write <amount> [unit]/<window> [shape], such as 100/h, 5.00 USD/day, 25/s burst 50, or 100 concurrent; 0 alone is a ban"
    )]
    Form(String),
    /// The amount is not a whole number.
    #[error(
        "{0:?} is not an amount: write a whole number from 1 to 9007199254740991, such as 100/h, or dollars as in 5.00 USD/day"
    )]
    Amount(String),
    /// A rate of zero.
    #[error(
        "a limit of 0 admits nothing, nor does a burst of 0: write at least 1, or 0 alone for a ban"
    )]
    Zero,
    /// Not an amount of money.
    #[error(transparent)]
    Money(#[from] MoneyError),
    /// Not one of the units.
    #[error(
        "{0:?} is not a unit: write requests, tokens, input_tokens, output_tokens or USD, such as 20000 tokens/min"
    )]
    Unit(String),
    /// Not a time span.
    #[error("window: {0}; a month is written as 100/calendar month")]
    Window(#[from] SpanError),
    /// The window is too short or too long.
    #[error("a window of {0} is not supported: write 1ms to 366d, such as 100/h")]
    Length(Span),
    /// Not a calendar period.
    #[error(
        "{0:?} is not a calendar period: write calendar day, calendar week or calendar month, and a time zone if it is not UTC"
    )]
    Period(String),
    /// Not a time zone.
    #[error("{0:?} is not a time zone: write an IANA name, such as 500/calendar day Europe/Berlin")]
    Zone(String),
    /// Not a shape.
    #[error(
        "{0:?} is not a shape: write exact, windowed, burst N or smooth, such as 25/s burst 50"
    )]
    Shape(String),
    /// `exact` with a unit other than requests.
    #[error("exact is only for requests, not for {0}: remove it")]
    ExactUnit(Unit),
    /// The bucket refills too fast to be metered within 1 %.
    #[error(
        "a bucket refilled by more than 10,000,000 {0} a second (10 for USD) or that holds less than one of them (0.000001 USD) can't be metered: leave the shape out"
    )]
    Fast(Unit),
}

/// Text of a ban.
const BAN: &str = "0";

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let text = text.trim();
        if text == BAN {
            return Ok(Self::Banned { until: None });
        }
        let Some((quantity, rest)) = text.split_once('/') else {
            let amount = text.strip_suffix("concurrent").filter(|a| a.ends_with(' '));
            let amount = amount.ok_or_else(|| LimitError::Form(text.to_owned()))?;
            return Ok(Self::Concurrent(whole(amount.trim())?));
        };
        let (amount, unit) = self::quantity(quantity.trim())?;
        let rest = rest.trim();
        if let Some(rest) = rest.strip_prefix("calendar") {
            return Ok(Self::Calendar { amount, unit, calendar: calendar(rest)? });
        }
        if let Some(rest) = rest.strip_prefix("fixed ") {
            let span: Span = rest.trim().parse()?;
            let window = Window::new(span).ok_or(LimitError::Length(span))?;
            let calendar = Calendar::utc(Period::Fixed(window));
            return Ok(Self::Calendar { amount, unit, calendar });
        }
        let (window, shape) = window_and_shape(rest);
        let span: Span = window.parse()?;
        let window = Window::new(span).ok_or(LimitError::Length(span))?;
        shaped(Rate { amount, unit, window }, shape)
    }
}

/// Parses `100`, `20000 tokens` or `5.00 USD`.
fn quantity(text: &str) -> Result<(Amount, Unit), LimitError> {
    let Some((amount, unit)) = text.split_once(char::is_whitespace) else {
        return Ok((whole(text)?, Unit::Requests));
    };
    let unit = match unit.trim() {
        "request" => Unit::Requests,
        name => *Unit::RATED
            .iter()
            .find(|unit| unit.name() == name)
            .ok_or_else(|| LimitError::Unit(name.to_owned()))?,
    };
    let amount = match unit {
        Unit::Usd => {
            let nanos = amount.parse::<Money>()?.as_nanos();
            Amount::new(nanos).ok_or(LimitError::Zero)?
        }
        _ => whole(amount)?,
    };
    Ok((amount, unit))
}

fn whole(text: &str) -> Result<Amount, LimitError> {
    let wrong = || LimitError::Amount(text.to_owned());
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    match text.parse() {
        Ok(0) => Err(LimitError::Zero),
        Ok(n) => Amount::new(n).ok_or_else(wrong),
        Err(_) => Err(wrong()),
    }
}

/// Parses ` day` or ` week Europe/Berlin`, after the word `calendar`.
fn calendar(text: &str) -> Result<Calendar, LimitError> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let period = Period::ALL.into_iter().find(|period| period.name() == name);
    let period = period.ok_or_else(|| LimitError::Period(name.to_owned()))?;
    let zone = words.next().unwrap_or("UTC");
    match words.next() {
        Some(shape) => Err(LimitError::Shape(shape.to_owned())),
        None => Calendar::named(period, zone).ok_or_else(|| LimitError::Zone(zone.to_owned())),
    }
}

/// Splits `5s burst 3` into the window `5s` and the shape `burst 3`; `5 s` is a window without a
/// shape.
fn window_and_shape(text: &str) -> (&str, &str) {
    let first_letter = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
    let end = text[first_letter..].find(char::is_whitespace).map(|at| at + first_letter);
    let (window, shape) = text.split_at(end.unwrap_or(text.len()));
    (window, shape.trim())
}

fn shaped(rate: Rate, shape: &str) -> Result<Limit, LimitError> {
    let mut words = shape.split_whitespace();
    let limit = match (words.next(), words.next(), words.next()) {
        (None, ..) if rate.unit == Unit::Requests => Limit::Exact(rate),
        (None, ..) | (Some("windowed"), None, _) => Limit::Windowed(rate),
        (Some("exact"), None, _) if rate.unit == Unit::Requests => Limit::Exact(rate),
        (Some("exact"), None, _) => return Err(LimitError::ExactUnit(rate.unit)),
        (Some("smooth"), None, _) => Limit::Bucket { rate, capacity: smooth(rate.unit) },
        (Some("burst"), Some(n), None) => Limit::Bucket { rate, capacity: capacity(n, rate.unit)? },
        _ => return Err(LimitError::Shape(shape.to_owned())),
    };
    match limit {
        Limit::Bucket { rate, capacity } if bucket::BucketQuota::new(rate, capacity).is_none() => {
            Err(LimitError::Fast(rate.unit))
        }
        limit => Ok(limit),
    }
}

/// Returns the capacity of `smooth`: one request, one token, one dollar.
fn smooth(unit: Unit) -> Amount {
    match unit {
        Unit::Usd => Amount::new(1_000_000_000).expect("a dollar is an amount"),
        _ => Amount::ONE,
    }
}

fn capacity(text: &str, unit: Unit) -> Result<Amount, LimitError> {
    Ok(quantity(&format!("{text} {unit}"))?.0)
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantity = Quantity(self.amount_in_text(), self.unit());
        match self {
            Self::Exact(rate) => write!(f, "{quantity}/{}", rate.window),
            Self::Windowed(rate) if rate.unit == Unit::Requests => {
                write!(f, "{quantity}/{} windowed", rate.window)
            }
            Self::Windowed(rate) => write!(f, "{quantity}/{}", rate.window),
            Self::Bucket { rate, capacity } if *capacity == smooth(rate.unit) => {
                write!(f, "{quantity}/{} smooth", rate.window)
            }
            Self::Bucket { rate, capacity } => {
                let capacity = Number(*capacity, rate.unit);
                write!(f, "{quantity}/{} burst {capacity}", rate.window)
            }
            Self::Calendar { calendar, .. } => write!(f, "{quantity}/{calendar}"),
            Self::Concurrent(amount) => write!(f, "{} concurrent", amount.get()),
            Self::Banned { .. } => f.write_str(BAN),
        }
    }
}

impl Limit {
    /// Returns the first amount in the text: for a bucket its rate, not its capacity.
    fn amount_in_text(&self) -> Amount {
        match self {
            Self::Bucket { rate, .. } => rate.amount,
            other => other.amount(),
        }
    }

    /// Formats the limit for people: `10 requests per minute`, `5.00 USD per day`.
    pub fn in_words(&self) -> String {
        if self.is_ban() {
            return "banned".to_owned();
        }
        let number = Number(self.amount_in_text(), self.unit());
        let unit = match self.unit() {
            Unit::Requests if self.amount_in_text() == Amount::ONE => "request",
            Unit::Slots => return format!("{number} at the same time"),
            Unit::InputTokens => "input tokens",
            Unit::OutputTokens => "output tokens",
            unit => unit.name(),
        };
        let window = match self {
            Self::Calendar { calendar, .. } => calendar.to_string(),
            _ => match self.window().as_micros() {
                1_000_000 => "second".to_owned(),
                60_000_000 => "minute".to_owned(),
                3_600_000_000 => "hour".to_owned(),
                86_400_000_000 => "day".to_owned(),
                _ => self.window().to_string(),
            },
        };
        format!("{number} {unit} per {window}")
    }
}

/// An amount in the notation of its unit: money with decimals.
struct Number(Amount, Unit);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Unit::Usd => Money::from_nanos(self.0.get()).unwrap_or_default().fmt(f),
            _ => self.0.get().fmt(f),
        }
    }
}

/// A number with its unit; requests have none.
struct Quantity(Amount, Unit);

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = Number(self.0, self.1);
        match self.1 {
            Unit::Requests => number.fmt(f),
            unit => write!(f, "{number} {unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, printed: &str, words: &str) {
        let limit: Limit = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(limit.to_string(), printed, "{text}");
        assert_eq!(printed.parse(), Ok(limit.clone()), "{printed}");
        assert_eq!(limit.in_words(), words, "{text}");
    }

    #[test]
    fn every_form_reads_and_prints() {
        check("200/h", "200/h", "200 requests per hour");
        check("200 requests / 1h exact", "200/h", "200 requests per hour");
        check("1 request/min", "1/min", "1 request per minute");
        check("5/5s", "5/5s", "5 requests per 5s");
        check("7/7d windowed", "7/7d windowed", "7 requests per 7d");
        check("20000 tokens/1min", "20000 tokens/min", "20000 tokens per minute");
        check("9 input_tokens/s", "9 input_tokens/s", "9 input tokens per second");
        check("9 output_tokens/s", "9 output_tokens/s", "9 output tokens per second");
        check("5.00 USD/day", "5.00 USD/day", "5.00 USD per day");
        check("0.0005 USD/min", "0.0005 USD/min", "0.0005 USD per minute");
        check("25/s burst 50", "25/s burst 50", "25 requests per second");
        check("25/s burst 1", "25/s smooth", "25 requests per second");
        check("1.00 USD/h burst 2.50", "1.00 USD/h burst 2.50", "1.00 USD per hour");
        check("1.00 USD/h smooth", "1.00 USD/h smooth", "1.00 USD per hour");
        check("5/calendar day", "5/calendar day", "5 requests per calendar day");
        check(
            "5.00 USD/calendar month Europe/Berlin",
            "5.00 USD/calendar month Europe/Berlin",
            "5.00 USD per calendar month Europe/Berlin",
        );
        check("5/fixed 1min", "5/fixed min", "5 requests per fixed min");
        check("100 concurrent", "100 concurrent", "100 at the same time");
        check("0", "0", "banned");
    }

    #[test]
    fn mistakes_are_refused_with_the_right_form() {
        for (text, part) in [
            ("", "is not a limit"),
            ("100", "is not a limit"),
            ("concurrent", "is not a limit"),
            ("0/h", "a limit of 0 admits nothing"),
            ("0.00 USD/day", "a limit of 0 admits nothing"),
            ("0 concurrent", "a limit of 0 admits nothing"),
            ("-5/h", "is not an amount"),
            ("1.5/h", "is not an amount"),
            ("9007199254740992/h", "is not an amount"),
            ("99999999999999999999/h", "is not an amount"),
            ("5 apples/h", "is not a unit"),
            ("5 concurrent/h", "is not a unit"),
            ("9999999999 USD/day", "the maximum is 9,007,199 dollars"),
            ("5/", "is not a time span"),
            ("5/0s", "a window of 0s is not supported"),
            ("5/1us", "a window of 1us is not supported"),
            ("5/400d", "a window of 400d is not supported"),
            ("5/calendar", "is not a calendar period"),
            ("5/calendar year", "is not a calendar period"),
            ("5/calendar day Mars", "is not a time zone"),
            ("5/calendar day UTC exact", "is not a shape"),
            ("5/h lumpy", "is not a shape"),
            ("5/h burst", "is not a shape"),
            ("5/h burst 0", "nor does a burst of 0"),
            ("5USD/day", "or dollars as in 5.00 USD/day"),
            ("$5/day", "or dollars as in 5.00 USD/day"),
            ("5/month", "a month is written as 100/calendar month"),
            ("5/h burst 3 4", "is not a shape"),
            ("5 tokens/h exact", "exact is only for requests, not for tokens"),
            ("20000000/s burst 5", "more than 10,000,000 requests a second"),
        ] {
            let error = text.parse::<Limit>().expect_err(text).to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text in ".{0,40}") {
            let _ = text.parse::<Limit>();
        }

        #[test]
        fn what_is_printed_reads_back(
            amount in 1..=crate::time::EXACT_MAX,
            unit in 0..5usize,
            window in 1_000..=31_622_400_000_000_u64,
            shape in 0..4usize,
        ) {
            let unit = Unit::RATED[unit].name();
            let shape = ["", " windowed", " burst 7", " smooth"][shape];
            let amount = match unit {
                "USD" => Money::from_nanos(amount).expect("in range").to_string(),
                _ => amount.to_string(),
            };
            let text = format!("{amount} {unit}/{window}us{shape}");
            if let Ok(limit) = text.parse::<Limit>() {
                proptest::prop_assert_eq!(limit.to_string().parse(), Ok(limit));
            }
        }
    }
}

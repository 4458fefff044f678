//! Parses times and durations in the formats of upstreams.

use sluicegate_core::time::{Span, Timestamp};

/// A plain number below this is a duration in seconds; from here on it is a date.
const DELTA_MAX: u64 = 30 * 86_400;
/// A date in seconds is below this for the next three thousand years; in milliseconds, it is above
/// since 1973.
const SECONDS_MAX: u64 = 100_000_000_000;

const UNITS: [(&str, u64); 8] = [
    ("ms", 1_000),
    ("us", 1),
    ("µs", 1),
    ("ns", 0),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("d", 86_400_000_000),
];

/// Returns the time until the parsed date: a number of seconds, a duration such as `6m0s`, or a
/// date in any common format. A past date gives zero; a number that is no time (`-1`) gives `None`.
pub(super) fn until(text: &str, now: Timestamp) -> Option<Span> {
    let text = text.trim();
    if let Some(micros) = micros(text, 1_000_000) {
        let seconds = micros / 1_000_000;
        return Some(match seconds {
            ..DELTA_MAX => Span::from_micros(micros),
            DELTA_MAX..SECONDS_MAX => Timestamp::from_secs(seconds).since(now),
            _ => Timestamp::from_millis(seconds).since(now),
        });
    }
    duration(text).or_else(|| date(text).map(|date| date.since(now)))
}

/// Parses a decimal number of `unit`, exact to the microsecond.
pub(super) fn number(text: &str, unit: Span) -> Option<Span> {
    micros(text.trim(), unit.as_micros()).map(Span::from_micros)
}

fn micros(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    // A number that is too large becomes the maximum.
    let whole: u64 = whole.parse().unwrap_or(u64::MAX);
    let mut micros = whole.saturating_mul(unit);
    let mut place = unit;
    for digit in fraction.bytes().take(9) {
        place /= 10;
        micros = micros.saturating_add(u64::from(digit - b'0') * place);
    }
    Some(micros)
}

/// Parses a duration such as `1h30m`, `6m0s`, `12ms` or `1.5s`.
pub(super) fn duration(text: &str) -> Option<Span> {
    let mut rest = text.trim();
    let mut total = Span::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (amount, after) = rest.split_at(end);
        let (name, micros) = UNITS.iter().find(|(name, _)| after.starts_with(name))?;
        total = total + number(amount, Span::from_micros(*micros))?;
        rest = &after[name.len()..];
    }
    Some(total)
}

/// Parses RFC 3339, or one of the three HTTP formats.
fn date(text: &str) -> Option<Timestamp> {
    if let Ok(date) = text.parse::<jiff::Timestamp>() {
        let micros = u64::try_from(date.as_microsecond()).unwrap_or(0);
        return Some(Timestamp::from_micros(micros));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let since_epoch = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp::ZERO + Span::from(since_epoch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_form_is_read() {
        let now = Timestamp::from_secs(1_700_000_000);
        let second = |seconds| Some(Span::from_secs(seconds));
        for (text, expected) in [
            ("30", second(30)),
            (" 0 ", second(0)),
            ("1.5", Some(Span::from_millis(1_500))),
            ("2591999", second(2_591_999)),
            ("1700000060", second(60)),
            ("1700000060000", second(60)),
            ("1600000000", second(0)),
            ("6m0s", second(360)),
            ("12ms", Some(Span::from_millis(12))),
            ("1h2m3.5s", Some(Span::from_millis(3_723_500))),
            ("7ns", second(0)),
            ("22s", second(22)),
            ("2023-11-14T22:14:20Z", second(60)),
            ("2023-11-14T23:14:20+01:00", second(60)),
            ("2001-01-01T00:00:00Z", second(0)),
            ("Tue, 14 Nov 2023 22:14:20 GMT", second(60)),
            ("Tuesday, 14-Nov-23 22:14:20 GMT", second(60)),
            ("99999999999999999999999", Some(Timestamp::MAX.since(now))),
            ("-1", None),
            ("", None),
            ("soon", None),
            ("1.", None),
            (".5", None),
            ("1x", None),
            ("1s1", None),
            ("+5", None),
        ] {
            assert_eq!(until(text, now), expected, "{text:?}");
        }
    }
}

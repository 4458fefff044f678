//! Parsers for scalars, one for each type of option. Each error says what to write instead.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use sluicegate_core::Span;
use sluicegate_core::money::{Money, MoneyError, Price};

use super::item::{Item, join_words, nearest};
use super::redact;
use crate::config::{Address, ByteSize, OutagePolicy, SampleRate};
use crate::report::Report;

/// Reads `true` or `false`.
pub(super) fn boolean(item: &Item<'_>, report: &mut Report) -> Option<bool> {
    let form = "write true or false";
    let scalar = item.scalar(report, form)?;
    match scalar.text() {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => {
            let message = format!("{} is not a boolean", scalar.describe());
            item.fail(report, message, scalar.remedy(form).as_ref());
            None
        }
    }
}

/// Reads a text that is not blank.
pub(super) fn text(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let scalar = item.scalar(report, "write a text")?;
    if scalar.text().trim().is_empty() {
        item.fail(report, "empty text", "write a text, or leave the option out");
        return None;
    }
    Some(scalar.text().to_owned())
}

/// Reads the path of a file.
pub(super) fn path(item: &Item<'_>, report: &mut Report) -> Option<PathBuf> {
    text(item, report).map(PathBuf::from)
}

/// Reads a whole number in a range.
pub(super) fn whole(
    item: &Item<'_>,
    report: &mut Report,
    range: RangeInclusive<u64>,
) -> Option<u64> {
    let form = format!("write a whole number from {} to {}", range.start(), range.end());
    let scalar = item.scalar(report, &form)?;
    let text = scalar.text();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits && range.contains(&number) => Some(number),
        _ => refuse(item, report, "a valid number", &form),
    }
}

/// Reads a whole number in a range as `usize`.
pub(super) fn count(
    item: &Item<'_>,
    report: &mut Report,
    range: RangeInclusive<u64>,
) -> Option<usize> {
    whole(item, report, range).and_then(|number| usize::try_from(number).ok())
}

/// Reads a time span.
pub(super) fn span(item: &Item<'_>, report: &mut Report) -> Option<Span> {
    let scalar = item.scalar(report, "write a time span, such as 500ms or 5s")?;
    match scalar.text().trim().parse() {
        Ok(span) => Some(span),
        Err(error) => {
            item.fail(report, redact::span(&error, scalar), "");
            None
        }
    }
}

/// Reads a time span of at least `least`.
pub(super) fn span_from(
    item: &Item<'_>,
    report: &mut Report,
    least: Span,
    remedy: &str,
) -> Option<Span> {
    let span = span(item, report)?;
    if span < least {
        item.fail(report, format!("less than {least}"), remedy);
        return None;
    }
    Some(span)
}

/// Reads the price of a token.
pub(super) fn price(item: &Item<'_>, report: &mut Report) -> Option<Price> {
    in_dollars(item, report, "write a price, such as 0.20 USD/1M")
}

/// Reads an amount of money.
pub(super) fn money(item: &Item<'_>, report: &mut Report) -> Option<Money> {
    in_dollars(item, report, "write an amount in dollars, such as 0.02")
}

fn in_dollars<T: FromStr<Err = MoneyError>>(
    item: &Item<'_>,
    report: &mut Report,
    form: &str,
) -> Option<T> {
    let scalar = item.scalar(report, form)?;
    match scalar.text().trim().parse() {
        Ok(amount) => Some(amount),
        Err(error) => {
            item.fail(report, redact::money(&error, scalar), "");
            None
        }
    }
}

/// Reads a host and a port.
pub(super) fn address(item: &Item<'_>, report: &mut Report) -> Option<Address> {
    let form = "write host:port, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080";
    let scalar = item.scalar(report, form)?;
    match scalar.text().parse() {
        Ok(address) => Some(address),
        Err(()) => refuse(item, report, "an address", form),
    }
}

/// Reads a share of a whole.
pub(super) fn share(item: &Item<'_>, report: &mut Report) -> Option<SampleRate> {
    let form = "write a decimal from 0.0 to 1.0 with at most 6 decimals";
    let scalar = item.scalar(report, form)?;
    match scalar.text().parse() {
        Ok(share) => Some(share),
        Err(()) => refuse(item, report, "a share", form),
    }
}

/// Reads a number of bytes.
pub(super) fn size(item: &Item<'_>, report: &mut Report) -> Option<ByteSize> {
    let form = "write a number and a unit from 1B to 1GB, such as 64KB";
    let scalar = item.scalar(report, form)?;
    match scalar.text().trim().parse() {
        Ok(size) if (ByteSize(1)..=ByteSize(1 << 30)).contains(&size) => Some(size),
        _ => refuse(item, report, "a size", form),
    }
}

/// Reads a number of bytes that may be zero.
pub(super) fn size_or_zero(item: &Item<'_>, report: &mut Report) -> Option<ByteSize> {
    let form = "write a number and a unit from 0B to 1GB, such as 64KB";
    let scalar = item.scalar(report, form)?;
    match scalar.text().trim().parse() {
        Ok(size) if size <= ByteSize(1 << 30) => Some(size),
        _ => refuse(item, report, "a size", form),
    }
}

/// Reads an outage policy.
pub(super) fn outage(item: &Item<'_>, report: &mut Report) -> Option<OutagePolicy> {
    word(item, report, &OutagePolicy::ALL)
}

/// Reads one of a few words.
pub(super) fn word<T: Clone>(
    item: &Item<'_>,
    report: &mut Report,
    words: &[(&str, T)],
) -> Option<T> {
    let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
    let choice = join_words(&names).replace(" and ", " or ");
    let scalar = item.scalar(report, &format!("write {choice}"))?;
    let found = words.iter().find(|(name, _)| *name == scalar.text());
    if let Some((_, value)) = found {
        return Some(value.clone());
    }
    // A suggestion would reveal the value of a variable.
    let near = if scalar.is_literal() { nearest(scalar.text(), names.into_iter()) } else { None };
    let remedy = match near {
        Some(near) => format!("did you mean {near}?"),
        None => scalar.remedy(&format!("write {choice}")).into_owned(),
    };
    let message = match scalar.has_no_variables() {
        true => format!("unknown value {}", scalar.describe()),
        false => format!("{} is not allowed", scalar.describe()),
    };
    item.fail(report, message, &remedy);
    None
}

/// Reports that a scalar is not of the expected type.
fn refuse<T>(item: &Item<'_>, report: &mut Report, what: &str, remedy: &str) -> Option<T> {
    let scalar = item.scalar(report, remedy)?;
    let message = format!("{} is not {what}", scalar.describe());
    item.fail(report, message, scalar.remedy(remedy).as_ref());
    None
}

//! Makes the parse errors of `core` safe to show.
//!
//! These errors repeat the text that they reject. If that text came from a variable, or is too
//! long, the functions replace it by the text of the file.

use sluicegate_core::limit::LimitError;
use sluicegate_core::money::MoneyError;
use sluicegate_core::time::SpanError;

use crate::raw::Scalar;

/// Maximum length of a text that is repeated unchanged, in bytes.
const REPEATED_MAX: usize = 80;

/// Returns true if an error may repeat the text.
fn as_is(scalar: &Scalar) -> bool {
    scalar.is_literal() && scalar.text().len() <= REPEATED_MAX
}

/// Replaces the text of the file in an error by a description with the names of its variables.
fn named(error: &impl std::fmt::Display, scalar: &Scalar) -> String {
    error.to_string().replacen(&format!("{:?}", scalar.redacted()), &scalar.describe(), 1)
}

/// Formats the error of a time span.
pub(super) fn span(error: &SpanError, scalar: &Scalar) -> String {
    match as_is(scalar) {
        true => error.to_string(),
        false => named(&span_of(error, scalar.redacted()), scalar),
    }
}

fn span_of(error: &SpanError, shown: String) -> SpanError {
    match error {
        SpanError::Form(_) => SpanError::Form(shown),
        SpanError::Long(_) => SpanError::Long(shown),
    }
}

/// Formats the error of an amount or a price.
pub(super) fn money(error: &MoneyError, scalar: &Scalar) -> String {
    match as_is(scalar) {
        true => error.to_string(),
        false => named(&money_of(error, scalar.redacted()), scalar),
    }
}

fn money_of(error: &MoneyError, shown: String) -> MoneyError {
    match error {
        MoneyError::Form(_) => MoneyError::Form(shown),
        MoneyError::Fine { max, .. } => MoneyError::Fine { text: shown, max: *max },
        MoneyError::Large(_) => MoneyError::Large(shown),
        MoneyError::Price(_) => MoneyError::Price(shown),
    }
}

/// Formats the error of a limit.
pub(super) fn limit(error: &LimitError, scalar: &Scalar) -> String {
    if as_is(scalar) {
        return error.to_string();
    }
    let shown = scalar.redacted();
    let error = match error {
        LimitError::Form(_) => LimitError::Form(shown),
        LimitError::Amount(_) => LimitError::Amount(shown),
        LimitError::Money(error) => LimitError::Money(money_of(error, shown)),
        LimitError::Unit(_) => LimitError::Unit(shown),
        LimitError::Window(error) => LimitError::Window(span_of(error, shown)),
        LimitError::Length(_) => {
            let whole = scalar.describe();
            return format!("the window of {whole} is out of range: write 1ms to 366d");
        }
        LimitError::Period(_) => LimitError::Period(shown),
        LimitError::Zone(_) => LimitError::Zone(shown),
        LimitError::Shape(_) => LimitError::Shape(shown),
        LimitError::Zero | LimitError::ExactUnit(_) | LimitError::Fast(_) => error.clone(),
    };
    named(&error, scalar)
}

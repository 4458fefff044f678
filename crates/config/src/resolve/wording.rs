//! The errors of core, in words that may be shown.
//!
//! They repeat the text that they refuse. Where that text came from a variable, or is too long to
//! be repeated, it is replaced by what is written in the file.

use sluicegate_core::limit::LimitError;
use sluicegate_core::money::MoneyError;
use sluicegate_core::time::SpanError;

use crate::raw::Scalar;

/// The longest text that is repeated as it is, in bytes.
const REPEATED_MAX: usize = 80;

fn as_is(scalar: &Scalar) -> bool {
    scalar.is_literal() && scalar.text().len() <= REPEATED_MAX
}

/// An error about what is written, with the names of the variables in it.
fn named(error: &impl std::fmt::Display, scalar: &Scalar) -> String {
    error.to_string().replacen(&format!("{:?}", scalar.shown()), &scalar.named(), 1)
}

pub(super) fn span(error: &SpanError, scalar: &Scalar) -> String {
    match as_is(scalar) {
        true => error.to_string(),
        false => named(&span_of(error, scalar.shown()), scalar),
    }
}

fn span_of(error: &SpanError, shown: String) -> SpanError {
    match error {
        SpanError::Form(_) => SpanError::Form(shown),
        SpanError::Long(_) => SpanError::Long(shown),
    }
}

pub(super) fn money(error: &MoneyError, scalar: &Scalar) -> String {
    match as_is(scalar) {
        true => error.to_string(),
        false => named(&money_of(error, scalar.shown()), scalar),
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

pub(super) fn limit(error: &LimitError, scalar: &Scalar) -> String {
    if as_is(scalar) {
        return error.to_string();
    }
    let shown = scalar.shown();
    let error = match error {
        LimitError::Form(_) => LimitError::Form(shown),
        LimitError::Amount(_) => LimitError::Amount(shown),
        LimitError::Money(error) => LimitError::Money(money_of(error, shown)),
        LimitError::Unit(_) => LimitError::Unit(shown),
        LimitError::Window(error) => LimitError::Window(span_of(error, shown)),
        LimitError::Length(_) => {
            let whole = scalar.named();
            return format!("the window of {whole} can't be kept: it must be from 1ms to 366d");
        }
        LimitError::Period(_) => LimitError::Period(shown),
        LimitError::Zone(_) => LimitError::Zone(shown),
        LimitError::Shape(_) => LimitError::Shape(shown),
        LimitError::Zero | LimitError::ExactUnit(_) | LimitError::Fast(_) => error.clone(),
    };
    named(&error, scalar)
}

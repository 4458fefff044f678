//! The parsed YAML: a tree of [`Node`]s, each with its line and column. Scalars are still text.
//!
//! Built on the events of `saphyr-parser`, the parser under the crate `saphyr`. The tree of
//! `saphyr` itself copies the value of an alias without a bound, recurses as deep as a file nests,
//! and interprets scalars before variables are replaced. This tree does none of that.

mod build;
mod container;
mod secrecy;

use std::borrow::Cow;
use std::fmt;

pub(crate) use build::parse;
use secrecy::has_credentials;

use crate::interpolate;
use crate::location::{Position, shorten};

/// A value with its position.
#[derive(Clone, Debug)]
pub struct Node {
    /// Position in the text.
    pub at: Position,
    /// The value.
    pub value: Value,
}

/// A scalar, a list or a map.
#[derive(Clone, Debug)]
pub enum Value {
    /// A text.
    Scalar(Scalar),
    /// Items in the order of the text.
    List(Vec<Node>),
    /// Entries in the order of the text, without duplicate keys.
    Map(Vec<(MapKey, Node)>),
    /// An invalid value whose error is already reported.
    Broken,
}

/// A key with its position.
#[derive(Clone, Debug)]
pub struct MapKey {
    /// Position in the text.
    pub at: Position,
    /// The key.
    pub text: String,
}

pub(crate) use MapKey as Key;

/// A text that is not yet parsed as a number, a limit or anything else.
#[derive(Clone)]
pub struct Scalar {
    text: String,
    /// The text of the file, if variables were replaced in it.
    template: Option<String>,
    /// True if it is written without quotes, so that an empty text and `null` mean no value.
    plain: bool,
}

impl Scalar {
    pub(crate) fn new(text: String, plain: bool) -> Self {
        Self { text, template: None, plain }
    }

    /// Returns the text with variables replaced.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if it is written without quotes, so that it may be a number or a boolean.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Sets the text with variables replaced, and keeps the text of the file.
    pub(crate) fn replace(&mut self, text: String) {
        self.template = Some(std::mem::replace(&mut self.text, text));
    }

    /// Returns true if there is no value.
    pub fn is_null(&self) -> bool {
        let nothing = matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL");
        self.plain && self.template.is_none() && nothing
    }

    /// Returns true if its variables are empty, which counts as left out.
    pub(crate) fn is_omitted(&self) -> bool {
        self.plain && self.template.is_some() && self.text.is_empty()
    }

    /// Returns true if a message may repeat the text.
    pub(crate) fn is_literal(&self) -> bool {
        self.template.is_none() && !has_credentials(&self.text)
    }

    /// Returns the text that a message may show: the text of the file, never the value of a
    /// variable or a password.
    pub(crate) fn redacted(&self) -> String {
        let written = self.template.as_deref().unwrap_or(&self.text);
        if has_credentials(written) { "…".to_owned() } else { shorten(written) }
    }
}

impl Scalar {
    /// Returns true if it contains no variables.
    pub(crate) fn has_no_variables(&self) -> bool {
        self.template.is_none()
    }

    /// Returns the instruction for a message: a value that came from one variable has to be set
    /// there, not written in the file.
    pub(crate) fn remedy<'r>(&self, form: &'r str) -> Cow<'r, str> {
        let template = self.template.as_deref().unwrap_or_default();
        match form.strip_prefix("write ") {
            Some(right) if interpolate::is_one_variable_with_default(template) => {
                Cow::Owned(format!("set it to {right}"))
            }
            _ => Cow::Borrowed(form),
        }
    }

    /// Describes the value in a message: the text in quotes, or the variables that it came from.
    pub(crate) fn describe(&self) -> String {
        let shown = self.redacted();
        let Some(template) = &self.template else { return format!("{shown:?}") };
        let names = interpolate::names(template);
        match (interpolate::is_one_variable_with_default(template), names.as_slice()) {
            (true, [name, ..]) => format!("the value of variable {name}"),
            (_, []) => format!("{shown:?}"),
            (_, [name]) => format!("{shown:?} with the value of variable {name}"),
            _ => format!("{shown:?} with the values of variables {}", names.join(", ")),
        }
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scalar").field(&self.redacted()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_what_is_written() {
        let mut scalar = Scalar::new("${N}/s".to_owned(), true);
        assert_eq!(scalar.redacted(), "${N}/s");
        scalar.replace("5/s".to_owned());
        assert_eq!((scalar.text(), scalar.redacted().as_str()), ("5/s", "${N}/s"));
        assert_eq!(format!("{scalar:?}"), "Scalar(\"${N}/s\")");
    }

    #[test]
    fn passwords_are_not_shown() {
        for text in [
            "redis://:pw@host",
            "host:6380,password=pw,ssl=True",
            "a://b:c@d",
            "Endpoint=sb://h;SharedAccessKey=k",
            "https://api.example/v1?alt=json&key=k",
            "Authorization: Bearer k",
        ] {
            assert_eq!(Scalar::new(text.to_owned(), true).redacted(), "…");
        }
        assert_eq!(Scalar::new("redis://host".to_owned(), true).redacted(), "redis://host");
    }
}

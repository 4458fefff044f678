//! What is written: a tree of texts in which every node knows its line and column.
//!
//! Built on the events of `saphyr-parser`, the parser under the crate `saphyr`. Its ready-made
//! tree copies what an alias stands for however often it is asked to, recurses as deep as a file
//! nests and interprets scalars before variables are replaced; this one does none of that.

mod build;
mod open;

use std::borrow::Cow;
use std::fmt;

pub(crate) use build::parse;

use crate::interpolate;
use crate::place::{Mark, brief};

/// A value with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Mark,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    /// In the order of the text; no key comes twice.
    Map(Vec<(Key, Node)>),
    /// Wrong in a way that was reported; nobody needs to hear of it again.
    Broken,
}

/// A key with its place.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) at: Mark,
    pub(crate) text: String,
}

/// A text that is not yet a number, a limit or anything else.
#[derive(Clone)]
pub(crate) struct Scalar {
    text: String,
    /// What is written, where variables were replaced in it.
    template: Option<String>,
    /// Without quotes, so that nothing and `null` mean that there is no value.
    plain: bool,
}

impl Scalar {
    pub(crate) fn new(text: String, plain: bool) -> Self {
        Self { text, template: None, plain }
    }

    /// What it says, with variables replaced.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is written without quotes, so that it may be a number or a switch.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Replaces what is written by what it stands for.
    pub(crate) fn replace(&mut self, text: String) {
        self.template = Some(std::mem::replace(&mut self.text, text));
    }

    /// Whether there is no value.
    pub(crate) fn is_null(&self) -> bool {
        let nothing = matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL");
        self.plain && self.template.is_none() && nothing
    }

    /// Whether variables made it empty, which counts as left out.
    pub(crate) fn is_left_out(&self) -> bool {
        self.plain && self.template.is_some() && self.text.is_empty()
    }

    /// Whether a message may repeat what it says.
    pub(crate) fn is_literal(&self) -> bool {
        self.template.is_none() && !has_credentials(&self.text)
    }

    /// What a message may say of it: what is written, never what a variable holds.
    pub(crate) fn shown(&self) -> String {
        let written = self.template.as_deref().unwrap_or(&self.text);
        if has_credentials(written) { "…".to_owned() } else { brief(written) }
    }
}

impl Scalar {
    /// Whether there are no variables in it.
    pub(crate) fn is_written_out(&self) -> bool {
        self.template.is_none()
    }

    /// What to do about it: a value that came from one variable is set there, not written.
    pub(crate) fn remedy<'r>(&self, form: &'r str) -> Cow<'r, str> {
        let template = self.template.as_deref().unwrap_or_default();
        match form.strip_prefix("write ") {
            Some(right) if interpolate::is_one_variable_with_default(template) => {
                Cow::Owned(format!("set it to {right}"))
            }
            _ => Cow::Borrowed(form),
        }
    }

    /// What a message calls it: the text in quotes, or the variables that it came from.
    pub(crate) fn named(&self) -> String {
        let shown = self.shown();
        let Some(template) = &self.template else { return format!("{shown:?}") };
        let names = interpolate::names(template);
        match (interpolate::is_one_variable_with_default(template), names.as_slice()) {
            (true, [name, ..]) => format!("the value of the variable {name}"),
            (_, []) => format!("{shown:?}"),
            (_, [name]) => format!("{shown:?} with the value of the variable {name}"),
            _ => format!("{shown:?} with the values of the variables {}", names.join(", ")),
        }
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scalar").field(&self.shown()).finish()
    }
}

/// Whether a text looks like an address with a password in it.
fn has_credentials(text: &str) -> bool {
    let url = text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    url || text.to_ascii_lowercase().contains("password=")
}

/// Whether a key, or a line with a key in it, announces a secret.
fn announces_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let words = ["password", "passwd", "secret", "token", "credential", "api_key"];
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_what_is_written() {
        let mut scalar = Scalar::new("${N}/s".to_owned(), true);
        assert_eq!(scalar.shown(), "${N}/s");
        scalar.replace("5/s".to_owned());
        assert_eq!((scalar.text(), scalar.shown().as_str()), ("5/s", "${N}/s"));
        assert_eq!(format!("{scalar:?}"), "Scalar(\"${N}/s\")");
    }

    #[test]
    fn passwords_are_not_shown() {
        for text in ["redis://:pw@host", "host:6380,password=pw,ssl=True", "a://b:c@d"] {
            assert_eq!(Scalar::new(text.to_owned(), true).shown(), "…");
        }
        assert_eq!(Scalar::new("redis://host".to_owned(), true).shown(), "redis://host");
    }
}

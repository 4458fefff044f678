//! Templates: texts and JSON trees with placeholders that are filled from a message. Nothing is
//! evaluated: a placeholder only names a value.
//!
//! | placeholder | value |
//! |---|---|
//! | `{{user.name}}`, `{{message.user.name}}` | a member of the message |
//! | `{{images.0}}` | the first element of a list |
//! | `{{"odd name".x}}` | a member whose name is not a plain word |
//! | `{{message}}` | the whole message |
//! | `{{job.id}}` | a property of the job: `id`, `attempt`, `type`, `provider` |
//! | `{{result.total}}`, `{{item.name}}` | after the work: a member of its result, and of one element of a list in it |
//! | `{{user.name:-nobody}}` | the same, or a default if it is missing or null |
//! | `{{{{` | two literal braces |
//!
//! `message`, `job`, `result` and `item` are reserved as the first unquoted name, so a message
//! can't imitate the others: its own member `job` is `{{message.job}}`.
//!
//! A text that is only one placeholder becomes the value itself, of any type. In a longer text a
//! value is written as text: strings as they are, lists and maps as JSON.

mod json_path;
mod parse;
mod render;

use std::fmt;

use serde_json::Value;

pub use json_path::JsonPath;
pub use parse::{PlaceholderProblem, SyntaxError};
pub use render::{RenderError, ValueSource, as_text, scalar};

/// First name of a placeholder: the object that contains the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The message.
    Message,
    /// Properties of the job.
    Job,
    /// Result of the work.
    Result,
    /// One element of a list in the result.
    Item,
}

impl Root {
    const ALL: [(&str, Self); 4] = [
        ("message", Self::Message),
        ("job", Self::Job),
        ("result", Self::Result),
        ("item", Self::Item),
    ];

    /// Objects known before the work is done.
    pub const BEFORE: &[Self] = &[Self::Message, Self::Job];
    /// Objects known after the work is done.
    pub const AFTER: &[Self] = &[Self::Message, Self::Job, Self::Result];
    /// Objects known for one element of a list in the result.
    pub const EACH: &[Self] = &[Self::Message, Self::Job, Self::Result, Self::Item];
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, root)| root == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// A placeholder: the path of its value, and a default if the value is missing.
#[derive(Clone, PartialEq, Eq)]
pub struct Placeholder {
    root: Root,
    member: JsonPath,
    default: Option<Value>,
}

/// A text with placeholders.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    parts: Vec<TemplatePart>,
}

#[derive(Clone, PartialEq, Eq)]
enum TemplatePart {
    Fixed(String),
    Placeholder(Placeholder),
}

impl Text {
    /// Returns the text before the first placeholder.
    pub fn beginning(&self) -> &str {
        match self.parts.first() {
            Some(TemplatePart::Fixed(text)) => text,
            _ => "",
        }
    }

    /// Returns the texts between the placeholders.
    pub fn fixed(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Fixed(text) => Some(text.as_str()),
            TemplatePart::Placeholder(_) => None,
        })
    }

    /// Returns true if it is the same for every message.
    pub fn is_fixed(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, TemplatePart::Fixed(_)))
    }
}

/// Creates a text without placeholders, even if it contains braces.
impl From<String> for Text {
    fn from(fixed: String) -> Self {
        Self { parts: vec![TemplatePart::Fixed(fixed)] }
    }
}

/// A JSON value with placeholders.
#[derive(Clone, PartialEq, Eq)]
pub enum Tree {
    /// A value without placeholders.
    Fixed(Value),
    /// One placeholder, which becomes the value itself.
    Placeholder(Placeholder),
    /// A text with placeholders.
    Text(Text),
    /// A list.
    List(Vec<Tree>),
    /// A map; keys contain no placeholders.
    Map(Vec<(String, Tree)>),
}

/// Formats it as written, without the default.
impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = self.root == Root::Message && !self.member.is_whole();
        match (bare, self.member.is_whole()) {
            (true, _) => write!(f, "{}", self.member),
            (false, true) => write!(f, "{}", self.root),
            (false, false) => write!(f, "{}.{}", self.root, self.member),
        }
    }
}

impl fmt::Debug for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{{{self}}}}}")
    }
}

/// Prints only the placeholders, because the rest may be secret.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Text(")?;
        for part in &self.parts {
            match part {
                TemplatePart::Fixed(_) => f.write_str("…")?,
                TemplatePart::Placeholder(place) => write!(f, "{place:?}")?,
            }
        }
        f.write_str(")")
    }
}

/// Prints no content, because it may be secret.
impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tree(…)")
    }
}

#[cfg(test)]
mod tests;

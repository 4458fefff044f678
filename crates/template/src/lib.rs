//! Texts and trees with places in them that a message fills. Nothing is evaluated: a place names a
//! value, and that is all it can do.
//!
//! | written | stands for |
//! |---|---|
//! | `{{user.name}}`, `{{message.user.name}}` | a member of the message |
//! | `{{images.0}}` | the first of a list |
//! | `{{"odd name".x}}` | a member whose name is no plain word |
//! | `{{message}}` | the whole message |
//! | `{{job.id}}` | what is known of the job: `id`, `attempt`, `type`, `provider` |
//! | `{{result.total}}`, `{{item.name}}` | where there are such: the result of the work, and one of its list |
//! | `{{user.name:-nobody}}` | the same, or this where it is missing or null |
//! | `{{{{` | two braces |
//!
//! `message`, `job`, `result` and `item` are reserved wherever they come first without quotes, so that
//! no message can pass for another: its own member `job` is `{{message.job}}`.
//!
//! A text that is one place and nothing else becomes the value itself, whatever it is. Inside a
//! longer text a value is written as text: strings as they are, lists and maps as JSON.

mod member;
mod parse;
mod render;

use std::fmt;

use serde_json::Value;

pub use member::Member;
pub use parse::{Problem, SyntaxError};
pub use render::{RenderError, Scope, as_text, scalar};

/// What a place begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The message.
    Message,
    /// What is known of the job.
    Job,
    /// What came of the work.
    Result,
    /// One of a list in the result.
    Item,
}

impl Root {
    const ALL: [(&str, Self); 4] = [
        ("message", Self::Message),
        ("job", Self::Job),
        ("result", Self::Result),
        ("item", Self::Item),
    ];

    /// What is known before the work is done.
    pub const BEFORE: &[Self] = &[Self::Message, Self::Job];
    /// What is known after it.
    pub const AFTER: &[Self] = &[Self::Message, Self::Job, Self::Result];
    /// What is known of one of a list in its result.
    pub const EACH: &[Self] = &[Self::Message, Self::Job, Self::Result, Self::Item];
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, root)| root == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// A place: where its value is, and what stands there if it is missing.
#[derive(Clone, PartialEq, Eq)]
pub struct Place {
    root: Root,
    member: Member,
    default: Option<Value>,
}

/// A text with places in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Fixed(String),
    Place(Place),
}

impl Text {
    /// What it begins with, up to the first place.
    pub fn beginning(&self) -> &str {
        match self.parts.first() {
            Some(Part::Fixed(text)) => text,
            _ => "",
        }
    }

    /// What is written between the places.
    pub fn fixed(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Fixed(text) => Some(text.as_str()),
            Part::Place(_) => None,
        })
    }

    /// Whether it is the same for every message.
    pub fn is_fixed(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Fixed(_)))
    }
}

/// A text without places, whatever it looks like.
impl From<String> for Text {
    fn from(fixed: String) -> Self {
        Self { parts: vec![Part::Fixed(fixed)] }
    }
}

/// A JSON value with places in it.
#[derive(Clone, PartialEq, Eq)]
pub enum Tree {
    /// Without places.
    Fixed(Value),
    /// One place, which becomes the value itself.
    Place(Place),
    /// A text with places.
    Text(Text),
    /// A list.
    List(Vec<Tree>),
    /// A map; no place is in a key.
    Map(Vec<(String, Tree)>),
}

/// As it is written.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = self.root == Root::Message && !self.member.is_whole();
        match (bare, self.member.is_whole()) {
            (true, _) => write!(f, "{}", self.member),
            (false, true) => write!(f, "{}", self.root),
            (false, false) => write!(f, "{}.{}", self.root, self.member),
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{{{self}}}}}")
    }
}

/// Only the places: the rest may hold a secret.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Text(")?;
        for part in &self.parts {
            match part {
                Part::Fixed(_) => f.write_str("…")?,
                Part::Place(place) => write!(f, "{place:?}")?,
            }
        }
        f.write_str(")")
    }
}

/// Nothing of it: it may hold a secret.
impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tree(…)")
    }
}

#[cfg(test)]
mod tests;

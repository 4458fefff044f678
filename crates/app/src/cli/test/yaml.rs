//! Reads the YAML tree of a test file. Scalars stay texts: `0.10` may be an amount of money, which
//! must not be rounded by a float.

use std::fmt::Display;
use std::str::FromStr;

use sluicegate_config::{MapKey, Node, Position, Value};

use super::problems::Problems;

/// Reads a node as the kind of value that belongs there, or reports a problem. `form` is the remedy
/// to print if the value is of another kind.
pub(super) trait ReadNode {
    /// Returns the text of a scalar.
    fn text(&self, form: &str, problems: &mut Problems<'_>) -> Option<&str>;

    /// Returns the items of a list.
    fn list(&self, form: &str, problems: &mut Problems<'_>) -> Option<&[Node]>;

    /// Returns the entries of a map with arbitrary keys.
    fn entries(&self, form: &str, problems: &mut Problems<'_>) -> Option<&[(MapKey, Node)]>;

    /// Returns the entries of a map, and reports keys that are not `known`.
    fn fields(&self, known: &[&str], problems: &mut Problems<'_>) -> Option<Fields<'_>>;

    fn is_map(&self) -> bool;

    /// Returns the position.
    fn at(&self) -> Position;

    /// Parses a scalar.
    fn parse<T>(&self, form: &str, problems: &mut Problems<'_>) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        let parsed = self.text(form, problems)?.parse();
        parsed.map_err(|error| problems.add(self.at(), format!("{error}"), "")).ok()
    }

    /// Parses a scalar that must be one of `words`.
    fn word<T: Copy>(
        &self,
        what: &str,
        words: &[(&str, T)],
        problems: &mut Problems<'_>,
    ) -> Option<T> {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        let written = self.text(&format!("write one of {}", names.join(", ")), problems)?;
        let found = words.iter().find(|(name, _)| *name == written);
        if found.is_none() {
            problems.unknown(self.at(), what, written, &names);
        }
        found.map(|(_, value)| *value)
    }
}

impl ReadNode for Node {
    fn text(&self, form: &str, problems: &mut Problems<'_>) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) if !scalar.is_null() => Some(scalar.text()),
            _ => refuse(self, form, problems),
        }
    }

    fn list(&self, form: &str, problems: &mut Problems<'_>) -> Option<&[Node]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => refuse(self, form, problems),
        }
    }

    fn entries(&self, form: &str, problems: &mut Problems<'_>) -> Option<&[(MapKey, Node)]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => refuse(self, form, problems),
        }
    }

    fn fields(&self, known: &[&str], problems: &mut Problems<'_>) -> Option<Fields<'_>> {
        let form = format!("write a map of {}", known.join(", "));
        let entries = self.entries(&form, problems)?;
        for (key, _) in entries {
            if !known.contains(&key.text.as_str()) {
                problems.unknown(key.at, "key", &key.text, known);
            }
        }
        Some(Fields { at: self.at, entries })
    }

    fn is_map(&self) -> bool {
        matches!(&self.value, Value::Map(_))
    }

    fn at(&self) -> Position {
        self.at
    }
}

fn refuse<T>(node: &Node, form: &str, problems: &mut Problems<'_>) -> Option<T> {
    let message = match &node.value {
        Value::Scalar(scalar) if scalar.is_null() => "the value is missing",
        Value::Scalar(_) => "this is a single value",
        Value::List(_) => "this is a list",
        Value::Map(_) => "this is a map",
        // Already reported by the parser.
        Value::Broken => return None,
    };
    problems.add(node.at, message, form);
    None
}

/// The entries of a map with known keys.
#[derive(Clone, Copy)]
pub(super) struct Fields<'n> {
    pub(super) at: Position,
    pub(super) entries: &'n [(MapKey, Node)],
}

impl<'n> Fields<'n> {
    /// Returns an entry with the position of its key, if present.
    pub(super) fn entry(&self, key: &str) -> Option<(Position, &'n Node)> {
        let found = self.entries.iter().find(|(other, _)| other.text == key);
        found.map(|(key, node)| (key.at, node))
    }

    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.entry(key).map(|(_, node)| node)
    }

    /// Parses a scalar entry, if present.
    pub(super) fn parse<T>(&self, key: &str, form: &str, problems: &mut Problems<'_>) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        self.get(key).and_then(|node| node.parse(form, problems))
    }
}

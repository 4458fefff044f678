//! A list or a map that is being read.

use std::collections::HashMap;

use super::build::Built;
use super::{Key, Node, Value};
use crate::place::{Mark, Path, brief};
use crate::report::{Report, Show};

pub(super) struct Open {
    at: Mark,
    pub(super) anchor: usize,
    kind: Kind,
    path: Path,
    bytes: usize,
    depth: usize,
}

pub(super) enum Kind {
    List(Vec<Node>),
    Map { entries: Vec<(Key, Node)>, seen: HashMap<String, usize>, pending: Pending },
}

/// What the next value of a map belongs to.
pub(super) enum Pending {
    /// It is itself a key.
    Nothing,
    /// The value of this key.
    Key(Key),
    /// The value of a key that was there before, and was reported.
    Twice(Key),
    /// The value of something else that was reported.
    Wrong,
}

impl Kind {
    pub(super) fn list() -> Self {
        Self::List(Vec::new())
    }

    pub(super) fn map() -> Self {
        Self::Map { entries: Vec::new(), seen: HashMap::new(), pending: Pending::Nothing }
    }
}

impl Open {
    /// What a node counts as, besides its text, when it is copied.
    pub(super) const NODE_BYTES: usize = 16;

    pub(super) fn new(at: Mark, path: Path, anchor: usize, kind: Kind) -> Self {
        Self { at, anchor, kind, path, bytes: Self::NODE_BYTES, depth: 1 }
    }

    /// Whether the next value is a key.
    pub(super) fn wants_key(&self) -> bool {
        matches!(self.kind, Kind::Map { pending: Pending::Nothing, .. })
    }

    /// The key that the next value belongs to.
    pub(super) fn key(&self) -> Option<&Key> {
        match &self.kind {
            Kind::Map { pending: Pending::Key(key) | Pending::Twice(key), .. } => Some(key),
            _ => None,
        }
    }

    /// The path of the next value.
    pub(super) fn next_path(&self) -> Path {
        match (&self.kind, self.key()) {
            (Kind::List(list), _) => self.path.index(list.len()),
            (_, Some(key)) => self.path.key(&key.text),
            (_, None) => self.path.clone(),
        }
    }

    /// Takes the next value.
    pub(super) fn add(&mut self, built: Built, report: &mut Report) {
        self.bytes = self.bytes.saturating_add(built.bytes);
        self.depth = self.depth.max(built.depth + 1);
        let mut node = built.node;
        match &mut self.kind {
            Kind::List(list) => list.push(node),
            Kind::Map { entries, seen, pending } => {
                match std::mem::replace(pending, Pending::Nothing) {
                    Pending::Nothing => *pending = key(node, seen, &self.path, report),
                    Pending::Twice(_) | Pending::Wrong => {}
                    Pending::Key(key) => {
                        // The parser places a value that is not there wherever it stopped.
                        if matches!(&node.value, Value::Scalar(s) if s.is_null()) {
                            node.at = key.at;
                        }
                        entries.push((key, node));
                    }
                }
            }
        }
    }

    pub(super) fn finish(self) -> Built {
        let value = match self.kind {
            Kind::List(list) => Value::List(list),
            Kind::Map { entries, .. } => Value::Map(entries),
        };
        Built { node: Node { at: self.at, value }, bytes: self.bytes, depth: self.depth }
    }
}

/// What a node is as the key of a map in which `seen` stood before.
fn key(node: Node, seen: &mut HashMap<String, usize>, path: &Path, report: &mut Report) -> Pending {
    let mut wrong = |path: &Path, message: String, remedy: &str| {
        report.error_at(node.at, path, message, remedy, Show::Line);
        Pending::Wrong
    };
    let text = match &node.value {
        Value::Scalar(scalar) if !scalar.is_null() => scalar.text(),
        Value::Scalar(_) => {
            return wrong(path, "has no key".to_owned(), "write a word before the colon");
        }
        Value::Broken => return Pending::Wrong,
        Value::List(_) | Value::Map(_) => {
            let remedy =
                "write a word before the colon; if this is a variable, put quotes around it";
            return wrong(path, "a list or a map is not a key".to_owned(), remedy);
        }
    };
    if text == "<<" {
        let remedy = "write the keys out; an alias can stand for a whole value";
        return wrong(path, "merge keys are not read".to_owned(), remedy);
    }
    if text.contains("${") {
        let message =
            format!("{:?} is a key, and variables are replaced in values only", brief(text));
        return wrong(path, message, "write the key out");
    }
    let key = Key { at: node.at, text: text.to_owned() };
    if let Some(line) = seen.get(text) {
        let message = format!("appears twice, first on line {line}");
        wrong(&path.key(text), message, "keep one of them");
        return Pending::Twice(key);
    }
    seen.insert(text.to_owned(), node.at.line);
    Pending::Key(key)
}

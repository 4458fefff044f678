//! [`Container`]: a list or a map that the parser is still reading.

use std::collections::HashMap;

use super::build::FinishedNode;
use super::secrecy::{Secrecy, announces_secret};
use super::{Key, Node, Value};
use crate::location::{Path, Position, shorten};
use crate::report::{LineDisplay, Report};

pub(super) struct Container {
    at: Position,
    pub(super) anchor: usize,
    kind: ContainerKind,
    path: Path,
    secrecy: Secrecy,
    bytes: usize,
    depth: usize,
}

pub(super) enum ContainerKind {
    List(Vec<Node>),
    Map { entries: Vec<(Key, Node)>, seen: HashMap<String, usize>, pending: PendingKey },
}

/// The key that the next value of a map belongs to.
pub(super) enum PendingKey {
    /// None: the next value is a key itself.
    None,
    /// This key.
    Key(Key),
    /// A duplicate key, which is already reported.
    Duplicate(Key),
    /// An invalid key, which is already reported.
    Invalid,
}

impl ContainerKind {
    pub(super) fn list() -> Self {
        Self::List(Vec::new())
    }

    pub(super) fn map() -> Self {
        Self::Map { entries: Vec::new(), seen: HashMap::new(), pending: PendingKey::None }
    }
}

impl Container {
    /// Cost of copying a node, in addition to its text.
    pub(super) const NODE_BYTES: usize = 16;

    pub(super) fn new(
        at: Position,
        path: Path,
        secrecy: Secrecy,
        anchor: usize,
        kind: ContainerKind,
    ) -> Self {
        Self { at, anchor, kind, path, secrecy, bytes: Self::NODE_BYTES, depth: 1 }
    }

    /// Returns true if the next value is a key.
    pub(super) fn wants_key(&self) -> bool {
        matches!(self.kind, ContainerKind::Map { pending: PendingKey::None, .. })
    }

    /// Returns the key that the next value belongs to.
    pub(super) fn key(&self) -> Option<&Key> {
        match &self.kind {
            ContainerKind::Map {
                pending: PendingKey::Key(key) | PendingKey::Duplicate(key),
                ..
            } => Some(key),
            _ => None,
        }
    }

    /// Returns the path of the next value.
    pub(super) fn next_path(&self) -> Path {
        match (&self.kind, self.key()) {
            (ContainerKind::List(list), _) => self.path.index(list.len()),
            (_, Some(key)) => self.path.key(&key.text),
            (_, None) => self.path.clone(),
        }
    }

    /// Returns the secrecy of the next list or map.
    pub(super) fn next_secrecy(&self) -> Secrecy {
        match (&self.kind, self.key()) {
            (_, Some(key)) => self.secrecy.below(&key.text),
            (ContainerKind::Map { pending: PendingKey::Invalid, .. }, _) => Secrecy::Secret,
            (_, None) => self.secrecy,
        }
    }

    /// Returns true if no message may show the next value, a scalar.
    pub(super) fn hides_scalar(&self) -> bool {
        let secrecy = match self.key() {
            Some(key) => self.secrecy.of_scalar(&key.text),
            None => self.next_secrecy(),
        };
        secrecy == Secrecy::Secret || self.follows_secret_flag()
    }

    /// Returns true if the next item follows an option of a command line that takes a secret, such
    /// as `--password`.
    fn follows_secret_flag(&self) -> bool {
        let ContainerKind::List(list) = &self.kind else { return false };
        let Some(Value::Scalar(scalar)) = list.last().map(|node| &node.value) else { return false };
        scalar.text().starts_with('-') && announces_secret(scalar.text())
    }

    /// Adds the next value.
    pub(super) fn add(&mut self, built: FinishedNode, report: &mut Report) {
        self.bytes = self.bytes.saturating_add(built.bytes);
        self.depth = self.depth.max(built.depth + 1);
        let mut node = built.node;
        match &mut self.kind {
            ContainerKind::List(list) => list.push(node),
            ContainerKind::Map { entries, seen, pending } => {
                match std::mem::replace(pending, PendingKey::None) {
                    PendingKey::None => *pending = key(node, seen, &self.path, report),
                    PendingKey::Duplicate(_) | PendingKey::Invalid => {}
                    PendingKey::Key(key) => {
                        // The parser reports a missing value at the place where it stopped.
                        if matches!(&node.value, Value::Scalar(s) if s.is_null()) {
                            node.at = key.at;
                        }
                        entries.push((key, node));
                    }
                }
            }
        }
    }

    pub(super) fn finish(self) -> FinishedNode {
        let value = match self.kind {
            ContainerKind::List(list) => Value::List(list),
            ContainerKind::Map { entries, .. } => Value::Map(entries),
        };
        FinishedNode { node: Node { at: self.at, value }, bytes: self.bytes, depth: self.depth }
    }
}

/// Checks a node that is used as a key. `seen` holds the keys before it in the same map.
fn key(
    node: Node,
    seen: &mut HashMap<String, usize>,
    path: &Path,
    report: &mut Report,
) -> PendingKey {
    let mut wrong = |path: &Path, message: String, remedy: &str| {
        report.error_at(node.at, path, message, remedy, LineDisplay::Shown);
        PendingKey::Invalid
    };
    let text = match &node.value {
        Value::Scalar(scalar) if !scalar.is_null() => scalar.text(),
        Value::Scalar(_) => {
            return wrong(path, "missing key".to_owned(), "write a key before the colon");
        }
        Value::Broken => return PendingKey::Invalid,
        Value::List(_) | Value::Map(_) => {
            let remedy = "write a text before the colon; put quotes around a variable";
            return wrong(path, "a list or a map can't be a key".to_owned(), remedy);
        }
    };
    if text == "<<" {
        let remedy = "write the keys out, or use an alias for a whole value";
        return wrong(path, "YAML merge keys are not supported".to_owned(), remedy);
    }
    if text.contains("${") {
        let message = format!("{:?}: variables are not allowed in keys", shorten(text));
        return wrong(path, message, "write the key out");
    }
    let key = Key { at: node.at, text: text.to_owned() };
    if let Some(line) = seen.get(text) {
        let message = format!("duplicate key, first used on line {line}");
        wrong(&path.key(text), message, "remove one of them");
        return PendingKey::Duplicate(key);
    }
    seen.insert(text.to_owned(), node.at.line);
    PendingKey::Key(key)
}

//! Parses YAML into a tree of texts, lists and maps with line and column.
//!
//! Uses the same parser and the same messages as the configuration loader. Scalars stay texts:
//! `0.10` may be an amount of money, which must not be rounded by a float.

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::problems::Problems;

/// Maximum nesting depth. The format needs 6; a very deep tree would overflow the stack on drop.
const DEPTH_MAX: usize = 32;

/// Position in the text; both numbers start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextPosition {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// A value with its position. Aliases share the value of their anchor.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) at: TextPosition,
    value: Rc<Value>,
}

enum Value {
    Text { text: String, plain: bool },
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key with its position.
pub(super) struct Key {
    pub(super) at: TextPosition,
    pub(super) text: String,
}

impl Node {
    /// Returns the text of a scalar; `form` is the remedy to print if the value is something else.
    pub(super) fn text(&self, form: &str, problems: &mut Problems<'_>) -> Option<&str> {
        match &*self.value {
            Value::Text { text, plain } if !(*plain && is_null(text)) => Some(text),
            _ => self.refuse(form, problems),
        }
    }

    /// Parses a scalar.
    pub(super) fn parse<T>(&self, form: &str, problems: &mut Problems<'_>) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let parsed = self.text(form, problems)?.parse();
        parsed.map_err(|error| problems.add(self.at, format!("{error}"), "")).ok()
    }

    /// Parses a scalar that must be one of `words`.
    pub(super) fn word<T: Copy>(
        &self,
        what: &str,
        words: &[(&str, T)],
        problems: &mut Problems<'_>,
    ) -> Option<T> {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        let written = self.text(&format!("write one of {}", names.join(", ")), problems)?;
        let found = words.iter().find(|(name, _)| *name == written);
        if found.is_none() {
            problems.unknown(self.at, what, written, &names);
        }
        found.map(|(_, value)| *value)
    }

    /// Returns the items of a list.
    pub(super) fn list(&self, form: &str, problems: &mut Problems<'_>) -> Option<&[Node]> {
        match &*self.value {
            Value::List(items) => Some(items),
            _ => self.refuse(form, problems),
        }
    }

    /// Returns the entries of a map with arbitrary keys.
    pub(super) fn entries(
        &self,
        form: &str,
        problems: &mut Problems<'_>,
    ) -> Option<&[(Key, Node)]> {
        match &*self.value {
            Value::Map(entries) => Some(entries),
            _ => self.refuse(form, problems),
        }
    }

    /// Returns the entries of a map, and reports keys that are not `known`.
    pub(super) fn fields(&self, known: &[&str], problems: &mut Problems<'_>) -> Option<Fields<'_>> {
        let form = format!("write a map of {}", known.join(", "));
        let entries = self.entries(&form, problems)?;
        for (key, _) in entries {
            if !known.contains(&key.text.as_str()) {
                problems.unknown(key.at, "key", &key.text, known);
            }
        }
        Some(Fields { at: self.at, entries })
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(&*self.value, Value::Map(_))
    }

    fn refuse<T>(&self, form: &str, problems: &mut Problems<'_>) -> Option<T> {
        let message = match &*self.value {
            Value::Text { text, plain: true } if is_null(text) => "the value is missing",
            Value::Text { .. } => "this is a single value",
            Value::List(_) => "this is a list",
            Value::Map(_) => "this is a map",
        };
        problems.add(self.at, message, form);
        None
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null")
}

/// The entries of a map with known keys.
#[derive(Clone, Copy)]
pub(super) struct Fields<'n> {
    pub(super) at: TextPosition,
    pub(super) entries: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    /// Returns an entry with the position of its key, if present.
    pub(super) fn entry(&self, key: &str) -> Option<(TextPosition, &'n Node)> {
        let found = self.entries.iter().find(|(other, _)| other.text == key);
        found.map(|(key, node)| (key.at, node))
    }

    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.entry(key).map(|(_, node)| node)
    }

    /// Parses a scalar entry, if present.
    pub(super) fn parse<T>(&self, key: &str, form: &str, problems: &mut Problems<'_>) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        self.get(key).and_then(|node| node.parse(form, problems))
    }
}

/// Parses a text; returns `None` if it is not valid YAML.
pub(super) fn parse(text: &str, problems: &mut Problems<'_>) -> Option<Node> {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let refused = match event {
            Ok((event, span)) => builder.event(event, span).map_err(|what| (mark(span), what)),
            Err(error) => {
                let (line, column) = (error.marker().line().max(1), error.marker().col() + 1);
                Err((TextPosition { line, column }, format!("not YAML: {}", error.info())))
            }
        };
        if let Err((at, message)) = refused {
            problems.add(at, message, "");
            return None;
        }
    }
    if builder.root.is_none() {
        problems.add(
            TextPosition { line: 1, column: 1 },
            "the file is empty",
            "write a list of tests under tests:",
        );
    }
    builder.root
}

fn mark(span: Span) -> TextPosition {
    TextPosition { line: span.start.line().max(1), column: span.start.col() + 1 }
}

#[derive(Default)]
struct Builder {
    /// Lists and maps that are not closed yet, the innermost last.
    open: Vec<OpenNode>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
}

struct OpenNode {
    at: TextPosition,
    anchor: usize,
    inside: OpenValue,
}

enum OpenValue {
    List(Vec<Node>),
    /// Entries, and the key whose value comes next.
    Map(Vec<(Key, Node)>, Option<Key>),
}

impl OpenValue {
    fn finish(self) -> Value {
        match self {
            Self::List(items) => Value::List(items),
            Self::Map(entries, _) => Value::Map(entries),
        }
    }
}

impl Builder {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), String> {
        let at = mark(span);
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let (text, plain) = (text.into_owned(), style == ScalarStyle::Plain);
                (anchor, Node { at, value: Rc::new(Value::Text { text, plain }) })
            }
            Event::SequenceStart(anchor, _) => {
                return self.start(OpenNode { at, anchor, inside: OpenValue::List(Vec::new()) });
            }
            Event::MappingStart(anchor, _) => {
                return self.start(OpenNode {
                    at,
                    anchor,
                    inside: OpenValue::Map(Vec::new(), None),
                });
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenNode { at, anchor, inside }) => {
                    (anchor, Node { at, value: Rc::new(inside.finish()) })
                }
                None => return Ok(()),
            },
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => (0, Node { at, value: node.value.clone() }),
                None => return Err("the alias refers to a value that contains it".to_owned()),
            },
            Event::DocumentStart(_) if self.root.is_some() => {
                return Err("a second document starts here: write one document per file".to_owned());
            }
            _ => return Ok(()),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        self.put(node)
    }

    fn start(&mut self, open: OpenNode) -> Result<(), String> {
        if self.open.len() == DEPTH_MAX {
            return Err(format!("nests more than {DEPTH_MAX} levels deep"));
        }
        self.open.push(open);
        Ok(())
    }

    /// Adds a complete node to the innermost open list or map.
    fn put(&mut self, node: Node) -> Result<(), String> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.inside {
            OpenValue::List(items) => items.push(node),
            OpenValue::Map(entries, key) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => {
                    let Value::Text { text, .. } = &*node.value else {
                        return Err("a key must be a scalar".to_owned());
                    };
                    if entries.iter().any(|(other, _)| other.text == *text) {
                        return Err(format!("duplicate key {text}"));
                    }
                    *key = Some(Key { at: node.at, text: text.clone() });
                }
            },
        }
        Ok(())
    }
}

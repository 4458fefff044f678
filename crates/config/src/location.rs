//! [`Location`]: the location of a value in a configuration, as line and column and as a path such
//! as `limits[0].rules[1].limit`.

use std::fmt;
use std::rc::Rc;

/// A position in the text. Line and column count from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Position {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// A position and the path of the value there.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) position: Position,
    pub(crate) path: Path,
}

/// A path such as `limits[0].rules[1].limit`, kept as a linked list: the text is built only for
/// messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path(Option<Rc<PathNode>>);

#[derive(Debug)]
struct PathNode {
    parent: Path,
    segment: Segment,
}

#[derive(Debug)]
enum Segment {
    Key(Box<str>),
    Index(usize),
}

impl Path {
    /// Returns the path of the value of a key.
    pub(crate) fn key(&self, key: &str) -> Self {
        self.child(Segment::Key(key.into()))
    }

    /// Returns the path of an item of a list, counted from 0.
    pub(crate) fn index(&self, index: usize) -> Self {
        self.child(Segment::Index(index))
    }

    fn child(&self, segment: Segment) -> Self {
        Self(Some(Rc::new(PathNode { parent: self.clone(), segment })))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(node) = &self.0 else { return Ok(()) };
        node.parent.fmt(f)?;
        match &node.segment {
            Segment::Key(key) if node.parent.0.is_none() => f.write_str(&shorten(key)),
            Segment::Key(key) => write!(f, ".{}", shorten(key)),
            Segment::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Maximum number of characters of the file that a message repeats in one piece.
const SHORTENED_CHARS: usize = 80;

/// Shortens a text for a message, and replaces control characters, which could change a terminal.
pub(crate) fn shorten(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shorten: String = text.chars().take(SHORTENED_CHARS).map(printable).collect();
    if text.chars().nth(SHORTENED_CHARS).is_some() {
        shorten.push('…');
    }
    shorten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_it_would_be_written() {
        let rules = Path::default().key("limits").index(0).key("rules");
        assert_eq!(rules.index(12).key("limit").to_string(), "limits[0].rules[12].limit");
        assert_eq!(Path::default().to_string(), "");
        assert_eq!(Path::default().index(3).to_string(), "[3]");
    }

    #[test]
    fn long_and_unprintable_texts_are_cut_and_cleaned() {
        assert_eq!(shorten("a\u{1b}[31m"), "a\u{fffd}[31m");
        assert_eq!(shorten(&"é".repeat(90)), format!("{}…", "é".repeat(80)));
    }
}

//! Where something stands: a line and a column for the eye, a path for the mind.

use std::fmt;
use std::rc::Rc;

/// A position in the text; both numbers count from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl Mark {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// A position with the path that leads to it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) mark: Mark,
    pub(crate) path: Path,
}

/// `limits[0].rules[1].limit`, as a chain: it becomes text only where something is wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path(Option<Rc<Step>>);

#[derive(Debug)]
struct Step {
    before: Path,
    name: Name,
}

#[derive(Debug)]
enum Name {
    Key(Box<str>),
    Index(usize),
}

impl Path {
    /// The path to the value of a key.
    pub(crate) fn key(&self, key: &str) -> Self {
        self.step(Name::Key(key.into()))
    }

    /// The path to a place in a list, counted from 0.
    pub(crate) fn index(&self, index: usize) -> Self {
        self.step(Name::Index(index))
    }

    fn step(&self, name: Name) -> Self {
        Self(Some(Rc::new(Step { before: self.clone(), name })))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(step) = &self.0 else { return Ok(()) };
        step.before.fmt(f)?;
        match &step.name {
            Name::Key(key) if step.before.0.is_none() => f.write_str(&brief(key)),
            Name::Key(key) => write!(f, ".{}", brief(key)),
            Name::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// The longest piece of a file that a message repeats, in characters.
const BRIEF_CHARS: usize = 80;

/// A text that is short enough for a message and does nothing to a terminal.
pub(crate) fn brief(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut brief: String = text.chars().take(BRIEF_CHARS).map(printable).collect();
    if text.chars().nth(BRIEF_CHARS).is_some() {
        brief.push('…');
    }
    brief
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
        assert_eq!(brief("a\u{1b}[31m"), "a\u{fffd}[31m");
        assert_eq!(brief(&"é".repeat(90)), format!("{}…", "é".repeat(80)));
    }
}

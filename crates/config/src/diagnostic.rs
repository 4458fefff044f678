//! A mistake in a configuration, with the place, the reason and the remedy.

use std::fmt;
use std::sync::Arc;

/// Whether a configuration can be used in spite of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It can't.
    Error,
    /// It can, but it probably does not do what was meant.
    Warning,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The name of the file.
    pub source: Arc<str>,
    /// How bad it is.
    pub severity: Severity,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What the line is about: `limits[0].rules[1].limit`; empty for the file as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it, unless the message says so itself.
    pub remedy: Option<String>,
    /// The line, unless it may hold a secret.
    pub excerpt: Option<Excerpt>,
}

/// A line of a configuration, without what may be secret, and a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or the part of a long one around the place.
    pub text: String,
    /// How many characters of `text` stand before the place.
    pub caret: usize,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.source, self.line, self.column)?;
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some(remedy) = &self.remedy {
            write!(f, ": {remedy}")?;
        }
        if let Some(Excerpt { text, caret }) = &self.excerpt {
            let (line, caret) = (self.line, caret + 1);
            write!(f, "\n{line:>5} | {text}\n      | {:>caret$}", '^')?;
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration, in the order of the text. At least one is an
/// error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    omitted: usize,
}

impl Diagnostics {
    pub(crate) fn new(list: Vec<Diagnostic>, omitted: usize) -> Self {
        Self { list, omitted }
    }

    /// Each of them, errors and warnings.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list.iter()
    }

    /// How many more there are: a file in which everything is wrong does not need a thousand
    /// messages.
    pub fn omitted(&self) -> usize {
        self.omitted
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, diagnostic) in self.list.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            diagnostic.fmt(f)?;
        }
        match self.omitted {
            0 => Ok(()),
            omitted => write!(f, "\n… and {omitted} more"),
        }
    }
}

impl std::error::Error for Diagnostics {}

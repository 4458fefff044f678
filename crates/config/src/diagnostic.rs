//! [`Diagnostic`]: a mistake in a configuration, with its location, its reason and its remedy.

use std::fmt;
use std::sync::Arc;

/// The severity of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration can't be used.
    Error,
    /// The configuration can be used, but probably does not do what its author meant.
    Warning,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Name of the file.
    pub source: Arc<str>,
    /// Severity of the mistake.
    pub severity: Severity,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// Path of the value, such as `limits[0].rules[1].limit`; empty for the file as a whole.
    pub path: String,
    /// Description of the mistake.
    pub message: String,
    /// Instruction for the author of the file, unless the message contains it.
    pub remedy: Option<String>,
    /// The line, unless it may contain a secret.
    pub excerpt: Option<Excerpt>,
}

/// A line of a configuration without its secrets, and a position in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or the part of a long line around the position.
    pub text: String,
    /// Number of characters of `text` before the position.
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

/// All mistakes in a configuration, in the order of the text. At least one is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    omitted: usize,
}

impl Diagnostics {
    pub(crate) fn new(list: Vec<Diagnostic>, omitted: usize) -> Self {
        Self { list, omitted }
    }

    /// Iterates over errors and warnings.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list.iter()
    }

    /// Returns the number of mistakes that were left out: a file in which everything is wrong does
    /// not need a thousand messages.
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

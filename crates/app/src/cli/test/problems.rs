//! Collects the problems of a test file and prints them in the format of `sluicegate check`.

use std::fmt;
use std::sync::Arc;

use sluicegate_config::{Diagnostic, Excerpt, Position, Severity};

/// Maximum length of a line to quote in a message.
const LINE_CHARS_MAX: usize = 160;

/// Maximum number of valid words to list in a message.
const LISTED_MAX: usize = 20;

/// The problems of one test file.
pub(super) struct Problems<'t> {
    source: Arc<str>,
    lines: Vec<&'t str>,
    found: Vec<Diagnostic>,
}

impl<'t> Problems<'t> {
    pub(super) fn new(source: &str, text: &'t str) -> Self {
        Self { source: source.into(), lines: text.lines().collect(), found: Vec::new() }
    }

    pub(super) fn add(&mut self, at: Position, message: impl Into<String>, remedy: &str) {
        let line = self.lines.get(at.line - 1).filter(|line| line.chars().count() < LINE_CHARS_MAX);
        let excerpt = line.map(|line| Excerpt { text: (*line).to_owned(), caret: at.column - 1 });
        self.found.push(Diagnostic {
            source: self.source.clone(),
            severity: Severity::Error,
            line: at.line,
            column: at.column,
            path: String::new(),
            message: message.into(),
            remedy: (!remedy.is_empty()).then(|| remedy.to_owned()),
            excerpt,
        });
    }

    /// Adds a problem about an unknown word, with the closest known word as a suggestion.
    pub(super) fn unknown(&mut self, at: Position, what: &str, written: &str, known: &[&str]) {
        let remedy = match nearest(written, known) {
            Some(near) => format!("did you mean {near}?"),
            None if known.len() > LISTED_MAX => String::new(),
            None => format!("write one of {}", known.join(", ")),
        };
        self.add(at, format!("unknown {what} {written}"), &remedy);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

/// Prints all problems in order of their positions.
impl fmt::Display for Problems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut found: Vec<_> = self.found.iter().collect();
        found.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        for (number, diagnostic) in found.into_iter().enumerate() {
            let separator = if number > 0 { "\n" } else { "" };
            write!(f, "{separator}{diagnostic}")?;
        }
        Ok(())
    }
}

fn nearest<'k>(written: &str, known: &[&'k str]) -> Option<&'k str> {
    let distance = |word: &str| strsim::osa_distance(&written.to_lowercase(), &word.to_lowercase());
    let near = known.iter().map(|word| (distance(word), *word)).min();
    let far = (written.chars().count() / 3 + 1).min(3);
    near.filter(|(distance, _)| *distance <= far).map(|(_, word)| word)
}

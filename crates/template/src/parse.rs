//! Parses texts, trees and their placeholders.

use serde_json::Value;

use super::{JsonPath, Placeholder, Root, TemplatePart, Text, Tree};

const OPEN: &str = "{{";
const CLOSE: &str = "}}";
/// Properties of a job.
const JOB: [&str; 4] = ["id", "attempt", "type", "provider"];

/// Error of parsing a placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{{{{{written}}}}} {problem}")]
pub struct SyntaxError {
    /// The text between the braces.
    pub written: String,
    /// The problem. Unlike `written`, it never contains a secret.
    pub problem: PlaceholderProblem,
}

/// Problem with a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceholderProblem {
    /// The braces are not closed.
    #[error("is not closed: write }}}}, or {{{{{{{{ for two literal braces")]
    Open,
    /// The path is invalid.
    #[error(
        "is not a placeholder: write names separated by dots, such as {{{{user.name}}}}, in quotes \
         if they are not plain words, and :- before a default"
    )]
    Path,
    /// The default contains braces.
    #[error("has braces in its default: remove them")]
    Default,
    /// The object is not known here.
    #[error(
        "is unknown here: {0} exists only in emit; write {{{{message.{0}}}}} for a member of the message"
    )]
    Unknown(Root),
    /// `item` is used without a list.
    #[error("is unknown here: item needs `each`, which names a list")]
    Item,
    /// The job has no such property.
    #[error(
        "is unknown: job has id, attempt, type and provider; write {{{{message.job…}}}} for a member of the message"
    )]
    Job,
}

impl Text {
    /// Parses a text whose placeholders may use the objects in `known`.
    pub fn parse(text: &str, known: &[Root]) -> Result<Self, SyntaxError> {
        let mut parts = Vec::new();
        let mut fixed = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(OPEN) {
            fixed.push_str(before);
            if let Some(after) = after.strip_prefix(OPEN) {
                fixed.push_str(OPEN);
                rest = after;
                continue;
            }
            let failed = |written: &str, problem| SyntaxError {
                written: written.chars().take(60).collect(),
                problem,
            };
            let (inside, after) =
                after.split_once(CLOSE).ok_or_else(|| failed(after, PlaceholderProblem::Open))?;
            let place = place(inside, known).map_err(|problem| failed(inside, problem))?;
            if !fixed.is_empty() {
                parts.push(TemplatePart::Fixed(std::mem::take(&mut fixed)));
            }
            parts.push(TemplatePart::Placeholder(place));
            rest = after;
        }
        fixed.push_str(rest);
        if !fixed.is_empty() {
            parts.push(TemplatePart::Fixed(fixed));
        }
        Ok(Self { parts })
    }
}

impl Tree {
    /// Parses a text of a tree. A text that is only one placeholder becomes the value itself.
    pub fn text(text: &str, known: &[Root]) -> Result<Self, SyntaxError> {
        let mut text = Text::parse(text, known)?;
        Ok(match (text.parts.pop(), text.parts.is_empty()) {
            (None, _) => Self::Fixed(Value::from("")),
            (Some(TemplatePart::Placeholder(place)), true) => Self::Placeholder(place),
            (Some(TemplatePart::Fixed(fixed)), true) => Self::Fixed(Value::from(fixed)),
            (Some(last), false) => {
                text.parts.push(last);
                Self::Text(text)
            }
        })
    }
}

/// Parses the text between the braces.
fn place(inside: &str, known: &[Root]) -> Result<Placeholder, PlaceholderProblem> {
    let (path, default) = split_default(inside);
    let default = match default {
        Some(text) if text.contains(['{', '}']) => return Err(PlaceholderProblem::Default),
        // Valid JSON is taken as JSON, so that a number is a number; anything else is a text.
        Some(text) => Some(serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))),
        None => None,
    };
    let mut steps = steps(path)?;
    let root = steps.first().filter(|step| !step.quoted).and_then(|step| {
        Root::ALL.iter().find(|(name, _)| *name == step.name).map(|(_, root)| *root)
    });
    if root.is_some() {
        steps.remove(0);
    }
    let root = root.unwrap_or(Root::Message);
    match root {
        _ if known.contains(&root) => {}
        Root::Item if known.contains(&Root::Result) => return Err(PlaceholderProblem::Item),
        _ => return Err(PlaceholderProblem::Unknown(root)),
    }
    let member = JsonPath::new(steps.into_iter().map(|step| step.name).collect());
    if root == Root::Job && !member.only().is_some_and(|name| JOB.contains(&name)) {
        return Err(PlaceholderProblem::Job);
    }
    Ok(Placeholder { root, member, default })
}

/// Splits the text into the path and the default, which begins at the first `:-` outside of quotes.
fn split_default(inside: &str) -> (&str, Option<&str>) {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            ':' if !quoted && inside[at..].starts_with(":-") => {
                return (&inside[..at], Some(inside[at + 2..].trim()));
            }
            _ => {}
        }
    }
    (inside, None)
}

/// One name of a path.
pub(super) struct PathName {
    pub(super) name: String,
    quoted: bool,
}

/// Parses the names of a path, at least one.
pub(super) fn steps(path: &str) -> Result<Vec<PathName>, PlaceholderProblem> {
    let mut steps = Vec::new();
    let mut rest = path.trim();
    loop {
        let end = match rest.starts_with('"') {
            true => quote_end(rest).ok_or(PlaceholderProblem::Path)?,
            false => rest.find(|c| !in_word(c)).unwrap_or(rest.len()),
        };
        let (word, after) = rest.split_at(end);
        let quoted = word.starts_with('"');
        let name = match quoted {
            true => serde_json::from_str(word).map_err(|_| PlaceholderProblem::Path)?,
            false if word.is_empty() => return Err(PlaceholderProblem::Path),
            false => word.to_owned(),
        };
        steps.push(PathName { name, quoted });
        match after.strip_prefix('.') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(steps),
            None => return Err(PlaceholderProblem::Path),
        }
    }
}

/// Returns the end of a quoted name that begins here.
fn quote_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns true if a name without quotes may contain this character.
pub(super) fn in_word(c: char) -> bool {
    c.is_alphanumeric() || "_-@$".contains(c)
}

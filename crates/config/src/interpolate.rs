//! Replaces variables in values: `${NAME}`, `${NAME:-default}`, `${NAME:?message}`; `$$` is a
//! literal dollar.
//!
//! Variables are replaced in the parsed tree, not in the text, so that the value of a variable
//! can't add a key or end a string. The result is typed afterwards: `${N:-25}/s` is a limit.
//!
//! | in the file | NAME is set | NAME is empty | NAME is not set |
//! |---|---|---|---|
//! | `${NAME}` | its value | nothing | an error |
//! | `${NAME:-default}` | its value | the default | the default |
//! | `${NAME:?message}` | its value | an error | an error |
//!
//! A default may contain variables; a value never does.

use crate::location::{Location, Path, shorten};
use crate::raw::{Node, Value};
use crate::report::Report;

/// Maximum nesting depth of defaults.
const DEPTH_MAX: usize = 8;
/// Maximum total length of all texts with variables.
const TOTAL_BYTES_MAX: usize = 16 << 20;

/// Replaces the variables in a whole tree. A scalar whose variables can't be replaced becomes
/// [`Value::Broken`].
pub(crate) fn tree(node: &mut Node, env: &dyn Fn(&str) -> Option<String>, report: &mut Report) {
    let mut variables = Variables { env, bytes_left: TOTAL_BYTES_MAX };
    walk(node, &Path::default(), &mut variables, report);
}

fn walk(node: &mut Node, path: &Path, variables: &mut Variables<'_>, report: &mut Report) {
    match &mut node.value {
        Value::Scalar(scalar) if scalar.text().contains('$') => {
            match variables.replaced(scalar.text(), DEPTH_MAX) {
                Ok(text) => scalar.replace(text),
                Err(Problem { message, remedy }) => {
                    let location = Location { position: node.at, path: path.clone() };
                    report.error(&location, message, &remedy);
                    node.value = Value::Broken;
                }
            }
        }
        Value::Scalar(_) | Value::Broken => {}
        Value::List(list) => {
            for (index, node) in list.iter_mut().enumerate().filter(|(_, node)| concerns(node)) {
                walk(node, &path.index(index), variables, report);
            }
        }
        Value::Map(entries) => {
            for (key, node) in entries.iter_mut().filter(|(_, node)| concerns(node)) {
                walk(node, &path.key(&key.text), variables, report);
            }
        }
    }
}

/// Returns true if the node may contain variables. Most scalars contain none, and no path is built
/// for them.
fn concerns(node: &Node) -> bool {
    match &node.value {
        Value::Scalar(scalar) => scalar.text().contains('$'),
        Value::List(_) | Value::Map(_) => true,
        Value::Broken => false,
    }
}

/// Returns true if the text is exactly one variable without a default. Such a text contains no
/// secret itself.
pub(crate) fn is_one_variable(text: &str) -> bool {
    let inside = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|inside| {
        let (name, rest) = split_name(inside);
        !name.is_empty()
            && (rest.is_empty() || rest.starts_with(":?"))
            && !rest.contains(['$', '}'])
    })
}

/// Returns true if the text is exactly one variable, with or without a default.
pub(crate) fn is_one_variable_with_default(text: &str) -> bool {
    let inside = text.strip_prefix("${");
    inside.is_some_and(|inside| end(inside) == Some(inside.len() - 1))
}

/// Returns the names of the variables in a text, each once, in order.
pub(crate) fn names(template: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = template;
    while let Some((_, after)) = rest.split_once('$') {
        if let Some(inside) = after.strip_prefix('{') {
            let (name, _) = split_name(inside);
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
            rest = inside;
        } else {
            rest = after.strip_prefix('$').unwrap_or(after);
        }
    }
    names
}

#[derive(Debug)]
struct Problem {
    message: String,
    remedy: String,
}

impl Problem {
    fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}

struct Variables<'e> {
    env: &'e dyn Fn(&str) -> Option<String>,
    bytes_left: usize,
}

impl Variables<'_> {
    /// Returns a template with its variables replaced.
    fn replaced(&mut self, template: &str, depth: usize) -> Result<String, Problem> {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('$') {
            self.push(&mut text, before)?;
            if let Some(after) = after.strip_prefix('$') {
                text.push('$');
                rest = after;
            } else if let Some(after) = after.strip_prefix('{') {
                let end = end(after).ok_or_else(|| {
                    Problem::new(
                        "unterminated variable",
                        "add the closing }, or write $$ for a literal dollar",
                    )
                })?;
                let value = self.value(&after[..end], depth)?;
                self.push(&mut text, &value)?;
                rest = &after[end + 1..];
            } else {
                // A dollar without `{` is literal.
                text.push('$');
                rest = after;
            }
        }
        self.push(&mut text, rest)?;
        Ok(text)
    }

    /// Returns the value of the text between `${` and `}`.
    fn value(&mut self, inside: &str, depth: usize) -> Result<String, Problem> {
        let (name, rest) = split_name(inside);
        let malformed = || {
            let remedy =
                "write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a literal dollar";
            Err(Problem::new(format!("{:?} is not a valid variable name", shorten(inside)), remedy))
        };
        if name.is_empty() {
            return malformed();
        }
        let value = (self.env)(name);
        let state = if value.is_some() { "empty" } else { "not set" };
        let missing = |remedy: String| {
            Problem::new(format!("environment variable {} is {state}", shorten(name)), remedy)
        };
        if rest.is_empty() {
            return value.ok_or_else(|| missing(format!("set it, or write ${{{name}:-default}}")));
        }
        let value = value.filter(|value| !value.is_empty());
        if let Some(default) = rest.strip_prefix(":-") {
            return match value {
                Some(value) => Ok(value),
                None if depth == 0 => Err(Problem::new(
                    "variable defaults are nested more than 8 deep",
                    "use fewer defaults",
                )),
                None => self.replaced(default, depth - 1),
            };
        }
        match rest.strip_prefix(":?") {
            Some("") => value.ok_or_else(|| missing("set it".to_owned())),
            Some(message) => value.ok_or_else(|| missing(shorten(message))),
            None => malformed(),
        }
    }

    fn push(&mut self, text: &mut String, part: &str) -> Result<(), Problem> {
        let left = self.bytes_left.checked_sub(part.len());
        self.bytes_left = left.ok_or_else(|| {
            Problem::new(
                "the values of variables make the file larger than 16 MB",
                "use shorter values",
            )
        })?;
        text.push_str(part);
        Ok(())
    }
}

/// Returns the index of the `}` that closes a variable, given the text after its `${`.
fn end(inside: &str) -> Option<usize> {
    let mut open = 1_usize;
    let mut before = [' ', ' '];
    for (index, c) in inside.char_indices() {
        match c {
            // Not in `$${`, which is a literal dollar and a brace.
            '{' if before[1] == '$' && before[0] != '$' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(index);
        }
        before = [before[1], c];
    }
    None
}

/// Splits a text into the variable name at its start and the rest.
fn split_name(text: &str) -> (&str, &str) {
    let in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = text.find(|c| !in_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.starts_with(|c: char| c.is_ascii_digit()) { ("", text) } else { (name, rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        let value = match name {
            "N" => "25",
            "EMPTY" => "",
            "TRICK" => "${N} $$ \"\n- x: y",
            "_x1" => "ok",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn replaced(template: &str) -> Result<String, Problem> {
        Variables { env: &env, bytes_left: 1_000 }.replaced(template, DEPTH_MAX)
    }

    fn check(template: &str, expected: &str) {
        let text = replaced(template).unwrap_or_else(|p| panic!("{}", p.message));
        assert_eq!(text, expected, "{template}");
    }

    fn fails(template: &str, expected: &str) {
        let problem = replaced(template).expect_err(template);
        assert_eq!(format!("{}: {}", problem.message, problem.remedy), expected, "{template}");
    }

    #[test]
    fn variables_become_their_values() {
        check("${N}", "25");
        check("${N}/s", "25/s");
        check("a${N}b${_x1}c${N}", "a25bokc25");
        check("${EMPTY}", "");
        check("${N:-7}", "25");
        check("${N:?must be set}", "25");
        check("plain", "plain");
        check("", "");
    }

    #[test]
    fn defaults_stand_in_for_what_is_unset_or_empty() {
        check("${NO:-7}/s", "7/s");
        check("${EMPTY:-7}", "7");
        check("${NO:-}", "");
        check("${NO:-a b:c-d?}", "a b:c-d?");
        check("${NO:-${N}}", "25");
        check("${NO:-redis://${HOST:-localhost}:${PORT:-6379}/0}", "redis://localhost:6379/0");
        check("${NO:-a}b}", "ab}");
        check("${NO:-{a}}", "{a}");
    }

    #[test]
    fn a_dollar_can_be_written() {
        check("$$", "$");
        check("$${N}", "${N}");
        check("$$${N}", "$25");
        check("a$b", "a$b");
        check("5$", "5$");
        check("${NO:-$$}", "$");
        check("${NO:-$${x}", "${x");
    }

    #[test]
    fn values_are_taken_as_they_are() {
        check("${TRICK}", "${N} $$ \"\n- x: y");
        check("${NO:-${TRICK}}", "${N} $$ \"\n- x: y");
    }

    #[test]
    fn missing_variables_are_named_with_the_remedy() {
        fails("${NO}", "environment variable NO is not set: set it, or write ${NO:-default}");
        fails("${NO:?}", "environment variable NO is not set: set it");
        fails(
            "${EMPTY:?ask the operator}",
            "environment variable EMPTY is empty: ask the operator",
        );
        fails(
            "${NO:-${MORE}}",
            "environment variable MORE is not set: set it, or write ${MORE:-default}",
        );
    }

    #[test]
    fn malformed_variables_are_refused() {
        let form =
            "write ${NAME}, ${NAME:-default} or ${NAME:?message}, or $$ for a literal dollar";
        for inside in ["", "1N", "N M", "N-7", "N:7", "N:", "é", " N"] {
            fails(
                &format!("${{{inside}}}"),
                &format!("{inside:?} is not a valid variable name: {form}"),
            );
        }
        let open = "unterminated variable: add the closing }, or write $$ for a literal dollar";
        fails("${N", open);
        fails("${", open);
        fails("${NO:-${N}", open);
    }

    #[test]
    fn defaults_in_defaults_have_a_bound() {
        let deep = format!("{}x{}", "${NO:-".repeat(100), "}".repeat(100));
        fails(&deep, "variable defaults are nested more than 8 deep: use fewer defaults");
    }

    #[test]
    fn variables_do_not_fill_the_memory() {
        fails(
            &"${N}".repeat(501),
            "the values of variables make the file larger than 16 MB: use shorter values",
        );
    }

    #[test]
    fn the_names_of_variables_are_found() {
        for (text, expected) in [
            ("plain", &[][..]),
            ("${A}", &["A"]),
            ("${A:-${B:-x}}/${A}", &["A", "B"]),
            ("$${A} $B ${C}", &["C"]),
            ("${", &[]),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
        for (text, expected) in [
            ("${A}", true),
            ("${A:-${B}}", true),
            ("${A}${B}", false),
            ("${A}/s", false),
            ("", false),
        ] {
            assert_eq!(is_one_variable_with_default(text), expected, "{text}");
        }
    }

    #[test]
    fn a_variable_without_a_default_holds_no_secret() {
        for text in ["${A}", "${A:?}", "${A:?set A}"] {
            assert!(is_one_variable(text), "{text}");
        }
        for text in ["", "a", "${A:-x}", "${A}x", "x${A}", "${A}${B}", "${A:?${B}}", "${A:?b}c}"] {
            assert!(!is_one_variable(text), "{text}");
        }
    }
}

//! The output of `sluicegate test`: one line per test, and the details of each failure.

use serde_json::{Value, json};

use super::super::check::table;
use super::result::{Scope, StepResult};
use super::runner::Failure;

pub(super) fn passed(name: &str) -> String {
    format!("\x1b[32m✓\x1b[0m {name}")
}

pub(super) fn failed(name: &str, file: &str, failure: &Failure) -> String {
    let Failure { at, step, when, action, mismatches, result } = failure;
    let mut parts = vec![
        format!("\x1b[31m✗\x1b[0m {name}"),
        format!("{file}:{}:{}: step {step}, at {when}: {action}", at.line, at.column),
    ];
    let rows: Vec<_> =
        mismatches.iter().map(|m| [m.what.clone(), m.expected.clone(), m.got.clone()]).collect();
    parts.push(table(&["", "expected", "got"], &rows));
    parts.extend(result.error.clone());
    parts.push(scopes(result));
    let body = parts[1..].iter().filter(|part| !part.is_empty());
    let body: Vec<_> = body.map(|part| indented(part)).collect();
    format!("{}\n{}\n", parts[0], body.join("\n\n"))
}

/// Returns the result of one test as JSON.
pub(super) fn result_json(name: &str, file: &str, failure: Option<&Failure>) -> Value {
    let failure = failure.map(|failure| {
        let Failure { at, step, when, action, mismatches, result } = failure;
        let mismatches = mismatches
            .iter()
            .map(|one| json!({ "what": one.what, "expected": one.expected, "got": one.got }));
        json!({
            "line": at.line,
            "column": at.column,
            "step": step,
            "at": when.to_string(),
            "action": action,
            "mismatches": mismatches.collect::<Vec<_>>(),
            "error": result.error,
        })
    });
    let result = if failure.is_none() { "passed" } else { "failed" };
    json!({ "file": file, "test": name, "result": result, "failure": failure })
}

/// Formats the usage of the limits at the time of the failure.
fn scopes(result: &StepResult) -> String {
    let row = |scope: &Scope| {
        let shadow = if scope.shadow { " (shadow)" } else { "" };
        [
            format!("{}{shadow}", scope.rule),
            scope.limit.to_string(),
            scope.used.to_string(),
            scope.left.to_string(),
            format!("in {}", scope.reset),
        ]
    };
    let rows: Vec<_> = result.scopes.iter().map(row).collect();
    match (rows.is_empty(), &result.error) {
        (true, Some(_)) => String::new(),
        (true, None) => "no rule matches the request".to_owned(),
        (false, _) => table(&["rule", "limit", "used", "left", "resets"], &rows),
    }
}

fn indented(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("    {line}")).collect();
    lines.join("\n")
}

pub(super) fn summary(passed: usize, failed: usize) -> String {
    let (colour, failed) = match failed {
        0 => ("32", String::new()),
        _ => ("31", format!(", {failed} failed")),
    };
    format!("\x1b[{colour}m{passed} passed{failed}\x1b[0m")
}

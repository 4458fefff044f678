//! Reads templates: texts and trees with placeholders that are filled from a message.

use serde_json::Value as Json;
use sluicegate_template::{JsonPath, Root, SyntaxError, Text, Tree};

use super::super::item::Item;
use crate::raw::{Scalar, Value};
use crate::report::Report;

/// Reads a text with placeholders.
pub(super) fn text(item: &Item<'_>, known: &[Root], report: &mut Report) -> Option<Text> {
    let scalar = item.scalar(report, "write a text")?;
    Text::parse(scalar.text(), known).map_err(|error| refuse(item, scalar, &error, report)).ok()
}

/// Reads a tree with placeholders. A scalar without quotes becomes a number, a boolean or null if
/// it looks like one.
pub(super) fn tree(item: &Item<'_>, known: &[Root], report: &mut Report) -> Option<Tree> {
    match &item.node.value {
        Value::Broken => None,
        Value::Scalar(scalar) => {
            if let Some(value) = typed(scalar) {
                return Some(Tree::Fixed(value));
            }
            let tree = Tree::text(scalar.text(), known);
            tree.map_err(|error| refuse(item, scalar, &error, report)).ok()
        }
        Value::List(_) => {
            let items = item.list(report, "")?.into_iter().filter(is_there);
            let items: Vec<_> = items.map(|item| tree(&item, known, report)).collect();
            Some(Tree::List(items.into_iter().collect::<Option<_>>()?))
        }
        Value::Map(_) => {
            let mut members = Vec::new();
            for (key, item) in item.entries(report, "")? {
                if key.text.contains("{{") {
                    let message = "placeholders are not allowed in names";
                    item.fail(report, message, "write the name out");
                }
                if is_there(&item) {
                    members.push((key.text.clone(), tree(&item, known, report)));
                }
            }
            let members = members.into_iter().map(|(name, tree)| Some((name, tree?)));
            Some(Tree::Map(members.collect::<Option<_>>()?))
        }
    }
}

/// Reads a path into a response or a result.
pub(super) fn member(item: &Item<'_>, report: &mut Report) -> Option<JsonPath> {
    let form = "write names separated by dots, such as data.items, or . for the whole value";
    let scalar = item.scalar(report, form)?;
    let found = JsonPath::parse(scalar.text());
    if found.is_err() {
        item.fail(report, format!("{:?} is not a valid path", scalar.redacted()), form);
    }
    found.ok()
}

/// Reads a value without placeholders.
pub(super) fn value(item: &Item<'_>, report: &mut Report) -> Option<Json> {
    let scalar = item.scalar(report, "write a value, or a list of values")?;
    Some(typed(scalar).unwrap_or_else(|| Json::from(scalar.text())))
}

/// Returns false if empty variables left nothing of the item.
fn is_there(item: &Item<'_>) -> bool {
    !matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_omitted())
}

/// Returns the JSON value of a scalar that is not a text.
fn typed(scalar: &Scalar) -> Option<Json> {
    if scalar.is_null() {
        return Some(Json::Null);
    }
    let text = scalar.text();
    match text {
        _ if !scalar.is_plain() => None,
        "true" | "True" | "TRUE" => Some(Json::Bool(true)),
        "false" | "False" | "FALSE" => Some(Json::Bool(false)),
        _ => {
            let number: serde_json::Number = serde_json::from_str(text).ok()?;
            // A number that JSON can't represent exactly stays a text.
            let whole = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
            (!whole || number.to_string() == text).then_some(Json::Number(number))
        }
    }
}

/// Reports an invalid placeholder. A text that came from a variable is not repeated.
fn refuse(item: &Item<'_>, scalar: &Scalar, error: &SyntaxError, report: &mut Report) {
    match scalar.is_literal() {
        true => item.fail(report, error.to_string(), ""),
        false => item.fail(report, format!("a placeholder {}", error.problem), ""),
    }
}

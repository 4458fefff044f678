//! Templates: texts and trees in which places are filled from a message.

use serde_json::Value as Json;
use sluicegate_template::{Member, Root, SyntaxError, Text, Tree};

use super::super::item::Item;
use crate::raw::{Scalar, Value};
use crate::report::Report;

/// A text with places.
pub(super) fn text(item: &Item<'_>, known: &[Root], report: &mut Report) -> Option<Text> {
    let scalar = item.scalar(report, "write a text")?;
    Text::parse(scalar.text(), known).map_err(|error| refuse(item, scalar, &error, report)).ok()
}

/// A tree with places. What has no quotes is a number, a switch or null where it looks like one.
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
            for (key, item) in item.names(report, "")? {
                if key.text.contains("{{") {
                    let message = "has a place in its name, and places are filled in values only";
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

/// Where something is in an answer or a result.
pub(super) fn member(item: &Item<'_>, report: &mut Report) -> Option<Member> {
    let form = "write names with dots between them, such as data.items, or . for all of it";
    let scalar = item.scalar(report, form)?;
    let found = Member::parse(scalar.text());
    if found.is_err() {
        item.fail(report, format!("{:?} is not a path", scalar.shown()), form);
    }
    found.ok()
}

/// A value without places.
pub(super) fn value(item: &Item<'_>, report: &mut Report) -> Option<Json> {
    let scalar = item.scalar(report, "write a value, or a list of values")?;
    Some(typed(scalar).unwrap_or_else(|| Json::from(scalar.text())))
}

/// Whether variables left something of it.
fn is_there(item: &Item<'_>) -> bool {
    !matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_left_out())
}

/// What is no text.
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
            // A number that would become another one stays the text that it is.
            let whole = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
            (!whole || number.to_string() == text).then_some(Json::Number(number))
        }
    }
}

/// Says what is wrong with a place; what came from a variable is not repeated.
fn refuse(item: &Item<'_>, scalar: &Scalar, error: &SyntaxError, report: &mut Report) {
    match scalar.is_literal() {
        true => item.fail(report, error.to_string(), ""),
        false => item.fail(report, format!("a place in it {}", error.problem), ""),
    }
}

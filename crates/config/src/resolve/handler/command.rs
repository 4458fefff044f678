//! A program.

use std::collections::BTreeMap;

use sluicegate_template::Text;

use super::super::item::{Fields, Item};
use super::super::scalar;
use super::super::upstream::secret;
use crate::config::{ByteSize, CommandWork, SecretSource};
use crate::raw::Value;
use crate::report::Report;

const KNOWN: [&str; 5] = ["program", "args", "dir", "env", "output_limit"];
const FORM: &str = "write a list of the program and its arguments, or a map with program and args";

/// A program: a list of it and its arguments, or a map with more.
pub(super) fn command(item: &Item<'_>, report: &mut Report) -> Option<CommandWork> {
    let output_limit = ByteSize(10 << 20);
    if !matches!(item.node.value, Value::Map(_)) {
        let words = words(item, report)?;
        let Some((program, args)) = words.split_first() else {
            item.fail(report, "is empty", FORM);
            return None;
        };
        let (program, args) = (program.clone(), args.to_vec());
        return Some(CommandWork { program, args, dir: None, env: BTreeMap::new(), output_limit });
    }
    let fields = Fields::open(item.clone(), &KNOWN, report)?;
    let program = fields.require("program", "write what is run, such as ./crawl", report);
    let program = program.and_then(|item| word(&item, report));
    Some(CommandWork {
        args: fields.read("args", Vec::new(), report, words),
        dir: fields.read_some("dir", report, scalar::path),
        env: fields.read("env", BTreeMap::new(), report, env),
        output_limit: fields.read("output_limit", output_limit, report, scalar::size),
        program: program.filter(|program| !program.is_empty())?,
    })
}

fn words(item: &Item<'_>, report: &mut Report) -> Option<Vec<String>> {
    let items = item.list(report, FORM)?;
    Some(items.iter().filter_map(|item| word(item, report)).collect())
}

/// A word of a command line, as it is: there is no shell, and no place.
fn word(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let text = item.scalar(report, "write a text")?.text();
    if text.contains('\0') {
        item.fail(report, "has a NUL in it", "remove it");
        return None;
    }
    // Nothing is known here: whatever is read has no places, and its braces are as they are meant.
    let Ok(text) = Text::parse(text, &[]) else {
        let message = "has a place in it, and no part of a message can be an argument";
        let remedy =
            "let the program read the message from its standard input; two braces are {{{{";
        item.fail(report, message, remedy);
        return None;
    };
    Some(text.fixed().collect())
}

fn env(item: &Item<'_>, report: &mut Report) -> Option<BTreeMap<String, SecretSource>> {
    let form = "write a map of variables and their values";
    let mut found = BTreeMap::new();
    for (key, item) in item.names(report, form)? {
        let in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let sound = !key.text.is_empty() && key.text.chars().all(in_name);
        if !sound || key.text.starts_with(|c: char| c.is_ascii_digit()) {
            item.fail(report, "is not the name of a variable", "write letters, digits and _");
        } else if key.text.starts_with("SLUICEGATE_JOB_") {
            item.fail(report, "is what the program is told of its job", "choose another name");
        }
        if matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_left_out()) {
            continue;
        }
        if let Some(value) = secret(&item, report) {
            found.insert(key.text.clone(), value);
        }
    }
    Some(found)
}

//! Reads a `command` handler, which runs a program.

use std::collections::BTreeMap;

use sluicegate_template::Text;

use super::super::item::{Fields, Item};
use super::super::scalar;
use super::super::upstream::secret;
use crate::config::{ByteSize, CommandOptions, SecretSource};
use crate::raw::Value;
use crate::report::Report;

const KNOWN: [&str; 5] = ["program", "args", "dir", "env", "output_limit"];
const FORM: &str = "write a list of the program and its arguments, or a map with program and args";

/// Reads the program: a list of it and its arguments, or a map with more options.
pub(super) fn command(item: &Item<'_>, report: &mut Report) -> Option<CommandOptions> {
    let output_limit = ByteSize(10 << 20);
    if !matches!(item.node.value, Value::Map(_)) {
        let words = words(item, report)?;
        let Some((program, args)) = words.split_first() else {
            item.fail(report, "empty command", FORM);
            return None;
        };
        let (program, args) = (program.clone(), args.to_vec());
        return Some(CommandOptions {
            program,
            args,
            dir: None,
            env: BTreeMap::new(),
            output_limit,
        });
    }
    let fields = Fields::open(item.clone(), &KNOWN, report)?;
    let program = fields.require("program", "write the program to run, such as ./crawl", report);
    let program = program.and_then(|item| word(&item, report));
    Some(CommandOptions {
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

/// Reads one word of a command line. It is passed on unchanged: there is no shell, and templates
/// are not allowed.
fn word(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let text = item.scalar(report, "write a text")?.text();
    if text.contains('\0') {
        item.fail(report, "contains a NUL character", "remove it");
        return None;
    }
    // Parsed without any known names, so that every placeholder is an error and `{{{{` becomes two
    // braces.
    let Ok(text) = Text::parse(text, &[]) else {
        let message = "placeholders are not allowed in a command";
        let remedy = "read the message from standard input; write {{{{ for two literal braces";
        item.fail(report, message, remedy);
        return None;
    };
    Some(text.fixed().collect())
}

fn env(item: &Item<'_>, report: &mut Report) -> Option<BTreeMap<String, SecretSource>> {
    let form = "write a map from variable names to values";
    let mut found = BTreeMap::new();
    for (key, item) in item.entries(report, form)? {
        let in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let sound = !key.text.is_empty() && key.text.chars().all(in_name);
        if !sound || key.text.starts_with(|c: char| c.is_ascii_digit()) {
            item.fail(
                report,
                "not a valid variable name",
                "write letters, digits and _, not starting with a digit",
            );
        } else if key.text.starts_with("SLUICEGATE_JOB_") {
            item.fail(
                report,
                "SLUICEGATE_JOB_* variables are set for every job",
                "choose another name",
            );
        }
        if matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_omitted()) {
            continue;
        }
        if let Some(value) = secret(&item, report) {
            found.insert(key.text.clone(), value);
        }
    }
    Some(found)
}

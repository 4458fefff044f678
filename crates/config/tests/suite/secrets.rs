//! Tests that no message contains the value of a variable, or a text that looks like a secret.

use std::fs;

use crate::files::{files, variable};
use sluicegate_config::load;

const PLANTED: &str = "pl4nted-s3cret-of-somebody";
/// A secret that is also valid in a limit, so that messages about valid limits are tested, too.
const NUMBER: &str = "48151623";

#[test]
fn the_value_of_a_variable_is_in_no_message() {
    for folder in ["bad", "warning", "good"] {
        for path in files(folder) {
            let text = fs::read_to_string(&path).unwrap();
            for (text, secret) in planted(&text).iter().flat_map(|t| [(t, PLANTED), (t, NUMBER)]) {
                let env = |name: &str| env(text, name, secret);
                let messages = match load("f", text, &env) {
                    Ok(loaded) => format!("{:?}", loaded.warnings),
                    Err(errors) => format!("{errors}\n{errors:?}"),
                };
                assert!(!messages.contains(secret), "{}\n{text}\n{messages}", path.display());
            }
        }
    }
}

/// Returns copies of a text, each with one value replaced by a variable.
fn planted(text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().collect();
    let mut texts = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        for separator in [": ", "- "] {
            let Some((before, value)) = line.split_once(separator) else { continue };
            for value in variants(value) {
                let mut lines = lines.clone();
                let line = format!("{before}{separator}{value}");
                lines[number] = &line;
                texts.push(lines.join("\n"));
            }
        }
    }
    texts
}

/// Returns replacements for a value; in a list on one line, also for each item.
fn variants(value: &str) -> Vec<String> {
    let variables = ["${PLANTED}", "${PLANTED}/s", "${PLANTED:-9} concurrent"];
    let mut variants: Vec<_> = variables.map(str::to_owned).into();
    if let Some(items) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let items: Vec<_> = items.split(", ").take(8).collect();
        for (index, variable) in (0..items.len()).flat_map(|index| variables.map(|v| (index, v))) {
            let mut items = items.clone();
            let item = format!("\"{variable}\"");
            items[index] = &item;
            variants.push(format!("[{}]", items.join(", ")));
        }
    }
    variants
}

fn env(text: &str, name: &str, secret: &str) -> Option<String> {
    if name == "PLANTED" { Some(secret.to_owned()) } else { variable(text, name) }
}

#[test]
fn secrets_do_not_print() {
    let text = "
auth:
  tokens:
    a: ${PLANTED}
    b: [another-s3cret-of-somebody]
store:
  kind: redis
  url: redis://user:${PLANTED}@host
";
    let loaded = load("f", text, &|name| env(text, name, PLANTED)).unwrap();
    let printed = format!("{loaded:?}");
    assert!(!printed.contains("s3cret"), "{printed}");
    let azure = "store: {kind: redis, url: \"${PLANTED}\"}";
    let azure_env = |_: &str| Some("h:1,password=pl4nted-s3cret,ssl=True".to_owned());
    let printed = format!("{:?}", load("f", azure, &azure_env).unwrap());
    assert!(!printed.contains("s3cret"), "{printed}");
}

#[test]
fn secrets_that_are_written_out_are_not_repeated_either() {
    for text in [
        "auth: {tokens: {a: s3cret}}",
        "auth: {tokens: {a: s3cret-s3cret-s3cret, b: s3cret-s3cret-s3cret}}",
        "auth: {tokens: [s3cret]}",
        "auth:\n  tokens: s3cret",
        "auth:\n  token:\n    a: s3cret",
        "auht:\n  tokens: {a: s3cret}",
        "auth:\n  tokens:\n    a: >\n      s3cret\n    b: [",
        "auth:\n  tokens:\n    a: s3cret: s3cret",
        "auth:\n  tokens:\n    a: 's3cret",
        "auth:\n  tokens:\n    a: !!str s3cret",
        "auth:\n  tokens: {a: s3cret, a: s3cret}",
        "store: {kind: redis, url: 'redis://:s3cret@host:x', timeuot: 5s}",
        "store: {kind: redis, ulr: 'redis://:s3cret@host'}",
        "store: {kind: 'redis://:s3cret@host'}",
        "store: {kind: redis, url: 'host:1,password=s3cret,x'}",
        "store: {kind: redis, key_prefix: 'host:1, password=s3cret'}",
        "store: {kind: redis, cluster: 'redis://:s3cret@host'}",
        "store: {kind: redis, password: s3cret}",
        "store:\n  kind: redis\n  sentinel:\n    password: s3cret",
        "store:\n  kind: redis\n  password: 's3cret",
        "s3cret",
        "- s3cret",
    ] {
        let errors = load("f", text, &|_| None).expect_err(text);
        assert!(!format!("{errors}\n{errors:?}").contains("s3cret"), "{text}\n{errors}");
    }
}

//! Golden tests for files of envoyproxy/ratelimit.
//!
//! The rules of each `envoy/FEATURE.yaml` are in `FEATURE.txt`, the messages about each
//! `envoy_bad/MISTAKE.yaml` in `MISTAKE.txt`.

use std::fmt::Write as _;
use std::fs;

use sluicegate_config::Config;
use sluicegate_core::Rule;
use sluicegate_core::rule::Pattern;

use crate::files::{files, load_file};

#[test]
fn every_feature_becomes_these_rules() {
    for path in files("envoy") {
        let loaded = load_file(&path).unwrap_or_else(|problems| panic!("{problems}"));
        check(&path, &rules(&loaded.config));
        loaded.config.ruleset();
    }
}

#[test]
fn every_mistake_is_reported_at_its_location() {
    for path in files("envoy_bad") {
        let problems = load_file(&path).expect_err("it is a mistake");
        check(&path, &format!("{problems}\n"));
    }
}

#[test]
fn a_file_of_limits_asks_for_no_dimension_and_ours_may_say_how_envoy_is_answered() {
    let by_name = |name: &str| {
        let all = files("envoy");
        let path = all.iter().find(|path| path.ends_with(name)).expect(name);
        load_file(path).expect("a configuration").config
    };
    assert!(by_name("nested.yaml").settings().required.is_empty());
    assert!(by_name("nested.yaml").envoy.headers && !by_name("in_our_file.yaml").envoy.headers);
}

/// Compares a text with the `.txt` file next to a configuration.
#[track_caller]
pub(crate) fn check(path: &std::path::Path, found: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path.with_extension("txt"), found).expect("the folder can be written to");
    }
    let expected = fs::read_to_string(path.with_extension("txt")).unwrap_or_default();
    assert_eq!(found, expected, "{}", path.display());
}

/// Formats each group with its rules, one rule per line.
pub(crate) fn rules(config: &Config) -> String {
    let mut text = String::new();
    for group in config.groups() {
        let _ = writeln!(text, "{}", group.name);
        for rule in &group.rules {
            let _ = writeln!(text, "  {}", line(rule));
        }
    }
    text
}

fn line(rule: &Rule) -> String {
    let mut line = rule.name.clone();
    for (name, pattern) in &rule.when {
        let pattern = match pattern {
            Pattern::OneOf(values) => format!("= {}", values.join("|")),
            Pattern::Glob(glob) | Pattern::Stars(glob) => format!("like {glob}"),
            Pattern::Hashed(..) => pattern.to_string(),
        };
        let _ = write!(line, "; {name} {pattern}");
    }
    let _ = write!(line, "; per [{}]", rule.per.join(", "));
    for limit in &rule.limits {
        let _ = write!(line, "; {limit}");
    }
    for (is, word) in [
        (rule.unlimited, "unlimited"),
        (rule.shadow, "shadow"),
        (rule.counts_only, "tally"),
        (rule.quota, "quota"),
    ] {
        if is {
            let _ = write!(line, "; {word}");
        }
    }
    if let Some(reason) = &rule.reason {
        let _ = write!(line, "; reason {reason}");
    }
    if !rule.replaces.is_empty() {
        let _ = write!(line, "; replaces {}", rule.replaces.join(", "));
    }
    line
}

//! `sluicegate check`: validates a configuration file and prints its rules as a table.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sluicegate_config::{Config, Format, StoreOptions};
use sluicegate_core::rule::Pattern;
use sluicegate_core::{Group, Rule};

use super::gateway_notes::{default_rule_note, gateway_notes, has_idle_default_rule};
use super::print;
use super::remote::escaped;
use super::summary::{facts, notes, summary};
use crate::configuration::ConfigSource;
use crate::{certificates, writable};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate check limits.yaml                   validate a file, print its rules and warnings
  sluicegate check --strict limits.yaml          fail on warnings, for use in CI
  sluicegate check                               check the file of SLUICEGATE_CONFIG, else print the built-in defaults
  sluicegate check --from envoy ratelimit.yaml   print the rules converted from envoyproxy/ratelimit
  sluicegate check --json limits.yaml            print rules, notes and warnings as one JSON object

Exit code: 0 valid, 1 warnings with --strict, 2 invalid";

#[derive(Args)]
pub(super) struct Check {
    /// Configuration file [default: built-in defaults]
    #[arg(value_name = "FILE", env = "SLUICEGATE_CONFIG")]
    file: Option<PathBuf>,
    /// Format of the file [default: detected from its content]
    #[arg(long, value_name = "FORMAT")]
    from: Option<InputFormat>,
    /// Exit with code 1 if there are warnings
    #[arg(long)]
    strict: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Value of `--from`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum InputFormat {
    /// Sluicegate's own format
    Sluicegate,
    /// The format of envoyproxy/ratelimit: a domain with descriptors
    Envoy,
    /// The format of the old inference limiter: redis and rate_limits
    RateLimits,
}

impl InputFormat {
    const fn format(self) -> Format {
        match self {
            Self::Sluicegate => Format::Sluicegate,
            Self::Envoy => Format::Envoy,
            Self::RateLimits => Format::RateLimits,
        }
    }
}

impl Check {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let source = ConfigSource::new(self.file).in_format(self.from.map(InputFormat::format));
        let loaded = source.load()?;
        certificates::check(&loaded.config)?;
        let is_success = !self.strict || loaded.warnings.is_empty();
        if self.json {
            print(&result_json(&source.name(), &loaded.config, &loaded.warnings).to_string());
            return Ok(is_success);
        }
        let groups = served_groups(&loaded.config);
        let rows = groups.iter().flat_map(rows).collect::<Vec<_>>();
        let rules = groups.iter().flat_map(|group| &group.rules);
        let descriptions = descriptions(rules.flat_map(|rule| {
            let texts = rule.description.clone().into_iter();
            let texts = texts.chain(rule.reason.as_deref().map(reason_in_words));
            texts.map(|text| (rule.name.clone(), text))
        }));
        if !rows.is_empty() {
            print(
                &(table(&["group", "rule", "when", "per", "limit"], &rows) + &descriptions + "\n"),
            );
        }
        print(&summary(&loaded.config));
        if !loaded.config.enabled {
            print("\nlimits are disabled (enabled: false): every request is allowed");
        }
        for note in all_notes(&loaded.config) {
            print(&format!("\n\x1b[36mnote:\x1b[0m {note}"));
        }
        for warning in &loaded.warnings {
            // The text of a warning contains the word, after its position.
            print(&format!("\n{warning}"));
        }
        let warnings = match loaded.warnings.len() {
            0 => String::new(),
            1 => ", 1 warning".to_owned(),
            n => format!(", {n} warnings"),
        };
        print(&format!("\n{}: {} valid{warnings}", source.name(), rules_in_words(rows.len())));
        Ok(is_success)
    }
}

/// Returns the groups that apply to what the file configures.
fn served_groups(config: &Config) -> &[Group] {
    if has_idle_default_rule(config) { config.stated_groups() } else { config.groups() }
}

/// Returns all notes: facts that the author of a valid file should know.
fn all_notes(config: &Config) -> Vec<String> {
    let notes = notes(config).into_iter().chain(gateway_notes(config));
    notes.chain(default_rule_note(config)).chain(snapshot_note(config)).collect()
}

/// Returns a note if this machine can't write the snapshot. It is no warning, because a file is often
/// checked on another machine than the one that runs it.
fn snapshot_note(config: &Config) -> Option<String> {
    let StoreOptions::Memory { snapshot: Some(file), .. } = &config.store else { return None };
    let error = writable::check("store.snapshot.path", &file.path).err()?;
    let remedy = error.remedy();
    Some(format!("`sluicegate serve` does not start on this machine: {error}: {remedy}"))
}

/// Returns the result as JSON.
fn result_json(file: &str, config: &Config, warnings: &[impl ToString]) -> Value {
    let rule = |rule: &Rule| {
        let when = rule.when.iter().map(|(name, pattern)| format!("{name} {}", words(pattern)));
        json!({
            "name": rule.name,
            "description": rule.description,
            "when": when.collect::<Vec<_>>(),
            "per": rule.per,
            "limits": rule.limits.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "shadow": rule.shadow,
            "unlimited": rule.unlimited,
        })
    };
    let group = |group: &Group| {
        let rules: Vec<_> = group.rules.iter().map(rule).collect();
        json!({ "group": group.name, "rules": rules })
    };
    let mut result = json!({
        "file": file,
        "enabled": config.enabled,
        "groups": served_groups(config).iter().map(group).collect::<Vec<_>>(),
        "notes": all_notes(config),
        "warnings": warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    for (name, lines) in facts(config) {
        result[name] = lines.into();
    }
    result
}

fn rules_in_words(count: usize) -> String {
    if count == 1 { "1 rule".to_owned() } else { format!("{count} rules") }
}

fn rows(group: &Group) -> Vec<[String; 5]> {
    let row = |rule: &Rule| {
        let when: Vec<_> =
            rule.when.iter().map(|(name, p)| format!("{name} {}", words(p))).collect();
        let limits: Vec<_> = rule.limits.iter().map(ToString::to_string).collect();
        let limits = match rule.limits.as_slice() {
            _ if rule.unlimited => "no limit".to_owned(),
            [limit] if limit.is_ban() => "0 (ban)".to_owned(),
            _ => limits.join(", "),
        };
        let shadow = if rule.shadow { " (shadow)" } else { "" };
        [
            group.name.clone(),
            format!("{}{shadow}", rule.name),
            when.join(", "),
            rule.per.join(", "),
            limits,
        ]
    };
    group.rules.iter().map(row).collect()
}

/// Describes the reason that a rule configures.
pub(super) fn reason_in_words(reason: &str) -> String {
    format!("denials have the reason {reason}")
}

/// Formats the descriptions of rules, one line per rule, to print below a table.
pub(super) fn descriptions(rules: impl Iterator<Item = (String, String)>) -> String {
    let mut lines: Vec<String> = Vec::new();
    for (rule, text) in rules {
        let line = format!("\n{rule}: {text}");
        // A rule that applies with several counters is listed once.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if lines.is_empty() { String::new() } else { format!("\n{}", lines.concat()) }
}

fn words(pattern: &Pattern) -> String {
    match pattern {
        Pattern::OneOf(values) if values.len() == 1 => format!("= {}", values[0]),
        Pattern::OneOf(values) => format!("in {}", values.join(" | ")),
        Pattern::Glob(glob) | Pattern::Stars(glob) => format!("like {glob}"),
        Pattern::Hashed(..) => pattern.to_string(),
    }
}

/// Formats a table with a bold header and columns as wide as their widest cell. Control characters in
/// cells are escaped.
pub(super) fn table<const N: usize>(head: &[&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| escaped(cell))).collect();
    let mut widths = head.map(|title| title.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![format!("\x1b[1m{}\x1b[0m", line(*head))];
    lines.extend(rows.iter().map(|row| line(row.each_ref().map(String::as_str))));
    lines.join("\n")
}

//! `sluicegate override`: sets, lists and removes overrides on a running service. An override
//! temporarily replaces the limits of a rule for some callers.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::check::table;
use super::query::percent_encode;
use super::remote::{Remote, display, items, parse_pairs};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate override set USER_MODEL 'userId=premium_*' --limit 100/min --reason 'premium plan'
  sluicegate override set USER_MODEL userId=ann --limit unlimited --for 2h --reason 'load test'
  sluicegate override set USER_MODEL userId=eve --limit 0 --for 1d --reason 'abuse'
  sluicegate override list
  sluicegate override remove 0123456789abcdef0123456789abcdef";

#[derive(Args)]
pub(super) struct Overrides {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replace the limits of a rule for some callers; takes effect on every node within a second
    Set(Set),
    /// List the overrides
    List(List),
    /// Remove an override, so that the rule's own limits apply again
    Remove(Remove),
}

#[derive(Args)]
struct Set {
    /// Name of the rule whose limits to replace
    rule: String,
    /// Requests to which the override applies, such as userId=ann or 'userId=premium_*' [default: all
    /// requests]
    #[arg(value_name = "NAME=VALUE")]
    when: Vec<String>,
    /// New limit, such as 100/min, `unlimited`, or 0 to ban; repeat it for several windows
    #[arg(long, required = true)]
    limit: Vec<String>,
    /// Duration of the override, such as 2h [default: until it is removed]
    #[arg(long = "for", value_name = "DURATION")]
    lasts: Option<String>,
    /// Reason, shown in `override list` and logged by the service
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    remote: Remote,
}

#[derive(Args)]
struct Remove {
    /// Id of the override, as printed by `override set` and `override list`
    id: String,
    /// Reason, written to the audit log of the service
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

impl Overrides {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        match self.command {
            Command::Set(set) => set.run(),
            Command::List(List { remote }) => {
                let answer = remote.get("/v1/overrides")?;
                remote.show(&answer, |answer| overview(items(&answer["overrides"])));
                Ok(true)
            }
            Command::Remove(Remove { id, reason, remote }) => {
                let reason = reason.map(|text| format!("?reason={}", percent_encode(&text)));
                let reason = reason.unwrap_or_default();
                let answer = remote.delete(&format!("/v1/overrides/{id}{reason}"))?;
                remote.show(&answer, |answer| format!("removed: {}", display(&answer["removed"])));
                Ok(true)
            }
        }
    }
}

impl Set {
    fn run(self) -> anyhow::Result<bool> {
        let mut body = json!({
            "rule": self.rule,
            "when": parse_pairs(&self.when)?,
            "limit": self.limit,
            "reason": self.reason,
        });
        if let Some(lasts) = &self.lasts {
            body["expiresIn"] = lasts.as_str().into();
        }
        let answer = self.remote.post("/v1/overrides", &body)?;
        self.remote.show(&answer, |answer| overview(std::slice::from_ref(answer)));
        Ok(true)
    }
}

fn overview(overrides: &[Value]) -> String {
    if overrides.is_empty() {
        return "no overrides".to_owned();
    }
    let row = |one: &Value| {
        let when = one["when"].as_object().into_iter().flatten();
        let when: Vec<_> = when.map(|(name, value)| format!("{name}={}", display(value))).collect();
        let effect = match &one["problem"] {
            Value::Null => display(&one["limit"]),
            problem => format!("no effect: {}", display(problem)),
        };
        [
            display(&one["id"]),
            display(&one["rule"]),
            if when.is_empty() { "all requests".to_owned() } else { when.join(" ") },
            effect,
            match &one["expiresAt"] {
                Value::Null => "no end".to_owned(),
                at => display(at),
            },
            display(&one["by"]),
            display(&one["reason"]),
        ]
    };
    let rows: Vec<_> = overrides.iter().map(row).collect();
    table(&["id", "rule", "for", "limit", "until", "by", "reason"], &rows)
}

//! `sluicegate override`: other limits for some, for a while, on a running service.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::check::table;
use super::remote::{Remote, list, named, word};

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
    /// Give some other limits than their rule, on every node within a second
    Set(Set),
    /// Show the overrides that there are
    List(List),
    /// Let the rule apply again
    Remove(Remove),
}

#[derive(Args)]
struct Set {
    /// The rule whose limits are replaced
    rule: String,
    /// For whom: userId=ann, or a pattern such as userId=premium_*; for everybody if left out
    #[arg(value_name = "NAME=VALUE")]
    when: Vec<String>,
    /// The limit, such as 100/min; several times for several windows; `unlimited` for none, 0 for a ban
    #[arg(long, required = true)]
    limit: Vec<String>,
    /// How long it applies, such as 2h; until it is removed if left out
    #[arg(long = "for", value_name = "DURATION")]
    lasts: Option<String>,
    /// Why, for whoever asks later
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
    /// The id, as `override set` or `override list` shows it
    id: String,
    #[command(flatten)]
    remote: Remote,
}

impl Overrides {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        match self.command {
            Command::Set(set) => set.run(),
            Command::List(List { remote }) => {
                let answer = remote.get("/v1/overrides")?;
                remote.show(&answer, |answer| overview(list(&answer["overrides"])));
                Ok(true)
            }
            Command::Remove(Remove { id, remote }) => {
                let answer = remote.delete(&format!("/v1/overrides/{id}"))?;
                remote.show(&answer, |answer| format!("removed: {}", word(&answer["removed"])));
                Ok(true)
            }
        }
    }
}

impl Set {
    fn run(self) -> anyhow::Result<bool> {
        let mut body = json!({
            "rule": self.rule,
            "when": named(&self.when)?,
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
        return "none".to_owned();
    }
    let row = |one: &Value| {
        let when = one["when"].as_object().into_iter().flatten();
        let when: Vec<_> = when.map(|(name, value)| format!("{name}={}", word(value))).collect();
        let effect = match &one["problem"] {
            Value::Null => word(&one["limit"]),
            problem => format!("no effect: {}", word(problem)),
        };
        [
            word(&one["id"]),
            word(&one["rule"]),
            if when.is_empty() { "everybody".to_owned() } else { when.join(" ") },
            effect,
            match &one["expiresAt"] {
                Value::Null => "removed".to_owned(),
                at => word(at),
            },
            word(&one["by"]),
            word(&one["reason"]),
        ]
    };
    let rows: Vec<_> = overrides.iter().map(row).collect();
    table(&["id", "rule", "for", "limit", "until", "by", "reason"], &rows)
}

//! `sluicegate allow`, `explain`, `usage` and `reset`: questions to a running service.

use clap::Args;
use serde_json::{Value, json};

use super::check::table;
use super::remote::{Remote, list, named, word};

pub(super) const ALLOW_EXAMPLES: &str = "\
Examples:
  sluicegate allow userId=u1 modelId=gpt4
  sluicegate allow userId=u1 modelId=gpt4 tenantId=t1 --json
  sluicegate allow userId=u1 modelId=gpt4 && ./call-the-model

Exit code: 0 allowed, 1 denied, 2 no answer";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  sluicegate explain userId=u1 modelId=gpt4 tenantId=t1";

#[derive(Args)]
pub(super) struct Ask {
    /// Who asks for what: userId=u1 modelId=gpt4 …
    #[arg(value_name = "NAME=VALUE", required = true)]
    dimensions: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

impl Ask {
    pub(super) fn allow(self) -> anyhow::Result<bool> {
        let answer =
            self.remote.post("/rate-limit/allow", &Value::Object(named(&self.dimensions)?))?;
        let allowed = answer["allowed"] == true;
        self.remote.show(&answer, |answer| {
            let mut text = verdict(answer);
            text.push_str("\n\n");
            text.push_str(&scopes(&answer["scopes"]));
            text
        });
        Ok(allowed)
    }

    pub(super) fn explain(self) -> anyhow::Result<bool> {
        let answer = self.native("/v1/explain")?;
        self.remote.show(&answer, |answer| {
            let mut rows = Vec::new();
            for group in list(&answer["groups"]) {
                if list(&group["matched"]).is_empty() {
                    rows.push([
                        word(&group["group"]),
                        "none matches".to_owned(),
                        String::new(),
                        String::new(),
                    ]);
                }
                for rule in list(&group["matched"]) {
                    let limits: Vec<_> = list(&rule["limits"]).iter().map(word).collect();
                    let shadow = if rule["shadow"] == true { " (shadow)" } else { "" };
                    rows.push([
                        word(&group["group"]),
                        word(&rule["rule"]) + shadow,
                        limits.join(", "),
                        word(&rule["key"]),
                    ]);
                }
            }
            let groups = table(&["group", "rule that applies", "limit", "counter"], &rows);
            let decision = &answer["decision"];
            format!("{groups}\n\n{}\n\n{}", verdict(decision), scopes(&decision["scopes"]))
        });
        Ok(answer["decision"]["allowed"] == true)
    }

    pub(super) fn usage(self) -> anyhow::Result<bool> {
        let answer = self.native("/v1/usage")?;
        self.remote.show(&answer, |answer| scopes(&answer["scopes"]));
        Ok(true)
    }

    pub(super) fn reset(self) -> anyhow::Result<bool> {
        let answer = self.native("/v1/reset")?;
        self.remote.show(&answer, |answer| {
            let keys: Vec<_> = list(&answer["reset"]).iter().map(word).collect();
            format!("forgotten: {}", keys.join(", "))
        });
        Ok(true)
    }

    fn native(&self, path: &str) -> anyhow::Result<Value> {
        self.remote.post(path, &json!({ "dimensions": named(&self.dimensions)? }))
    }
}

fn verdict(answer: &Value) -> String {
    if answer["allowed"] == true {
        return "\x1b[32mallowed\x1b[0m".to_owned();
    }
    let wait = match answer["retryAfterMs"].as_u64() {
        Some(ms) => format!(", fits in {}", sluicegate_core::Span::from_millis(ms).in_words()),
        None => ", can never fit".to_owned(),
    };
    format!("\x1b[31mdenied\x1b[0m by {}{wait}", word(&answer["scopeHit"]))
}

fn scopes(scopes: &Value) -> String {
    let rows: Vec<_> = list(scopes)
        .iter()
        .map(|scope| {
            ["name", "window", "current", "limit", "remaining", "resetAt"]
                .map(|name| word(&scope[name]))
        })
        .collect();
    table(&["rule", "limit", "used", "of", "left", "oldest leaves"], &rows)
}

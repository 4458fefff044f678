//! `sluicegate allow`, `explain`, `usage` and `reset`: questions to a running service.

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use super::check::table;
use super::say;

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
    /// Where the service is
    #[arg(
        long,
        value_name = "URL",
        env = "SLUICEGATE_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    url: String,
    /// The bearer token, if the service asks for one
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the answer as the service gave it
    #[arg(long)]
    json: bool,
}

impl Ask {
    pub(super) fn allow(self) -> anyhow::Result<bool> {
        let answer = self.post("/rate-limit/allow", &Value::Object(self.named()?))?;
        let allowed = answer["allowed"] == true;
        self.show(&answer, |answer| {
            let mut text = verdict(answer);
            text.push_str("\n\n");
            text.push_str(&scopes(&answer["scopes"]));
            text
        });
        Ok(allowed)
    }

    pub(super) fn explain(self) -> anyhow::Result<bool> {
        let answer = self.native("/v1/explain")?;
        self.show(&answer, |answer| {
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
        self.show(&answer, |answer| scopes(&answer["scopes"]));
        Ok(true)
    }

    pub(super) fn reset(self) -> anyhow::Result<bool> {
        let answer = self.native("/v1/reset")?;
        self.show(&answer, |answer| {
            let keys: Vec<_> = list(&answer["reset"]).iter().map(word).collect();
            format!("forgotten: {}", keys.join(", "))
        });
        Ok(true)
    }

    fn native(&self, path: &str) -> anyhow::Result<Value> {
        self.post(path, &json!({ "dimensions": self.named()? }))
    }

    fn show(&self, answer: &Value, words: impl FnOnce(&Value) -> String) {
        if self.json {
            say(&answer.to_string());
        } else {
            say(&words(answer));
        }
    }

    fn named(&self) -> anyhow::Result<Map<String, Value>> {
        let pair = |text: &String| {
            let Some((name, value)) = text.split_once('=') else {
                bail!("{text:?} is not NAME=VALUE: write for instance userId=u1");
            };
            Ok((name.to_owned(), value.into()))
        };
        self.dimensions.iter().map(pair).collect()
    }

    fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.url.trim_end_matches('/'));
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(std::time::Duration::from_secs(10)))
            .build()
            .into();
        let mut request = agent.post(&url).header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = request
            .send(body.to_string())
            .with_context(|| format!("no answer from {url}: is `sluicegate serve` running?"))?;
        let status = response.status();
        let text = response.body_mut().read_to_string().context("the answer broke off")?;
        let answer: Value = serde_json::from_str(&text).with_context(|| {
            format!("{url} answered {status}, and not in JSON: is it Sluicegate?")
        })?;
        if status.is_success() {
            return Ok(answer);
        }
        bail!("{}", answer["detail"].as_str().unwrap_or(status.as_str()))
    }
}

fn verdict(answer: &Value) -> String {
    if answer["allowed"] == true {
        return "\x1b[32mallowed\x1b[0m".to_owned();
    }
    let wait = match answer["retryAfterMs"].as_u64() {
        Some(ms) => format!(", fits in {}", sluicegate_core::Span::from_millis(ms)),
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

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

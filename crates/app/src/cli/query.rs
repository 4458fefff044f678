//! `sluicegate allow`, `explain`, `usage` and `reset`: commands that send one request to a running
//! service and print its response.

use anyhow::ensure;
use clap::Args;
use serde_json::{Value, json};

use super::check::{descriptions, reason_in_words, table};
use super::remote::{Remote, display, items, parse_pairs};

pub(super) const ALLOW_EXAMPLES: &str = "\
Examples:
  sluicegate allow userId=u1 modelId=gpt4
  sluicegate allow userId=u1 modelId=gpt4 tenantId=t1 --json
  sluicegate allow userId=u1 modelId=gpt4 && ./call-the-model

Exit code: 0 allowed, 1 denied, 2 error (invalid request or no response)";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  sluicegate explain userId=u1 modelId=gpt4 tenantId=t1

Exit code: 0 would be allowed, 1 would be denied, 2 error (invalid request or no response)";

pub(super) const RESET_EXAMPLES: &str = "\
Examples:
  sluicegate reset userId=u1 tenantId=t1              list the counters, reset none
  sluicegate reset userId=u1 tenantId=t1 --rule USER  reset only the counters of rule USER
  sluicegate reset userId=u1 --rule USER --reason 'ticket 4711'
  sluicegate reset userId=u1 tenantId=t1 --yes        reset all listed counters

Exit code: 0 reset, 1 only listed, 2 error (invalid request or no response)";

#[derive(Args)]
pub(super) struct RequestArgs {
    /// Dimensions of the request, such as userId=u1 modelId=gpt4
    #[arg(value_name = "NAME=VALUE", required = true)]
    dimensions: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

impl RequestArgs {
    pub(super) fn allow(self) -> anyhow::Result<bool> {
        let answer = self
            .remote
            .post("/rate-limit/allow", &Value::Object(parse_pairs(&self.dimensions)?))?;
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
        let answer = self.post_dimensions("/v1/explain")?;
        self.remote.show(&answer, |answer| {
            let mut rows = Vec::new();
            for group in items(&answer["groups"]) {
                if items(&group["matched"]).is_empty() {
                    rows.push([
                        display(&group["group"]),
                        "no rule matches".to_owned(),
                        String::new(),
                        String::new(),
                    ]);
                }
                for rule in items(&group["matched"]) {
                    let limits: Vec<_> = items(&rule["limits"]).iter().map(display).collect();
                    let shadow = if rule["shadow"] == true { " (shadow)" } else { "" };
                    let limits = match limits.is_empty() {
                        true => "no limit".to_owned(),
                        false => limits.join(", "),
                    };
                    rows.push([
                        display(&group["group"]),
                        display(&rule["rule"]) + shadow,
                        limits + &override_note(&rule["override"]),
                        display(&rule["key"]),
                    ]);
                }
            }
            let mut groups = table(&["group", "matching rule", "limit", "counter"], &rows);
            let matched =
                items(&answer["groups"]).iter().flat_map(|group| items(&group["matched"]));
            groups.push_str(&descriptions(matched.flat_map(|rule| {
                let description = rule["description"].as_str().map(str::to_owned);
                let reason = rule["reason"].as_str().map(reason_in_words);
                let texts = description.into_iter().chain(reason);
                texts.map(|text| (display(&rule["rule"]), text))
            })));
            let decision = &answer["decision"];
            let skipped = skipped(items(&answer["groups"]));
            format!("{groups}\n{skipped}\n{}\n\n{}", verdict(decision), scopes(&decision["scopes"]))
        });
        Ok(answer["decision"]["allowed"] == true)
    }

    pub(super) fn usage(self) -> anyhow::Result<bool> {
        let answer = self.post_dimensions("/v1/usage")?;
        self.remote.show(&answer, |answer| scopes(&answer["scopes"]));
        Ok(true)
    }

    fn post_dimensions(&self, path: &str) -> anyhow::Result<Value> {
        self.remote.post(path, &json!({ "dimensions": parse_pairs(&self.dimensions)? }))
    }
}

/// Formats the override that a limit comes from, to print after the limit.
fn override_note(one: &Value) -> String {
    match (&one["id"], &one["until"]) {
        (Value::Null, _) => String::new(),
        (id, Value::Null) => format!(" (override {})", display(id)),
        (id, until) => format!(" (override {} until {})", display(id), display(until)),
    }
}

/// Formats the table of rules that do not match, with the reasons.
fn skipped(groups: &[Value]) -> String {
    let mut rows = Vec::new();
    for group in groups {
        for rule in items(&group["skipped"]) {
            rows.push([
                display(&group["group"]),
                display(&rule["rule"]),
                display(&rule["because"]),
            ]);
        }
        if let Some(more) = group["skippedMore"].as_u64() {
            rows.push([display(&group["group"]), format!("{more} more"), String::new()]);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}\n", table(&["group", "skipped rule", "reason"], &rows))
}

#[derive(Args)]
pub(super) struct ResetArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Reset only the counters of this rule; can be repeated
    #[arg(long, value_name = "RULE")]
    rule: Vec<String>,
    /// Reset every counter that the request is charged to
    #[arg(long, conflicts_with = "rule")]
    yes: bool,
    /// Reason, written to the audit log of the service
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl ResetArgs {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        if self.rule.is_empty() && !self.yes {
            let listed = self.request.post_dimensions("/v1/reset?dry_run=true")?;
            ensure_some(&listed["wouldReset"])?;
            self.request.remote.show(&listed, |listed| {
                let row = |one: &Value| [display(&one["rule"]), display(&one["key"])];
                let rows: Vec<_> = items(&listed["wouldReset"]).iter().map(row).collect();
                format!(
                    "{}\n\nno counter was reset: add --yes to reset all of them, or --rule RULE",
                    table(&["rule", "counter"], &rows)
                )
            });
            return Ok(false);
        }
        let rules = self.rule.iter().map(|rule| format!("rule={}", percent_encode(rule)));
        let mut query = match self.yes {
            true => "all=true".to_owned(),
            false => rules.collect::<Vec<_>>().join("&"),
        };
        if let Some(reason) = &self.reason {
            query.push_str(&format!("&reason={}", percent_encode(reason)));
        }
        let answer = self.request.post_dimensions(&format!("/v1/reset?{query}"))?;
        ensure_some(&answer["reset"])?;
        self.request.remote.show(&answer, |answer| {
            let keys: Vec<_> = items(&answer["reset"]).iter().map(display).collect();
            format!("reset: {}", keys.join(", "))
        });
        Ok(true)
    }
}

/// Checks that a request has counters to reset.
fn ensure_some(counters: &Value) -> anyhow::Result<()> {
    ensure!(
        !items(counters).is_empty(),
        "no counter was reset: no rule counts a request with these dimensions (see `sluicegate explain`)"
    );
    Ok(())
}

/// Percent-encodes a text for use in a query string, or as one segment of a path.
pub(super) fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let byte = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

fn verdict(answer: &Value) -> String {
    if answer["allowed"] == true {
        return "\x1b[32mallowed\x1b[0m".to_owned();
    }
    let wait = match answer["retryAfterMs"].as_u64() {
        Some(ms) => format!(", retry in {}", sluicegate_core::Span::from_millis(ms).in_words()),
        None => ", can never be allowed".to_owned(),
    };
    let denied = "\x1b[31mdenied\x1b[0m";
    match answer["reason"].as_str() {
        Some("STORE_UNAVAILABLE") => {
            format!(
                "{denied}: the store of the limits does not answer (STORE_UNAVAILABLE): retry later"
            )
        }
        Some("STORE_LOST_MEMORY") => {
            format!(
                "{denied}: the store lost its data, and store.on_loss is closed (STORE_LOST_MEMORY){wait}"
            )
        }
        reason => {
            let full = if reason == Some("STORE_FULL") { " (store full)" } else { "" };
            let wait = if is_ban(answer) { ban_end(answer) } else { wait };
            let outage = match answer["outage"].as_str() {
                Some(policy) => format!(
                    "; the store does not answer, and this node admits its share (outage: {policy})"
                ),
                None => String::new(),
            };
            format!("{denied} by {}{full}{wait}{outage}", display(&answer["scopeHit"]))
        }
    }
}

/// Returns true if a limit of 0 denied the request.
fn is_ban(answer: &Value) -> bool {
    let hit = &answer["scopeHit"];
    items(&answer["scopes"])
        .iter()
        .any(|scope| scope["name"] == *hit && scope["limit"].as_f64() == Some(0.0))
}

fn ban_end(answer: &Value) -> String {
    match answer["retryAfterMs"].as_u64() {
        Some(ms) => {
            let left = sluicegate_core::Span::from_millis(ms).in_words();
            format!(", which bans it (limit 0) for another {left}")
        }
        None => ", which bans it (limit 0)".to_owned(),
    }
}

fn scopes(scopes: &Value) -> String {
    let rows: Vec<_> = items(scopes)
        .iter()
        .map(|scope| {
            ["name", "window", "current", "limit", "remaining", "resetAt"]
                .map(|name| display(&scope[name]))
        })
        .collect();
    let shared = items(scopes).iter().filter(|scope| scope["shared"] == true);
    let mut rules: Vec<_> = shared.map(|scope| display(&scope["name"])).collect();
    rules.dedup();
    let mut text = table(&["rule", "limit", "used", "of", "left", "resets at"], &rows);
    if !rules.is_empty() {
        text.push_str(&format!(
            "\n\nstore full: {} counts this key on a counter shared with other keys; raise \
             store.keys_max",
            rules.join(", ")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_without_a_rule_names_its_reason() {
        let down = json!({"allowed": false, "reason": "STORE_UNAVAILABLE", "outage": "closed"});
        assert!(verdict(&down).ends_with(
            ": the store of the limits does not answer (STORE_UNAVAILABLE): retry later"
        ));
        let lost = json!({"allowed": false, "reason": "STORE_LOST_MEMORY", "retryAfterMs": 18_000});
        assert!(
            verdict(&lost).ends_with("(STORE_LOST_MEMORY), retry in 18s"),
            "{}",
            verdict(&lost)
        );
        let share = json!({
            "allowed": false, "reason": "HIT_USER_LIMIT", "scopeHit": "USER", "retryAfterMs": 1_000,
            "outage": "local",
        });
        assert!(verdict(&share).contains("by USER, retry in 1s; the store does not answer"));
    }

    #[test]
    fn a_ban_is_called_a_ban() {
        let scopes = json!([{"name": "KEY", "limit": 5}, {"name": "USER", "limit": 0}]);
        let mut banned = json!({
            "allowed": false, "reason": "HIT_USER_LIMIT", "scopeHit": "USER", "scopes": scopes,
        });
        assert!(verdict(&banned).ends_with("by USER, which bans it (limit 0)"));
        banned["retryAfterMs"] = json!(7_200_000);
        assert!(verdict(&banned).ends_with("by USER, which bans it (limit 0) for another 2h"));
        banned["scopeHit"] = json!("KEY");
        assert!(verdict(&banned).ends_with("by KEY, retry in 2h"));
    }
}

//! `sluicegate reload`: makes a running process reload its configuration.

use clap::Args;
use serde_json::{Value, json};

use super::query::percent_encode;
use super::remote::{AdminRemote, display, items};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate reload                                  reload, and print what changed
  sluicegate reload --reason 'ticket 4711'           with a reason for the audit log
  sluicegate reload --admin http://10.0.0.7:9090     another node

A configuration with a mistake is rejected as a whole, and the old one stays in force.

Exit code: 0 reloaded, 2 rejected or no response";

#[derive(Args)]
pub(super) struct Reload {
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    remote: AdminRemote,
}

impl Reload {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let remote = self.remote.remote();
        let reason = self.reason.map(|text| format!("?reason={}", percent_encode(&text)));
        let path = format!("/reload{}", reason.unwrap_or_default());
        let answer = remote.post(&path, &json!({}))?;
        remote.show(&answer, |answer: &Value| {
            let changes: Vec<_> = items(&answer["changes"]).iter().map(display).collect();
            match changes.is_empty() {
                true => "reloaded: no rule changed".to_owned(),
                false => format!("reloaded:\n{}", changes.join("\n")),
            }
        });
        Ok(true)
    }
}

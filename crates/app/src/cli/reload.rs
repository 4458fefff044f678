//! `sluicegate reload`: makes a running process reload its configuration.

use clap::Args;
use serde_json::{Value, json};

use super::remote::{AdminRemote, display, items};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate reload                                  reload, and print what changed
  sluicegate reload --admin http://10.0.0.7:9090     another node

A configuration with a mistake is rejected as a whole, and the old one stays in force.

Exit code: 0 reloaded, 2 rejected or no response";

#[derive(Args)]
pub(super) struct Reload {
    #[command(flatten)]
    remote: AdminRemote,
}

impl Reload {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let remote = self.remote.remote();
        let answer = remote.post("/reload", &json!({}))?;
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

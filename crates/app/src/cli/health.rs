//! `sluicegate health`: asks a running process whether it works, for container images without curl.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use super::print;
use super::remote::{CaArgs, checked};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate health                               is the process alive?
  sluicegate health --ready                       can it answer requests? (asks its store, too)
  sluicegate health --url http://127.0.0.1:3001   ask another listener, such as a gateway's

Exit code: 0 healthy, 1 not healthy, 2 no answer";

#[derive(Args)]
pub(super) struct Health {
    /// Address of any listener of the process
    #[arg(
        long,
        value_name = "URL",
        env = "SLUICEGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:9090"
    )]
    url: String,
    /// Check readiness instead of liveness
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    ca: CaArgs,
    /// Maximum wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

impl Health {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .tls_config(self.ca.tls()?)
            .timeout_global(Some(Duration::from_secs(self.timeout)))
            .http_status_as_error(false)
            .build()
            .into();
        let path = if self.ready { "ready" } else { "health" };
        let url = format!("{}/{path}", checked(&self.url)?);
        let mut response = agent.get(&url).call().with_context(|| {
            format!(
                "no response from {url}: is `sluicegate serve` running there? Name another address \
                 with --url"
            )
        })?;
        let text = response.body_mut().read_to_string().context("can't read the whole response")?;
        print(text.trim_end());
        Ok(response.status().is_success())
    }
}

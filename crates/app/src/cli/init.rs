//! `sluicegate init`: writes a commented configuration file to start from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use super::print;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate init inference-limiter              write sluicegate.yaml
  sluicegate init ingestion-proxy --output -     print the file
  sluicegate init assistant-api --output /etc/sluicegate/sluicegate.yaml --force

Then use the file, which no command reads by itself:
  sluicegate check sluicegate.yaml               show its rules and warnings
  sluicegate doctor --config sluicegate.yaml     test this machine
  sluicegate serve --config sluicegate.yaml      start the service";

#[derive(Args)]
pub(super) struct Init {
    /// Kind of system
    system: Starter,
    /// File to write; - prints it
    #[arg(short, long, value_name = "FILE", default_value = "sluicegate.yaml")]
    output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// A configuration to start from.
#[derive(Clone, Copy, ValueEnum)]
enum Starter {
    /// A gateway asks before every call to an AI model
    InferenceLimiter,
    /// A web API limits requests, concurrency and dollars per user
    AssistantApi,
    /// Jobs are sent to model providers within their limits
    TwoTierDispatch,
    /// Workers crawl an API that reports its limits
    CrawlerQueue,
    /// A reverse proxy that replicas share keeps the limit of a vendor
    IngestionProxy,
}

impl Starter {
    const fn text(self) -> &'static str {
        match self {
            Self::InferenceLimiter => include_str!("starter/inference-limiter.yaml"),
            Self::AssistantApi => include_str!("starter/assistant-api.yaml"),
            Self::TwoTierDispatch => include_str!("starter/two-tier-dispatch.yaml"),
            Self::CrawlerQueue => include_str!("starter/crawler-queue.yaml"),
            Self::IngestionProxy => include_str!("starter/ingestion-proxy.yaml"),
        }
    }
}

impl Init {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let text = self.system.text();
        if self.output.as_os_str() == "-" {
            print(text.trim_end());
            return Ok(true);
        }
        let mut options = OpenOptions::new();
        options.write(true);
        match self.force {
            true => options.create(true).truncate(true),
            // Fails if the file exists, also if another program creates it now.
            false => options.create_new(true),
        };
        let path = self.output.display();
        let mut file = match options.open(&self.output) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!(
                    "{path} exists: add --force to replace it, or name another file with --output"
                )
            }
            opened => opened.with_context(|| format!("can't write {path}"))?,
        };
        file.write_all(text.as_bytes()).with_context(|| format!("can't write {path}"))?;
        print(&format!("{path} written. Next: sluicegate check {path}"));
        Ok(true)
    }
}

//! `sluicegate doctor`: checks whether this machine can run a configuration, and prints what to do
//! about each problem.

mod files;
mod finding;
mod ports;
mod queues;
mod redis;

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;
use sluicegate_config::{Config, Listener, StoreOptions};

use super::print;
use super::queue::block_on;
use crate::configuration::ConfigSource;
use finding::{Finding, Severity};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate doctor --config limits.yaml          check ports, files, Redis and queues
  sluicegate doctor --config limits.yaml --json   one JSON object per check

Nothing is changed, except for one Redis key that is deleted at once. Run it as the user that runs the
service, before the service starts: ports of a running service are in use.

Exit code: 0 no problems (there may be warnings), 1 problems, 2 invalid configuration";

#[derive(Args)]
pub(super) struct Doctor {
    /// Configuration file [default: built-in defaults]
    #[arg(short, long, value_name = "FILE", env = "SLUICEGATE_CONFIG")]
    config: Option<PathBuf>,
    #[arg(hide = true, value_name = "FILE", value_parser = super::file_without_option)]
    _file: Option<Infallible>,
    /// Print each check as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let source = ConfigSource::new(self.config);
        let loaded = source.load()?;
        let config = loaded.config;
        let mut findings = vec![match loaded.warnings.len() {
            0 => Finding::ok("configuration", format!("{} is valid", source.name())),
            count => Finding::warning(
                "configuration",
                format!("{} is valid, with {}", source.name(), plural(count, "warning")),
                format!("run `sluicegate check {}` to see what it is", source.name()),
            ),
        }];
        findings.extend(ports::check(&config));
        findings.extend(files::check(&config));
        block_on(async {
            if let StoreOptions::Redis(store) = &config.store {
                findings.extend(redis::check(store, config.groups()).await);
            }
            if let Some(queue) = &config.queue {
                findings.extend(queues::check(&config, queue).await);
            }
            Ok(true)
        })?;
        for finding in &findings {
            print(&if self.json { finding.json() } else { finding.line() });
        }
        let count =
            |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
        if !self.json {
            let (problem, warning) = (plural(problems, "problem"), plural(warnings, "warning"));
            print(&format!("\n{problem}, {warning} in {} checks", findings.len()));
        }
        Ok(problems == 0)
    }
}

fn plural(count: usize, word: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {word}{end}")
}

/// Returns all listeners of a configuration with their options.
fn listeners(config: &Config) -> Vec<(String, &Listener)> {
    let own = [
        ("listen.http", &config.listen.http),
        ("listen.grpc", &config.listen.grpc),
        ("listen.admin", &config.listen.admin),
    ];
    let own = own.into_iter().map(|(option, listener)| (option.to_owned(), listener));
    let gateways = config.gateways.iter().enumerate();
    let gateways =
        gateways.map(|(number, gateway)| (format!("gateways[{number}].listen"), &gateway.listen));
    own.chain(gateways).collect()
}

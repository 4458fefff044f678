//! Checks that the broker accepts the login and that all queues of the configuration exist.

use std::collections::BTreeSet;
use std::time::Duration;

use sluicegate_config::{Config, QueueBroker, QueueOptions};

use super::Finding;
use crate::queue::{MissingQueue, Queues};

/// Maximum wait for the broker. A person waits for the result.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn check(config: &Config, options: &QueueOptions) -> Vec<Finding> {
    let (broker, remedy) = match &options.broker {
        QueueBroker::Embedded { path } => {
            if !path.exists() {
                // Opening it would create it.
                let words = format!("{} does not exist yet", path.display());
                let remedy = "start the service with --create once";
                return vec![Finding::warning("queue", words, remedy)];
            }
            ("embedded", "check that this user may read and write queue.path")
        }
        QueueBroker::RabbitMq { .. } => (
            "RabbitMQ",
            "check that RabbitMQ runs, and user, password and virtual host in queue.url",
        ),
        _ => ("broker", "check the section `queue` and the cloud credentials of this process"),
    };
    let opened = tokio::time::timeout(TIMEOUT, Queues::open(options)).await;
    let opened = opened.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer")));
    let queues = match opened {
        Ok(queues) => queues.with_dead_letters(config),
        Err(error) => {
            return vec![Finding::problem("broker", format!("{broker}: {error:#}"), remedy)];
        }
    };
    let mut findings = vec![Finding::ok("broker", format!("{broker}: connected"))];
    for name in names(config) {
        let opened = queues.queue(&name, MissingQueue::Fail);
        findings.push(match tokio::time::timeout(TIMEOUT, opened).await {
            Ok(Ok(_)) => Finding::ok("queue", format!("{name} exists")),
            Ok(Err(error)) => Finding::problem(
                "queue",
                format!("{error:#}"),
                format!("create {name}, or start the service with --create"),
            ),
            Err(_) => Finding::problem("queue", format!("{name}: no answer"), remedy),
        });
    }
    findings
}

/// Returns the queues that the dispatcher and the workers use.
fn names(config: &Config) -> BTreeSet<String> {
    let dispatch = config.dispatch.iter();
    let providers = dispatch.clone().flat_map(|dispatch| &dispatch.providers);
    let providers = providers.map(|provider| &provider.queue);
    let sources = dispatch.map(|dispatch| &dispatch.source);
    let workers = config.workers.iter();
    let results = workers.clone().filter_map(|worker| worker.results.as_ref());
    let queues = workers.map(|worker| &worker.queue);
    sources.chain(providers).chain(queues).chain(results).cloned().collect()
}

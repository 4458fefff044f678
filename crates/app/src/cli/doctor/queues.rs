//! Checks that the broker accepts the login and that all queues of the configuration exist.

use std::collections::BTreeSet;
use std::time::Duration;

use sluicegate_config::{Config, QueueBroker, QueueOptions};
use sluicegate_queue::Error;

use super::Finding;
use crate::queue::{MissingQueue, Queues};

/// Maximum wait for the broker. A person waits for the result.
const TIMEOUT: Duration = Duration::from_secs(5);
const CLOUD: &str = "check the section `queue` and the cloud credentials of this process";
/// Name of the queue to look up if the configuration names none.
const PROBE: &str = "sluicegate-doctor";

pub(super) async fn check(config: &Config, options: &QueueOptions) -> Vec<Finding> {
    let (broker, remedy) = match &options.broker {
        QueueBroker::Embedded { path } => {
            if !path.exists() {
                // Opening it would create it.
                let words =
                    format!("{} does not exist yet: the service creates it", path.display());
                return vec![Finding::ok("queue", words)];
            }
            ("embedded", "check that this user may read and write queue.path")
        }
        QueueBroker::RabbitMq { .. } => (
            "RabbitMQ",
            "check that RabbitMQ runs, and user, password and virtual host in queue.url",
        ),
        QueueBroker::Sqs { .. } => ("SQS", CLOUD),
        QueueBroker::PubSub(_) => ("Pub/Sub", CLOUD),
        QueueBroker::ServiceBus { .. } => ("Service Bus", CLOUD),
    };
    let opened = tokio::time::timeout(TIMEOUT, Queues::open(options)).await;
    let opened = opened.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer")));
    let queues = match opened {
        Ok(queues) => queues.with_dead_letters(config),
        Err(error) => {
            return vec![Finding::problem("broker", format!("{broker}: {error:#}"), remedy)];
        }
    };
    let names = names(config);
    let connected = || Finding::ok("broker", format!("{broker}: connected"));
    if names.is_empty() {
        let answer = look_up(&queues, PROBE).await;
        return vec![match answer.as_ref().map_err(queue_error) {
            Ok(()) | Err(Some(Error::NoQueue { .. } | Error::Unusable { .. })) => connected(),
            // The login may be restricted to certain queues.
            Err(Some(error @ Error::Refused { .. })) => {
                Finding::warning("broker", format!("{broker}: {error}"), remedy)
            }
            Err(_) => unreachable(broker, answer, remedy),
        }];
    }
    let (mut found, mut has_answered) = (Vec::new(), false);
    for name in names {
        let answer = look_up(&queues, &name).await;
        has_answered |=
            !matches!(answer.as_ref().map_err(queue_error), Err(Some(Error::Refused { .. })));
        found.push(match answer.as_ref().map_err(queue_error) {
            Ok(()) => Finding::ok("queue", format!("{name} exists")),
            Err(Some(error @ Error::NoQueue { .. })) => {
                let remedy = format!("create {name}, or start the service with --create");
                Finding::problem("queue", error.to_string(), remedy)
            }
            Err(Some(error)) if !error.is_transient() => {
                Finding::problem("queue", error.to_string(), remedy)
            }
            // A broker that does not answer does so for all queues.
            Err(_) => return vec![unreachable(broker, answer, remedy)],
        });
    }
    has_answered.then(connected).into_iter().chain(found).collect()
}

/// Asks the broker about a queue. Some brokers are contacted only then.
async fn look_up(queues: &Queues, name: &str) -> anyhow::Result<()> {
    let opened = tokio::time::timeout(TIMEOUT, queues.queue(name, MissingQueue::Fail)).await;
    opened.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer"))).map(drop)
}

fn queue_error(error: &anyhow::Error) -> Option<&Error> {
    error.downcast_ref()
}

fn unreachable(broker: &str, answer: anyhow::Result<()>, remedy: &str) -> Finding {
    let words = answer.err().map(|error| format!("{error:#}")).unwrap_or_default();
    Finding::problem("broker", format!("{broker}: {words}"), remedy)
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

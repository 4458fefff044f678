//! Checks that the broker accepts the login and that all queues of the configuration exist, with the
//! dead-letter queues of those that messages are received from.

use std::collections::BTreeSet;
use std::time::Duration;

use sluicegate_config::{Config, QueueBroker, QueueOptions};
use sluicegate_queue::{Error, Queue};

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
            Ok(_) | Err(Some(Error::NoQueue { .. } | Error::Unusable { .. })) => connected(),
            // The login may be restricted to certain queues.
            Err(Some(error @ Error::Refused { .. })) => {
                Finding::warning("broker", format!("{broker}: {error}"), remedy)
            }
            Err(_) => unreachable(broker, answer, remedy),
        }];
    }
    let sources = sources(config);
    // The embedded queue keeps dead letters in the same file and creates what is missing.
    let is_embedded = matches!(options.broker, QueueBroker::Embedded { .. });
    let mut dead_letter_queues = BTreeSet::new();
    let (mut found, mut has_answered) = (Vec::new(), false);
    for name in names {
        let answer = look_up(&queues, &name).await;
        has_answered |=
            !matches!(answer.as_ref().map_err(queue_error), Err(Some(Error::Refused { .. })));
        found.push(match answer.as_ref().map_err(queue_error) {
            Ok(_) => Finding::ok("queue", format!("{name} exists")),
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
        if let Ok(queue) = answer
            && !is_embedded
            && sources.contains(&name)
            && dead_letter_queues.insert(queue.dead_letter_name().to_owned())
        {
            found.extend(dead_letter_problem(&queue, remedy).await);
        }
    }
    has_answered.then(connected).into_iter().chain(found).collect()
}

/// Asks the broker about a queue. Some brokers are contacted only then.
async fn look_up(queues: &Queues, name: &str) -> anyhow::Result<Queue> {
    let opened = tokio::time::timeout(TIMEOUT, queues.queue(name, MissingQueue::Fail)).await;
    opened.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer")))
}

/// Returns the problem with the dead-letter queue of a queue, if there is one.
async fn dead_letter_problem(queue: &Queue, remedy: &str) -> Option<Finding> {
    let name = queue.dead_letter_name();
    let error = match tokio::time::timeout(TIMEOUT, queue.check_dead()).await {
        Ok(checked) => checked.err()?,
        Err(_) => return Some(Finding::problem("queue", format!("{name}: no answer"), remedy)),
    };
    let words = format!("dead-letter queue of {}: {error}", queue.name());
    Some(match error {
        Error::NoQueue { .. } => {
            let remedy = format!("create {name}, or start the service with --create");
            Finding::problem("queue", words, remedy)
        }
        // The login may be allowed to send to it only.
        Error::Refused { .. } => Finding::warning("queue", words, remedy),
        _ => Finding::problem("queue", words, remedy),
    })
}

fn queue_error(error: &anyhow::Error) -> Option<&Error> {
    error.downcast_ref()
}

fn unreachable(broker: &str, answer: anyhow::Result<Queue>, remedy: &str) -> Finding {
    let words = answer.err().map(|error| format!("{error:#}")).unwrap_or_default();
    Finding::problem("broker", format!("{broker}: {words}"), remedy)
}

/// Returns the queues that the dispatcher and the workers use.
fn names(config: &Config) -> BTreeSet<String> {
    let providers = config.dispatch.iter().flat_map(|dispatch| &dispatch.providers);
    let providers = providers.map(|provider| &provider.queue);
    let results = config.workers.iter().filter_map(|worker| worker.results.as_ref());
    sources(config).into_iter().chain(providers.chain(results).cloned()).collect()
}

/// Returns the queues that the dispatcher and the workers receive from.
fn sources(config: &Config) -> BTreeSet<String> {
    let dispatch = config.dispatch.iter().map(|dispatch| &dispatch.source);
    let workers = config.workers.iter().map(|worker| &worker.queue);
    dispatch.chain(workers).cloned().collect()
}

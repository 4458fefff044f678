//! Opens the queue broker that the configuration selects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_config::{self as config, QueueBroker, QueueOptions as Config};
use sluicegate_queue::rabbitmq::{self, QueueType};
use sluicegate_queue::{Broker, Embedded, Options, Queue, RabbitMq, Sqs, sqs};

/// A connected broker and the options of its queues.
pub(crate) struct Queues {
    broker: Arc<dyn Broker>,
    options: Options,
    /// Dead-letter queues of single queues.
    dead_letters: BTreeMap<String, String>,
    /// True if a queue was created.
    created: AtomicBool,
}

impl Queues {
    /// Opens the embedded queue or connects to the broker. Fails on a wrong address or login.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        let broker: Arc<dyn Broker> = match &config.broker {
            QueueBroker::Embedded { path } => Arc::new(Embedded::open(path)?),
            QueueBroker::RabbitMq { url, quorum, priorities } => {
                let mut options = rabbitmq::Options::new(url.expose());
                options.queue_type = if *quorum { QueueType::Quorum } else { QueueType::Classic };
                options.priorities = *priorities;
                Arc::new(RabbitMq::connect(options).await?)
            }
            QueueBroker::Sqs { endpoint, region } => {
                let (endpoint, region) = (endpoint.clone(), region.clone());
                Arc::new(Sqs::connect(sqs::Options { endpoint, region }).await?)
            }
        };
        let options = Options {
            dead_letter: config.dead_letter.clone(),
            visibility: config.visibility,
            job_field: config.job_id.clone(),
            type_field: config.type_field.clone(),
            ..Options::default()
        };
        let (dead_letters, created) = (BTreeMap::new(), AtomicBool::new(false));
        Ok(Self { broker, options, dead_letters, created })
    }

    /// Uses the dead-letter queues that a configuration names for its dispatcher and workers.
    pub(crate) fn with_dead_letters(mut self, config: &config::Config) -> Self {
        let dispatch = config.dispatch.iter().map(|d| (&d.source, &d.dead_letter));
        let workers = config.workers.iter().map(|worker| (&worker.queue, &worker.dead_letter));
        let named = dispatch.chain(workers);
        let named = named.filter_map(|(queue, dead)| Some((queue.clone(), dead.clone()?)));
        self.dead_letters.extend(named);
        self
    }

    /// Waits until queues that were created survive a crash of the broker.
    pub(crate) async fn flush_created(&self) {
        if self.created.load(Ordering::Relaxed) {
            tokio::time::sleep(self.broker.capabilities().creation_flush.into()).await;
        }
    }

    /// Opens a queue by name.
    pub(crate) async fn queue(&self, name: &str, missing: MissingQueue) -> anyhow::Result<Queue> {
        self.queue_with(name, None, missing).await
    }

    /// Opens a queue with a dead letter queue that differs from the configuration's.
    pub(crate) async fn queue_with(
        &self,
        name: &str,
        dead_letter: Option<&str>,
        missing: MissingQueue,
    ) -> anyhow::Result<Queue> {
        let mut options = self.options.clone();
        let dead_letter = dead_letter.or_else(|| self.dead_letters.get(name).map(String::as_str));
        options.dead_letter = dead_letter.map(str::to_owned).or(options.dead_letter);
        let queue = Queue::new(self.broker.clone(), name, options);
        match missing {
            MissingQueue::Create => {
                if queue.create().await? {
                    self.created.store(true, Ordering::Relaxed);
                }
            }
            // A dead-letter queue by its own name, to read the letters of all queues.
            MissingQueue::Fail if name == queue.dead_letter_name() => {
                queue.dead_depth().await?;
            }
            // Does not check for its dead letter queue, because it may be one itself.
            MissingQueue::Fail => drop(queue.depth().await?),
        }
        Ok(queue)
    }
}

/// Policy for queues that do not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingQueue {
    Create,
    Fail,
}

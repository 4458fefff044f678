//! The queues that the configuration chose.

use std::sync::Arc;

use sluicegate_config::{QueueBroker, QueueOptions as Config};
use sluicegate_queue::rabbitmq::{self, QueueType};
use sluicegate_queue::{Broker, Embedded, Options, Queue, RabbitMq, Sqs, sqs};

/// A broker, and how its queues are used.
pub(crate) struct Queues {
    broker: Arc<dyn Broker>,
    options: Options,
}

impl Queues {
    /// Opens the file, or connects: what is wrong with the address or the login is told here.
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
        Ok(Self { broker, options })
    }

    /// The queue of this name, which has to exist, or is made.
    pub(crate) async fn queue(&self, name: &str, missing: Missing) -> anyhow::Result<Queue> {
        self.queue_with(name, None, missing).await
    }

    /// The same, with another place for its dead letters than the configuration says.
    pub(crate) async fn queue_with(
        &self,
        name: &str,
        dead_letter: Option<&str>,
        missing: Missing,
    ) -> anyhow::Result<Queue> {
        let mut options = self.options.clone();
        options.dead_letter = dead_letter.map(str::to_owned).or(options.dead_letter);
        let queue = Queue::new(self.broker.clone(), name, options);
        match missing {
            Missing::Make => queue.create().await?,
            // Not that of its dead letters: it may be one itself.
            Missing::Refuse => drop(queue.depth().await?),
        }
        Ok(queue)
    }
}

/// What is done about a queue that does not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Make,
    Refuse,
}

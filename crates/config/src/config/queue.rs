//! [`QueueOptions`]: the broker that holds the job queues, and the options that all queues share.

use std::path::PathBuf;

use sluicegate_core::Span;

use super::Secret;

/// Options of the job queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Broker that holds the queues.
    pub broker: QueueBroker,
    /// Lease of a delivery: the time until another consumer may get it, unless its holder extends
    /// the lease. Default: 300s, as long as slow work may take.
    pub visibility: Span,
    /// Member of a JSON body that holds the job id. Default: none; the broker's message id is used.
    pub job_id: Option<String>,
    /// Member of a JSON body that holds the type of the job. Default: `type`.
    pub type_field: Option<String>,
    /// Dead-letter queue of all queues. Default: each has its own, its name and `-dlq`.
    pub dead_letter: Option<String>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            broker: QueueBroker::default(),
            visibility: Span::from_secs(300),
            job_id: None,
            type_field: Some("type".to_owned()),
            dead_letter: None,
        }
    }
}

/// A broker and its connection options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueBroker {
    /// A file on this machine, without a server. The default.
    Embedded {
        /// Path of the file. Default: `sluicegate-queue.db` in the working directory.
        path: PathBuf,
    },
    /// RabbitMQ.
    RabbitMq {
        /// Address with user and password. Default: amqp://guest:guest@127.0.0.1:5672/.
        url: Secret,
        /// True if the queues that we create are quorum queues. Default: false, which is what
        /// RabbitMQ creates for other programs that declare a queue without arguments.
        quorum: bool,
        /// True if the queues that we create deliver messages of a higher priority first. Default:
        /// false, for the same reason.
        priorities: bool,
    },
    /// Amazon SQS.
    Sqs {
        /// Address of a server that is compatible with SQS. Default: AWS.
        endpoint: Option<String>,
        /// Region. Default: as the AWS SDK finds it.
        region: Option<String>,
    },
}

impl QueueBroker {
    pub(crate) const PATH: &'static str = "sluicegate-queue.db";
    pub(crate) const URL: &'static str = "amqp://guest:guest@127.0.0.1:5672/";
}

impl Default for QueueBroker {
    fn default() -> Self {
        Self::Embedded { path: Self::PATH.into() }
    }
}

//! Where jobs wait.

use std::path::PathBuf;

use sluicegate_core::Span;

use super::Secret;

/// The queues of this product: on which broker, and how they are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// On which broker.
    pub broker: QueueBroker,
    /// How long a delivery is kept from others unless its holder prolongs it. Default: 300s, as
    /// long as slow work may take without a word.
    pub visibility: Span,
    /// The member of a JSON body that names the job. Default: none; the broker's id counts.
    pub job_id: Option<String>,
    /// The member of a JSON body that says what kind of work it is. Default: `type`.
    pub type_field: Option<String>,
    /// Where the dead letters of every queue go. Default: each has its own, its name and `-dlq`.
    pub dead_letter: Option<String>,
}

impl Default for Queue {
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

/// A broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueBroker {
    /// None: a file of this machine. The default.
    Embedded {
        /// The file. Default: `sluicegate-queue.db`, where the process runs.
        path: PathBuf,
    },
    /// RabbitMQ.
    RabbitMq {
        /// Its address, with user and password. Default: amqp://guest:guest@127.0.0.1:5672/.
        url: Secret,
        /// Whether queues that we create are quorum queues. Default: false, which is what a queue
        /// is that somebody declares without arguments.
        quorum: bool,
        /// Whether queues that we create put urgent messages first. Default: false, for the same
        /// reason.
        priorities: bool,
    },
    /// Amazon SQS.
    Sqs {
        /// Where it is, if that is not AWS. Default: AWS.
        endpoint: Option<String>,
        /// The region. Default: where every AWS program looks.
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

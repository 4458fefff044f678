//! [`QueueOptions`]: the broker that holds the job queues, and the options that all queues share.

use std::path::PathBuf;

use sluicegate_core::Span;
use sluicegate_core::rule::Pattern;

use super::{ByteSize, Secret};

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
    /// True if urgent messages overtake others. On brokers without priorities there is a queue for
    /// each of three levels. Default: false; the embedded queue always has priorities.
    pub priorities: bool,
    /// Maximum size of a body. Default: none; each broker has its own.
    pub size_max: Option<ByteSize>,
    /// Maximum age of a message; an older one becomes a dead letter. Default: none.
    pub age_max: Option<Span>,
    /// Number of redeliveries since the last retry, after which a message becomes a dead letter instead
    /// of being delivered once more. Default: 20, as RabbitMQ's quorum queues have it.
    pub redeliveries_max: u32,
    /// Time for which a job id is not sent twice to the same queue. Default: 0, which turns it off.
    pub deduplication: Span,
    /// HTTP API for producers and consumers.
    pub api: QueueApiOptions,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            broker: QueueBroker::default(),
            visibility: Span::from_secs(300),
            job_id: None,
            type_field: Some("type".to_owned()),
            dead_letter: None,
            priorities: false,
            size_max: None,
            age_max: None,
            redeliveries_max: 20,
            deduplication: Span::ZERO,
            api: QueueApiOptions::default(),
        }
    }
}

/// Options of the HTTP API of the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueApiOptions {
    /// Queues that clients may use, as names or globs. Default: `None`, every queue that has a plain
    /// name; a URL must be listed.
    pub queues: Option<Vec<Pattern>>,
    /// Maximum number of messages that clients of this node have leased or wait for. Default: 1000;
    /// the node keeps a leased message in memory.
    pub leases_max: usize,
    /// Maximum size of a request: a message, or a batch of messages. Default: 1MB, the maximum of
    /// SQS.
    pub body_limit: ByteSize,
}

impl Default for QueueApiOptions {
    fn default() -> Self {
        Self { queues: None, leases_max: 1_000, body_limit: ByteSize(1 << 20) }
    }
}

impl QueueApiOptions {
    /// Returns true if clients may use a queue.
    pub fn allows(&self, queue: &str) -> bool {
        match &self.queues {
            None => !queue.contains("://"),
            Some(patterns) => patterns.iter().any(|pattern| pattern.matches(queue)),
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
    },
    /// Azure Service Bus.
    ServiceBus {
        /// Namespace and identity.
        login: ServiceBusLogin,
        /// True if the AMQP protocol uses WebSockets on port 443. Default: false, port 5671.
        websockets: bool,
        /// Address of the management API. Default: the namespace.
        admin_url: Option<String>,
    },
    /// Amazon SQS.
    Sqs {
        /// Address of a server that is compatible with SQS. Default: AWS.
        endpoint: Option<String>,
        /// Region. Default: as the AWS SDK finds it.
        region: Option<String>,
    },
    /// Google Cloud Pub/Sub.
    PubSub(PubSubOptions),
}

/// Options of Google Cloud Pub/Sub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PubSubOptions {
    /// Project. Default: `GOOGLE_CLOUD_PROJECT`, or the project of the key file.
    pub project: Option<String>,
    /// Address of the service or of an emulator. Default: `PUBSUB_EMULATOR_HOST`, or Google.
    pub endpoint: Option<String>,
    /// Key file of a service account. Default: application default credentials.
    pub credentials: Option<PathBuf>,
    /// End of the name of each subscription, after the name of its topic. Default: none.
    pub subscription_suffix: String,
    /// True if subscriptions deliver messages with the same ordering key in order. Default: false.
    pub ordering: bool,
    /// True if subscriptions deliver exactly once. Default: false.
    pub exactly_once: bool,
}

/// The namespace of Service Bus and the identity that uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceBusLogin {
    /// A connection string with a key.
    ConnectionString(Secret),
    /// A namespace, and the Entra identity in the variables `AZURE_*` of the environment.
    Namespace(String),
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

//! Job queues on several brokers behind one interface: a durable queue in a local file, RabbitMQ,
//! Amazon SQS, Google Pub/Sub and Azure Service Bus.
//!
//! ```text
//! Message ─Queue::send→ Broker … Broker ─Consumer::receive→ Delivery ─ack, defer, retry, forward, dead_letter→
//! ```
//!
//! A [`Broker`] does what its server does natively; missing features are built once above it, in
//! [`Queue`], [`Consumer`] and [`Delivery`]. One rule prevents loss everywhere: the next message is
//! published and confirmed before the previous one is acknowledged. A crash in between creates a
//! duplicate, which its [`MessageId`] identifies, and never loses a message.

mod backoff;
#[cfg(any(feature = "pubsub", feature = "servicebus", feature = "sqs"))]
mod batcher;
mod body_fields;
pub mod broker;
mod clock;
mod consumer;
mod dead_letter;
mod delivery;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod envelope;
mod error;
mod message;
mod peek;
#[cfg(any(feature = "pubsub", feature = "sqs"))]
mod polling;
mod priority;
#[cfg(feature = "pubsub")]
pub mod pubsub;
mod queue;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod remote;
#[cfg(any(feature = "pubsub", feature = "sqs"))]
mod request_receipt;
#[cfg(any(feature = "pubsub", feature = "servicebus", feature = "sqs"))]
mod requeues;
#[cfg(feature = "servicebus")]
pub mod servicebus;
#[cfg(any(feature = "rabbitmq", feature = "servicebus"))]
mod shared_connection;
#[cfg(feature = "sqs")]
pub mod sqs;
mod stats;
pub mod step;

pub use backoff::Backoff;
pub use body_fields::without_byte_order_mark;
pub use broker::{Broker, Capabilities, Depth, LeaseKind, QueueName};
pub use clock::WallClock;
pub use consumer::{Consumer, ConsumerObserver, REDELIVERY_DELAY_MAX};
pub use dead_letter::{DeadLetter, DeadLetterFilter, DeadLetters};
pub use delivery::{DeadLetterReason, Delivery, Unsettled};
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
pub use error::Error;
pub use message::{DeliveryTime, FailureRecord, JobId, Message, MessageId, Metadata};
pub use peek::{FoundMessage, SearchCoverage};
#[cfg(feature = "pubsub")]
pub use pubsub::PubSub;
pub use queue::{DEAD_SUFFIX, Options, Queue};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::RabbitMq;
#[cfg(feature = "servicebus")]
pub use servicebus::ServiceBus;
#[cfg(feature = "sqs")]
pub use sqs::Sqs;
pub use stats::{ProcessingHistogram, QueueStats};

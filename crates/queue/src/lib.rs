//! Job queues on several brokers behind one interface: a durable queue in a local file, RabbitMQ
//! and Amazon SQS.
//!
//! ```text
//! Message ─Queue::send→ Broker … Broker ─Consumer::receive→ Delivery ─ack, defer, retry, forward, dead_letter→
//! ```
//!
//! A [`Broker`] does what its server does natively; missing features are built once above it, in
//! [`Queue`], [`Consumer`] and [`Delivery`]. One rule prevents loss everywhere: the next message is
//! published and confirmed before the previous one is acknowledged. A crash in between creates a
//! duplicate, which its [`MessageId`] identifies, and never loses a message.

pub mod broker;
mod clock;
mod consumer;
mod dead;
mod delivery;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod envelope;
mod error;
mod fields;
mod message;
mod peek;
mod queue;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "sqs")]
pub mod sqs;
mod stats;
pub mod step;

pub use broker::{Broker, Capabilities, Depth, Lease, Place};
pub use clock::WallClock;
pub use consumer::Consumer;
pub use dead::{DeadLetter, DeadLetters, Filter};
pub use delivery::{Delivery, Reason};
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
pub use error::Error;
pub use message::{Died, JobId, Message, MessageId, Metadata, When};
pub use queue::{Options, Queue};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::RabbitMq;
#[cfg(feature = "sqs")]
pub use sqs::Sqs;
pub use stats::{Processing, Snapshot};

//! [`PubSub`]: a broker on Google Cloud Pub/Sub. A queue is a topic and the subscription that reads
//! it. Messages are pulled, so that each lease has the length that its consumer asks for.
//!
//! ```text
//! target-delay-16s ─lease until due, then publish→ target
//! ```
//!
//! Pub/Sub has no delays. A delayed message waits in a delay topic, under a lease that ends when the
//! message is due: no process keeps it.
//!
//! The client is our own, on tonic: see `docs/decisions/024-a-thin-client-for-pubsub.md`.

mod api;
mod attributes;
mod client;
mod delay_topic;
mod failure;
mod login;
mod proto;
mod publish;
mod receipt;
mod source;
mod topic;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::{Span, Timestamp};

use crate::Error;
use crate::broker::{
    Broker, Capabilities, ConsumeOptions, DeliveryDelay, Depth, LeaseKind, MessageSource,
    OutgoingMessage, QueueName,
};
use crate::polling::PollingSource;
use client::PubSubClient;
use delay_topic::DelayTopic;
use source::PubSubPoller;

/// Name of the broker in messages.
const NAME: &str = "Pub/Sub";
/// Maximum size of a message, and of a request.
const SIZE_MAX: usize = 10_000_000;
/// Maximum lease of a delivery.
const LEASE_MAX: Span = Span::from_secs(600);
/// Shortest lease that a subscription can have by default.
const LEASE_MIN: Span = Span::from_secs(10);

const CAPABILITIES: Capabilities = Capabilities {
    broker: NAME,
    lease: LeaseKind::Timed(LEASE_MAX),
    delay_max: delay_topic::DELAY_MAX,
    delay_min: delay_topic::HOLD_MAX,
    fixed_delays: false,
    browse: false,
    depth: false,
    priorities: false,
    size_max: SIZE_MAX,
    counts_returns: true,
    creation_flush: Span::ZERO,
    atomic_relay: false,
};

/// Options of the Pub/Sub connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Project. Default: the variable `GOOGLE_CLOUD_PROJECT`, or the project of the credentials.
    pub project: Option<String>,
    /// Address of the service; with `http://`, of an emulator, without a login. Default: the
    /// emulator that the variable `PUBSUB_EMULATOR_HOST` names, or Google.
    pub endpoint: Option<String>,
    /// Key file of a service account. Default: application default credentials.
    pub credentials: Option<PathBuf>,
    /// End of the name of each subscription, after the name of its topic. Default: none.
    pub subscription_suffix: String,
    /// True if subscriptions deliver messages with the same ordering key in order. Default: false.
    pub ordering: bool,
    /// True if subscriptions deliver a message again only after its lease. Default: false.
    pub exactly_once: bool,
    /// Lease of the subscriptions that we create, from 10 s to 600 s. Default: 300 s. Consumers with
    /// another lease change it for each message.
    pub visibility: Span,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            project: None,
            endpoint: None,
            credentials: None,
            subscription_suffix: String::new(),
            ordering: false,
            exactly_once: false,
            visibility: Span::from_secs(300),
        }
    }
}

/// Pub/Sub in one project.
#[derive(Debug)]
pub struct PubSub {
    client: Arc<PubSubClient>,
}

impl PubSub {
    /// Creates a client. Fails if there is no valid login or no project; [`Broker::check`] reports
    /// problems with a topic or a subscription.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        Ok(Self { client: Arc::new(PubSubClient::new(options).await?) })
    }
}

impl Broker for PubSub {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn publish<'a>(
        &'a self,
        queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        publish::publish(&self.client, queue_name, batch).boxed()
    }

    fn consume<'a>(
        &'a self,
        queue_name: &'a QueueName,
        options: ConsumeOptions,
    ) -> BoxFuture<'a, Result<Box<dyn MessageSource>, Error>> {
        async move {
            let queue_handle = self.client.queue(queue_name).await?;
            if let QueueName::Live(_) = queue_name {
                // Messages that other processes have delayed.
                self.client.serve_delays(queue_name, DelayTopic::all())?;
            }
            let poller = PubSubPoller { client: self.client.clone(), queue_handle, options };
            let source: Box<dyn MessageSource> = Box::new(PollingSource::new(poller, options));
            Ok(source)
        }
        .boxed()
    }

    fn depth<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Depth, Error>> {
        async move {
            self.client.queue(queue_name).await?;
            let elsewhere = "Pub/Sub does not tell the number of messages: see the metric \
                             subscription/num_undelivered_messages of Cloud Monitoring";
            Err(Error::Invalid(elsewhere.to_owned()))
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        self.client.requeues.flush().boxed()
    }

    fn check<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.client.handle(queue_name)?.topic.check().await }.boxed()
    }

    fn check_counted<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.client.handle(queue_name)?.topic.check_counted().await }.boxed()
    }

    fn prepare_delays<'a>(
        &'a self,
        queue_name: &'a QueueName,
        fixed: &'a [Span],
        longest: Span,
    ) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let longest = fixed.iter().copied().chain([longest]).max().unwrap_or(longest);
            let left = longest.min(delay_topic::DELAY_MAX);
            let longest = DelayTopic::of(DeliveryDelay::Until { at: Timestamp::MAX, left });
            for delay_topic in DelayTopic::all().filter(|topic| Some(*topic) <= longest) {
                self.client.delay_queue(queue_name, delay_topic).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn create<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.client.handle(queue_name)?.topic.create(None).await }.boxed()
    }

    fn create_with_dead_letters<'a>(
        &'a self,
        queue_name: &'a QueueName,
        dead: &'a QueueName,
    ) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.client.handle(queue_name)?.topic.create(Some(dead)).await }.boxed()
    }

    fn purge<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        async move {
            self.client.queue(queue_name).await?.topic.purge().await?;
            for delay_topic in DelayTopic::all() {
                let delayed = self.client.handle(&delay_topic.queue(queue_name.name()))?;
                match delayed.topic.purge().await {
                    Err(Error::NoQueue { .. }) => {}
                    purged => purged?,
                }
            }
            Ok(None)
        }
        .boxed()
    }
}

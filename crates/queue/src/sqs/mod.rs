//! Amazon SQS, standard queues: long polling, leases that are prolonged, batches in which each
//! message succeeds or fails on its own.
//!
//! Credentials and region come from where every AWS program takes them: the environment, profiles,
//! the container or the machine. FIFO queues know no delay of a single message, so they are refused.

mod attributes;
mod client;
mod failure;
mod gather;
mod receipt;
mod send;
mod source;

use std::sync::Arc;

use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use crate::Error;
use crate::broker::{Broker, Capabilities, Depth, Lease, Outgoing, Place, Source, Terms};
use client::Link;
use source::Polling;

/// What it is called in messages.
const NAME: &str = "SQS";
/// A message with its attributes, and a batch of them.
const SIZE_MAX: usize = 1 << 20;
/// The longest that SQS hides a message or keeps a delivery from others.
const DELAY_MAX: Span = Span::from_secs(900);
const LEASE_MAX: Span = Span::from_secs(43_200);
/// As long as SQS keeps messages at all: two weeks, and not the four days of its default.
const RETENTION: &str = "1209600";

const CAPABILITIES: Capabilities = Capabilities {
    broker: NAME,
    lease: Lease::Timed(LEASE_MAX),
    delay_max: DELAY_MAX,
    delay_min: Span::from_secs(1),
    fixed_delays: false,
    browse: false,
    priorities: false,
    size_max: SIZE_MAX,
    counts_returns: true,
    atomic_relay: false,
};

/// How SQS is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where it is, if that is not AWS itself.
    pub endpoint: Option<String>,
    /// The region. Default: where every AWS program looks.
    pub region: Option<String>,
}

/// SQS of one account and region.
#[derive(Debug)]
pub struct Sqs {
    link: Arc<Link>,
}

impl Sqs {
    /// A client. Asks nothing yet: [`Broker::check`] says what is wrong with a queue or a login.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        Ok(Self { link: Arc::new(Link::new(options).await?) })
    }

    /// The same, as a program that uses AWS for other things has set it up.
    pub fn with_config(config: &aws_config::SdkConfig) -> Result<Self, Error> {
        Ok(Self { link: Arc::new(Link::from_config(config)?) })
    }

    async fn attributes(
        &self,
        place: &Place,
        names: &[Attribute],
    ) -> Result<impl Fn(&Attribute) -> Option<u64> + use<>, Error> {
        let line = self.link.line(place).await?;
        let ask = self.link.client.get_queue_attributes().queue_url(&line.queue.url);
        let asked = ask.set_attribute_names(Some(names.to_vec())).send().await;
        let answer = asked.map_err(|error| failure::of_queue(place, &error))?;
        let attributes = answer.attributes.unwrap_or_default();
        Ok(move |name: &Attribute| attributes.get(name).and_then(|text| text.parse().ok()))
    }
}

impl Broker for Sqs {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn publish<'a>(
        &'a self,
        place: &'a Place,
        batch: Vec<Outgoing>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        let batch = batch.into_iter().map(|outgoing| (outgoing, None)).collect();
        send::send(&self.link, place, batch).boxed()
    }

    fn consume<'a>(
        &'a self,
        place: &'a Place,
        terms: Terms,
    ) -> BoxFuture<'a, Result<Box<dyn Source>, Error>> {
        async move {
            let line = self.link.line(place).await?;
            let source: Box<dyn Source> = Box::new(Polling::new(self.link.clone(), line, terms));
            Ok(source)
        }
        .boxed()
    }

    fn depth<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Depth, Error>> {
        async move {
            let names = [
                Attribute::ApproximateNumberOfMessages,
                Attribute::ApproximateNumberOfMessagesDelayed,
                Attribute::ApproximateNumberOfMessagesNotVisible,
            ];
            let read = self.attributes(place, &names).await?;
            Ok(Depth {
                ready: read(&names[0]).unwrap_or_default(),
                delayed: read(&names[1]),
                in_flight: read(&names[2]),
                oldest: None,
            })
        }
        .boxed()
    }

    fn check<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.attributes(place, &[Attribute::QueueArn]).await.map(drop) }.boxed()
    }

    fn create<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let create = self.link.client.create_queue().queue_name(client::name(place)?);
            let create = create.attributes(Attribute::MessageRetentionPeriod, RETENTION);
            create.send().await.map(drop).map_err(|error| failure::of_queue(place, &error))
        }
        .boxed()
    }

    fn purge<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        async move {
            let line = self.link.line(place).await?;
            let purge = self.link.client.purge_queue().queue_url(&line.queue.url).send().await;
            purge.map(|_| None).map_err(|error| failure::of_queue(place, &error))
        }
        .boxed()
    }
}

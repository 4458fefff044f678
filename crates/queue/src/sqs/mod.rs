//! [`Sqs`]: a broker on standard queues of Amazon SQS, with long polling, leases that are extended,
//! and batches in which each message succeeds or fails on its own.
//!
//! Credentials and region come from the usual AWS sources: the environment, profiles, the container
//! or the machine. FIFO queues can't delay single messages, so they are refused.

mod attributes;
mod batch_results;
mod client;
mod failure;
mod receipt;
mod send;
mod source;

use std::sync::Arc;

use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use crate::Error;
use crate::broker::{
    Broker, Capabilities, ConsumeOptions, Depth, LeaseKind, MessageSource, OutgoingMessage,
    QueueName, ResumedMessage,
};
use crate::polling::PollingSource;
use crate::priority;
use crate::request_receipt::RequestReceipt;
use client::SqsClient;
use receipt::SqsRequests;
use source::SqsPoller;

/// Name of the broker in messages.
const NAME: &str = "SQS";
/// Maximum size of a message with its attributes, and of a batch.
const SIZE_MAX: usize = 1 << 20;
/// Maximum number of messages in a request.
const BATCH_MAX: usize = 10;
/// Maximum delay of a message.
const DELAY_MAX: Span = Span::from_secs(900);
/// Maximum lease of a delivery.
const LEASE_MAX: Span = Span::from_secs(43_200);
/// Retention of messages in queues that we create, in seconds: the maximum of two weeks instead of
/// the default of four days.
const RETENTION: &str = "1209600";

const CAPABILITIES: Capabilities = Capabilities {
    broker: NAME,
    lease: LeaseKind::Timed(LEASE_MAX),
    delay_max: DELAY_MAX,
    delay_min: Span::from_secs(1),
    fixed_delays: false,
    browse: false,
    depth: true,
    priorities: false,
    size_max: SIZE_MAX,
    counts_returns: true,
    creation_flush: Span::ZERO,
    atomic_relay: false,
};

/// Options of the SQS connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Address of a server that is compatible with SQS. Default: AWS.
    pub endpoint: Option<String>,
    /// Region. Default: as the AWS SDK finds it.
    pub region: Option<String>,
}

/// SQS in one account and region.
#[derive(Debug)]
pub struct Sqs {
    sqs: Arc<SqsClient>,
}

impl Sqs {
    /// Creates a client. Sends no request yet: [`Broker::check`] reports problems with a queue or a
    /// login.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        Ok(Self { sqs: Arc::new(SqsClient::new(options).await?) })
    }

    /// Creates a client from an existing AWS configuration.
    pub fn with_config(config: &aws_config::SdkConfig) -> Result<Self, Error> {
        Ok(Self { sqs: Arc::new(SqsClient::from_config(config)?) })
    }

    /// Reads attributes of a queue.
    async fn attributes(
        &self,
        queue_name: &QueueName,
        names: &[Attribute],
    ) -> Result<impl Fn(&Attribute) -> Option<u64> + use<>, Error> {
        let queue_handle = self.sqs.queue(queue_name).await?;
        let request = self.sqs.client.get_queue_attributes().queue_url(&queue_handle.queue.url);
        let response = request.set_attribute_names(Some(names.to_vec())).send().await;
        let response = response.map_err(|error| failure::of_queue(queue_name, &error))?;
        let attributes = response.attributes.unwrap_or_default();
        Ok(move |name: &Attribute| attributes.get(name).and_then(|text| text.parse().ok()))
    }
}

impl Broker for Sqs {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn publish<'a>(
        &'a self,
        queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        let batch = batch.into_iter().map(|outgoing| (outgoing, None)).collect();
        send::send(&self.sqs, queue_name, batch).boxed()
    }

    fn consume<'a>(
        &'a self,
        queue_name: &'a QueueName,
        options: ConsumeOptions,
    ) -> BoxFuture<'a, Result<Box<dyn MessageSource>, Error>> {
        async move {
            let queue_handle = self.sqs.queue(queue_name).await?;
            let poller = SqsPoller { sqs: self.sqs.clone(), queue_handle, options };
            let source: Box<dyn MessageSource> = Box::new(PollingSource::new(poller, options));
            Ok(source)
        }
        .boxed()
    }

    fn depth<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Depth, Error>> {
        async move {
            let names = [
                Attribute::ApproximateNumberOfMessages,
                Attribute::ApproximateNumberOfMessagesDelayed,
                Attribute::ApproximateNumberOfMessagesNotVisible,
            ];
            let read = self.attributes(queue_name, &names).await?;
            Ok(Depth {
                ready: read(&names[0]).unwrap_or_default(),
                delayed: read(&names[1]),
                in_flight: read(&names[2]),
                oldest: None,
            })
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        self.sqs.requeues.flush().boxed()
    }

    fn check<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.attributes(queue_name, &[Attribute::QueueArn]).await.map(drop) }.boxed()
    }

    fn create<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let create = self.sqs.client.create_queue().queue_name(client::name(queue_name)?);
            let create = create.attributes(Attribute::MessageRetentionPeriod, RETENTION);
            create.send().await.map(drop).map_err(|error| failure::of_queue(queue_name, &error))
        }
        .boxed()
    }

    fn purge<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        async move {
            let queue_handle = self.sqs.queue(queue_name).await?;
            let purge =
                self.sqs.client.purge_queue().queue_url(&queue_handle.queue.url).send().await;
            purge.map(|_| None).map_err(|error| failure::of_queue(queue_name, &error))
        }
        .boxed()
    }

    fn resume<'a>(
        &'a self,
        queue_name: &'a QueueName,
        token: &'a str,
    ) -> BoxFuture<'a, Result<ResumedMessage, Error>> {
        async move {
            // A token comes from a client, which may name this queue and its priority levels only.
            let (name, handle) = token.rsplit_once('|').ok_or(Error::Lost)?;
            let mut levels = priority::level_queues(queue_name.name()).into_iter();
            let of_level = levels.find(|level| level.name() == name).ok_or(Error::Lost)?;
            let (sqs, queue_handle) = (self.sqs.clone(), self.sqs.queue(&of_level).await?);
            let requests = SqsRequests { sqs, queue_handle, attributes: None };
            let receipt = RequestReceipt::new(requests, handle.to_owned());
            // SQS returns a message only to those who receive it.
            Ok(ResumedMessage { incoming: None, receipt: Box::new(receipt) })
        }
        .boxed()
    }
}

//! A bare gRPC client of Pub/Sub: one request per batch to publish, pull and acknowledge.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tonic::transport::Channel;

use self::proto::publisher_client::PublisherClient;
use self::proto::subscriber_client::SubscriberClient;
use crate::turns::{Case, Subject};

#[allow(clippy::all, dead_code, unreachable_pub)]
mod proto {
    include!("../../../../crates/queue/src/pubsub/generated/google.pubsub.v1.rs");
}

const NAME: &str = "raw";
/// Topic of delayed jobs. Pub/Sub has no delayed messages, so both clients use a second topic.
const LATER: &str = "raw-later";
const LEASE_SECONDS: i32 = 300;
/// Limit of a gRPC message, above the largest batch.
const MESSAGE_MAX: usize = 32 << 20;

pub(crate) struct Tonic {
    publisher: PublisherClient<Channel>,
    subscriber: SubscriberClient<Channel>,
    body: Bytes,
    batch: usize,
}

impl Tonic {
    pub(crate) async fn open(endpoint: String, case: &Case) -> anyhow::Result<Self> {
        let channel = Channel::from_shared(endpoint)?.connect().await?;
        let mut publisher = PublisherClient::new(channel.clone());
        let mut subscriber = SubscriberClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
        for name in [NAME, LATER] {
            publisher.create_topic(proto::Topic { name: topic(name) }).await?;
            let subscription = proto::Subscription {
                name: subscription(name),
                topic: topic(name),
                ack_deadline_seconds: LEASE_SECONDS,
                ..Default::default()
            };
            subscriber.create_subscription(subscription).await?;
        }
        let body = case.body.clone().into();
        Ok(Self { publisher, subscriber, body, batch: case.batch })
    }

    async fn publish(&mut self, jobs: usize, name: &str) -> anyhow::Result<()> {
        for _ in 0..jobs / self.batch {
            let message = || proto::PubsubMessage { data: self.body.clone(), ..Default::default() };
            let messages = (0..self.batch).map(|_| message()).collect();
            let request = proto::PublishRequest { topic: topic(name), messages };
            self.publisher.publish(request).await?;
        }
        Ok(())
    }
}

fn topic(name: &str) -> String {
    format!("projects/bench/topics/{name}")
}

fn subscription(name: &str) -> String {
    format!("projects/bench/subscriptions/{name}")
}

impl Subject for Tonic {
    async fn send(&mut self, jobs: usize) -> anyhow::Result<()> {
        self.publish(jobs, NAME).await
    }

    async fn receive(&mut self, jobs: usize) -> anyhow::Result<()> {
        let mut left = jobs;
        while left > 0 {
            let max_messages = i32::try_from(self.batch.min(left))?;
            let pull = proto::PullRequest { subscription: subscription(NAME), max_messages };
            let pulled = self.subscriber.pull(pull).await?.into_inner().received_messages;
            if pulled.is_empty() {
                continue;
            }
            left -= pulled.len();
            let ack_ids = pulled.into_iter().map(|message| message.ack_id).collect();
            let acknowledge =
                proto::AcknowledgeRequest { subscription: subscription(NAME), ack_ids };
            self.subscriber.acknowledge(acknowledge).await?;
        }
        Ok(())
    }

    async fn delay(&mut self, jobs: usize) -> anyhow::Result<()> {
        self.publish(jobs, LATER).await
    }

    async fn clear(&mut self) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let seconds = i64::try_from(now.as_secs())? + 1;
        let time = prost_types::Timestamp { seconds, nanos: 0 };
        let target = Some(proto::seek_request::Target::Time(time));
        let seek = proto::SeekRequest { subscription: subscription(LATER), target };
        self.subscriber.seek(seek).await?;
        Ok(())
    }
}

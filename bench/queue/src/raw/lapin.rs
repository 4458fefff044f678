//! lapin: publishes a batch before it awaits the confirmations, prefetches a batch, and
//! acknowledges every message separately.

use anyhow::Context as _;
use futures_util::FutureExt as _;
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer};

use crate::turns::{Case, Subject};

const NAME: &str = "raw";
const DELAYED: &str = "raw-delayed-900000ms";
const DELAY_MS: i64 = 900_000;
const PERSISTENT: u8 = 2;

pub(crate) struct Lapin {
    _connection: Connection,
    channel: Channel,
    consumer: Consumer,
    body: Vec<u8>,
    batch: usize,
}

impl Lapin {
    pub(crate) async fn open(url: &str, case: &Case) -> anyhow::Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(NAME.into(), durable, FieldTable::default()).await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(DELAY_MS));
        arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
        arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(NAME.into()));
        channel.queue_declare(DELAYED.into(), durable, arguments).await?;
        let consuming = connection.create_channel().await?;
        let prefetch = u16::try_from(case.batch)?;
        consuming.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = consuming.basic_consume(NAME.into(), "".into(), options, none).await?;
        let body = case.body.clone().into_bytes();
        Ok(Self { _connection: connection, channel, consumer, body, batch: case.batch })
    }

    async fn publish(&self, jobs: usize, queue: &str) -> anyhow::Result<()> {
        let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
        for _ in 0..jobs / self.batch {
            let mut confirms = Vec::with_capacity(self.batch);
            for _ in 0..self.batch {
                let persistent = BasicProperties::default().with_delivery_mode(PERSISTENT);
                let (exchange, body) = ("".into(), self.body.as_slice());
                let publish =
                    self.channel.basic_publish(exchange, queue.into(), mandatory, body, persistent);
                confirms.push(publish.await?);
            }
            for confirm in confirms {
                anyhow::ensure!(confirm.await? == Confirmation::Ack(None), "not confirmed");
            }
        }
        Ok(())
    }
}

impl Subject for Lapin {
    async fn send(&mut self, jobs: usize) -> anyhow::Result<()> {
        self.publish(jobs, NAME).await
    }

    async fn receive(&mut self, jobs: usize) -> anyhow::Result<()> {
        let mut left = jobs;
        while left > 0 {
            // Messages that arrive together are acknowledged concurrently.
            let mut received = vec![self.consumer.next().await.context("no more")??];
            while received.len() < left
                && let Some(Some(delivery)) = self.consumer.next().now_or_never()
            {
                received.push(delivery?);
            }
            left -= received.len();
            let ack = |delivery: lapin::message::Delivery| async move {
                delivery.acker.ack(BasicAckOptions::default()).await
            };
            try_join_all(received.into_iter().map(ack)).await?;
        }
        Ok(())
    }

    async fn delay(&mut self, jobs: usize) -> anyhow::Result<()> {
        self.publish(jobs, DELAYED).await
    }

    async fn clear(&mut self) -> anyhow::Result<()> {
        self.channel.queue_purge(DELAYED.into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }
}

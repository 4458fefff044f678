//! Our queue interface, used as a program does.

use std::path::Path;
use std::sync::Arc;

use aws_config::SdkConfig;
use futures_util::future::try_join_all;
use sluicegate_core::Span;
use sluicegate_queue::rabbitmq::{self, RabbitMq, delayed_queue};
use sluicegate_queue::{
    Broker, Consumer, DeliveryTime, Embedded, Message, Options, PubSub, Queue, ServiceBus, Sqs,
    pubsub, servicebus,
};
use sluicegate_testkit::servicebus::ServiceBusServer;

use crate::turns::{Case, Subject};

const NAME: &str = "ours";
const LATER: &str = "ours-later";
/// The longest delay that all brokers support without sending a message again.
const DELAY: Span = Span::from_secs(900);

pub(crate) struct Ours {
    queue: Queue,
    consumer: Consumer,
    /// Queue that delayed jobs are sent to.
    later: Queue,
    /// Queue in which the broker keeps delayed jobs, if it can be purged between rounds. SQS allows
    /// that only once per minute.
    parked: Option<Queue>,
    body: Vec<u8>,
    batch: usize,
}

impl Ours {
    pub(crate) async fn embedded(path: &Path, case: &Case) -> anyhow::Result<Self> {
        Self::on(Arc::new(Embedded::open(path)?), Some(LATER), case).await
    }

    pub(crate) async fn rabbitmq(url: String, case: &Case) -> anyhow::Result<Self> {
        let broker = RabbitMq::connect(rabbitmq::Options::new(url)).await?;
        Self::on(Arc::new(broker), Some(&delayed_queue(LATER, DELAY)), case).await
    }

    pub(crate) async fn sqs(config: &SdkConfig, case: &Case) -> anyhow::Result<Self> {
        Self::on(Arc::new(Sqs::with_config(config)?), None, case).await
    }

    pub(crate) async fn pubsub(endpoint: String, case: &Case) -> anyhow::Result<Self> {
        let options = pubsub::Options {
            project: Some("bench".to_owned()),
            endpoint: Some(endpoint),
            ..Default::default()
        };
        let broker = PubSub::connect(options).await?;
        // Purging a queue also purges its delay topics.
        Self::on(Arc::new(broker), Some(LATER), case).await
    }

    pub(crate) async fn servicebus(server: &ServiceBusServer, case: &Case) -> anyhow::Result<Self> {
        let options = servicebus::Options::from_connection_string(&server.connection_string())?;
        let options = servicebus::Options { admin_url: Some(server.admin_url()), ..options };
        let broker = Arc::new(ServiceBus::connect(options).await?);
        // The queues of the raw client, which can't create any.
        for name in ["raw", "raw-later"] {
            Queue::new(broker.clone(), name, Options::default()).create().await?;
        }
        Self::on(broker, None, case).await
    }

    async fn on(
        broker: Arc<dyn Broker>,
        parked: Option<&str>,
        case: &Case,
    ) -> anyhow::Result<Self> {
        let open = |name: &str| Queue::new(broker.clone(), name, Options::default());
        let (queue, later, parked) = (open(NAME), open(LATER), parked.map(open));
        queue.create().await?;
        later.create().await?;
        let consumer = queue.consume(u16::try_from(case.batch)?).await?;
        let body = case.body.clone().into_bytes();
        Ok(Self { queue, consumer, later, parked, body, batch: case.batch })
    }

    async fn send(&self, jobs: usize, queue: &Queue, when: DeliveryTime) -> anyhow::Result<()> {
        for _ in 0..jobs / self.batch {
            let job = || (Message::new(self.body.clone()), when);
            for sent in queue.send_batch((0..self.batch).map(|_| job()).collect()).await {
                sent?;
            }
        }
        Ok(())
    }
}

impl Subject for Ours {
    async fn send(&mut self, jobs: usize) -> anyhow::Result<()> {
        Self::send(self, jobs, &self.queue, DeliveryTime::Now).await
    }

    async fn receive(&mut self, jobs: usize) -> anyhow::Result<()> {
        let mut left = jobs;
        while left > 0 {
            let received = self.consumer.receive(self.batch.min(left)).await?;
            left -= received.len();
            try_join_all(received.into_iter().map(|delivery| delivery.ack())).await?;
        }
        Ok(())
    }

    async fn delay(&mut self, jobs: usize) -> anyhow::Result<()> {
        Self::send(self, jobs, &self.later, DeliveryTime::After(DELAY)).await
    }

    async fn clear(&mut self) -> anyhow::Result<()> {
        if let Some(parked) = &self.parked {
            parked.purge().await?;
        }
        Ok(())
    }
}

//! Producers that do not know our format, and existing queues.

use std::sync::Arc;

use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use sluicegate_queue::{
    DeadLetterFilter, DeadLetterReason, DeliveryTime, Message, Options, Queue, SearchCoverage,
};
use sluicegate_testkit::queue::run;

use crate::support::{broker, calm};

async fn foreign() -> lapin::Channel {
    let connection = Connection::connect(&calm().url(), ConnectionProperties::default()).await;
    connection.expect("a connection").create_channel().await.expect("a channel")
}

async fn declare(channel: &lapin::Channel, queue: &str, arguments: FieldTable) {
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(queue.into(), durable, arguments).await.expect("declared");
}

/// SPEC C1: bare JSON, identified by its field; the body and what the producer wrote beside it
/// travel unchanged.
#[test]
fn bare_json_of_a_foreign_producer_is_passed_on_unchanged() {
    run(async {
        let channel = foreign().await;
        declare(&channel, "raw-analysis-queue", FieldTable::default()).await;
        declare(&channel, "gemini-analysis-queue", FieldTable::default()).await;
        let mut headers = FieldTable::default();
        headers.insert("tries".into(), AMQPValue::LongInt(7));
        headers.insert("tenant".into(), AMQPValue::LongString("t1".into()));
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(2)
            .with_correlation_id("c-1".into())
            .with_expiration("600000".into())
            .with_headers(headers);
        let body = r#"{"AnalysisId":"a-17", "image": "x"}"#;
        let options = BasicPublishOptions::default();
        let publish = channel.basic_publish(
            "".into(),
            "raw-analysis-queue".into(),
            options,
            body.as_bytes(),
            properties,
        );
        publish.await.expect("sent").await.expect("sent");

        let broker = Arc::new(broker());
        let options = Options { job_field: Some("AnalysisId".to_owned()), ..Options::default() };
        let raw = Queue::new(broker.clone(), "raw-analysis-queue", options);
        raw.check().await.expect_err("its dead-letter queue does not exist yet");
        raw.create().await.expect("missing queues are created, existing ones stay");
        let delivery = raw.consume(1).await.expect("a consumer").receive_one().await.expect("one");
        assert_eq!(delivery.message().meta.job.as_str(), "a-17");
        assert_eq!(delivery.message().headers["tenant"], "t1");
        let target = Queue::new(broker, "gemini-analysis-queue", Options::default());
        delivery.forward(&target, DeliveryTime::Now).await.expect("forwarded");

        let get = lapin::options::BasicGetOptions { no_ack: true };
        let got = channel.basic_get("gemini-analysis-queue".into(), get).await.expect("an answer");
        let got = got.expect("a message").delivery;
        assert_eq!(got.data, body.as_bytes());
        let properties = &got.properties;
        assert_eq!(properties.correlation_id().as_ref().map(|id| id.as_str()), Some("c-1"));
        assert_eq!(
            properties.content_type().as_ref().map(|t| t.as_str()),
            Some("application/json")
        );
        assert_eq!((properties.delivery_mode(), properties.expiration()), (&Some(2), &None));
        let headers = properties.headers().as_ref().expect("headers").inner();
        assert_eq!(headers.get("tries"), Some(&AMQPValue::LongInt(7)));
        assert!(headers.contains_key("sluicegate"));
    });
}

/// Declares a quorum queue that drops a message at its third redelivery.
async fn declare_limited(channel: &lapin::Channel, queue: &str) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(2));
    declare(channel, queue, arguments).await;
}

#[test]
fn listing_dead_letters_never_reaches_a_delivery_limit() {
    run(async {
        declare_limited(&foreign().await, "watched-dlq").await;
        let queue = Queue::new(Arc::new(broker()), "watched", Options::default());
        queue.create().await.expect("created");
        queue.send(Message::new("precious")).await.expect("sent");
        let delivery =
            queue.consume(1).await.expect("a consumer").receive_one().await.expect("one");
        delivery.dead_letter(DeadLetterReason::new("no luck")).await.expect("buried");
        for round in 0..6 {
            let seen = queue.dead_letters().list(&DeadLetterFilter::default(), 10, |_| {}).await;
            assert_eq!(seen, Ok(1), "round {round}");
        }
    });
}

/// A redelivered message is published again before it is handed out.
#[test]
fn requeueing_never_reaches_a_delivery_limit() {
    run(async {
        declare_limited(&foreign().await, "limited").await;
        let queue = Queue::new(Arc::new(broker()), "limited", Options::default());
        let sent = Message::new("precious");
        queue.send(sent.clone()).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        for round in 0..20 {
            let delivery = consumer.receive_one().await.expect("received");
            assert_eq!(delivery.message().meta.job, sent.meta.job, "round {round}");
            // Dropped more often than the queue allows; from the third time on, that delays the message.
            match round % 5 {
                0 => drop(delivery),
                1 | 3 => delivery.requeue().await.expect("requeued"),
                _ => delivery.defer(DeliveryTime::Now).await.expect("deferred"),
            }
        }
        consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
    });
}

/// Messages that a consumer has fetched but not handed out go to the next consumer.
#[test]
fn a_dropped_consumer_requeues_its_messages() {
    run(async {
        let queue = Queue::new(Arc::new(broker()), "left", Options::default());
        queue.create().await.expect("created");
        for n in 0..10 {
            queue.send(Message::new(format!("{n}"))).await.expect("sent");
        }
        let mut first = queue.consume(10).await.expect("a consumer");
        let held = first.receive_one().await.expect("received");
        drop(first);
        let mut second = queue.consume(10).await.expect("a consumer");
        for _ in 0..9 {
            second.receive_one().await.expect("received").ack().await.expect("acknowledged");
        }
        held.ack().await.expect("its channel is still open");
        assert_eq!(queue.depth().await.expect("a depth").ready, 0);
    });
}

/// A search holds at most 64 MiB at once.
#[test]
fn a_search_of_a_queue_that_is_too_large_says_so() {
    run(async {
        let queue = Queue::new(Arc::new(broker()), "too-large-to-search", Options::default());
        queue.create().await.expect("created");
        for _ in 0..5 {
            queue.send(Message::new(vec![b'x'; 14 << 20])).await.expect("sent");
        }
        assert_eq!(queue.find("none of them", |_| {}).await, Ok(SearchCoverage::Part));
    });
}

//! A large backlog stays in RabbitMQ: the memory of a process that sends and consumes does not grow with
//! the number of queued messages.
//!
//! 100,000 messages by default, and a million with `SLUICEGATE_LONG`. In a test program of its own,
//! because it measures the memory of its process.

mod common;

use std::sync::Arc;

use sluicegate_core::Span;
use sluicegate_queue::rabbitmq::Options as Rabbit;
use sluicegate_queue::{DeliveryTime, Message, Options, Queue, RabbitMq};
use sluicegate_testkit::long;
use sluicegate_testkit::queue::run;
use sluicegate_testkit::rabbitmq::RabbitServer;

use common::resident_kb;

/// Number of messages in one call, and maximum number in flight.
const BATCH: u16 = 500;
/// Size of a message, in bytes.
const SIZE: usize = 500;
/// Number of batches that are sent before memory is measured.
const SENT_BEFORE: usize = 40;
/// Number of batches that are received before each measurement.
const TAKEN: usize = 20;
/// Maximum growth of memory, in KiB: less than a quarter of the smaller backlog.
const GROWTH_MAX_KB: u64 = 12 << 10;

#[test]
fn a_backlog_of_any_length_needs_the_same_memory() {
    let messages = if long() { 1_000_000 } else { 100_000 };
    let batch = usize::from(BATCH);
    let node = RabbitServer::start();
    // The node keeps messages on disk only, so that a million do not fill its memory.
    let lazy = r#"{"queue-mode":"lazy"}"#;
    node.ctl(&["set_policy", "--apply-to", "queues", "lazy", "^jobs$", lazy]);
    run(async {
        let options = Rabbit { creation_flush: Span::ZERO, ..Rabbit::new(node.url()) };
        let broker = RabbitMq::connect(options).await.expect("connected");
        let queue = Queue::new(Arc::new(broker), "jobs", Options::default());
        queue.create().await.expect("created");
        let send = async || {
            let message = |_| (Message::new("x".repeat(SIZE)), DeliveryTime::Now);
            let sent = queue.send_batch((0..batch).map(message).collect()).await;
            assert!(sent.iter().all(Result::is_ok), "{sent:?}");
        };
        // It is subscribed all the time: a subscription without a bound would get the whole backlog.
        let mut consumer = queue.consume(BATCH).await.expect("a consumer");
        let mut take = async || {
            let mut acked = 0;
            while acked < batch {
                let received = consumer.receive(batch - acked).await.expect("received");
                acked += received.len();
                assert!(queue.ack_batch(received).await.iter().all(Result::is_ok));
            }
        };
        // The buffers of a batch and of the subscription are in use from here on.
        for _ in 0..SENT_BEFORE {
            send().await;
        }
        for _ in 0..TAKEN {
            take().await;
        }
        let before = resident_kb();
        for _ in 0..messages / batch {
            send().await;
        }
        let ready = queue.depth().await.expect("a depth").ready;
        assert!(ready >= messages as u64, "{ready} messages wait");
        for _ in 0..TAKEN {
            take().await;
        }
        let grown = resident_kb().saturating_sub(before);
        assert!(grown < GROWTH_MAX_KB, "{grown} KB more for {messages} messages");
    });
}

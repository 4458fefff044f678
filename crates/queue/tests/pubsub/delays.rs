//! Delays: messages wait in delay topics, and no process keeps them.

use std::collections::BTreeSet;

use sluicegate_core::Span;
use sluicegate_queue::{DeliveryTime, Message, Options, Queue};
use sluicegate_testkit::queue::run;

use crate::support::{connect, options};

/// The process that sent a delayed message and one that held it are gone; another delivers it.
#[test]
fn a_delayed_message_does_not_depend_on_the_process_that_sent_it() {
    run(async {
        let open = async || Queue::new(connect(options()).await, "orphans", Options::default());
        let sender = open().await;
        sender.create().await.expect("created");
        let later = DeliveryTime::After(Span::from_secs(5));
        let batch = (0..40).map(|n| (Message::new(format!("{n}")), later)).collect();
        for result in sender.send_batch(batch).await {
            result.expect("sent");
        }
        drop(sender);
        let held = open().await;
        // It takes over the delay topic.
        held.prepare_delays(&[], Span::from_secs(5)).await.expect("prepared");
        drop(held);
        let receiver = open().await;
        let mut consumer = receiver.consume(100).await.expect("a consumer");
        let mut bodies = BTreeSet::new();
        while bodies.len() < 40 {
            for delivery in consumer.receive(10).await.expect("received") {
                bodies.insert(delivery.message().body.clone());
                delivery.ack().await.expect("acknowledged");
            }
        }
    });
}

/// Messages that wait for hours are not ahead of those that wait for seconds.
#[test]
fn long_delays_do_not_hold_up_short_ones() {
    run(async {
        let queue = Queue::new(connect(options()).await, "mixed", Options::default());
        queue.create().await.expect("created");
        let hours = DeliveryTime::After(Span::from_secs(10_000));
        let mut batch: Vec<_> = (0..2_000).map(|_| (Message::new("long"), hours)).collect();
        batch.push((Message::new("short"), DeliveryTime::After(Span::from_secs(3))));
        for result in queue.send_batch(batch).await {
            result.expect("sent");
        }
        let mut consumer = queue.consume(10).await.expect("a consumer");
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!(delivery.message().body, "short");
        delivery.ack().await.expect("acknowledged");
    });
}

/// Delays of other queues of the same process are prepared once and used by both.
#[test]
fn preparing_delays_again_changes_nothing() {
    run(async {
        let queue = Queue::new(connect(options()).await, "prepared", Options::default());
        queue.create().await.expect("created");
        for _ in 0..2 {
            let fixed = [Span::from_secs(30)];
            queue.prepare_delays(&fixed, Span::from_secs(2)).await.expect("prepared");
        }
        let soon = DeliveryTime::After(Span::from_secs(1));
        queue.send_at(Message::new("x"), soon).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
    });
}

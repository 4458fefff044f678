//! A RabbitMQ node is killed at random moments while messages wait in its delay queues.
//!
//! Two rounds each by default, and 30 with `SLUICEGATE_LONG`.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::rabbitmq::Options as Rabbit;
use sluicegate_queue::{DeliveryTime, Message, Options, Queue, RabbitMq, WallClock};
use sluicegate_testkit::queue::run_for;
use sluicegate_testkit::rabbitmq::RabbitServer;

/// Longest delay of a message.
const LONGEST: Span = Span::from_secs(4);
/// Time in which the node is killed.
const KILLED_WITHIN_MS: u64 = 9_000;

fn rounds() -> u64 {
    if sluicegate_testkit::long() { 30 } else { 2 }
}

/// Returns a number below `bound`.
fn random(bound: u64) -> u64 {
    RandomState::new().hash_one(0) % bound
}

/// Sends messages with delays until the node dies. Returns the jobs whose messages were confirmed.
async fn send_until_killed(queue: &Queue) -> BTreeSet<String> {
    let mut confirmed = BTreeSet::new();
    loop {
        let batch: Vec<_> = (0..20)
            .map(|_| {
                let delay = Span::from_millis(random(LONGEST.as_micros() / 1_000));
                (Message::new("{}"), DeliveryTime::At(WallClock.now() + delay))
            })
            .collect();
        let mut failed = false;
        for sent in queue.send_batch(batch).await {
            match sent {
                Ok(id) => {
                    confirmed.insert(id.job.to_string());
                }
                Err(_) => failed = true,
            }
        }
        if failed {
            return confirmed;
        }
    }
}

/// Receives messages until all of these jobs have arrived.
async fn receive_all(queue: &Queue, mut missing: BTreeSet<String>) {
    while !missing.is_empty() {
        let Ok(mut consumer) = queue.consume(500).await else { continue };
        while !missing.is_empty() {
            let Ok(received) = consumer.receive(500).await else { break };
            for delivery in received {
                missing.remove(delivery.message().meta.job.as_str());
                // A lost acknowledgement is a second delivery.
                let _ = delivery.ack().await;
            }
        }
    }
}

/// The target queue is stored before the first message; its delay queues are created by the first
/// messages, as in a process that just started.
fn no_confirmed_message_is_lost(name: &str, is_fresh: bool) {
    run_for(Duration::from_secs(120 * rounds()), async {
        let mut node = RabbitServer::start();
        for round in 0..rounds() {
            let number = if is_fresh { round } else { 0 };
            let broker = RabbitMq::connect(Rabbit::new(node.url())).await.expect("connected");
            let queue =
                Queue::new(Arc::new(broker), &format!("{name}-{number}"), Options::default());
            queue.create().await.expect("created");
            node.ctl(&["eval", "mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()]."]);
            let sending = tokio::spawn({
                let queue = queue.clone();
                async move { send_until_killed(&queue).await }
            });
            tokio::time::sleep(Duration::from_millis(random(KILLED_WITHIN_MS))).await;
            node.kill_at_once();
            let confirmed = sending.await.expect("no panic");
            node.restart();
            let count = confirmed.len();
            let received =
                tokio::time::timeout(Duration::from_secs(60), receive_all(&queue, confirmed));
            received.await.unwrap_or_else(|_| panic!("round {round}: of {count} some are missing"));
        }
    });
}

#[test]
fn no_confirmed_message_is_lost_in_delay_queues_that_are_new() {
    no_confirmed_message_is_lost("new-delays", true);
}

#[test]
fn no_confirmed_message_is_lost_in_delay_queues_that_are_old() {
    no_confirmed_message_is_lost("old-delays", false);
}

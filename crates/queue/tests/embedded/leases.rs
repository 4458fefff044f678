//! Receipts whose lease has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::{
    Broker as _, ConsumerObserver, DeadLetterReason, Embedded, Error, Message, Options, Queue,
    QueueName,
};
use sluicegate_testkit::queue::run;
use sluicegate_testkit::{ManualClock, eventually_is_async, eventually_ok};

/// SQLite reuses row ids of deleted messages; fences of leases are unique.
#[test]
fn a_late_receipt_does_not_settle_another_message_with_the_same_row_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_800_000_000)));
    run(async {
        let path = folder.path().join("queue.db");
        let broker = Embedded::with_clock(&path, clock.clone()).expect("a file");
        let options = Options { clock: clock.clone(), ..Options::default() };
        let visibility = options.visibility;
        let queue = Queue::new(Arc::new(broker), "jobs", options);
        queue.create().await.expect("created");
        queue.send(Message::new("first")).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let late = consumer.receive_one().await.expect("received");
        clock.advance(visibility + Span::from_secs(1));
        consumer.receive_one().await.expect("received again").ack().await.expect("acknowledged");
        queue.send(Message::new("stranger")).await.expect("sent");
        let stranger = consumer.receive_one().await.expect("received");
        assert_eq!(late.extend().await, Err(Error::Lost));
        assert_eq!(late.ack().await, Err(Error::Lost));
        assert_eq!(stranger.message().body, "stranger");
        stranger.ack().await.expect("it is still there");
    });
}

/// Counts what a consumer reports.
#[derive(Default)]
struct Seen {
    failures: AtomicU32,
    dead_letters: AtomicU32,
}

impl ConsumerObserver for Seen {
    fn on_dead_letter(&self, message: &Message, reason: &DeadLetterReason) {
        assert_eq!(message.body, "poison");
        assert!(reason.message.starts_with("the message was delivered 3 times"), "{reason:?}");
        self.dead_letters.fetch_add(1, Ordering::SeqCst);
    }

    fn on_failure(&self, queue: &str, error: &Error) {
        assert_eq!(*error, Error::NoQueue { queue: queue.to_owned() });
        assert_eq!(queue, "jobs-dlq");
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    fn on_published(&self, queue: &str) {
        assert_eq!(queue, "jobs-dlq");
    }
}

/// Its copy was not marked as redelivered, so a worker got it about every minute.
#[test]
fn a_poisonous_message_without_a_dead_letter_queue_is_not_handed_out_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_800_000_000)));
    run(async {
        let path = folder.path().join("queue.db");
        let broker = Arc::new(Embedded::with_clock(&path, clock.clone()).expect("a file"));
        let options = Options { clock: clock.clone(), redeliveries_max: 1, ..Options::default() };
        let lease = options.visibility;
        let queue = Queue::new(broker.clone(), "jobs", options);
        broker.create(&QueueName::Live("jobs".to_owned())).await.expect("created");
        queue.send(Message::new("poison")).await.expect("sent");
        let seen = Arc::new(Seen::default());
        let consumer = queue.consume(1).await.expect("a consumer");
        let mut consumer = consumer.with_observer(seen.clone());
        for redeliveries in 0..=1 {
            let delivery = consumer.receive_one().await.expect("received");
            assert_eq!(delivery.redeliveries(), redeliveries);
            // Its consumer is killed.
            std::mem::forget(delivery);
            clock.advance(lease + Span::from_secs(1));
        }
        let receiving = tokio::spawn(async move { consumer.receive_one().await });
        // Every attempt to make it a dead letter fails, and is followed by another one a minute later.
        for attempt in 1..=5 {
            eventually_ok(async || {
                let depth = queue.depth().await.expect("a depth");
                let found = (seen.failures.load(Ordering::SeqCst), depth.delayed);
                if found == (attempt, Some(1)) { Ok(()) } else { Err(found) }
            })
            .await;
            if attempt == 5 {
                queue.create().await.expect("created");
            }
            clock.advance(Span::from_secs(61));
        }
        eventually_is_async(|| seen.dead_letters.load(Ordering::SeqCst), 1).await;
        assert_eq!(queue.dead_depth().await.expect("a depth").ready, 1);
        assert!(!receiving.is_finished(), "it was handed out");
        receiving.abort();
    });
}

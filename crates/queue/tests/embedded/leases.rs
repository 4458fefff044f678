//! Receipts whose lease has ended.

use std::sync::Arc;

use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::{Embedded, Error, Message, Options, Queue};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::queue::run;

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

//! A large backlog stays on disk: memory does not grow with the number of queued messages.
//!
//! 100,000 messages by default, and a million with `SLUICEGATE_LONG`. In a test program of its own,
//! because it measures the memory of its process.

mod common;

use std::sync::Arc;

use sluicegate_queue::{DeliveryTime, Embedded, Message, Options, Queue};
use sluicegate_testkit::long;
use sluicegate_testkit::queue::run;

use common::resident_kb;

/// Number of messages in one call.
const BATCH: usize = 1_000;
/// Size of a message, in bytes.
const SIZE: usize = 500;
/// Messages of the backlog before memory is measured, more than the page cache of SQLite (64 MiB) holds.
const CACHED: usize = 200_000;
/// Maximum growth of memory, in KiB: less than a quarter of the smaller backlog.
const GROWTH_MAX_KB: u64 = 12 << 10;

#[test]
fn a_backlog_of_any_length_needs_the_same_memory() {
    let messages = if long() { 1_000_000 } else { 100_000 };
    let folder = tempfile::tempdir().expect("a folder");
    run(async {
        let broker = Embedded::open(&folder.path().join("queue.db")).expect("a file");
        let queue = Queue::new(Arc::new(broker), "jobs", Options::default());
        queue.create().await.expect("created");
        let send = async || {
            let message = |_| (Message::new("x".repeat(SIZE)), DeliveryTime::Now);
            let sent = queue.send_batch((0..BATCH).map(message).collect()).await;
            assert!(sent.iter().all(Result::is_ok));
        };
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let mut take = async || {
            let mut acked = 0;
            while acked < BATCH {
                let received = consumer.receive(BATCH - acked).await.expect("received");
                acked += received.len();
                assert!(queue.ack_batch(received).await.iter().all(Result::is_ok));
            }
        };
        // The page cache of SQLite is full, and the buffers of a batch are in use from here on.
        for _ in 0..CACHED / BATCH {
            send().await;
        }
        for _ in 0..20 {
            take().await;
        }
        let before = resident_kb();
        for _ in 0..messages / BATCH {
            send().await;
        }
        let ready = CACHED - 20 * BATCH + messages;
        assert_eq!(queue.depth().await.expect("a depth").ready, ready as u64);
        for _ in 0..20 {
            take().await;
        }
        let grown = resident_kb().saturating_sub(before);
        assert!(grown < GROWTH_MAX_KB, "{grown} KB more for {messages} messages");
    });
}

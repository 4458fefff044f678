//! Several processes that share one file.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluicegate_queue::{DeliveryTime, Embedded, Error, Message, Options, Queue};
use sluicegate_testkit::queue::run;

fn open(path: &std::path::Path) -> Queue {
    let broker = Arc::new(Embedded::open(path).expect("a file"));
    Queue::new(broker, "jobs", Options::default())
}

/// Each handle has its own connections and writer, as if it were another process.
#[test]
fn users_of_one_file_share_its_queues() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    run(async {
        let (one, other) = (open(&path), open(&path));
        one.create().await.expect("created");
        let send = async |queue: &Queue, from: u32| {
            for n in from..from + 50 {
                queue.send(Message::new(format!("{n}"))).await.expect("sent");
            }
        };
        let take = async |queue: &Queue| {
            let mut consumer = queue.consume(10).await.expect("a consumer");
            let mut bodies = Vec::new();
            while bodies.len() < 50 {
                for delivery in consumer.receive(7).await.expect("received") {
                    bodies.push(delivery.message().body.clone());
                    delivery.ack().await.expect("acknowledged");
                    if bodies.len() == 50 {
                        break;
                    }
                }
            }
            bodies
        };
        let ((), (), left, right) =
            tokio::join!(send(&one, 0), send(&other, 50), take(&one), take(&other));
        let all: BTreeSet<_> = left.into_iter().chain(right).collect();
        assert_eq!(all.len(), 100);
    });
}

#[test]
fn a_message_is_forwarded_from_one_broker_to_another() {
    let folder = tempfile::tempdir().expect("a folder");
    run(async {
        let [here, there] = ["here.db", "there.db"].map(|name| open(&folder.path().join(name)));
        for queue in [&here, &there] {
            queue.create().await.expect("created");
        }
        let id = here.send(Message::new("x")).await.expect("sent");
        let delivery = here.consume(1).await.expect("a consumer").receive_one().await.expect("one");
        delivery.forward(&there, DeliveryTime::Now).await.expect("forwarded");
        let arrived = there.consume(1).await.expect("a consumer").receive_one().await.expect("one");
        assert_eq!((&arrived.message().meta.job, arrived.message().meta.hop), (&id.job, 1));
        assert_eq!(here.depth().await.expect("a depth").in_flight, Some(0));
    });
}

#[test]
fn a_delayed_message_outlives_its_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    run(async {
        let queue = open(&path);
        queue.create().await.expect("created");
        let hour = sluicegate_core::Span::from_secs(3_600);
        queue.send_at(Message::new("x"), DeliveryTime::After(hour)).await.expect("sent");
        drop(queue);
        assert_eq!(open(&path).depth().await.expect("a depth").delayed, Some(1));
    });
}

#[test]
fn a_file_that_is_no_database_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    std::fs::write(&path, "these are notes, and no database at all").expect("a file");
    let error = Embedded::open(&path).expect_err("no database");
    assert!(
        matches!(&error, Error::Unusable { queue, .. } if queue.ends_with("queue.db")),
        "{error}"
    );
    let error = Embedded::open(&folder.path().join("no/such/folder.db")).expect_err("no folder");
    assert!(error.to_string().contains("queue.path"), "{error}");
}

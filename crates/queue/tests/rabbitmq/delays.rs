//! Delays by delay queues of RabbitMQ.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_queue::rabbitmq::delayed_queue;
use sluicegate_queue::{Broker, DeliveryTime, Error, Message, Options, Queue, QueueName};
use sluicegate_testkit::queue::run;

use crate::support::{broker, calm};

/// SPEC C2, to the letter: the name, and exactly three arguments.
#[test]
fn a_fixed_delay_is_a_queue_with_exactly_three_arguments() {
    run(async {
        let queue = Queue::new(Arc::new(broker()), "c2-gemini", Options::default());
        queue.create().await.expect("created");
        // Longer than a busy machine needs to list the queues.
        let delay = DeliveryTime::After(Span::from_secs(600));
        queue.send_at(Message::new("x"), delay).await.expect("sent");
    });
    let listed = calm().ctl(&["list_queues", "name", "durable", "arguments", "messages"]);
    let line = listed.lines().find(|line| line.starts_with("c2-gemini-delayed")).expect("a queue");
    let mut words: Vec<_> = line.split('\t').collect();
    let arguments = words.remove(2);
    assert_eq!(words, ["c2-gemini-delayed-600000ms", "true", "1"]);
    for argument in [
        r#"{"x-message-ttl",600000}"#,
        r#"{"x-dead-letter-exchange",[]}"#,
        r#"{"x-dead-letter-routing-key","c2-gemini"}"#,
    ] {
        assert!(arguments.contains(argument), "{argument} in {arguments}");
    }
    assert_eq!(arguments.matches("x-").count(), 3, "{arguments}");
}

#[test]
fn a_delayed_message_becomes_ready_without_a_consumer() {
    run(async {
        let queue = Queue::new(Arc::new(broker()), "parked", Options::default());
        queue.create().await.expect("created");
        let delay = DeliveryTime::After(Span::from_millis(200));
        queue.send_at(Message::new("x"), delay).await.expect("sent");
        while queue.depth().await.expect("a depth").ready == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// After a restart, the metric of delayed messages was empty and its alert blind.
#[test]
fn a_delayed_message_is_counted_by_every_process() {
    run(async {
        let queue = Queue::new(Arc::new(broker()), "counted", Options::default());
        queue.create().await.expect("created");
        assert_eq!(queue.depth().await.expect("a depth").delayed, Some(0));
        let hour = DeliveryTime::After(Span::from_secs(3_600));
        for when in [hour, hour, DeliveryTime::At(sluicegate_core::Timestamp::MAX)] {
            queue.send_at(Message::new("x"), when).await.expect("sent");
        }
        let depth = queue.depth().await.expect("a depth");
        assert_eq!((depth.ready, depth.delayed), (0, Some(3)));
        let other = broker();
        other.expect_delays(&[Span::from_secs(30), Span::from_secs(3_600)]);
        let other = Queue::new(Arc::new(other), "counted", Options::default());
        assert_eq!(other.depth().await.expect("a depth"), depth);
        calm().ctl(&["delete_queue", "counted-delayed-3600000ms"]);
        assert_eq!(queue.depth().await.expect("a depth").delayed, Some(1));
    });
}

/// A message that expires into a missing queue would be lost.
#[test]
fn no_message_is_delayed_for_a_queue_that_does_not_exist() {
    run(async {
        let broker = Arc::new(broker());
        let queue = Queue::new(broker.clone(), "never-made", Options::default());
        for when in [
            DeliveryTime::After(Span::from_millis(50)),
            DeliveryTime::At(sluicegate_core::Timestamp::MAX),
        ] {
            let error = queue.send_at(Message::new("x"), when).await.expect_err("no queue");
            assert_eq!(error, Error::NoQueue { queue: "never-made".to_owned() });
        }
        let parked = QueueName::Live(delayed_queue("never-made", Span::from_millis(50)));
        assert!(matches!(broker.check(&parked).await, Err(Error::NoQueue { .. })));
    });
}

/// A deleted delay queue is created again, and the message is not lost meanwhile.
#[test]
fn a_deleted_delay_queue_is_created_again() {
    run(async {
        let queue = Queue::new(Arc::new(broker()), "removed", Options::default());
        queue.create().await.expect("created");
        let delay = DeliveryTime::After(Span::from_secs(3_600));
        queue.send_at(Message::new("x"), delay).await.expect("sent");
        calm().ctl(&["delete_queue", "removed-delayed-3600000ms"]);
        let result = queue.send_at(Message::new("y"), delay).await;
        assert!(result.is_err(), "it was not stored, and its sender knows");
        queue.send_at(Message::new("y"), delay).await.expect("sent");
    });
}

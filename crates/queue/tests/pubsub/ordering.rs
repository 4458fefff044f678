//! Ordering keys: messages of a key are published in the order in which they were sent, and keep their
//! place when they are delivered again. The server of the tests numbers messages as they arrive, and
//! does not deliver them in that order.

use std::collections::BTreeMap;

use sluicegate_core::Span;
use sluicegate_queue::broker::ConsumeOptions;
use sluicegate_queue::pubsub::Options as Connection;
use sluicegate_queue::{Broker as _, DeliveryTime, Message, Options, Queue, QueueName};
use sluicegate_testkit::queue::run;

use crate::support::{connect, options};

fn of_key(key: &str, body: String) -> Message {
    let mut message = Message::new(body);
    message.headers.insert("ordering-key".to_owned(), key.to_owned());
    message
}

async fn open(name: &str) -> Queue {
    let broker = connect(Connection { ordering: true, ..options() }).await;
    let queue = Queue::new(broker, name, Options::default());
    queue.create().await.expect("created");
    queue
}

#[test]
fn messages_of_a_key_are_published_in_the_order_in_which_they_were_sent() {
    const KEYS: [&str; 2] = ["a", "b"];
    run(async {
        let queue = open("in-order").await;
        for number in 0..20 {
            for key in KEYS {
                queue.send(of_key(key, format!("{number:03}"))).await.expect("sent");
            }
        }
        let batch = (20..120).flat_map(|number| {
            KEYS.map(|key| (of_key(key, format!("{number:03}")), DeliveryTime::Now))
        });
        for sent in queue.send_batch(batch.collect()).await {
            sent.expect("sent");
        }
        let broker = connect(Connection { ordering: true, ..options() }).await;
        let name = QueueName::Live("in-order".to_owned());
        let options = ConsumeOptions {
            prefetch: 1_000,
            visibility: Span::from_secs(600),
            wait: ConsumeOptions::WAIT_MAX,
        };
        let mut source = broker.consume(&name, options).await.expect("a source");
        // By key: the bodies by the numbers of the server.
        let mut bodies = BTreeMap::<String, BTreeMap<u64, String>>::new();
        while bodies.values().map(BTreeMap::len).sum::<usize>() < 240 {
            for received in source.next(1_000).await.expect("received") {
                let incoming = received.incoming;
                assert!(incoming.is_ordered, "{incoming:?}");
                let number = incoming.foreign_id.expect("an id of the server");
                let number = number.trim_start_matches(|c: char| !c.is_ascii_digit());
                let body = String::from_utf8(incoming.body.to_vec()).expect("text");
                let of_key = bodies.entry(incoming.headers["ordering-key"].clone()).or_default();
                of_key.insert(number.parse().expect("a number"), body);
                received.receipt.ack().await.expect("acknowledged");
            }
        }
        for (key, bodies) in bodies {
            assert!(bodies.values().is_sorted(), "of key {key}: {bodies:?}");
        }
    });
}

/// A copy would be behind the other messages of its key.
#[test]
fn a_message_of_a_key_keeps_its_place_and_is_counted() {
    run(async {
        let queue = open("in-place").await;
        queue.send(of_key("a", "first".to_owned())).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        for redeliveries in 0..4 {
            let delivery = consumer.receive_one().await.expect("received");
            let copy = delivery.message().meta.copy;
            assert_eq!((delivery.redeliveries(), copy), (redeliveries, 0));
            match redeliveries % 2 {
                0 => delivery.abandon(),
                _ => delivery.requeue().await.expect("returned"),
            }
        }
    });
}

//! Tests of messages and consumers after a restart of the broker.

use std::collections::BTreeSet;

use sluicegate_queue::{DeliveryTime, Message};

use super::{QueueBench, QueueSubject, body};

pub async fn a_restart_of_the_broker_loses_nothing<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let batch = (0..50).map(|n| (Message::new(format!("{n}")), DeliveryTime::Now)).collect();
    for result in bench.queue.send_batch(batch).await {
        result.expect("sent");
    }
    bench.restart().await;
    let mut consumer = bench.consume().await;
    let mut bodies = BTreeSet::new();
    while bodies.len() < 50 {
        for delivery in consumer.receive(10).await.expect("received") {
            bodies.insert(body(&delivery));
            delivery.ack().await.expect("acknowledged");
        }
    }
}

pub async fn a_consumer_goes_on_after_a_restart<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let mut consumer = bench.consume().await;
    bench.send(&["before"]).await;
    consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
    bench.restart().await;
    bench.send(&["after"]).await;
    loop {
        let delivery = consumer.receive_one().await.expect("received");
        let arrived = body(&delivery);
        delivery.ack().await.expect("acknowledged");
        if arrived == "after" {
            return;
        }
        // A broker that dies may lose an acknowledgement: this causes a duplicate and no loss.
        assert_eq!(arrived, "before");
    }
}

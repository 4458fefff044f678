//! Receipts whose lease has ended, on a server that rejects them.

use std::sync::Arc;

use sluicegate_core::Span;
use sluicegate_queue::{Error, Message, Options, Queue, Sqs};
use sluicegate_testkit::queue::run;

use crate::support::{config, fauxqs};

#[test]
fn a_holder_whose_lease_has_ended_can_not_take_the_message_from_the_next() {
    run(async {
        let broker = Arc::new(Sqs::with_config(&config(fauxqs().port)).expect("a client"));
        let of = |visibility| {
            Queue::new(broker.clone(), "stale", Options { visibility, ..Options::default() })
        };
        let (hasty, patient) = (of(Span::from_secs(1)), of(Span::from_secs(600)));
        hasty.create().await.expect("created");
        hasty.send(Message::new("x")).await.expect("sent");
        let mut consumer = hasty.consume(1).await.expect("a consumer");
        let first = consumer.receive_one().await.expect("received");
        // Delivered when the lease of the first has ended.
        let mut consumer = patient.consume(1).await.expect("a consumer");
        let second = consumer.receive_one().await.expect("received again");
        assert_eq!(second.message().id(), first.message().id());
        // In one request that fails partially.
        let extended = tokio::join!(first.extend(), second.extend());
        assert_eq!(extended, (Err(Error::Lost), Ok(())));
        // SQS accepts the receipt and ignores it: the message stays with its current holder.
        first.ack().await.expect("SQS reports success");
        second.extend().await.expect("it is ours");
        second.ack().await.expect("it is ours");
    });
}

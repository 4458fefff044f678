//! Receipts whose lease has ended, and messages that are delivered too often.

use sluicegate_core::Span;
use sluicegate_queue::pubsub::Options as Connection;
use sluicegate_queue::{Broker as _, Error, Message, Options, Queue, QueueName};
use sluicegate_testkit::queue::run;

use crate::support::{connect, options};

#[test]
fn a_holder_whose_lease_has_ended_can_not_take_the_message_from_the_next() {
    run(async {
        let broker = connect(Connection { exactly_once: true, ..options() }).await;
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
        // In requests that fail partially.
        let extended = tokio::join!(first.extend(), second.extend());
        assert_eq!(extended, (Err(Error::Lost), Ok(())));
        let settled = tokio::join!(first.ack(), second.ack());
        assert_eq!(settled, (Err(Error::Lost), Ok(())));
    });
}

/// A consumer that dies again and again with the same message. Pub/Sub counts, and moves it.
#[test]
fn pubsub_itself_moves_a_message_that_was_delivered_a_hundred_times() {
    run(async {
        let broker = connect(options()).await;
        let queue = Queue::new(broker.clone(), "deadly", Options::default());
        queue.create().await.expect("created");
        queue.send(Message::new("poison")).await.expect("sent");
        let (name, once) = (QueueName::Live("deadly".to_owned()), Span::from_secs(60));
        let options = sluicegate_queue::broker::ConsumeOptions {
            prefetch: 1,
            visibility: once,
            wait: sluicegate_queue::broker::ConsumeOptions::WAIT_MAX,
        };
        let mut source = broker.consume(&name, options).await.expect("a source");
        for number in 0..100 {
            let mut received = source.next(1).await.expect("received");
            let received = received.pop().expect("one");
            assert_eq!(received.incoming.redeliveries > 0, number > 0);
            received.receipt.requeue().await.expect("requeued");
        }
        let letters = async || {
            let mut bodies = Vec::new();
            let all = sluicegate_queue::DeadLetterFilter::default();
            let show = |letter: &sluicegate_queue::DeadLetter| {
                bodies.push(letter.message.body.clone());
            };
            queue.dead_letters().list(&all, 10, show).await.expect("listed");
            bodies
        };
        // The next poll moves it.
        let next = source.next(1);
        tokio::select! {
            received = next => panic!("{:?} was delivered again", received.map(|all| all.len())),
            () = async { while letters().await != ["poison"] {} } => {}
        }
    });
}

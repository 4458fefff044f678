//! Deduplication by job id, which Service Bus does itself.

use sluicegate_core::Span;
use sluicegate_queue::servicebus::Options as BusOptions;
use sluicegate_queue::{
    DeadLetterFilter, DeadLetterReason, DeliveryTime, Error, JobId, Message, Options, Queue,
};
use sluicegate_testkit::eventually_async;
use sluicegate_testkit::queue::run;

use crate::support::{broker, calm, options};

const WINDOW: Span = Span::from_secs(60);

fn job(id: &str) -> Message {
    Message::of_job(JobId::try_from(id.to_owned()).expect("a job id"), "{}")
}

fn open(name: &str, deduplication: Span) -> Queue {
    let broker = broker(BusOptions { deduplication, ..options(calm()) });
    Queue::new(broker, name, Options { deduplication, ..Options::default() })
}

async fn ready(queue: &Queue) -> u64 {
    queue.depth().await.expect("a depth").ready
}

#[test]
fn a_job_is_sent_once_within_the_window() {
    run(async {
        let queue = open("once", WINDOW);
        queue.create().await.expect("created");
        let long = "x".repeat(200);
        for id in ["a", "b", "a", &long, &long] {
            queue.send(job(id)).await.expect("sent");
        }
        assert_eq!(ready(&queue).await, 3, "a, b and the long one");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        for _ in 0..3 {
            let delivery = consumer.receive_one().await.expect("received");
            delivery.ack().await.expect("acknowledged");
        }
        queue.send(job("a")).await.expect("sent");
        assert_eq!(ready(&queue).await, 0, "also after it is done");
    });
}

/// A message that is passed on, retried or replayed is no second job.
#[test]
fn only_what_producers_send_is_a_duplicate() {
    run(async {
        let queue = open("once-and-again", WINDOW);
        queue.create().await.expect("created");
        queue.send(job("a")).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let delivery = consumer.receive_one().await.expect("received");
        delivery.retry(DeliveryTime::Now).await.expect("retried");
        let delivery = consumer.receive_one().await.expect("retried");
        delivery.defer(DeliveryTime::After(Span::from_millis(100))).await.expect("deferred");
        let delivery = consumer.receive_one().await.expect("deferred");
        delivery.dead_letter(DeadLetterReason::new("broken")).await.expect("dead-lettered");
        let letters = queue.dead_letters();
        let replayed = letters.replay(&DeadLetterFilter::default(), 1, |_| {}).await;
        assert_eq!(replayed, Ok(1));
        let delivery = consumer.receive_one().await.expect("replayed");
        assert_eq!(delivery.message().meta.job.as_str(), "a");
        delivery.ack().await.expect("acknowledged");
    });
}

/// A returned or redelivered message is sent again under the same name, and Service Bus drops a message
/// whose id it knows.
#[test]
fn a_message_that_is_sent_again_under_its_name_is_no_duplicate() {
    run(async {
        // Longer than a busy machine needs for the test.
        let queue = open("returned", Span::from_secs(600));
        queue.create().await.expect("created");
        let long = "x".repeat(200);
        for id in ["a", &long] {
            queue.send(job(id)).await.expect("sent");
            let mut consumer = queue.consume(1).await.expect("a consumer");
            for redeliveries in 0..3 {
                let delivery = consumer.receive_one().await.expect("received");
                let message = delivery.message();
                assert_eq!((message.meta.job.as_str(), message.meta.hop), (id, 0));
                assert_eq!(delivery.redeliveries(), redeliveries);
                delivery.requeue().await.expect("returned");
                drop(consumer.receive_one().await.expect("returned"));
            }
            let delivery = consumer.receive_one().await.expect("redelivered");
            assert_eq!((delivery.message().meta.job.as_str(), delivery.redeliveries()), (id, 3));
            delivery.ack().await.expect("acknowledged");
            // The producer's second message is a duplicate. The originals of copies may still be counted
            // for a moment; a second message would stay.
            queue.send(job(id)).await.expect("sent");
            eventually_async(async || ready(&queue).await == 0).await;
            // A consumer that is dropped may receive the next message before the broker knows, which counts.
            consumer.close().await;
        }
    });
}

#[test]
fn a_queue_that_detects_no_duplicates_is_refused() {
    run(async {
        open("keeps-all", Span::ZERO).create().await.expect("created");
        let sent = open("keeps-all", WINDOW).send(job("a")).await;
        let Err(Error::Unusable { queue, detail }) = sent else { panic!("{sent:?}") };
        assert_eq!(queue, "keeps-all");
        assert!(detail.contains("does not detect duplicates"), "{detail}");
        assert!(detail.contains("PT60S"), "{detail}");
        assert_eq!(ready(&open("keeps-all", Span::ZERO)).await, 0, "nothing was sent");
    });
}

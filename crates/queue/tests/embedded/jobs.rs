//! Messages of one job: cancelled, sent once, and found; and shares of low priorities.

use std::sync::Arc;

use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::{DeliveryTime, Embedded, JobId, Message, Options, Queue, SearchCoverage};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::queue::run;

fn job(id: &str) -> Message {
    Message::of_job(JobId::try_from(id.to_owned()).expect("a job id"), "{}")
}

fn with_queue(change: impl FnOnce(&mut Options), case: impl AsyncFnOnce(Queue, Arc<ManualClock>)) {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_800_000_000)));
    run(async {
        let path = folder.path().join("queue.db");
        let broker = Embedded::with_clock(&path, clock.clone()).expect("a file");
        let mut options = Options { clock: clock.clone(), ..Options::default() };
        change(&mut options);
        let queue = Queue::new(Arc::new(broker), "jobs", options);
        queue.create().await.expect("created");
        case(queue, clock).await;
    });
}

#[test]
fn a_delayed_message_can_be_cancelled_and_a_ready_one_can_not() {
    with_queue(
        |_| {},
        async |queue, _| {
            let later = DeliveryTime::After(Span::from_secs(60));
            queue.send_at(job("a"), later).await.expect("sent");
            queue.send_at(job("b"), later).await.expect("sent");
            queue.send(job("a")).await.expect("sent");
            let a = JobId::try_from("a".to_owned()).expect("a job id");
            assert_eq!(queue.cancel(&a).await, Ok(1));
            assert_eq!(queue.cancel(&a).await, Ok(0));
            let depth = queue.depth().await.expect("a depth");
            assert_eq!((depth.ready, depth.delayed), (1, Some(1)));
        },
    );
}

#[test]
fn a_job_is_sent_once_within_the_window() {
    with_queue(
        |options| options.deduplication = Span::from_secs(60),
        async |queue, clock| {
            let ready = async || queue.depth().await.expect("a depth").ready;
            for _ in 0..3 {
                assert_eq!(queue.send(job("a")).await.expect("sent").to_string(), "a/0");
            }
            queue.send(job("b")).await.expect("sent");
            assert_eq!(ready().await, 2);
            let mut consumer = queue.consume(5).await.expect("a consumer");
            for _ in 0..2 {
                let delivery = consumer.receive_one().await.expect("received");
                delivery.ack().await.expect("acknowledged");
            }
            queue.send(job("a")).await.expect("sent");
            assert_eq!(ready().await, 0, "also after it is done");
            clock.advance(Span::from_secs(60));
            queue.send(job("a")).await.expect("sent");
            assert_eq!(ready().await, 1);
            // A retry is no second job.
            let delivery = consumer.receive_one().await.expect("received");
            delivery.retry(DeliveryTime::Now).await.expect("retried");
            assert_eq!(ready().await, 1);
        },
    );
}

/// Messages are read in pages of 500.
#[test]
fn a_job_behind_the_first_page_is_found() {
    with_queue(
        |_| {},
        async |queue, _| {
            let others = (0..1_100).map(|number| (job(&format!("j-{number}")), DeliveryTime::Now));
            for sent in queue.send_batch(others.collect()).await {
                sent.expect("sent");
            }
            let mut found = Vec::new();
            let coverage = queue.find("j-1099", |message| found.push(message)).await;
            assert_eq!((coverage, found.len()), (Ok(SearchCoverage::Whole), 1));
        },
    );
}

#[test]
fn a_flood_of_urgent_messages_does_not_starve_others() {
    with_queue(
        |_| {},
        async |queue, _| {
            let urgent = (0..200).map(|_| (Message::new("u").with_priority(9), DeliveryTime::Now));
            let low = (0..10).map(|_| (Message::new("low"), DeliveryTime::Now));
            for sent in queue.send_batch(low.chain(urgent).collect()).await {
                sent.expect("sent");
            }
            let mut consumer = queue.consume(1).await.expect("a consumer");
            let mut order = Vec::new();
            for _ in 0..100 {
                let delivery = consumer.receive_one().await.expect("received");
                order.push(delivery.message().priority);
                delivery.ack().await.expect("acknowledged");
            }
            let low = order.iter().filter(|priority| **priority == 0).count();
            assert!((5..=10).contains(&low), "{low} of 100");
            assert!(order[..3].contains(&9), "{order:?}");
        },
    );
}

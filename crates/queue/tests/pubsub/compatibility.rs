//! Producers and consumers that do not know our format: Google's own client.

use sluicegate_queue::{DeliveryTime, Message, Options, Queue};
use sluicegate_testkit::queue::run;

use crate::support::{connect, options, server};

#[test]
fn a_foreign_message_is_passed_on_with_its_attributes_and_its_ordering_key() {
    run(async {
        let mut own = options();
        (own.subscription_suffix, own.ordering) = ("-sub".to_owned(), true);
        let job = Options { job_field: Some("AnalysisId".to_owned()), ..Options::default() };
        let queue = Queue::new(connect(own).await, "foreign", job);
        queue.create().await.expect("created");
        let body = r#"{"AnalysisId": 17}"#;
        let id = server().sdk("send", &["foreign", "user-1", body, "tenant=t1"]);

        let mut consumer = queue.consume(1).await.expect("a consumer");
        let delivery = consumer.receive_one().await.expect("one");
        let message = delivery.message();
        assert_eq!((message.meta.job.as_str(), &message.body[..]), ("17", body.as_bytes()));
        assert_eq!(message.headers["tenant"], "t1");
        assert_eq!(message.headers["ordering-key"], "user-1");
        delivery.defer(DeliveryTime::Now).await.expect("deferred");
        drop(consumer);

        let got = server().sdk("receive", &["foreign-sub"]);
        let got: serde_json::Value = serde_json::from_str(&got).expect("JSON");
        assert_eq!((&got["body"], &got["ordering_key"]), (&body.into(), &"user-1".into()), "{id}");
        assert_eq!(got["attributes"]["tenant"], "t1");
        let ours = got["attributes"]["sluicegate"].as_str().expect("our metadata");
        assert!(ours.contains(r#""job":"17""#) && ours.contains(r#""deferrals":1"#), "{ours}");
    });
}

/// The id of the broker, because the body has none.
#[test]
fn a_foreign_message_without_an_id_keeps_that_of_pubsub() {
    run(async {
        let queue = Queue::new(connect(options()).await, "nameless", Options::default());
        queue.create().await.expect("created");
        let id = server().sdk("send", &["nameless", "", "not JSON"]);
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let delivery = consumer.receive_one().await.expect("one");
        assert_eq!(delivery.message().meta.job.as_str(), id);
        delivery.ack().await.expect("acknowledged");
    });
}

/// A dead letter whose reason is longer than an attribute may be.
#[test]
fn a_long_reason_is_spread_over_attributes() {
    run(async {
        let queue = Queue::new(connect(options()).await, "long-reason", Options::default());
        queue.create().await.expect("created");
        queue.send(Message::new("not JSON")).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let delivery = consumer.receive_one().await.expect("one");
        let mut reason = sluicegate_queue::DeadLetterReason::new("no luck");
        reason.stack = Some("at work\n".repeat(400));
        delivery.dead_letter(reason.clone()).await.expect("buried");
        let mut stacks = Vec::new();
        let all = sluicegate_queue::DeadLetterFilter::default();
        let show = |letter: &sluicegate_queue::DeadLetter| {
            stacks.push(letter.failure().and_then(|failure| failure.stack.clone()));
        };
        assert_eq!(queue.dead_letters().list(&all, 10, show).await, Ok(1));
        assert_eq!(stacks, [reason.stack]);
    });
}

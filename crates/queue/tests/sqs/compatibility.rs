//! Producers that do not know our format.

use std::sync::Arc;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::MessageAttributeValue;
use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::{
    Broker as _, DeadLetter, DeadLetterFilter, DeadLetterReason, DeliveryTime, Error, Message,
    Options, Queue, QueueName, Sqs,
};
use sluicegate_testkit::queue::run;

use crate::support::{config, fauxqs, moto};

fn broker() -> Arc<Sqs> {
    Arc::new(Sqs::with_config(&config(moto().port)).expect("a client"))
}

#[test]
fn a_foreign_message_is_passed_on_with_all_its_attributes() {
    run(async {
        let client = Client::new(&config(moto().port));
        let url = client.create_queue().queue_name("foreign").send().await.expect("created");
        let url = url.queue_url.expect("an address");
        let number = MessageAttributeValue::builder().data_type("Number").string_value("7");
        let text = MessageAttributeValue::builder().data_type("String").string_value("t1");
        let send = client.send_message().queue_url(&url).message_body(r#"{"AnalysisId": 17}"#);
        let send = send.message_attributes("tries", number.build().expect("complete"));
        let send = send.message_attributes("tenant", text.build().expect("complete"));
        let id = send.send().await.expect("sent").message_id.expect("an id");

        // By its address, as users of SQS name queues.
        let options = Options { job_field: Some("AnalysisId".to_owned()), ..Options::default() };
        let queue = Queue::new(broker(), &url, options);
        let delivery =
            queue.consume(1).await.expect("a consumer").receive_one().await.expect("one");
        assert_eq!(delivery.message().meta.job.as_str(), "17");
        assert_eq!(delivery.message().headers["tenant"], "t1");
        delivery.defer(DeliveryTime::Now).await.expect("deferred");

        let got = client.receive_message().queue_url(&url).message_attribute_names("All");
        let got = got.send().await.expect("received").messages.expect("messages").remove(0);
        assert_eq!(got.body(), Some(r#"{"AnalysisId": 17}"#));
        assert_ne!(got.message_id(), Some(id.as_str()), "a message of its own");
        let attributes = got.message_attributes().expect("attributes");
        assert_eq!(attributes["tries"].data_type(), "Number");
        assert_eq!(attributes["tenant"].string_value(), Some("t1"));
        assert!(
            attributes["sluicegate"].string_value().is_some_and(|m| m.contains(r#""deferrals":1"#))
        );
    });
}

/// Longer than SQS supports: it is delivered after 15 minutes, is early, and is republished.
#[test]
fn a_delay_of_days_is_sent_as_its_longest_part() {
    run(async {
        let queue = Queue::new(broker(), "days", Options::default());
        queue.create().await.expect("created");
        let days = DeliveryTime::After(Span::from_secs(5 * 86_400));
        queue.send_at(Message::new("x"), days).await.expect("SQS refuses more than 900 s");
        assert_eq!(queue.depth().await.expect("a depth").delayed, Some(1));
    });
}

/// The second hop of such a delay, without the 15 minutes before it.
#[test]
fn an_early_message_is_republished() {
    run(async {
        let queue = Queue::new(broker(), "early", Options::default());
        queue.create().await.expect("created");
        let mut message = Message::new("x");
        message.meta.not_before = Some(Timestamp::MAX);
        let next = sluicegate_queue::broker::OutgoingMessage {
            message,
            delay: sluicegate_queue::broker::DeliveryDelay::None,
        };
        let sent = broker().publish(&QueueName::Live("early".to_owned()), vec![next]).await;
        assert_eq!(sent, [Ok(())]);
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let parked = async {
            while queue.depth().await.expect("a depth").delayed != Some(1) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            received = consumer.receive_one() => panic!("{received:?} came too early"),
            () = parked => {}
        }
    });
}

/// A producer may use all of the room: the metadata of a copy or a dead letter does not fit.
#[test]
fn a_foreign_message_of_the_maximum_size_becomes_a_dead_letter_and_is_replayed() {
    run(async {
        for port in [moto().port, fauxqs().port] {
            let broker = Arc::new(Sqs::with_config(&config(port)).expect("a client"));
            let queue = Queue::new(broker, "largest", Options::default());
            queue.create().await.expect("created");
            let client = Client::new(&config(port));
            let url = client.get_queue_url().queue_name("largest").send().await.expect("there");
            let body = "x".repeat(1 << 20);
            let send = client.send_message().queue_url(url.queue_url.expect("an address"));
            send.message_body(&body).send().await.expect("sent");

            let mut consumer = queue.consume(1).await.expect("a consumer");
            let delivery = consumer.receive_one().await.expect("one");
            let unsettled = delivery.retry(DeliveryTime::Now).await.expect_err("it does not fit");
            assert!(matches!(unsettled.error, Error::TooLarge { .. }), "{unsettled:?}");
            drop(unsettled);
            // No copy can be published, so SQS counts.
            let delivery = consumer.receive_one().await.expect("redelivered");
            assert_eq!(delivery.redeliveries(), 1);
            let reason = DeadLetterReason::new("no luck");
            delivery.dead_letter(reason).await.expect("dead-lettered");
            let (letters, all) = (queue.dead_letters(), DeadLetterFilter::default());
            let same = |letter: &DeadLetter| {
                assert!(letter.original() == body.as_bytes() && letter.failure().is_none());
            };
            assert_eq!(letters.list(&all, 10, same).await, Ok(1));
            assert_eq!(letters.replay(&all, 10, same).await, Ok(1));
            let delivery = consumer.receive_one().await.expect("replayed");
            assert!(delivery.message().body == body, "it keeps its bytes");
            delivery.ack().await.expect("acknowledged");
        }
    });
}

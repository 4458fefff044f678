//! The dead-letter subqueue of Service Bus.

use std::sync::Arc;

use sluicegate_core::Span;
use sluicegate_queue::broker::ConsumeOptions;
use sluicegate_queue::{
    Broker as _, DeadLetter, DeadLetterFilter, DeadLetterReason, Message, Options, Queue,
    QueueName, ServiceBus,
};
use sluicegate_testkit::eventually_async;
use sluicegate_testkit::queue::run;

use crate::support::{broker, calm, options};

fn open(broker: Arc<ServiceBus>, name: &str) -> Queue {
    let dead_letter = Some("/$DeadLetterQueue".to_owned());
    Queue::new(broker, name, Options { dead_letter, ..Options::default() })
}

async fn letters(queue: &Queue) -> Vec<DeadLetter> {
    let (mut letters, all) = (Vec::new(), DeadLetterFilter::default());
    let listed = queue.dead_letters().list(&all, 10, |letter| letters.push(letter.clone())).await;
    assert_eq!(listed.expect("listed") as usize, letters.len());
    letters
}

#[test]
fn a_letter_in_the_subqueue_keeps_its_body_and_says_why() {
    run(async {
        let queue = open(broker(options(calm())), "with-subqueue");
        queue.create().await.expect("created");
        queue.check().await.expect("the subqueue is there");
        let sent = Message::new(r#"{"n": 1}"#).of_kind("crawl_repo");
        queue.send(sent.clone()).await.expect("sent");
        let delivery =
            queue.consume(1).await.expect("a consumer").receive_one().await.expect("one");
        delivery.dead_letter(DeadLetterReason::new("HTTP 500")).await.expect("buried");
        assert_eq!(queue.dead_depth().await.expect("a depth").ready, 1);
        let [letter] = &letters(&queue).await[..] else { panic!("one letter") };
        assert_eq!(letter.message.body, sent.body);
        let died = letter.failure().expect("it died");
        assert_eq!((died.queue.as_str(), died.message.as_str()), ("with-subqueue", "HTTP 500"));
        let headers = &letter.message.headers;
        assert_eq!(headers["DeadLetterReason"], "ProcessingFailed");
        assert_eq!(headers["DeadLetterErrorDescription"], "HTTP 500");

        let replayed = queue.dead_letters().replay(&DeadLetterFilter::default(), 10, |_| {}).await;
        assert_eq!(replayed, Ok(1));
        let delivery =
            queue.consume(1).await.expect("a consumer").receive_one().await.expect("one");
        let again = delivery.message();
        assert_eq!((&again.body, &again.meta.job), (&sent.body, &sent.meta.job));
        assert!(again.headers.is_empty(), "{again:?}");
        assert_eq!(letters(&queue).await, []);
        delivery.ack().await.expect("acknowledged");
    });
}

/// A process that dies again and again with the same message does not lose it.
#[test]
fn what_service_bus_itself_gives_up_is_in_the_subqueue_with_its_reason() {
    run(async {
        let server = sluicegate_testkit::servicebus::ServiceBusServer::start();
        let broker = broker(options(&server));
        let queue = open(broker.clone(), "poison");
        queue.create().await.expect("created");
        queue.send(Message::new("x")).await.expect("sent");
        let place = QueueName::Live("poison".to_owned());
        let visibility = Span::from_secs(60);
        let terms = ConsumeOptions { prefetch: 1, visibility, wait: Span::ZERO };
        let mut source = broker.consume(&place, terms).await.expect("a source");
        // As often as a queue that we create allows.
        for _ in 0..100 {
            let received = source.next(1).await.expect("received").remove(0);
            received.receipt.requeue().await.expect("returned");
        }
        eventually_async(async || letters(&queue).await.len() == 1).await;
        let letter = letters(&queue).await.remove(0);
        assert_eq!(letter.message.headers["DeadLetterReason"], "MaxDeliveryCountExceeded");
        assert_eq!(letter.failure(), None);
    });
}

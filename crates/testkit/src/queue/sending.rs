//! Tests of sending, delays, priorities and depth.

use std::time::Duration;

use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::broker::{DeliveryDelay, OutgoingMessage};
use sluicegate_queue::{DeliveryTime, Error, LeaseKind, Message, Options, Queue, QueueName};

use super::{QueueBench, QueueSubject, body, reason_of};

pub async fn what_is_sent_is_received_as_it_was<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let mut message = Message::new(r#"{"a": 1}"#).of_kind("crawl_repo");
    message.content_type = Some("application/json".to_owned());
    message.headers.insert("traceparent".to_owned(), "00-ab-cd-01".to_owned());
    message.meta.booking = Some("b-1".to_owned());
    message.meta.max_attempts = Some(7);
    let id = bench.queue.send(message.clone()).await.expect("sent");
    assert_eq!(id, message.id());
    let mut consumer = bench.consume().await;
    let delivery = consumer.receive_one().await.expect("received");
    let mut received = delivery.message().clone();
    assert!(received.meta.sent_at.take().is_some());
    assert_eq!(received, message);
    assert_eq!(delivery.redeliveries(), 0);
    delivery.ack().await.expect("acknowledged");
}

pub async fn every_body_travels_byte_by_byte<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let mut consumer = bench.consume().await;
    let all: Vec<u8> = (0..=255).collect();
    for body in
        [&all[..], b"", b"{broken", b"=", b" \n", &[0xff, 0xfe], "größe \u{1f600}".as_bytes()]
    {
        bench.queue.send(Message::new(body.to_vec())).await.expect("sent");
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!(delivery.message().body, body);
        delivery.ack().await.expect("acknowledged");
    }
}

pub async fn a_megabyte_travels<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let body = "x".repeat(1_000_000);
    bench.queue.send(Message::new(body.clone())).await.expect("sent");
    let delivery = bench.consume().await.receive_one().await.expect("received");
    assert_eq!(delivery.message().body, body);
    delivery.ack().await.expect("acknowledged");
}

pub async fn what_is_too_large_is_refused_with_its_size<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let max = bench.queue.capabilities().size_max;
    let error = bench.queue.send(Message::new(vec![b'x'; max + 1])).await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { size, .. } if size > max), "{error}");
    // The connection to the broker still works.
    bench.send(&["small"]).await;
}

pub async fn each_message_of_a_batch_succeeds_or_fails_on_its_own<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let max = bench.queue.capabilities().size_max;
    let mut batch: Vec<_> =
        (0..25).map(|n| (Message::new(format!("{n}")), DeliveryTime::Now)).collect();
    batch[7].0 = Message::new(vec![b'x'; max + 1]);
    let ids: Vec<_> = batch.iter().map(|(message, _)| message.id()).collect();
    let results = bench.queue.send_batch(batch).await;
    for (place, (result, id)) in results.into_iter().zip(ids).enumerate() {
        match place {
            7 => assert!(matches!(result, Err(Error::TooLarge { .. })), "{result:?}"),
            _ => assert_eq!(result, Ok(id)),
        }
    }
    let mut consumer = bench.consume().await;
    let mut bodies = Vec::new();
    while bodies.len() < 24 {
        for delivery in consumer.receive(10).await.expect("received") {
            bodies.push(body(&delivery));
            delivery.ack().await.expect("acknowledged");
        }
    }
    let mut expected: Vec<_> = (0..25).filter(|n| *n != 7).map(|n| n.to_string()).collect();
    bodies.sort();
    expected.sort();
    assert_eq!(bodies, expected);
}

/// Tolerance of delays: the maximum lateness on an idle machine, the factor by which a busy machine
/// may be slower than without a delay, and the number of tries.
const LATE_MAX: Span = Span::from_millis(1_500);
const SLOW_MAX: u64 = 3;
const TRIES: usize = 10;

pub async fn a_delayed_message_comes_at_its_instant<S: QueueSubject>() {
    // A delay that no broker supports natively.
    let delay = S::DELAY + Span::from_millis(37);
    comes_after::<S>(delay, |now| DeliveryTime::At(now + delay)).await;
}

pub async fn a_fixed_delay_is_kept<S: QueueSubject>() {
    comes_after::<S>(S::DELAY, |_| DeliveryTime::After(S::DELAY)).await;
}

/// Checks that a delayed message never arrives early, and arrives as soon as the machine allows.
async fn comes_after<S: QueueSubject>(delay: Span, when: impl Fn(Timestamp) -> DeliveryTime) {
    let bench = QueueBench::<S>::new().await;
    let mut consumer = bench.consume().await;
    let mut late = Vec::new();
    while late.last().is_none_or(|(late, allowed)| late >= allowed) {
        assert!(late.len() < TRIES, "always later than allowed: {late:?}");
        let start = bench.now();
        bench.send(&["at once"]).await;
        consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
        let now = bench.now();
        let slow = Span::from_micros(now.since(start).as_micros() * SLOW_MAX);
        let at = now + delay;
        bench.queue.send_at(Message::new("later"), when(now)).await.expect("sent");
        let receive = consumer.receive_one();
        let (delivery, ()) = tokio::join!(receive, bench.subject.pass(at.since(bench.now())));
        let now = bench.now();
        // A broker uses its own clock, in whole milliseconds.
        assert!(now + Span::from_millis(2) >= at, "{now} is before {at}");
        late.push((now.since(at), LATE_MAX + slow));
        delivery.expect("received").ack().await.expect("acknowledged");
    }
}

pub async fn a_message_is_not_delivered_before_its_instant<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let far = bench.now() + Span::from_secs(100_000);
    bench.queue.send_at(Message::new("far"), DeliveryTime::At(far)).await.expect("sent");
    bench.send(&["now"]).await;
    let mut consumer = bench.consume().await;
    let delivery = consumer.receive_one().await.expect("received");
    assert_eq!(body(&delivery), "now");
    delivery.ack().await.expect("acknowledged");
    bench.wait_for_ready(0).await;
    if let Some(delayed) = bench.queue.depth().await.ok().and_then(|depth| depth.delayed) {
        assert_eq!(delayed, 1);
    }
}

pub async fn an_instant_that_has_passed_is_now<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let past = bench.now() - Span::from_secs(5);
    bench.queue.send_at(Message::new("late"), DeliveryTime::At(past)).await.expect("sent");
    let delivery = bench.consume().await.receive_one().await.expect("received");
    assert_eq!(body(&delivery), "late");
    delivery.ack().await.expect("acknowledged");
}

pub async fn urgent_messages_go_first_where_the_broker_can<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    for priority in [0, 5, 9, 1] {
        let message = Message::new(format!("{priority}")).with_priority(priority);
        bench.queue.send(message).await.expect("sent");
    }
    bench.wait_for_ready(4).await;
    let mut consumer = bench.consume().await;
    let mut order = Vec::new();
    while order.len() < 4 {
        let delivery = consumer.receive_one().await.expect("received");
        order.push(body(&delivery));
        assert_eq!(delivery.message().priority.to_string(), body(&delivery));
        delivery.ack().await.expect("acknowledged");
    }
    if bench.queue.capabilities().priorities {
        assert_eq!(order, ["9", "5", "1", "0"]);
    }
}

pub async fn messages_of_all_priorities_are_one_queue<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_options(|options| options.priorities = true).await;
    let priorities = [0, 9, 3, 0, 5, 1];
    let batch = priorities.iter().map(|priority| {
        (Message::new(format!("{priority}")).with_priority(*priority), DeliveryTime::Now)
    });
    for sent in bench.queue.send_batch(batch.collect()).await {
        sent.expect("sent");
    }
    bench.wait_for_ready(6).await;
    let mut peeked = Vec::new();
    let show = |message: &Message| peeked.push(message.priority);
    assert_eq!(bench.queue.peek(6, show).await.expect("peeked"), 6);
    peeked.sort_unstable();
    assert_eq!(peeked, [0, 0, 1, 3, 5, 9]);
    let mut consumer = bench.consume().await;
    let mut received = Vec::new();
    let mut was_deferred = false;
    while received.len() < 6 {
        let delivery = consumer.receive_one().await.expect("received");
        let priority = delivery.message().priority;
        assert_eq!(priority.to_string(), body(&delivery));
        // A message keeps its level when it comes again.
        if priority == 9 && !was_deferred {
            was_deferred = true;
            delivery.defer(DeliveryTime::Now).await.expect("deferred");
            continue;
        }
        received.push(priority);
        delivery.ack().await.expect("acknowledged");
    }
    received.sort_unstable();
    assert_eq!(received, [0, 0, 1, 3, 5, 9]);
    bench.wait_for_ready(0).await;
    // A consumer would take the next message. For a moment the dropped one may still take it and give
    // it back, and a purge leaves what is in flight.
    drop(consumer);
    bench.queue.send(Message::new("x").with_priority(9)).await.expect("sent");
    bench.wait_for_ready(1).await;
    while bench.queue.purge().await.expect("purged") == Some(0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bench.wait_for_ready(0).await;
}

/// Messages of a level wait in the process while all workers are busy. Their leases would end.
pub async fn messages_that_wait_for_their_turn_are_returned_uncounted<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_options(|options| {
        options.priorities = true;
        options.visibility = S::VISIBILITY;
    })
    .await;
    let capabilities = bench.queue.capabilities();
    let is_timed = matches!(capabilities.lease, LeaseKind::Timed(_));
    let mut consumer = bench.consume().await;
    // A returned message is another copy, except where the broker keeps its place.
    let (mut returns, mut copies) = (0, 0);
    bench.send(&["a"]).await;
    loop {
        bench.subject.pass(S::VISIBILITY).await;
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!((delivery.redeliveries(), body(&delivery).as_str()), (0, "a"));
        copies = copies.max(delivery.message().meta.copy);
        if copies > returns || !is_timed || !capabilities.counts_returns {
            delivery.ack().await.expect("acknowledged");
            return;
        }
        // It was received just now: once more.
        delivery.requeue().await.expect("returned");
        returns += 1;
    }
}

/// A producer of another program chooses the priority by the queue alone.
pub async fn a_foreign_message_keeps_the_level_of_its_queue<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_options(|options| options.priorities = true).await;
    if bench.queue.capabilities().priorities {
        return;
    }
    let level = format!("{}-priority-5", bench.queue.name());
    let broker = bench.subject.broker();
    let foreign = OutgoingMessage { message: Message::new("urgent"), delay: DeliveryDelay::None };
    let sent = broker.publish(&QueueName::Live(level.clone()), vec![foreign]).await;
    assert_eq!(sent, [Ok(())]);
    let mut consumer = bench.consume().await;
    for _ in 0..2 {
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!(delivery.message().priority, 5);
        delivery.defer(DeliveryTime::Now).await.expect("deferred");
    }
    let delivery = consumer.receive_one().await.expect("received");
    delivery.requeue().await.expect("returned");
    consumer.close().await;
    let level = Queue::new(broker, &level, Options::default());
    let delivery = level.consume(1).await.expect("a consumer").receive_one().await;
    assert_eq!(body(&delivery.expect("it is there")), "urgent");
}

pub async fn a_body_above_the_maximum_of_the_queue_is_refused<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_options(|options| options.size_max = Some(10)).await;
    let batch = ["0123456789", "0123456789a"].map(|body| (Message::new(body), DeliveryTime::Now));
    let sent = bench.queue.send_batch(batch.into()).await;
    assert!(sent[0].is_ok());
    assert_eq!(sent[1], Err(Error::TooLarge { broker: "this queue", size: 11, max: 10 }));
    bench.wait_for_ready(1).await;
}

pub async fn a_message_that_is_too_old_is_a_dead_letter<S: QueueSubject>() {
    let age_max = Some(Span::from_micros(1));
    let bench = QueueBench::<S>::with_options(|options| options.age_max = age_max).await;
    bench.send(&["old"]).await;
    bench.subject.pass(Span::from_millis(2)).await;
    let mut consumer = bench.consume().await;
    let receiving = tokio::spawn(async move { consumer.receive_one().await });
    let letters = bench.queue.dead_letters();
    let mut reason = None;
    while reason.is_none() {
        let all = sluicegate_queue::DeadLetterFilter::default();
        let listed = letters.list(&all, 1, |letter| {
            reason = letter.failure().map(reason_of);
        });
        listed.await.expect("listed");
    }
    let expected = format!("old, and the maximum of queue {} is 1us", bench.queue.name());
    assert!(reason.as_deref().is_some_and(|reason| reason.contains(&expected)), "{reason:?}");
    receiving.abort();
}

pub async fn depth_counts_what_is_there<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    if !bench.queue.capabilities().depth {
        let error = bench.queue.depth().await.expect_err("it does not tell");
        assert!(error.to_string().contains("does not tell the number"), "{error}");
        return;
    }
    assert_eq!(bench.queue.depth().await.expect("a depth").ready, 0);
    bench.send(&["a", "b", "c"]).await;
    bench.wait_for_ready(3).await;
    let held = bench.consume().await.receive(1).await.expect("received");
    if let Some(in_flight) = bench.queue.depth().await.expect("a depth").in_flight {
        assert_eq!(in_flight, 1);
    }
    drop(held);
}

pub async fn purging_empties_a_queue<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    bench.send(&["a", "b", "c"]).await;
    bench.wait_for_ready(3).await;
    if let Some(purged) = bench.queue.purge().await.expect("purged") {
        assert_eq!(purged, 3);
    }
    bench.wait_for_ready(0).await;
    bench.send(&["d"]).await;
    assert_eq!(body(&bench.consume().await.receive_one().await.expect("received")), "d");
}

pub async fn a_missing_queue_is_named<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let broker = bench.subject.broker();
    let nowhere = QueueName::Live("suite-nowhere".to_owned());
    let missing = Error::NoQueue { queue: "suite-nowhere".to_owned() };
    assert_eq!(broker.check(&nowhere).await, Err(missing.clone()));
    assert_eq!(broker.depth(&nowhere).await, Err(missing.clone()));
    let lost = sluicegate_queue::Queue::new(broker, "suite-nowhere", Default::default());
    assert_eq!(lost.send(Message::new("x")).await, Err(missing.clone()));
    assert_eq!(lost.consume(1).await.err(), Some(missing));
}

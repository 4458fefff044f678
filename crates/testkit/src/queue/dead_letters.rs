//! Tests of dead letters.

use sluicegate_core::Span;
use sluicegate_queue::{DeadLetterFilter, DeadLetterReason, Delivery, Message};

use super::{QueueBench, QueueSubject, body};

/// Sends a message and dead-letters it.
async fn bury<S: QueueSubject>(bench: &QueueBench<S>, message: Message, reason: &str) {
    bench.queue.send(message).await.expect("sent");
    let mut consumer = bench.consume().await;
    let delivery: Delivery = consumer.receive_one().await.expect("received");
    let reason =
        DeadLetterReason { stack: Some("at work".to_owned()), ..DeadLetterReason::new(reason) };
    delivery.dead_letter(reason).await.expect("buried");
    // A consumer that is dropped may receive the next message before the broker knows, which counts.
    consumer.close().await;
}

/// Returns the bodies of the dead letters that match the filter.
async fn listed<S: QueueSubject>(bench: &QueueBench<S>, filter: &DeadLetterFilter) -> Vec<String> {
    let mut bodies = Vec::new();
    let letters = bench.queue.dead_letters();
    let show = |letter: &sluicegate_queue::DeadLetter| {
        bodies.push(String::from_utf8_lossy(&letter.original()).into_owned());
    };
    letters.list(filter, 100, show).await.expect("listed");
    bodies.sort();
    bodies
}

pub async fn a_dead_letter_is_the_original_with_its_error<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let original = r#"{"AnalysisId": "a-1", "n": 1}"#;
    bury(&bench, Message::new(original), "no luck").await;
    let mut letters = Vec::new();
    let all = DeadLetterFilter::default();
    bench
        .queue
        .dead_letters()
        .list(&all, 10, |letter| letters.push(letter.clone()))
        .await
        .expect("listed");
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    let text = String::from_utf8(letter.message.body.to_vec()).expect("text");
    let died = letter.failure().expect("it died");
    let expected = format!(
        r#"{{"AnalysisId": "a-1", "n": 1,"error":{{"message":"no luck","stack":"at work","timestamp":"{}"}}}}"#,
        died.at
    );
    assert_eq!(text, expected);
    assert_eq!((died.queue.as_str(), died.message.as_str()), (bench.queue.name(), "no luck"));
    assert_eq!(letter.original(), original.as_bytes());
    assert_eq!(bench.queue.stats().dead_lettered, 1);
}

pub async fn what_can_not_be_parsed_keeps_its_bytes<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let raw = vec![0xff, 0x00, b'{'];
    bury(&bench, Message::new(raw.clone()), "not JSON").await;
    let mut letters = Vec::new();
    let all = DeadLetterFilter::default();
    bench
        .queue
        .dead_letters()
        .list(&all, 10, |letter| letters.push(letter.clone()))
        .await
        .expect("listed");
    assert_eq!(letters[0].message.body, raw);
    assert_eq!(letters[0].failure().expect("it died").stack.as_deref(), Some("at work"));
}

pub async fn letters_are_found_by_type_error_and_age<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    bury(&bench, Message::new("one").of_kind("crawl_org"), "HTTP 500").await;
    let between = bench.now();
    bench.subject.pass(Span::from_millis(20)).await;
    bury(&bench, Message::new("two").of_kind("crawl_repo"), "HTTP 404").await;
    let of = async |filter: &DeadLetterFilter| listed::<S>(&bench, filter).await;
    assert_eq!(of(&DeadLetterFilter::default()).await, ["one", "two"]);
    let kind =
        DeadLetterFilter { kind: Some("crawl_org".to_owned()), ..DeadLetterFilter::default() };
    assert_eq!(of(&kind).await, ["one"]);
    let error = DeadLetterFilter { error: Some("404".to_owned()), ..DeadLetterFilter::default() };
    assert_eq!(of(&error).await, ["two"]);
    let age = DeadLetterFilter { until: Some(between), ..DeadLetterFilter::default() };
    assert_eq!(of(&age).await, ["one"]);
}

pub async fn looking_at_letters_leaves_them_there<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    bury(&bench, Message::new("one"), "no luck").await;
    // More often than a quorum queue would deliver it before it drops it.
    for _ in 0..4 {
        assert_eq!(listed::<S>(&bench, &DeadLetterFilter::default()).await, ["one"]);
    }
    assert_eq!(
        bench.queue.dead_letters().delete(&DeadLetterFilter::default(), 10, |_| {}).await,
        Ok(1)
    );
}

pub async fn a_replayed_letter_is_what_its_producer_sent<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let sent = Message::new(r#" {"n": 1} "#).of_kind("crawl_repo");
    bury(&bench, sent.clone(), "no luck").await;
    bury(&bench, Message::new("stays").of_kind("other"), "no luck").await;
    let mine = DeadLetterFilter { kind: sent.kind.clone(), ..DeadLetterFilter::default() };
    let mut told = 0;
    let replayed = bench.queue.dead_letters().replay(&mine, 10, |_| told += 1).await;
    assert_eq!((replayed, told), (Ok(1), 1));
    let mut consumer = bench.consume().await;
    let delivery = consumer.receive_one().await.expect("received");
    let mut received = delivery.message().clone();
    assert!(received.meta.hop > 1, "a copy with a name of its own");
    (received.meta.hop, received.meta.sent_at) = (0, None);
    assert_eq!(received, sent);
    delivery.ack().await.expect("acknowledged");
    assert_eq!(listed::<S>(&bench, &DeadLetterFilter::default()).await, ["stays"]);
}

pub async fn a_deleted_letter_is_gone<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    bury(&bench, Message::new("one"), "a").await;
    bury(&bench, Message::new("two"), "b").await;
    let filter = DeadLetterFilter { error: Some("a".to_owned()), ..DeadLetterFilter::default() };
    assert_eq!(bench.queue.dead_letters().delete(&filter, 10, |_| {}).await, Ok(1));
    assert_eq!(listed::<S>(&bench, &DeadLetterFilter::default()).await, ["two"]);
    // The queue itself does not contain it.
    bench.send(&["fresh"]).await;
    assert_eq!(body(&bench.consume().await.receive_one().await.expect("received")), "fresh");
}

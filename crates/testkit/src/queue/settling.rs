//! Tests of acknowledging, requeueing, leases and consumers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_queue::broker::ConsumeOptions;
use sluicegate_queue::{DeadLetterFilter, DeliveryTime, Error, Message, QueueName, SearchCoverage};

use super::{LEASE, QueueBench, QueueSubject, body, open, reason_of};

pub async fn what_is_acknowledged_is_gone<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_leases_that_end().await;
    bench.send(&["a"]).await;
    let mut consumer = bench.consume().await;
    consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
    // Some brokers send no reply to an acknowledgement; the next reply shows that it arrived.
    bench.wait_for_ready(0).await;
    bench.subject.end_leases().await;
    bench.send(&["b"]).await;
    assert_eq!(body(&consumer.receive_one().await.expect("received")), "b");
}

pub async fn what_is_acknowledged_together_is_gone<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    bench.send(&["a", "b", "c", "d"]).await;
    let mut consumer = bench.consume().await;
    let mut deliveries = Vec::new();
    while deliveries.len() < 3 {
        deliveries.push(consumer.receive_one().await.expect("received"));
    }
    for acked in bench.queue.ack_batch(deliveries).await {
        acked.expect("acknowledged");
    }
    let last = consumer.receive_one().await.expect("received");
    last.ack().await.expect("acknowledged");
    bench.wait_for_ready(0).await;
}

pub async fn a_deferral_is_no_attempt<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let sent = Message::new("limited").of_kind("k");
    bench.queue.send(sent.clone()).await.expect("sent");
    let mut consumer = bench.consume().await;
    for deferrals in 0..3 {
        let delivery = consumer.receive_one().await.expect("received");
        let meta = &delivery.message().meta;
        assert_eq!(
            (meta.deferrals, meta.attempt, meta.job.clone()),
            (deferrals, 0, sent.meta.job.clone())
        );
        assert!(meta.hop >= deferrals, "every copy has a name of its own");
        assert_eq!((&delivery.message().body, &delivery.message().kind), (&sent.body, &sent.kind));
        let until = bench.now() + Span::from_millis(200);
        delivery.defer(DeliveryTime::At(until)).await.expect("deferred");
        bench.subject.pass(Span::from_millis(200)).await;
    }
}

pub async fn a_retry_is_an_attempt<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    bench.send(&["fails"]).await;
    let mut consumer = bench.consume().await;
    for attempt in 0..3 {
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!(delivery.message().meta.attempt, attempt);
        delivery.retry(DeliveryTime::Now).await.expect("retried");
    }
    assert_eq!(bench.queue.stats().retried, 3);
}

pub async fn a_message_is_forwarded_whole<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let other = open(&bench.subject).await;
    let mut sent = Message::new("job").of_kind("k");
    sent.headers.insert("traceparent".to_owned(), "00-1".to_owned());
    bench.queue.send(sent.clone()).await.expect("sent");
    let delivery = bench.consume().await.receive_one().await.expect("received");
    delivery.forward(&other, DeliveryTime::Now).await.expect("forwarded");
    let arrived =
        other.consume(1).await.expect("a consumer").receive_one().await.expect("received");
    let mut received = arrived.message().clone();
    assert_eq!(received.meta.hop, 1);
    (received.meta.hop, received.meta.sent_at) = (0, None);
    assert_eq!(received, sent);
    bench.wait_for_ready(0).await;
    arrived.ack().await.expect("acknowledged");
}

pub async fn a_dropped_delivery_is_requeued<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    bench.send(&["a"]).await;
    let mut consumer = bench.consume().await;
    drop(consumer.receive_one().await.expect("received"));
    let again = consumer.receive_one().await.expect("received");
    // Most brokers can't tell a dropped delivery from that of a killed consumer.
    let redeliveries = u32::from(bench.queue.capabilities().counts_returns);
    assert_eq!((body(&again).as_str(), again.redeliveries()), ("a", redeliveries));
    again.ack().await.expect("acknowledged");
}

pub async fn requeueing_again_and_again_loses_nothing<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let sent = Message::new("a");
    bench.queue.send(sent.clone()).await.expect("sent");
    let mut consumer = bench.consume().await;
    for _ in 0..30 {
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!((delivery.message().id(), delivery.redeliveries()), (sent.id(), 0));
        delivery.requeue().await.expect("given back");
    }
    let delivery = consumer.receive_one().await.expect("received");
    assert_eq!((delivery.message().meta.attempt, delivery.message().meta.deferrals), (0, 0));
    delivery.ack().await.expect("acknowledged");
}

/// Every scan received the whole backlog and returned it, and the next consumer counted that.
pub async fn thirty_scans_of_a_backlog_are_not_counted<S: QueueSubject>() {
    const JOBS: usize = 8;
    let bench = QueueBench::<S>::with_options(|options| options.redeliveries_max = 2).await;
    let batch = (0..JOBS).map(|n| (Message::new(format!("{n}")), DeliveryTime::Now)).collect();
    for sent in bench.queue.send_batch(batch).await {
        sent.expect("sent");
    }
    for scan in 0..30 {
        if scan % 10 == 0 {
            let mut seen = 0;
            let coverage = bench.queue.find("none of them", |_| seen += 1).await.expect("searched");
            assert_eq!((coverage, seen), (SearchCoverage::Whole, 0));
        } else {
            // A scan that has just ended may still hold some.
            while bench.queue.peek(3, |_| {}).await.expect("peeked") < 3 {}
        }
    }
    let mut consumer = bench.consume().await;
    let mut bodies = BTreeSet::new();
    while bodies.len() < JOBS {
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!(delivery.redeliveries(), 0, "{}", body(&delivery));
        bodies.insert(body(&delivery));
        delivery.ack().await.expect("acknowledged");
    }
    let all = DeadLetterFilter::default();
    assert_eq!(bench.queue.dead_letters().list(&all, 10, |_| {}).await, Ok(0));
}

/// A graceful stop: most brokers mark messages that were delivered in advance as redelivered.
pub async fn a_consumer_that_is_closed_returns_its_messages_uncounted<S: QueueSubject>() {
    const JOBS: usize = 8;
    let bench = QueueBench::<S>::new().await;
    let batch = (0..JOBS).map(|n| (Message::new(format!("{n}")), DeliveryTime::Now)).collect();
    for sent in bench.queue.send_batch(batch).await {
        sent.expect("sent");
    }
    for _ in 0..4 {
        let mut consumer = bench.consume().await;
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!(delivery.redeliveries(), 0);
        consumer.close().await;
        delivery.requeue().await.expect("returned");
    }
    let mut consumer = bench.consume().await;
    let mut bodies = BTreeSet::new();
    while bodies.len() < JOBS {
        let delivery = consumer.receive_one().await.expect("received");
        assert_eq!(delivery.redeliveries(), 0, "{}", body(&delivery));
        bodies.insert(body(&delivery));
        delivery.ack().await.expect("acknowledged");
    }
}

pub async fn what_is_abandoned_or_lost_in_a_panic_is_counted<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_leases_that_end().await;
    bench.send(&["a"]).await;
    let mut consumer = bench.consume().await;
    consumer.receive_one().await.expect("received").abandon();
    if !bench.queue.capabilities().counts_returns {
        bench.subject.end_leases().await;
    }
    let delivery = consumer.receive_one().await.expect("received again");
    assert_eq!((body(&delivery).as_str(), delivery.redeliveries()), ("a", 1));
    let work = tokio::spawn(async move {
        let _delivery = delivery;
        panic!("the work panics: the test expects it");
    });
    assert!(work.await.is_err_and(|error| error.is_panic()));
    if !bench.queue.capabilities().counts_returns {
        bench.subject.end_leases().await;
    }
    let delivery = consumer.receive_one().await.expect("received again");
    assert_eq!((body(&delivery).as_str(), delivery.redeliveries()), ("a", 2));
    delivery.ack().await.expect("acknowledged");
}

/// A copy that waited because its dead letter could not be published is not marked as redelivered.
pub async fn a_message_above_the_maximum_of_redeliveries_is_never_handed_out<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_options(|options| options.redeliveries_max = 3).await;
    let mut poison = Message::new("poison");
    poison.meta.redeliveries = 4;
    bench.queue.send(poison).await.expect("sent");
    let mut consumer = bench.consume().await;
    let receiving = tokio::spawn(async move { consumer.receive_one().await });
    let reason = first_reason(&bench).await;
    assert!(reason.starts_with("the message was delivered 5 times"), "{reason}");
    assert!(!receiving.is_finished(), "it was handed out");
    receiving.abort();
}

/// Waits for the first dead letter, and returns its reason.
async fn first_reason<S: QueueSubject>(bench: &QueueBench<S>) -> String {
    let letters = bench.queue.dead_letters();
    loop {
        let (mut reason, all) = (None, DeadLetterFilter::default());
        let listed = letters.list(&all, 1, |letter| {
            reason = letter.failure().map(reason_of);
        });
        listed.await.expect("listed");
        if let Some(reason) = reason {
            return reason;
        }
    }
}

/// Its metadata leaves no room for an error, and not even for a larger number.
pub async fn a_message_of_the_maximum_size_becomes_a_dead_letter_and_is_replayed<
    S: QueueSubject,
>() {
    let bench = QueueBench::<S>::with_options(|options| {
        options.visibility = S::VISIBILITY;
        options.redeliveries_max = 1;
    })
    .await;
    let too_large = Message::new("x".repeat(bench.queue.capabilities().size_max));
    let length = too_large.body.len();
    let Err(Error::TooLarge { size, max, .. }) = bench.queue.send(too_large).await else {
        panic!("it is too large");
    };
    let largest = "x".repeat(max - (size - length));
    bench.queue.send(Message::new(largest.clone())).await.expect("sent");
    let mut consumer = bench.consume().await;
    let abandoning = async {
        loop {
            let delivery = consumer.receive_one().await.expect("received");
            assert!(delivery.redeliveries() <= 1, "it is counted");
            delivery.abandon();
            if !bench.queue.capabilities().counts_returns {
                bench.subject.end_leases().await;
            }
        }
    };
    let letters = bench.queue.dead_letters();
    let all = DeadLetterFilter::default();
    let listing = async {
        let mut body = None;
        while body.is_none() {
            let listed = letters.list(&all, 1, |letter| body = Some(letter.original()));
            listed.await.expect("listed");
        }
        body
    };
    let letter = tokio::select! {
        letter = listing => letter,
        () = abandoning => unreachable!("it has no end"),
    };
    assert!(letter.is_some_and(|letter| letter == largest.as_bytes()), "it keeps its bytes");
    assert_eq!(letters.replay(&all, 1, |_| {}).await, Ok(1));
    let delivery = consumer.receive_one().await.expect("replayed");
    assert!(delivery.message().body == largest, "it keeps its bytes");
    delivery.ack().await.expect("acknowledged");
}

pub async fn a_cancelled_receive_loses_nothing<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    let mut consumer = bench.consume().await;
    for round in 0..20_u64 {
        let sending = bench.send(&["a"]);
        let waiting = tokio::time::timeout(Duration::from_micros(round * 300), consumer.receive(1));
        let (received, ()) = tokio::join!(waiting, sending);
        let delivery = match received {
            Ok(received) => received.expect("received").pop().expect("one"),
            Err(_) => consumer.receive_one().await.expect("received"),
        };
        delivery.ack().await.expect("acknowledged");
    }
    assert_eq!(bench.queue.stats().acked, 20);
}

pub async fn a_message_that_nobody_settles_becomes_a_dead_letter<S: QueueSubject>() {
    dies_after::<S>(2).await;
}

/// From its third redelivery on, each copy is delayed.
pub async fn a_message_that_nobody_settles_is_delayed_before_it_becomes_a_dead_letter<
    S: QueueSubject,
>() {
    dies_after::<S>(4).await;
}

/// Checks that a message is delivered again this often, and then is a dead letter.
async fn dies_after<S: QueueSubject>(redeliveries_max: u32) {
    let bench = QueueBench::<S>::with_options(|options| {
        options.visibility = S::VISIBILITY;
        options.redeliveries_max = redeliveries_max;
    })
    .await;
    bench.send(&["a"]).await;
    let mut consumer = bench.consume().await;
    let (received, mut deliveries) = tokio::sync::mpsc::unbounded_channel();
    let consuming = tokio::spawn(async move {
        loop {
            let delivery = consumer.receive_one().await.expect("received");
            received.send(delivery.redeliveries()).expect("the test waits");
            // Its consumer is killed.
            std::mem::forget(delivery);
        }
    });
    let letters = bench.queue.dead_letters();
    let (mut most, mut reason) = (0, None);
    while reason.is_none() {
        let next = tokio::time::timeout(Duration::from_millis(200), deliveries.recv()).await;
        match next {
            Ok(redeliveries) => {
                most = most.max(redeliveries.expect("it consumes"));
                bench.subject.end_leases().await;
            }
            // A copy may be delayed.
            Err(_) => bench.subject.pass(Span::from_millis(200)).await,
        }
        let all = sluicegate_queue::DeadLetterFilter::default();
        let listed = letters.list(&all, 1, |letter| {
            reason = letter.failure().map(reason_of);
        });
        // A lease of a connection ends with it, and that of this call may be the same one.
        if let Err(error) = listed.await {
            assert!(error.is_transient(), "{error}");
        }
    }
    // A search for dead letters can take as long as a lease.
    while let Ok(redeliveries) = deliveries.try_recv() {
        most = most.max(redeliveries);
    }
    // The network is cut after each delivery. If the next one is late, it may lose its connection before
    // it was handed out.
    let last = redeliveries_max.min(3)..=redeliveries_max;
    assert!(last.contains(&most), "the last delivery was {most}");
    let times = redeliveries_max + 2;
    let expected = format!("the message was delivered {times} times and nobody settled it");
    assert!(reason.as_deref().is_some_and(|reason| reason.starts_with(&expected)), "{reason:?}");
    consuming.abort();
}

pub async fn a_lease_that_ends_is_delivered_again<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_leases_that_end().await;
    bench.send(&["a"]).await;
    let mut consumer = bench.consume().await;
    let first = consumer.receive_one().await.expect("received");
    bench.subject.end_leases().await;
    let second = consumer.receive_one().await.expect("received again");
    assert_eq!(second.message().id(), first.message().id());
    assert_eq!(second.redeliveries(), 1);
    if S::FENCES {
        assert_eq!(first.ack().await, Err(Error::Lost));
    } else {
        std::mem::forget(first);
    }
    second.ack().await.expect("it is ours");
    bench.wait_for_ready(0).await;
}

pub async fn extending_keeps_a_delivery_from_others<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    bench.send(&["a"]).await;
    let place = QueueName::Live(bench.queue.name().to_owned());
    let terms =
        ConsumeOptions { prefetch: 1, visibility: S::VISIBILITY, wait: ConsumeOptions::WAIT_MAX };
    let source = bench.subject.broker().consume(&place, terms).await;
    let received = source.expect("a source").next(1).await.expect("received");
    let receipt = received.into_iter().next().expect("one").receipt;
    receipt.extend(LEASE).await.expect("extended");
    // Brokers count in whole seconds.
    bench.subject.pass(S::VISIBILITY + Span::from_secs(1)).await;
    assert!(bench.ready().await.is_none_or(|ready| ready == 0));
    receipt.ack().await.expect("it is still ours");
}

pub async fn work_that_takes_longer_than_its_lease_stays_ours<S: QueueSubject>() {
    let bench = QueueBench::<S>::with_leases_that_end().await;
    bench.send(&["long"]).await;
    let mut consumer = bench.consume().await;
    let delivery = consumer.receive_one().await.expect("received");
    let work = async {
        // Work for half a lease longer than a lease, in several parts that each can extend it. Only
        // a machine that stands still misses all of these chances.
        for _ in 0..9 {
            bench.subject.pass(Span::from_micros(S::VISIBILITY.as_micros() / 6)).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bench.ready().await
    };
    assert!(delivery.with_lease(work).await.is_none_or(|ready| ready == 0));
    delivery.ack().await.expect("it is still ours");
}

pub async fn two_consumers_share_a_queue<S: QueueSubject>() {
    const JOBS: usize = 120;
    let bench = QueueBench::<S>::new().await;
    let batch = (0..JOBS).map(|n| (Message::new(format!("{n}")), DeliveryTime::Now)).collect();
    for result in bench.queue.send_batch(batch).await {
        result.expect("sent");
    }
    let (mut left, mut right) = (bench.consume().await, bench.consume().await);
    let mut seen = BTreeMap::<String, u32>::new();
    let mut shares = [0; 2];
    while seen.len() < JOBS {
        let (who, received) = tokio::select! {
            received = left.receive(5) => (0, received),
            received = right.receive(5) => (1, received),
        };
        for delivery in received.expect("received") {
            *seen.entry(body(&delivery)).or_default() += 1;
            shares[who] += 1;
            match delivery.ack().await {
                // The other copy was acknowledged first.
                Err(Error::Lost) if S::DELIVERS_COPIES => {}
                result => result.expect("acknowledged"),
            }
        }
    }
    assert!(S::DELIVERS_COPIES || seen.values().all(|times| *times == 1), "{seen:?}");
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
}

pub async fn what_went_through_is_counted<S: QueueSubject>() {
    let bench = QueueBench::<S>::new().await;
    for _ in 0..3 {
        bench.queue.send(Message::new("{}").of_kind("crawl_org")).await.expect("sent");
    }
    let mut consumer = bench.consume().await;
    for _ in 0..2 {
        consumer.receive_one().await.expect("received").ack().await.expect("acknowledged");
    }
    consumer
        .receive_one()
        .await
        .expect("received")
        .defer(DeliveryTime::Now)
        .await
        .expect("deferred");
    let stats = bench.queue.stats();
    assert_eq!((stats.sent, stats.received, stats.acked, stats.deferred), (3, 3, 2, 1));
    assert_eq!(stats.processing["crawl_org"].count, 2);
}

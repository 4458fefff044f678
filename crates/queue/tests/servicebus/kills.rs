//! Kills the server at random moments while messages are sent, forwarded and delayed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_queue::servicebus::Options;
use sluicegate_queue::{Consumer, DeliveryTime, Error, JobId, Message, Queue};
use sluicegate_testkit::queue::run;
use sluicegate_testkit::servicebus::ServiceBusServer;

use crate::support::{broker, options};

/// Number of kills in the short form of the test.
const KILLS: u32 = 5;

/// Sends messages until it is told to stop, and until some were confirmed: on a busy machine, each
/// kill may come before the first confirmation. Returns the jobs that were confirmed.
async fn send_until(queue: Queue, stop: Arc<AtomicBool>) -> BTreeSet<JobId> {
    let mut confirmed = BTreeSet::new();
    while !stop.load(Ordering::Relaxed) || confirmed.is_empty() {
        let batch = (0..20_u64).map(|number| {
            let delay = DeliveryTime::After(Span::from_millis(number % 4 * 100));
            (Message::new("job"), delay)
        });
        for id in queue.send_batch(batch.collect()).await.into_iter().flatten() {
            confirmed.insert(id.job);
        }
    }
    confirmed
}

/// Opens a consumer, also while the server is being restarted.
async fn consumer(queue: &Queue) -> Consumer {
    loop {
        match queue.consume(100).await {
            Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            opened => return opened.expect("a consumer"),
        }
    }
}

/// Forwards messages until it is told to stop.
async fn forward_until(from: Queue, to: Queue, stop: Arc<AtomicBool>) {
    let mut consumer = consumer(&from).await;
    while !stop.load(Ordering::Relaxed) {
        let waiting = tokio::time::timeout(Duration::from_millis(200), consumer.receive(50)).await;
        let Ok(received) = waiting else { continue };
        for delivery in received.expect("the queue exists") {
            // A failure leaves the message in the queue, or in both.
            let _ = delivery.forward(&to, DeliveryTime::Now).await;
        }
    }
}

#[test]
fn no_confirmed_message_is_lost_when_the_server_is_killed() {
    run(async {
        let server = Arc::new(Mutex::new(ServiceBusServer::start()));
        let options = options(&server.lock().expect("not poisoned"));
        // The restarted server knows no locks: they end with it.
        let broker = broker(Options { lock: Span::from_secs(5), ..options });
        let open = |name| Queue::new(broker.clone(), name, Default::default());
        let (source, target) = (open("killed-source"), open("killed-target"));
        source.create().await.expect("created");
        target.create().await.expect("created");
        let stop = Arc::new(AtomicBool::new(false));
        let sending = tokio::spawn(send_until(source.clone(), stop.clone()));
        let forwarding = tokio::spawn(forward_until(source.clone(), target.clone(), stop.clone()));
        for kill in 0..if sluicegate_testkit::long() { KILLS * 10 } else { KILLS } {
            tokio::time::sleep(Duration::from_millis(u64::from(kill * 137 % 400 + 50))).await;
            let server = server.clone();
            let killed = move || {
                let mut server = server.lock().expect("not poisoned");
                server.kill();
                server.restart();
            };
            tokio::task::spawn_blocking(killed).await.expect("no panic");
        }
        stop.store(true, Ordering::Relaxed);
        let mut missing = sending.await.expect("no panic");
        forwarding.await.expect("no panic");
        assert!(!missing.is_empty(), "something was confirmed");
        let (mut left, mut arrived) = (consumer(&source).await, consumer(&target).await);
        while !missing.is_empty() {
            let received = tokio::select! {
                received = left.receive(100) => received,
                received = arrived.receive(100) => received,
            };
            for delivery in received.expect("received") {
                missing.remove(&delivery.message().meta.job);
                // On a busy machine a lock may end before its turn; the message comes again.
                match delivery.ack().await {
                    Ok(()) | Err(Error::Lost) => {}
                    Err(error) => panic!("not acknowledged: {error}"),
                }
            }
        }
    });
}

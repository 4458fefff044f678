//! Locks: renewed, lost, and shorter than the visibility timeout.

use sluicegate_core::Span;
use sluicegate_queue::servicebus::Options;
use sluicegate_queue::{Error, Message, Options as QueueOptions, Queue};
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::queue::run;

use crate::support::{broker, calm, options, options_behind};

const LOCK: Span = Span::from_secs(5);

#[test]
fn a_holder_whose_lock_has_ended_can_not_take_the_message_from_the_next() {
    run(async {
        let network = FaultProxy::start(calm().port);
        let cut_off = broker(Options { lock: LOCK, ..options_behind(calm(), &network) });
        let first_queue = Queue::new(cut_off, "stale", QueueOptions::default());
        first_queue.create().await.expect("created");
        first_queue.send(Message::new("x")).await.expect("sent");
        let mut consumer = first_queue.consume(1).await.expect("a consumer");
        let first = consumer.receive_one().await.expect("received");
        // Its process can't renew the lock any more.
        network.set(NetworkState::Cut);
        let second_queue = Queue::new(broker(options(calm())), "stale", QueueOptions::default());
        let mut consumer = second_queue.consume(1).await.expect("a consumer");
        let second = consumer.receive_one().await.expect("received again");
        assert_eq!(second.message().id(), first.message().id());
        network.set(NetworkState::Healthy);
        while first.extend().await != Err(Error::Lost) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(first.ack().await, Err(Error::Lost));
        second.extend().await.expect("it is ours");
        second.ack().await.expect("it is ours");
    });
}

#[test]
fn a_lock_is_renewed_as_long_as_the_visibility_timeout_lasts() {
    run(async {
        let broker = broker(Options { lock: LOCK, ..options(calm()) });
        let queue = Queue::new(broker, "patient", QueueOptions::default());
        queue.create().await.expect("created");
        queue.send(Message::new("x")).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let delivery = consumer.receive_one().await.expect("received");
        // Several locks long.
        tokio::time::sleep((LOCK + LOCK + LOCK).into()).await;
        delivery.ack().await.expect("the lock was renewed");
    });
}

/// One request settles several deliveries, and fails if one lock is invalid.
#[test]
fn a_lost_lock_does_not_fail_the_acknowledgements_beside_it() {
    run(async {
        let visibility = Span::from_secs(2);
        let options_of_queue = QueueOptions { visibility, ..QueueOptions::default() };
        let queue = Queue::new(broker(options(calm())), "beside", options_of_queue);
        queue.create().await.expect("created");
        queue.send(Message::new("slow")).await.expect("sent");
        let mut consumer = queue.consume(10).await.expect("a consumer");
        let lost = consumer.receive_one().await.expect("received");
        // Delivered again when its visibility timeout has ended.
        let again = consumer.receive_one().await.expect("received again");
        assert_eq!(again.message().id(), lost.message().id());
        queue.send(Message::new("fast")).await.expect("sent");
        let fast = consumer.receive_one().await.expect("received");
        let settled = tokio::join!(lost.ack(), again.ack(), fast.ack());
        assert_eq!(settled, (Err(Error::Lost), Ok(()), Ok(())));
    });
}

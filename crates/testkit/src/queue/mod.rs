//! The test suite that every queue has to pass on every broker.
//!
//! [`queue_suite!`](crate::queue_suite) makes a test of each function here for a [`QueueSubject`].
//! No test sleeps for a fixed time: a subject advances its clock, or waits for the broker.

pub mod crash;
#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod dead_letters;
#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod faults;
#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod remote;
#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod sending;
#[allow(missing_docs, reason = "the name of each test is its sentence")]
pub mod settling;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::{
    Broker, Consumer, Delivery, FailureRecord, Message, Options, Queue, WallClock,
};

/// A broker under test.
pub trait QueueSubject: Sized {
    /// Visibility timeout in the tests in which leases expire. If the clock is real, it must be
    /// long enough for a slow machine to run such a test.
    const VISIBILITY: Span;
    /// Delay of messages in the tests of delays.
    const DELAY: Span;
    /// True if settling with an expired lease fails.
    const FENCES: bool;
    /// True if the broker may deliver a message to two consumers at once, as a standard queue of
    /// SQS may: such a queue promises at least one delivery.
    const DELIVERS_COPIES: bool;

    /// Returns a connected broker; called inside of a runtime.
    fn fresh() -> Self;

    /// Returns the broker.
    fn broker(&self) -> Arc<dyn Broker>;

    /// Returns the clock of the broker.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(WallClock)
    }

    /// Lets this time pass.
    fn pass(&self, span: Span) -> impl Future<Output = ()> {
        tokio::time::sleep(span.into())
    }

    /// Lets all leases expire that are not extended.
    fn end_leases(&self) -> impl Future<Output = ()>;

    /// Kills the broker like a power cut, and starts it again.
    fn restart(&self) -> impl Future<Output = ()>;
}

/// Maximum duration of a test: a hang becomes a failure with a name.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Visibility timeout that is longer than any test.
pub(crate) const LEASE: Span = Span::from_secs(3_600);

/// A test queue and its broker.
pub(crate) struct QueueBench<S> {
    pub(crate) subject: S,
    pub(crate) queue: Queue,
}

impl<S: QueueSubject> QueueBench<S> {
    /// Creates a queue whose leases never expire, however slow the machine is.
    pub(crate) async fn new() -> Self {
        Self::with_options(|_| {}).await
    }

    /// Creates a queue with other options.
    pub(crate) async fn with_options(change: impl FnOnce(&mut Options)) -> Self {
        let subject = S::fresh();
        let queue = open_with(&subject, change).await;
        Self { subject, queue }
    }

    /// Creates a queue whose leases expire.
    pub(crate) async fn with_leases_that_end() -> Self {
        Self::with_options(|options| options.visibility = S::VISIBILITY).await
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.subject.clock().now()
    }

    pub(crate) async fn consume(&self) -> Consumer {
        self.queue.consume(10).await.expect("a consumer")
    }

    /// Sends messages and waits until all are confirmed. Retries transient errors, because a
    /// restarted broker is not available at once.
    pub(crate) async fn send(&self, bodies: &[&str]) {
        for body in bodies {
            let message = Message::new(body.to_string());
            while let Err(error) = self.queue.send(message.clone()).await {
                assert!(error.is_transient(), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Restarts the broker, after the time that it may need to save a new queue.
    pub(crate) async fn restart(&self) {
        tokio::time::sleep(self.queue.capabilities().creation_flush.into()).await;
        self.subject.restart().await;
    }

    /// Returns the number of ready messages; `None` if the broker does not tell it.
    pub(crate) async fn ready(&self) -> Option<u64> {
        match self.queue.capabilities().depth {
            true => Some(self.queue.depth().await.expect("a depth").ready),
            false => None,
        }
    }

    /// Waits until the queue has this number of ready messages, if the broker tells it.
    pub(crate) async fn wait_for_ready(&self, ready: u64) {
        loop {
            if self.ready().await.is_none_or(|found| found == ready) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Creates a queue with a unique name.
pub(crate) async fn open<S: QueueSubject>(subject: &S) -> Queue {
    open_with(subject, |_| {}).await
}

async fn open_with<S: QueueSubject>(subject: &S, change: impl FnOnce(&mut Options)) -> Queue {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("suite-{}-{number}", std::process::id());
    let mut options = Options {
        visibility: LEASE,
        job_field: Some("AnalysisId".to_owned()),
        type_field: Some("type".to_owned()),
        clock: subject.clock(),
        ..Options::default()
    };
    change(&mut options);
    let queue = Queue::new(subject.broker(), &name, options);
    queue.create().await.expect("created");
    queue.check().await.expect("there");
    queue
}

/// Returns the body of a delivery as text.
pub(crate) fn body(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.message().body).into_owned()
}

/// Returns the error message of a dead letter that a consumer made, which has no stack.
pub(crate) fn reason_of(died: &FailureRecord) -> String {
    assert_eq!(died.stack, None);
    died.message.clone()
}

/// Runs a test to its end, or fails it after a timeout.
pub fn run(case: impl Future<Output = ()>) {
    run_for(TIMEOUT, case);
}

/// Runs a test with its own timeout.
pub fn run_for(timeout: Duration, case: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(timeout, case).await.expect("the case ends in time");
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
}

/// Makes a test of every function of the suite for one [`QueueSubject`]. A second subject, if
/// given, runs the tests that restart the broker, which would disturb the others.
#[macro_export]
macro_rules! queue_suite {
    ($subject:ty) => {
        $crate::queue_suite! { $subject, $subject }
    };
    ($subject:ty, $apart:ty) => {
        $crate::queue_suite! { @ $subject, sending:
            what_is_sent_is_received_as_it_was
            every_body_travels_byte_by_byte
            a_megabyte_travels
            what_is_too_large_is_refused_with_its_size
            each_message_of_a_batch_succeeds_or_fails_on_its_own
            a_delayed_message_comes_at_its_instant
            a_fixed_delay_is_kept
            a_message_is_not_delivered_before_its_instant
            an_instant_that_has_passed_is_now
            urgent_messages_go_first_where_the_broker_can
            messages_of_all_priorities_are_one_queue
            messages_that_wait_for_their_turn_are_returned_uncounted
            a_foreign_message_keeps_the_level_of_its_queue
            a_body_above_the_maximum_of_the_queue_is_refused
            a_message_that_is_too_old_is_a_dead_letter
            depth_counts_what_is_there
            purging_empties_a_queue
            a_missing_queue_is_named
        }
        $crate::queue_suite! { @ $subject, settling:
            what_is_acknowledged_is_gone
            what_is_acknowledged_together_is_gone
            a_deferral_is_no_attempt
            a_retry_is_an_attempt
            a_message_is_forwarded_whole
            a_dropped_delivery_is_requeued
            requeueing_again_and_again_loses_nothing
            thirty_scans_of_a_backlog_are_not_counted
            a_consumer_that_is_closed_returns_its_messages_uncounted
            what_is_abandoned_or_lost_in_a_panic_is_counted
            a_cancelled_receive_loses_nothing
            a_lease_that_ends_is_delivered_again
            a_message_that_nobody_settles_becomes_a_dead_letter
            a_message_that_nobody_settles_is_delayed_before_it_becomes_a_dead_letter
            a_message_above_the_maximum_of_redeliveries_is_never_handed_out
            a_message_of_the_maximum_size_becomes_a_dead_letter_and_is_replayed
            extending_keeps_a_delivery_from_others
            work_that_takes_longer_than_its_lease_stays_ours
            two_consumers_share_a_queue
            what_went_through_is_counted
        }
        $crate::queue_suite! { @ $subject, dead_letters:
            a_dead_letter_is_the_original_with_its_error
            what_can_not_be_parsed_keeps_its_bytes
            letters_are_found_by_type_error_and_age
            looking_at_letters_leaves_them_there
            a_replayed_letter_is_what_its_producer_sent
            a_deleted_letter_is_gone
        }
        $crate::queue_suite! { @ $subject, remote:
            a_client_settles_a_lease_once_and_may_repeat_it
            a_client_retries_defers_requeues_and_dead_letters
            a_lease_is_settled_on_another_node_where_the_broker_can
            a_lease_that_ends_is_lost
            open_leases_are_bounded
            an_idle_receive_leaves_room_for_others
            a_waiting_client_gets_what_is_sent_later
            a_node_that_stops_requeues_what_its_clients_hold
        }
        $crate::queue_suite! { @ $apart, faults:
            a_restart_of_the_broker_loses_nothing
            a_consumer_goes_on_after_a_restart
        }
    };
    (@ $subject:ty, $module:ident: $($test:ident)*) => {
        mod $module {
            use super::*;

            $(#[test]
            fn $test() {
                $crate::queue::run($crate::queue::$module::$test::<$subject>());
            })*
        }
    };
}

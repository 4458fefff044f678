//! The queue suite for SQS.

use crate::support::{Fauxqs, Subject};

sluicegate_testkit::queue_suite!(Subject);

/// The client delivers once what the server delivers once.
#[test]
fn two_consumers_share_a_queue_of_a_server_without_copies() {
    use sluicegate_testkit::queue::{run, settling};
    run(settling::two_consumers_share_a_queue::<Subject<Fauxqs>>());
}

//! The queue suite for Pub/Sub.

use crate::support::Subject;

sluicegate_testkit::queue_suite!(Subject);

mod exactly_once {
    use crate::support::{ExactlyOnce, Subject};

    sluicegate_testkit::queue_suite!(Subject<ExactlyOnce>);
}

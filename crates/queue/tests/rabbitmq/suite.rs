//! The queue suite for RabbitMQ, on queues of both types.

mod classic {
    use crate::support::{Killed, Subject};

    sluicegate_testkit::queue_suite!(Subject<false>, Killed<false>);
}

mod quorum {
    use crate::support::{Killed, Subject};

    sluicegate_testkit::queue_suite!(Subject<true>, Killed<true>);
}

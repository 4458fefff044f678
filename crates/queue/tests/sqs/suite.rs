//! The queue suite for SQS.

use crate::support::Subject;

sluicegate_testkit::queue_suite!(Subject);

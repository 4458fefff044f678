//! The suite.

use crate::support::Subject;

sluicegate_testkit::queue_suite!(Subject);

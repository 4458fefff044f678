//! The queue suite for Service Bus.

use crate::support::{Killed, Subject};

sluicegate_testkit::queue_suite!(Subject, Killed);

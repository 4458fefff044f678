//! End-to-end tests of dispatchers and workers: processes of the binary between a broker and a fake
//! provider that records its calls, on the embedded queue with the memory store, and on RabbitMQ with
//! Redis.
//!
//! Limits are checked by the store's times from the decision logs, and at the provider in windows
//! that are shorter by the longest measured delay from the store to the provider.
//!
//! Not yet as strict as the requirements, because of the way work is paced:
//!
//! | test | accepts | should accept |
//! |---|---|---|
//! | `everything_succeeds_booked…`, on RabbitMQ and Redis | at most 20 of 1,000 requeues | none |
//! | `every_job_has_an_end_although_processes_are_killed` | windows of 3 s at the provider; a killed process takes its last decisions with it | 4 s |
//! | `every_repository_is_crawled…` | at most 40 rejected calls: those in flight when a pause begins | none |
//!
//! And because a RabbitMQ node is killed:
//!
//! | test | accepts | should accept |
//! |---|---|---|
//! | `work_continues_after_a_broker…` | every job is done; some are done more than once | only those that were in work |

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/proof.rs"]
mod proof;

mod crawling;
mod faults;
mod grid;
mod scenarios;
mod support;
mod unsettled;

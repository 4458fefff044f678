//! Dispatchers and workers as their users run them: processes of the binary between a broker and a
//! provider that writes down what it sees, on the queue and the store that need no server, and
//! on RabbitMQ and Redis.
//!
//! Limits are judged by the store's own times, which the decision logs tell, and at the provider in
//! windows that are shorter by the longest way that was measured from the store to the provider.
//!
//! Not yet as strict as the requirements, because it depends on how work is paced:
//!
//! | test | is judged by | should be |
//! |---|---|---|
//! | `everything_succeeds_booked…`, on RabbitMQ and Redis | at most 20 of 1,000 go back to the queue | none |
//! | `every_job_has_its_end_although_processes_are_killed` | windows of 3 s at the provider; a killed process takes its last decisions with it | 4 s |
//! | `every_repository_is_crawled…` | at most 40 calls are refused: those that are under way when a pause begins | none |
//!
//! And because of a RabbitMQ node that is killed:
//!
//! | test | is judged by | should be |
//! |---|---|---|
//! | `a_broker_and_a_redis_that_come_back…` | every job is done; some are done more than once | only those that were in work |

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/proof.rs"]
mod proof;

mod crawling;
mod faults;
mod scenarios;
mod support;

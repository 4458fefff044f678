//! End-to-end tests of the brokers of the clouds, each on its test server: dispatchers and workers
//! under limits and with faults, and the crawler and the two-tier example, whose broker one variable
//! selects. Everything is judged by the sets of job ids, because Pub/Sub does not tell how many messages
//! a queue has.
//!
//! The tests of a broker are in the module of its name: `cargo xtask test pubsub` runs `pubsub`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../dispatch/hostile.rs"]
mod hostile;
#[path = "../common/proof.rs"]
mod proof;
#[path = "../dispatch/support.rs"]
mod support;

mod crawler;
mod example;
mod faults;
mod two_tier_example;
mod two_tiers;

/// Makes a test of each scenario on each broker. A scenario may change its setup.
macro_rules! on_clouds {
    ($($cloud:ident: $($module:ident::$scenario:ident)*;)*) => {
        $(mod $cloud {
            $(#[test]
            fn $scenario() {
                crate::$module::$scenario(&mut crate::$module::$cloud(stringify!($scenario)));
            })*
        })*
    };
}

on_clouds! {
    pubsub:
        two_tiers::half_goes_at_once_and_half_after_the_delay
        two_tiers::a_bypassed_worker_keeps_the_limit
        two_tiers::everything_succeeds_with_a_fixed_delay
        two_tiers::everything_succeeds_booked
        two_tier_example::the_example_dispatches_every_analysis
        faults::poison_messages_become_dead_letters_unchanged
        faults::a_misbehaving_provider_loses_no_job
        faults::work_continues_after_a_redis_comes_back
        crawler::the_example_crawls_every_repository
        crawler::the_script_crawls_an_organisation;
    servicebus:
        two_tiers::half_goes_at_once_and_half_after_the_delay
        two_tiers::a_bypassed_worker_keeps_the_limit
        two_tiers::everything_succeeds_with_a_fixed_delay
        two_tiers::everything_succeeds_booked
        two_tier_example::the_example_dispatches_every_analysis
        faults::poison_messages_become_dead_letters_unchanged
        faults::a_misbehaving_provider_loses_no_job
        faults::work_continues_after_a_redis_comes_back
        crawler::the_example_crawls_every_repository
        crawler::the_script_crawls_an_organisation;
    sqs:
        two_tiers::half_goes_at_once_and_half_after_the_delay
        two_tiers::a_bypassed_worker_keeps_the_limit
        two_tiers::everything_succeeds_with_a_fixed_delay
        two_tiers::everything_succeeds_booked
        two_tier_example::the_example_dispatches_every_analysis
        faults::poison_messages_become_dead_letters_unchanged
        faults::a_misbehaving_provider_loses_no_job
        faults::work_continues_after_a_redis_comes_back
        crawler::the_example_crawls_every_repository
        crawler::the_script_crawls_an_organisation;
}

//! Work continues although Redis is killed.

use std::collections::BTreeSet;

use sluicegate_testkit::{eventually, eventually_is};

use crate::hostile::config;
pub(crate) use crate::hostile::{
    a_misbehaving_provider_loses_no_job, poison_messages_become_dead_letters_unchanged,
};
use crate::support::{Backend, TestSetup, patient, receive_all};
pub(crate) use crate::two_tiers::{pubsub, servicebus, sqs};

/// Number of jobs while Redis is killed, and of calls in a window of 4 s.
const JOBS: usize = 200;
const LIMIT: usize = 100;

/// Redis is killed while jobs wait for the limit. The new one is empty: more calls than the limit may
/// arrive in one window.
pub(crate) fn work_continues_after_a_redis_comes_back(setup: &mut TestSetup) {
    setup.produce("raw", JOBS);
    let (url, record) = setup.provider(patient(5));
    let _running = setup.run("dispatch,worker", &config(setup, &url, &format!("{LIMIT}/4s")));
    eventually(|| record.calls().len() >= LIMIT / 2);
    let Backend::Cloud { redis, .. } = &mut setup.backend else { unreachable!("it is a cloud") };
    redis.kill_and_restart();
    let done = || -> BTreeSet<_> {
        let calls = record.calls().into_iter().filter(|call| call.status == 200);
        calls.map(|call| call.job).collect()
    };
    eventually_is(done, setup.jobs(JOBS));
    let results = receive_all(setup, "results", JOBS, |_| {});
    assert_eq!(results.into_keys().collect::<BTreeSet<_>>(), setup.jobs(JOBS));
    for queue in ["gemini", "raw"] {
        assert_eq!(setup.dead_jobs(queue), BTreeSet::new(), "{queue}");
    }
}

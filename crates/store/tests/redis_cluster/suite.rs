//! The test suite of all stores, run on a cluster with all keys of a test in one slot.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluicegate_core::Timestamp;
use sluicegate_store::redis::{Options, Redis, RetryPolicy};
use sluicegate_testkit::redis::RedisCluster;
use sluicegate_testkit::suite::EPOCH;
use sluicegate_testkit::suite::reservation_store::a_reservation_store_keeps_its_promises;
use sluicegate_testkit::{StoreSubject, store_suite};
use tokio::runtime::Runtime;

use crate::fixture::seeds;

fn cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start(3))
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"))
}

/// A store whose prefix puts all keys into one slot, a different one for each test.
struct OneSlot {
    store: Redis,
    clock: String,
}

impl StoreSubject for OneSlot {
    type Store = Redis;
    const LITERAL_KEYS: bool = false;
    const CASES: u32 = 30;

    fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let key_prefix = format!("{{{}}}", NEXT.fetch_add(1, Ordering::Relaxed));
        let clock = format!("{key_prefix}clock");
        let patient = Duration::from_secs(20);
        let retry = RetryPolicy { timeout: patient, retries: 0, deadline: patient };
        // The cache uses the clock of this node, the store one that the tests set.
        let deny_cache = Duration::ZERO;
        let options = Options { key_prefix, retry, deny_cache, ..Options::on(seeds(cluster())) };
        let store = runtime().block_on(async { Redis::with_clock_in_key(options) });
        let subject = Self { store, clock };
        subject.set_now(EPOCH);
        subject
    }

    fn store(&self) -> &Redis {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        let words = ["SET", &self.clock, &now.as_micros().to_string()];
        let set = cluster().primaries.iter().any(|server| server.command(&words) == "+OK");
        assert!(set, "one of the servers has the slot");
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        runtime().block_on(future)
    }
}

store_suite!(OneSlot);

#[test]
fn the_list_of_reservations_keeps_its_promises() {
    let subject = OneSlot::fresh();
    let set_now = |now| subject.set_now(now);
    runtime().block_on(a_reservation_store_keeps_its_promises(subject.store(), &set_now));
}

#[test]
fn each_server_reports_its_memory_and_load() {
    let subject = OneSlot::fresh();
    let mut usage = Vec::new();
    sluicegate_testkit::eventually(|| {
        usage = subject.store().server_usage();
        usage.len() == 3
    });
    let mut servers: Vec<_> = usage.iter().map(|usage| usage.server.as_str()).collect();
    servers.sort_unstable();
    servers.dedup();
    assert_eq!(servers.len(), 3, "{usage:?}");
    assert!(usage.iter().all(|usage| usage.memory_used > 100_000), "{usage:?}");
}

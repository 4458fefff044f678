//! Slots that migrate and servers that die, under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate_core::store::Error;
use sluicegate_testkit::eventually_async;
use sluicegate_testkit::redis::RedisCluster;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::fixture::{Fixture, TestRequest, ms, of_caller, ours, seeds};

/// Nodes that request as much as they can get, and the number of their decisions and admissions.
struct Load {
    nodes: Vec<Arc<Fixture>>,
    done: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    admitted: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    async fn on(
        cluster: &RedisCluster,
        all: &[&str],
        user: &[&str],
        id: fn(u128) -> TestRequest,
    ) -> Self {
        let done: Arc<AtomicBool> = Default::default();
        let (decided, admitted): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let (mut nodes, mut tasks) = (Vec::new(), Vec::new());
        for number in 0..2_u128 {
            let node = Arc::new(Fixture::new(seeds(cluster), all, user).await);
            for task in 0..6_u128 {
                let (node, done) = (node.clone(), done.clone());
                let (decided, admitted) = (decided.clone(), admitted.clone());
                tasks.push(tokio::spawn(async move {
                    let first = (number << 96) + (task << 64);
                    for n in 0.. {
                        if done.load(Ordering::SeqCst) {
                            break;
                        }
                        let answer = node.acquire(id(first + n)).await;
                        decided.fetch_add(u64::from(answer.is_ok()), Ordering::SeqCst);
                        match answer {
                            Ok(decision) if decision.is_allowed() => {
                                admitted.fetch_add(1, Ordering::SeqCst);
                            }
                            Ok(_) => sleep(ms(1)).await,
                            Err(Error::Unavailable(_)) => sleep(ms(5)).await,
                            Err(other) => panic!("{other}"),
                        }
                    }
                }));
            }
            nodes.push(node);
        }
        Self { nodes, done, decided, admitted, tasks }
    }

    /// Waits until this many more requests are admitted.
    async fn goes_on(&self, more: u64) {
        let before = self.admitted.load(Ordering::SeqCst);
        eventually_async(async || self.admitted.load(Ordering::SeqCst) >= before + more).await;
    }

    /// Waits until this many more requests are decided by the store, also if all of them are denied.
    async fn is_decided(&self, more: u64) {
        let before = self.decided.load(Ordering::SeqCst);
        eventually_async(async || self.decided.load(Ordering::SeqCst) >= before + more).await;
    }

    /// Ends the load. Returns the number of admissions.
    async fn end(&mut self) -> u64 {
        self.done.store(true, Ordering::SeqCst);
        for task in self.tasks.drain(..) {
            task.await.expect("no task panics");
        }
        self.admitted.load(Ordering::SeqCst)
    }
}

/// Returns the slot of a key, as a server reports it, and the primary that owns it.
fn slot_and_owner(cluster: &RedisCluster, key: &str) -> (u16, usize) {
    let slot = cluster.primaries[0].command(&["CLUSTER", "KEYSLOT", key]);
    let slot: u16 = slot.trim_start_matches(':').parse().expect("a number");
    let count = cluster.primaries.len();
    (slot, (0..count).find(|n| usize::from(slot) < (n + 1) * 16_384 / count).expect("a server"))
}

/// Moves the slots of counters around the cluster while they are charged.
async fn slots_that_move_lose_nothing(all: &[&str], keys: &[&str], id: fn(u128) -> TestRequest) {
    let cluster = RedisCluster::start(3);
    let mut load = Load::on(&cluster, all, &["1000000/h"], id).await;
    load.goes_on(50).await;
    let mut places: Vec<_> = keys.iter().map(|key| slot_and_owner(&cluster, key)).collect();
    for _ in 0..4 {
        for (slot, at) in &mut places {
            let to = (*at + 1) % 3;
            tokio::task::block_in_place(|| cluster.migrate(*slot, *at, to));
            *at = to;
            load.goes_on(20).await;
        }
    }
    let admitted = load.end().await;
    let expected = vec![admitted; all.len() + 1];
    load.nodes[0].shows("ann", &expected).await;
    load.nodes[1].shows("ann", &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_loses_nothing() {
    let keys = ["sg:{USER:ann#requests}"];
    slots_that_move_lose_nothing(&[], &keys, ours).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_lose_nothing_of_plans_across_them() {
    let keys = ["sg:{ALL#requests}", "sg:{USER:ann#requests}"];
    slots_that_move_lose_nothing(&["1000000/h"], &keys, of_caller).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn primaries_that_die_are_replaced_and_admit_at_most_twice_the_limit() {
    const LIMIT: u64 = 600;
    let mut cluster = RedisCluster::start_replicated(3);
    let limit = format!("{LIMIT}/h");
    let mut load = Load::on(&cluster, &[&limit], &[&limit], ours).await;
    load.goes_on(100).await;
    // Two of three primaries can die, one after the other: the remaining servers have to agree.
    for victim in 0..2 {
        cluster.primaries[victim].kill();
        let replica = &cluster.replicas[victim];
        crate::fixture::until("its replica takes over", || {
            replica.command(&["ROLE"]).contains("master")
                && replica.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        })
        .await;
        // The load may have used its limit meanwhile, so denials count too.
        load.is_decided(50).await;
    }
    let mut admitted = load.end().await;
    // Until nothing more fits: a running rollback may cause a denial for a moment.
    let (probe, mut denied) = (&load.nodes[0], 0);
    for id in 0..10 * u128::from(LIMIT) {
        match probe.acquire(ours(1 << 120 | id)).await {
            Ok(decision) if decision.is_allowed() => (admitted, denied) = (admitted + 1, 0),
            Ok(_) | Err(_) => denied += 1,
        }
        if denied == 20 {
            break;
        }
        sleep(ms(denied)).await;
    }
    // A failover may also lose a rollback, which only counts too much.
    assert!((LIMIT * 9 / 10..=2 * LIMIT).contains(&admitted), "{admitted}");
}

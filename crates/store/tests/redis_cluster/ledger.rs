//! Budgets whose counters lie in different slots, under concurrent callers: the charged amount
//! equals what was settled plus what is held, and no budget is exceeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::query::Cost;
use sluicegate_core::{Decision, Money, Store as _};
use sluicegate_testkit::redis::RedisCluster;

use crate::fixture::{Fixture, of_caller, seeds};

const BUDGET: u64 = 10_000_000;
const USER_BUDGET: u64 = 4_000_000;
const USERS: [&str; 4] = ["ann", "bob", "eve", "joe"];
const CALLERS: u64 = 40;

/// A random number generator with a fixed seed.
struct Random(u64);

impl Random {
    fn up_to(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }
}

/// The callers' own account of the spent money.
#[derive(Default)]
struct Ledger {
    spent: [AtomicU64; USERS.len()],
    denied: AtomicU64,
    most_seen: AtomicU64,
}

#[tokio::test(flavor = "multi_thread")]
async fn across_slots_no_budget_is_overrun_and_nothing_is_lost() {
    let cluster = RedisCluster::start(3);
    let node = async || {
        Arc::new(Fixture::new(seeds(&cluster), &["0.01 USD/day"], &["0.004 USD/day"]).await)
    };
    let nodes = [node().await, node().await];
    let ledger = Arc::new(Ledger::default());
    let rounds = if sluicegate_testkit::long() { 200 } else { 10 };
    let callers: Vec<_> = (1..=CALLERS)
        .map(|caller| tokio::spawn(calls(nodes.clone(), Arc::clone(&ledger), caller, rounds)))
        .collect();
    for caller in callers {
        caller.await.expect("no panic");
    }
    let spent: Vec<_> = ledger.spent.iter().map(|spent| spent.load(Ordering::SeqCst)).collect();
    let all: u64 = spent.iter().sum();
    let denied = ledger.denied.load(Ordering::SeqCst);
    assert!(denied > 20, "the budgets were not reached: {denied} denied");
    assert!(all <= BUDGET, "{all} of {BUDGET}");
    assert!(ledger.most_seen.load(Ordering::SeqCst) <= BUDGET, "at no instant is it overrun");
    for (user, spent) in USERS.into_iter().zip(spent) {
        assert!(spent <= USER_BUDGET, "{user}: {spent} of {USER_BUDGET}");
        nodes[0].shows(user, &[all, spent]).await;
    }
}

/// Reserves, and settles with a lower cost; one in five never settles.
async fn calls(nodes: [Arc<Fixture>; 2], ledger: Arc<Ledger>, caller: u64, rounds: u64) {
    let mut random = Random(caller.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let place = (caller % 4) as usize;
    for round in 0..rounds {
        let estimate = 1 + random.up_to(400_000);
        let id = u128::from(caller * 10_000 + round);
        let ask = of_caller(id).by(USERS[place]).hold(600).money(estimate);
        let node = &nodes[(caller + round) as usize % 2];
        let decision = node.acquire(ask).await.expect("a decision");
        let seen = decision.readings().first().map_or(0, |reading| reading.used);
        ledger.most_seen.fetch_max(seen, Ordering::SeqCst);
        let Decision::Allow(_) = decision else {
            ledger.denied.fetch_add(1, Ordering::SeqCst);
            continue;
        };
        if random.up_to(4) == 0 {
            ledger.spent[place].fetch_add(estimate, Ordering::SeqCst);
            continue;
        }
        let actual = random.up_to(estimate);
        let cost = Cost { money: Money::from_nanos(actual), ..Cost::default() };
        let handle = node.with(ask, async |plan| plan.handle()).await;
        // At the other node, and twice: the settlement counts once.
        let other = &nodes[(caller + round + 1) as usize % 2];
        assert!(!other.store.settle(&handle, &cost).await.expect("settled").replayed);
        assert!(node.store.settle(&handle, &cost).await.expect("settled").replayed);
        ledger.spent[place].fetch_add(actual, Ordering::SeqCst);
    }
}

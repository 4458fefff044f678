//! The memory store under real threads: totals are compared with the limits, and the checker finds
//! any window above its limit.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sluicegate_core::query::{Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::{Decision, Id, Limit, Store, Timestamp};
use sluicegate_store::memory::{Capacity, Memory};

const TASKS: usize = 64;

fn rules(all: &[(&str, &[&str], &[&str])]) -> Ruleset {
    let groups = all.iter().map(|(name, limits, per)| {
        let limits = limits.iter().map(|text| text.parse::<Limit>().expect("a limit"));
        Group::new(*name, [Rule::new(*name, limits).per(per)])
    });
    Ruleset::new(groups.collect(), Settings::default()).expect("rules")
}

fn decide<C: sluicegate_core::time::Clock>(
    store: &Memory<C>,
    rules: &Ruleset,
    id: u128,
    who: &[(&'static str, String)],
) -> Decision {
    let mut query = Query::new(RequestId::ours(Id::from_bits(id)));
    for (name, value) in who {
        query.insert(*name, value.as_str()).expect("a dimension");
    }
    let plan = rules.plan(&query, Timestamp::from_secs(1_800_000_000)).expect("a plan");
    pollster::block_on(store.acquire(&plan)).expect("a decision")
}

#[test]
fn sixty_four_tasks_on_one_key_get_exactly_the_limit() {
    let rounds = if sluicegate_testkit::long() { 100_000 } else { 3_000 };
    let store = Memory::new(Capacity::default());
    let rules = rules(&[("KEY", &["37/h"], &["round"]), ("ALL", &["1000000000/h windowed"], &[])]);
    let (barrier, admitted) = (Barrier::new(TASKS), AtomicUsize::new(0));
    thread::scope(|scope| {
        for task in 0..TASKS {
            let (store, rules, barrier, admitted) = (&store, &rules, &barrier, &admitted);
            scope.spawn(move || {
                for round in 0..rounds {
                    let id = (round * TASKS + task) as u128;
                    if decide(store, rules, id, &[("round", round.to_string())]).is_allowed() {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                    if barrier.wait().is_leader() {
                        assert_eq!(admitted.swap(0, Ordering::SeqCst), 37, "round {round}");
                    }
                    barrier.wait();
                }
            });
        }
    });
}

#[test]
fn a_tenant_cap_and_the_limits_of_its_users_hold_together() {
    let store = Memory::new(Capacity::default());
    let rules = rules(&[("USER", &["20/h"], &["user"]), ("TENANT", &["100/h"], &[])]);
    let admitted: Vec<usize> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8_usize)
            .map(|n| {
                let (store, rules) = (&store, &rules);
                scope.spawn(move || {
                    let user = format!("u{n}");
                    let asks = (0..500).map(|i| (n * 500 + i) as u128);
                    asks.filter(|&id| {
                        decide(store, rules, id, &[("user", user.clone())]).is_allowed()
                    })
                    .count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(admitted.iter().sum::<usize>(), 100, "{admitted:?}");
    assert!(admitted.iter().all(|&n| n <= 20), "{admitted:?}");
    for (n, &admitted) in admitted.iter().enumerate() {
        let decision = decide(&store, &rules, u128::MAX - n as u128, &[("user", format!("u{n}"))]);
        let used = decision.readings()[0].used;
        assert_eq!(used, admitted as u64, "a denial by the tenant's cap consumed of user {n}");
    }
}

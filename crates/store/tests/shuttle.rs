//! The locking of the memory store, under thread schedules that shuttle explores.

use std::sync::Arc;

use shuttle::{check_pct, check_random, thread};
use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::{Id, Limit, Store};
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;

const ITERATIONS: usize = 2_000;

type StoreAndRules = (Memory<ManualClock>, Ruleset);

/// Returns a store with one shared counter and one per user. Their lock order depends only on the
/// rule names.
fn shared(limits: &[(&str, &str, &[&str])]) -> Arc<StoreAndRules> {
    let rule = |(name, limit, per): &(&str, &str, &[&str])| {
        Rule::new(*name, [limit.parse::<Limit>().expect("a limit")]).per(per)
    };
    let groups = limits.iter().map(rule).map(|rule| Group::new(rule.name.clone(), [rule]));
    let rules = Ruleset::new(groups.collect(), Settings::default()).expect("rules");
    Arc::new((Memory::with_clock(Capacity::default(), ManualClock::new(EPOCH)), rules))
}

fn query(id: u128, user: &'static str, tenant: &'static str) -> Query<'static> {
    let query = Query::new(RequestId::ours(Id::from_bits(id)));
    query.with("user", user).and_then(|q| q.with("tenant", tenant)).expect("dimensions")
}

fn allowed(shared: &StoreAndRules, query: &Query<'_>) -> bool {
    let (store, rules) = shared;
    let plan = rules.plan(query, EPOCH).expect("a plan");
    pollster::block_on(store.acquire(&plan)).expect("a decision").is_allowed()
}

fn explore(test: impl Fn() + Send + Sync + Clone + 'static) {
    check_random(test.clone(), ITERATIONS);
    check_pct(test, ITERATIONS, 3);
}

#[test]
fn plans_that_share_counters_in_any_order_neither_deadlock_nor_overshoot() {
    explore(|| {
        let shared =
            shared(&[("A", "2/h", &["user"]), ("B", "2/h", &["tenant"]), ("C", "3/h", &[])]);
        let callers = [("ann", "x"), ("bob", "y"), ("ann", "y"), ("bob", "x")];
        let threads: Vec<_> = (0..)
            .zip(callers)
            .map(|(n, (user, tenant))| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let ids = [n * 2, n * 2 + 1];
                    ids.into_iter().filter(|&id| allowed(&shared, &query(id, user, tenant))).count()
                })
            })
            .collect();
        let admitted: usize = threads.into_iter().map(|t| t.join().expect("no panic")).sum();
        assert_eq!(admitted, 3);
    });
}

#[test]
fn one_id_from_two_callers_is_counted_once() {
    explore(|| {
        let shared = shared(&[("A", "5/h", &["user"])]);
        let mut asked = query(7, "ann", "x");
        asked.id.keep = Some(RequestId::KEEP);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (shared, asked) = (shared.clone(), asked.clone());
                thread::spawn(move || assert!(allowed(&shared, &asked)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let plan = shared.1.plan(&asked, EPOCH).expect("a plan");
        let usage = pollster::block_on(shared.0.usage(&plan)).expect("usage");
        assert_eq!(usage.readings[0].used, 1);
    });
}

#[test]
fn settle_cancel_and_acquire_of_one_id_leave_it_in_one_state() {
    explore(|| {
        let shared = shared(&[("A", "9 tokens/h", &["user"]), ("B", "2 concurrent", &[])]);
        let mut asked = query(7, "ann", "x");
        asked.cost = Cost { input_tokens: Some(5), ..Cost::default() };
        let run = |operation: fn(&StoreAndRules, &Query<'_>)| {
            let (shared, asked) = (shared.clone(), asked.clone());
            thread::spawn(move || operation(&shared, &asked))
        };
        let threads = [
            run(|(store, rules), query| {
                let plan = rules.plan(query, EPOCH).expect("a plan");
                let _ = pollster::block_on(store.acquire(&plan));
            }),
            run(|(store, rules), query| {
                let handle = rules.plan(query, EPOCH).expect("a plan").handle();
                let actual = Cost { input_tokens: Some(3), ..Cost::default() };
                let _ = pollster::block_on(store.settle(&handle, &actual));
            }),
            run(|(store, rules), query| {
                let handle = rules.plan(query, EPOCH).expect("a plan").handle();
                let _ = pollster::block_on(store.cancel(&handle));
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let plan = shared.1.plan(&asked, EPOCH).expect("a plan");
        let usage = pollster::block_on(shared.0.usage(&plan)).expect("usage");
        let used: Vec<_> = usage.readings.iter().map(|reading| reading.used).collect();
        // Cancelled before or after its admission; or settled, and the cancel came too late.
        assert!([vec![0, 0], vec![3, 0]].contains(&used), "{used:?}");
    });
}

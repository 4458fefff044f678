//! Plans whose counters lie in different slots, on different servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate_checker::Checker;
use sluicegate_core::query::Cost;
use sluicegate_core::store::Error;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Limit, Store as _};
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::redis::{ClusterOptions, RedisCluster, Version};

use crate::fixture::{Fixture, TestRequest, ms, of_caller, ours, seeds};

const USERS: [&str; 4] = ["ann", "bob", "eve", "joe"];

/// Returns a cluster of each supported version.
fn each_version() -> impl Iterator<Item = RedisCluster> {
    [Version::System, Version::V6_2].into_iter().map(|version| {
        RedisCluster::start_with(ClusterOptions { version, ..ClusterOptions::default() })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_admitted_whole_or_charged_nowhere() {
    for cluster in each_version() {
        admitted_whole_or_charged_nowhere(&cluster).await;
    }
}

async fn admitted_whole_or_charged_nowhere(cluster: &RedisCluster) {
    let fixture =
        Fixture::new(seeds(cluster), &["5/h"], &["3/h", "3 tokens/day", "3/day burst 3"]).await;
    let mut admitted = Vec::new();
    for (id, user) in (1..).zip(["ann", "ann", "ann", "ann", "bob", "bob", "bob", "eve"]) {
        let decision = fixture.acquire(ours(id).by(user)).await.expect("a decision");
        assert_eq!(decision.readings().len(), 4);
        admitted.push(decision.is_allowed());
    }
    assert_eq!(admitted, [true, true, true, false, true, true, false, false]);
    fixture.shows("ann", &[5, 3, 3, 3]).await;
    fixture.shows("bob", &[5, 2, 2, 2]).await;
    fixture.shows("eve", &[5, 0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_names_the_limit_that_binds_longest() {
    let cluster = RedisCluster::start(3);
    let fixture = Fixture::new(seeds(&cluster), &["1/day"], &["1/h"]).await;
    assert!(fixture.acquire(ours(1)).await.expect("a decision").is_allowed());
    let Ok(Decision::Deny(deny)) = fixture.acquire(ours(2)).await else { panic!("a denial") };
    assert_eq!((deny.hit.charge, deny.hit.limit), (0, 0));
    let wait = deny.start.since(deny.at).as_micros() / 1_000_000;
    assert!((86_300..=86_400).contains(&wait), "{wait}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_comes_again_is_charged_once_and_a_denied_one_may_come_again() {
    let cluster = RedisCluster::start(3);
    let nodes = [
        Fixture::new(seeds(&cluster), &["5/h"], &["1/h"]).await,
        Fixture::new(seeds(&cluster), &["5/h"], &["1/h"]).await,
    ];
    let replayed =
        async |node: &Fixture, ask: TestRequest| match node.acquire(ask).await.expect("a decision")
        {
            Decision::Allow(allow) => Some(allow.replayed),
            _ => None,
        };
    assert_eq!(replayed(&nodes[0], of_caller(1)).await, Some(false));
    assert_eq!(replayed(&nodes[1], of_caller(1)).await, Some(true));
    assert_eq!(replayed(&nodes[1], of_caller(2)).await, None);
    nodes[0].shows("ann", &[1, 1]).await;
    // The obstacle disappears, and then the same id is admitted.
    let handle = nodes[0].with(of_caller(1), async |plan| plan.handle()).await;
    assert!(!nodes[1].store.cancel(&handle).await.expect("an end").replayed);
    assert!(nodes[0].store.cancel(&handle).await.expect("an end").replayed);
    nodes[0].shows("ann", &[0, 0]).await;
    assert_eq!(replayed(&nodes[0], of_caller(2)).await, Some(false));
    assert!(matches!(nodes[0].acquire(of_caller(1)).await, Err(Error::Gone)));
    nodes[0].shows("ann", &[1, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_are_settled_renewed_and_released_in_every_slot() {
    let cluster = RedisCluster::start(3);
    let fixture =
        Fixture::new(seeds(&cluster), &["100 tokens/h", "5 concurrent"], &["100 tokens/h"]).await;
    let ask = of_caller(1).hold(60);
    let Ok(Decision::Allow(allow)) = fixture.acquire(ask).await else { panic!("an admission") };
    assert!(allow.until.is_some());
    assert_eq!(fixture.used("ann").await, [1, 1, 1]);
    let handle = fixture.with(ask, async |plan| plan.handle()).await;
    assert!(fixture.store.renew(&handle).await.is_ok());
    assert!(!fixture.store.release(&handle).await.expect("an end").replayed);
    let actual = Cost { input_tokens: Some(30), ..Cost::default() };
    assert!(!fixture.store.settle(&handle, &actual).await.expect("an end").replayed);
    assert!(fixture.store.settle(&handle, &actual).await.expect("an end").replayed);
    let mut used = fixture.used("ann").await;
    used.sort_unstable();
    assert_eq!(used, [0, 30, 30]);
    let unknown = fixture.with(of_caller(2), async |plan| plan.handle()).await;
    assert_eq!(fixture.store.release(&unknown).await, Err(Error::Unknown));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_one_slot_refuses_changes_none() {
    let cluster = RedisCluster::start(3);
    let fixture = Fixture::new(seeds(&cluster), &["100 tokens/h"], &["5/h", "100 tokens/h"]).await;
    let ask = of_caller(1).hold(60);
    assert!(fixture.acquire(ask).await.expect("a decision").is_allowed());
    let handle = fixture.with(ask, async |plan| plan.handle()).await;
    let cost = |requests| Cost { requests, input_tokens: Some(30), ..Cost::default() };
    let refused = fixture.store.settle(&handle, &cost(Some(1_001))).await;
    assert_eq!(refused, Err(Error::TooMany));
    assert_eq!(fixture.used("ann").await, [1, 1, 1]);
    assert!(!fixture.store.settle(&handle, &cost(None)).await.expect("an end").replayed);
    assert_eq!(fixture.used("ann").await, [30, 1, 30]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_slot_gives_back_its_part_of_a_refund() {
    let cluster = RedisCluster::start(3);
    let fixture = Fixture::new(seeds(&cluster), &["9/h"], &["9/h", "9 tokens/h"]).await;
    for id in 1..=4 {
        assert!(fixture.acquire(ours(id)).await.expect("a decision").is_allowed());
    }
    let refund = async |ask: TestRequest| {
        let usage = fixture.with(ask, async |plan| fixture.store.refund(plan).await).await;
        usage.expect("usage").readings.iter().map(|reading| reading.used).collect::<Vec<_>>()
    };
    assert_eq!(refund(ours(5)).await, [3, 3, 3]);
    assert_eq!(refund(ours(6).by("bob")).await, [2, 0, 0]);
    assert_eq!(fixture.used("ann").await, [2, 3, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_odd_braces_lies_where_redis_says() {
    let cluster = RedisCluster::start(3);
    for key in ["{}x", "a}b", "x{}{y}", "{open", "{{twice}}"] {
        let fixture = Fixture::literal(seeds(&cluster), key, "5 tokens/h").await;
        let ask = of_caller(1).hold(60);
        assert!(fixture.acquire(ask).await.expect("a decision").is_allowed(), "{key}");
        let handle = fixture.with(ask, async |plan| plan.handle()).await;
        let actual = Cost { input_tokens: Some(3), ..Cost::default() };
        fixture.store.settle(&handle, &actual).await.expect("an end");
        assert_eq!(fixture.used("ann").await, [3], "{key}");
        let booked = fixture.with(ours(2), async |plan| fixture.store.book(plan).await).await;
        assert!(booked.is_ok_and(|decision| decision.is_allowed()), "{key}: all in one slot");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_booking_across_slots_is_refused_and_writes_nothing() {
    let cluster = RedisCluster::start(3);
    let fixture = Fixture::new(seeds(&cluster), &["5/h"], &["5/h"]).await;
    let booked = fixture.with(ours(1), async |plan| fixture.store.book(plan).await).await;
    assert_eq!(booked, Err(Error::CrossSlot));
    assert_eq!(fixture.used("ann").await, [0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_in_one_slot_takes_one_round_trip_and_is_exact() {
    for cluster in each_version() {
        one_round_trip_and_exact(&cluster).await;
    }
}

async fn one_round_trip_and_exact(cluster: &RedisCluster) {
    let rules: [(&str, &[&str]); 2] = [("A", &["1000/h", "1000/day"]), ("B", &["50/h"])];
    let fixture = Arc::new(Fixture::by_user(seeds(cluster), &rules).await);
    for id in 1..=20 {
        assert!(fixture.acquire(ours(id)).await.expect("a decision").is_allowed());
    }
    let traffic = fixture.store.traffic();
    assert_eq!((traffic.calls, traffic.round_trips), (20, 20));
    let asked = (0..500_u128).map(|id| {
        let fixture = fixture.clone();
        let user = USERS[id as usize % 4];
        tokio::spawn(async move { fixture.acquire(ours(1_000 + id).by(user)).await })
    });
    let mut admitted = 20;
    for answer in asked.collect::<Vec<_>>() {
        let decision = answer.await.expect("no task panics").expect("a decision");
        admitted += u32::from(decision.is_allowed());
    }
    assert_eq!(admitted, 200);
    assert!(fixture.with(ours(9_999), async |plan| fixture.store.book(plan).await).await.is_ok());
}

/// Several nodes request more than the limits allow. A transient reservation may deny a request
/// that would have fit, but no limit is exceeded, and in the end exactly the admitted requests are
/// charged.
async fn hammered(
    id: impl Fn(u128) -> TestRequest + Copy + Send + Sync + 'static,
    all: u64,
    user: u64,
) {
    let cluster = RedisCluster::start(3);
    let (all_text, user_text) = (format!("{all}/h"), format!("{user}/h"));
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Arc::new(Fixture::new(seeds(&cluster), &[&all_text], &[&user_text]).await));
    }
    let admitted: Arc<[AtomicU64; 4]> = Arc::default();
    let tasks: Vec<_> = (0..24_u128)
        .map(|task| {
            let (node, admitted) = (nodes[task as usize % 3].clone(), admitted.clone());
            tokio::spawn(async move {
                for round in 0..25 {
                    let who = (task + round) as usize % 4;
                    let ask = id(task << 32 | round).by(USERS[who]);
                    match node.acquire(ask).await {
                        Ok(decision) if decision.is_allowed() => {
                            admitted[who].fetch_add(1, Ordering::SeqCst);
                        }
                        Ok(_) | Err(Error::Unavailable(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    let admitted: Vec<_> = admitted.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    let sum: u64 = admitted.iter().sum();
    assert!(sum <= all && admitted.iter().all(|one| *one <= user), "{admitted:?}");
    assert!(sum > 0);
    for (who, one) in USERS.into_iter().zip(&admitted) {
        nodes[0].shows(who, &[sum, *one]).await;
    }
    // Requests that were only reserved for a moment fit now.
    let mut more = 0;
    for extra in 0..all {
        let ask = id(1 << 64 | u128::from(extra)).by(USERS[extra as usize % 4]);
        more += u64::from(nodes[0].acquire(ask).await.expect("a decision").is_allowed());
    }
    assert_eq!(sum + more, all.min(4 * user));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_above_the_limit_of_all_and_nothing_is_left_charged() {
    hammered(ours, 100, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_above_the_limit_of_a_user_and_nothing_is_left_charged() {
    hammered(of_caller, 1_000, 25).await;
}

/// Traffic over many windows, judged by the checker. A charge in a slot is older than its admission
/// by at most the time that the reply took.
#[tokio::test(flavor = "multi_thread")]
async fn no_window_holds_more_than_its_limit() {
    const WINDOW_MS: u64 = 1_000;
    let cluster = RedisCluster::start(3);
    let (done, clock) = (Arc::new(AtomicBool::new(false)), MonotonicClock::new());
    let mut tasks = Vec::new();
    for node in 0..2_u128 {
        let fixture = Arc::new(Fixture::new(seeds(&cluster), &["30/s"], &["12/s"]).await);
        for task in 0..6_u128 {
            let (fixture, done) = (fixture.clone(), done.clone());
            tasks.push(tokio::spawn(async move {
                let mut admitted = Vec::new();
                for n in 0.. {
                    if done.load(Ordering::SeqCst) {
                        break;
                    }
                    let user = USERS[(task + n) as usize % 4];
                    let asked = clock.now();
                    let answer = fixture.acquire(ours(node << 96 | task << 64 | n).by(user)).await;
                    match answer.expect("a decision") {
                        Decision::Allow(allow) => {
                            admitted.push((user, allow.at, clock.now().since(asked)));
                        }
                        _ => tokio::time::sleep(ms(3)).await,
                    }
                }
                admitted
            }));
        }
    }
    tokio::time::sleep(ms(5 * WINDOW_MS)).await;
    done.store(true, Ordering::SeqCst);
    let mut admitted = Vec::new();
    for task in tasks {
        admitted.extend(task.await.expect("no task panics"));
    }
    admitted.sort_by_key(|(_, at, _)| *at);
    let late = admitted.iter().map(|(_, _, took)| *took).max().expect("something is admitted");
    let window_ms = WINDOW_MS.saturating_sub(late.as_micros().div_ceil(1_000)).max(1);
    let mut checker = Checker::new();
    let limit = |limit: u64| format!("{limit}/{window_ms}ms").parse::<Limit>().expect("a limit");
    checker.scope("all", limit(30)).expect("a scope");
    for user in USERS {
        checker.scope(user, limit(12)).expect("a scope");
    }
    for (user, at, _) in &admitted {
        checker.admit("all", *at, 1).expect("an admission");
        checker.admit(user, *at, 1).expect("an admission");
    }
    checker.check().expect("a log that can be judged").proven().expect("no limit is exceeded");
    assert!(admitted.len() > 30, "{}", admitted.len());
}

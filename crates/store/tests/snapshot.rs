//! Snapshots of the memory store: usage survives a restart.

use std::sync::Arc;

use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::{Claim, Error};
use sluicegate_core::{Decision, Id, Limit, Span, Store, Timestamp};
use sluicegate_store::memory::{Capacity, Memory, MemorySnapshot, RestoreError};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;

type RestartedStore = Memory<Arc<ManualClock>>;

fn rules() -> Ruleset {
    let texts =
        ["5/h", "9/min burst 9", "1000 tokens/day", "4.00 USD/calendar day", "2 concurrent"];
    let limits = texts.map(|text| text.parse::<Limit>().expect("a limit"));
    let rule = Rule::new("R", limits).per(&["user"]);
    Ruleset::new(vec![Group::new("g", [rule])], Settings::default()).expect("rules")
}

fn query(id: u128) -> Query<'static> {
    let query = Query::new(RequestId::ours(Id::from_bits(id)));
    let mut query = query.with("user", "ann").expect("a dimension");
    query.cost = Cost { input_tokens: Some(100), money: "1".parse().ok(), ..Cost::default() };
    query.hold = Some(Span::from_secs(60));
    query
}

fn acquire(store: &RestartedStore, rules: &Ruleset, id: u128, now: Timestamp) -> Decision {
    let query = query(id);
    let plan = rules.plan(&query, now).expect("a plan");
    pollster::block_on(store.acquire(&plan)).expect("a decision")
}

fn used(store: &RestartedStore, rules: &Ruleset, now: Timestamp) -> Vec<u64> {
    let query = query(0);
    let plan = rules.plan(&query, now).expect("a plan");
    let usage = pollster::block_on(store.usage(&plan)).expect("usage");
    usage.readings.iter().map(|reading| reading.used).collect()
}

fn written(store: &RestartedStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.snapshot().write(&mut bytes).expect("memory takes every write");
    bytes
}

fn restart(bytes: &[u8], now: Timestamp) -> RestartedStore {
    let snapshot = MemorySnapshot::read(bytes).expect("a snapshot");
    Memory::restore(snapshot, Capacity::default(), Arc::new(ManualClock::new(now)))
}

#[test]
fn usage_and_reservations_go_on_after_a_restart() {
    let rules = rules();
    let store = Memory::with_clock(Capacity::default(), Arc::new(ManualClock::new(EPOCH)));
    assert!(acquire(&store, &rules, 1, EPOCH).is_allowed());
    assert!(acquire(&store, &rules, 2, EPOCH).is_allowed());
    assert!(!acquire(&store, &rules, 3, EPOCH).is_allowed(), "both slots are taken");

    let later = EPOCH + Span::from_secs(10);
    let store = restart(&written(&store), later);
    assert_eq!(used(&store, &rules, later), [2, 1, 200, 2_000_000_000, 2]);
    assert!(matches!(acquire(&store, &rules, 1, later), Decision::Allow(a) if a.replayed));
    let query = query(1);
    let handle = rules.plan(&query, later).expect("a plan").handle();
    let actual = Cost { input_tokens: Some(40), ..Cost::default() };
    pollster::block_on(store.settle(&handle, &actual)).expect("settled by the new process");
    assert_eq!(used(&store, &rules, later), [2, 1, 140, 2_000_000_000, 1]);
    assert!(acquire(&store, &rules, 3, later).is_allowed());
}

#[test]
fn downtime_counts_as_elapsed() {
    let rules = rules();
    let store = Memory::with_clock(Capacity::default(), Arc::new(ManualClock::new(EPOCH)));
    assert!(acquire(&store, &rules, 1, EPOCH).is_allowed());
    let later = EPOCH + Span::from_secs(3_600);
    let store = restart(&written(&store), later);
    assert_eq!(used(&store, &rules, later), [0, 0, 100, 1_000_000_000, 0]);
}

#[test]
fn a_clock_that_was_set_back_forgets_nothing() {
    let rules = rules();
    let store = Memory::with_clock(Capacity::default(), Arc::new(ManualClock::new(EPOCH)));
    assert!(acquire(&store, &rules, 1, EPOCH).is_allowed());
    let store = restart(&written(&store), EPOCH - Span::from_secs(500));
    assert_eq!(used(&store, &rules, EPOCH), [1, 1, 100, 1_000_000_000, 1]);
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let rules = rules();
    let store = Memory::with_clock(Capacity::default(), Arc::new(ManualClock::new(EPOCH)));
    assert!(acquire(&store, &rules, 1, EPOCH).is_allowed());
    let good = written(&store);
    for cut in 0..good.len() {
        let error = MemorySnapshot::read(&good[..cut]).expect_err("cut off");
        assert!(matches!(error, RestoreError::Damaged | RestoreError::Version), "{cut}: {error}");
    }
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 1;
        assert!(MemorySnapshot::read(&bad[..]).is_err(), "a changed byte {place} went unnoticed");
    }
}

#[test]
fn a_file_is_replaced_as_a_whole() {
    let rules = rules();
    let store = Memory::with_clock(Capacity::default(), Arc::new(ManualClock::new(EPOCH)));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("usage.snapshot");
    assert!(MemorySnapshot::load(&path).expect("no file is no error").is_none());
    store.snapshot().save(&path).expect("saved");
    assert!(acquire(&store, &rules, 1, EPOCH).is_allowed());
    store.snapshot().save(&path).expect("saved again");
    let files = std::fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(files, 1, "no temporary file is left");
    let snapshot = MemorySnapshot::load(&path).expect("readable").expect("there");
    assert_eq!(snapshot.keys(), 5);
}

/// Books with one cost and claims with another.
fn claim(
    store: &RestartedStore,
    rules: &Ruleset,
    id: Id,
    tokens: u64,
    now: Timestamp,
) -> Result<Claim, Error> {
    let query = Query::new(RequestId::of_caller(id, RequestId::KEEP));
    let mut query = query.with("user", "ann").expect("a dimension");
    query.cost.input_tokens = Some(tokens);
    let plan = rules.plan(&query, now).expect("a plan");
    pollster::block_on(async {
        match store.claim(&plan, Id::from_bits(9)).await {
            Err(Error::Unknown) => {
                store.book(&plan).await.expect("a booking");
                store.claim(&plan, Id::from_bits(9)).await
            }
            claim => claim,
        }
    })
}

fn limited(limits: &[&str]) -> Ruleset {
    let limits = limits.iter().map(|text| text.parse::<Limit>().expect(text));
    let groups = vec![Group::new("g", [Rule::new("R", limits).per(&["user"])])];
    Ruleset::new(groups, Settings::default()).expect("rules")
}

#[test]
fn a_claim_after_a_restart_states_what_was_booked_before_it() {
    let rules = limited(&["1/min", "1000 tokens/h"]);
    let store = Memory::with_clock(Capacity::default(), Arc::new(ManualClock::new(EPOCH)));
    let [first, second] = [1, 2].map(Id::from_bits);
    assert!(matches!(claim(&store, &rules, first, 10, EPOCH), Ok(Claim::Go { .. })));
    let Ok(Claim::Early { start, .. }) = claim(&store, &rules, second, 10, EPOCH) else {
        panic!("the second waits for the first");
    };
    let store = restart(&written(&store), start);
    assert_eq!(claim(&store, &rules, second, 999, start), Err(Error::Differs));
    assert!(matches!(claim(&store, &rules, second, 10, start), Ok(Claim::Go { .. })));
}

#[test]
fn a_snapshot_of_the_version_before_is_read() {
    let rules = limited(&["5/h", "1000 tokens/day"]);
    let booked = Timestamp::from_micros(1_794_866_496_330_086);
    let store = restart(include_bytes!("before.snapshot"), booked + Span::from_secs(1));
    assert_eq!(used(&store, &rules, booked), [3, 207]);
    let id: Id = "5dcb93407a379875ea7dfecee8e33cfa".parse().expect("an id");
    let go = claim(&store, &rules, id, 100, booked);
    assert!(matches!(go, Ok(Claim::Go { .. })), "{go:?}");
}

//! Floods of keys: memory stays below its cap, and live limits stay correct.

use std::sync::Arc;

use sluicegate_core::query::{Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::{Id, Limit, Span, Store};
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;

const CAP: usize = 6_400;

struct Flood {
    store: Memory<Arc<ManualClock>>,
    clock: Arc<ManualClock>,
    rules: Ruleset,
    id: u128,
}

impl Flood {
    fn new(limit: &str) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let capacity = Capacity { keys_max: CAP, records_max: CAP };
        let rule = Rule::new("USER", [limit.parse::<Limit>().expect("a limit")]).per(&["user"]);
        let rules = Ruleset::new(vec![Group::new("g", [rule])], Settings::default());
        let store = Memory::with_clock(capacity, clock.clone());
        Self { store, clock, rules: rules.expect("rules"), id: 0 }
    }

    fn allowed(&mut self, user: &str) -> bool {
        self.ask(user, None).expect("a decision")
    }

    fn ask(
        &mut self,
        user: &str,
        keep: Option<Span>,
    ) -> Result<bool, sluicegate_core::store::Error> {
        self.id += 1;
        let id = RequestId { id: Id::from_bits(self.id), keep };
        let query = Query::new(id).with("user", user).expect("a dimension");
        let plan = self.rules.plan(&query, EPOCH).expect("a plan");
        pollster::block_on(self.store.acquire(&plan)).map(|decision| decision.is_allowed())
    }
}

#[test]
fn memory_stays_at_the_cap_and_no_user_gets_more_than_the_limit() {
    let mut flood = Flood::new("3/h");
    for n in 0..CAP / 2 {
        assert!(flood.allowed(&format!("early{n}")));
    }
    let mut admitted = 0;
    for n in 0..CAP * 20 {
        admitted += usize::from(flood.allowed(&format!("flood{n}")));
        flood.clock.advance(Span::from_micros(10));
    }
    let size = flood.store.size();
    assert!(size.keys <= CAP + 64, "{size:?}");
    assert!(size.overflow <= 64, "{size:?}");
    assert!(admitted < CAP + 64 * 3, "{admitted} floods were admitted");
    for n in 0..CAP / 2 {
        let user = format!("early{n}");
        let more = (0..5).filter(|_| flood.allowed(&user)).count();
        assert_eq!(more, 2, "the live limit of {user} was touched");
    }
}

#[test]
fn a_name_that_overflowed_gets_no_second_allowance_when_room_returns() {
    let mut flood = Flood::new("3/10s");
    for n in 0..CAP * 3 {
        flood.allowed(&format!("flood{n}"));
    }
    flood.clock.advance(Span::from_secs(9));
    // Late users share the overflow counter. Each of them gets at most the limit in any window,
    // also when the flood is over and there is room for own counters again.
    let users: Vec<_> = (0..200).map(|n| format!("late{n}")).collect();
    let mut admitted = vec![Vec::new(); users.len()];
    for step in 0..400_u64 {
        for (user, admitted) in users.iter().zip(&mut admitted) {
            if flood.allowed(user) {
                admitted.push(step);
            }
        }
        flood.clock.advance(Span::from_millis(100));
    }
    for (user, admitted) in users.iter().zip(&admitted) {
        let crowded = admitted.windows(4).find(|four| four[3] - four[0] < 100);
        assert_eq!(crowded, None, "{user} was admitted four times in ten seconds");
        assert!(admitted.len() > 3, "{user} was starved after the flood: {admitted:?}");
    }
    flood.store.sweep(CAP);
    assert_eq!(
        flood.store.size().overflow,
        0,
        "the overflow counter is removed when it has drained"
    );
}

#[test]
fn expired_keys_are_removed_without_further_requests_for_them() {
    let mut flood = Flood::new("3/s");
    for round in 0..50 {
        for n in 0..CAP / 8 {
            assert!(flood.allowed(&format!("r{round}u{n}")), "there is room for all that live");
        }
        flood.clock.advance(Span::from_secs(1));
    }
    let size = flood.store.size().keys;
    assert!(size < CAP / 2, "{size} keys are kept for {} that live", CAP / 8);
    flood.store.sweep(CAP);
    assert_eq!(flood.store.size().keys, 0);
}

#[test]
fn remembered_ids_are_bounded_and_open_reservations_are_kept() {
    let mut flood = Flood::new("1000000/h windowed");
    for n in 0..CAP * 4 {
        assert_eq!(flood.ask(&format!("u{}", n % 100), Some(RequestId::KEEP)), Ok(true));
    }
    assert!(flood.store.size().records <= CAP + 64);

    let mut held = Flood::new("1000000 concurrent");
    let results: Vec<_> = (0..CAP * 2).map(|_| held.ask("u", None)).collect();
    let open = results.iter().filter(|result| **result == Ok(true)).count();
    assert!(open <= CAP && open > CAP / 2, "{open}");
    let refused = results.iter().find_map(|result| result.clone().err());
    assert_eq!(refused, Some(sluicegate_core::store::Error::Full));
    assert_eq!(held.store.size().records, open);
}

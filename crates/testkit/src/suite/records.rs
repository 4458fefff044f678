//! Tests of request ids, reservations and leases.

use sluicegate_core::query::Cost;
use sluicegate_core::rule::{EstimateMode, OnExpiry, Rule};
use sluicegate_core::store::Error;
use sluicegate_core::{Decision, Store, Timestamp};

use super::{StoreBench, StoreSubject, TestRequest, ask, millis, rule};

const FIRST: Result<bool, Error> = Ok(false);
const AGAIN: Result<bool, Error> = Ok(true);

impl<S: StoreSubject> StoreBench<S> {
    fn try_acquire(&self, ask: &TestRequest) -> Result<Decision, Error> {
        self.with(ask, async |store, plan| store.acquire(plan).await)
    }

    /// Settles, and returns true if it was settled before.
    fn settle(&self, ask: &TestRequest, tokens: u64) -> Result<bool, Error> {
        let actual = Cost { input_tokens: Some(tokens), ..Cost::default() };
        let ended = self.with(ask, async |store, plan| store.settle(&plan.handle(), &actual).await);
        ended.map(|ended| ended.replayed)
    }

    fn cancel(&self, ask: &TestRequest) -> Result<bool, Error> {
        let ended = self.with(ask, async |store, plan| store.cancel(&plan.handle()).await);
        ended.map(|ended| ended.replayed)
    }

    fn release(&self, ask: &TestRequest) -> Result<bool, Error> {
        let ended = self.with(ask, async |store, plan| store.release(&plan.handle()).await);
        ended.map(|ended| ended.replayed)
    }

    fn renew(&self, ask: &TestRequest) -> Result<Timestamp, Error> {
        let renewed = self.with(ask, async |store, plan| store.renew(&plan.handle()).await);
        renewed.map(|renewed| renewed.until)
    }
}

fn replayed(decision: Decision) -> bool {
    match decision {
        Decision::Allow(allow) => allow.replayed,
        other => panic!("denied: {other:?}"),
    }
}

pub fn the_same_id_is_counted_once<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/h", "50 tokens/h", "5/min burst 5"]);
    bench.at_ms(0);
    assert!(!replayed(bench.acquire(&ask(1).named().tokens(10))));
    for at in [0, 1, 30_000, 59_999] {
        bench.at_ms(at);
        assert!(replayed(bench.acquire(&ask(1).named().tokens(10))), "{at} ms");
    }
    assert_eq!(bench.used(&ask(0))[..2], [1, 10]);
    bench.at_ms(60_000);
    assert!(!replayed(bench.acquire(&ask(1).named().tokens(10))));
    assert_eq!(bench.used(&ask(0))[..2], [2, 20]);
}

pub fn a_denial_is_not_remembered<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).named()).is_allowed());
    assert!(!bench.acquire(&ask(2).named()).is_allowed());
    bench.at_ms(10_000);
    assert!(!replayed(bench.acquire(&ask(2).named())));
}

pub fn the_same_id_for_other_work_is_a_conflict<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/h", "50 tokens/h"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).named().tokens(10)).is_allowed());
    assert_eq!(bench.try_acquire(&ask(1).named().tokens(11)), Err(Error::Conflict));
    assert_eq!(bench.try_acquire(&ask(1).named().tokens(10).by("bob")), Err(Error::Conflict));
    assert_eq!(bench.used(&ask(0)), [1, 10]);
}

pub fn settling_gives_back_what_was_too_much<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/h", "100 tokens/h", "100 tokens/min burst 100"]);
    bench.at_ms(0);
    let request = ask(1).tokens(80).hold(60);
    assert!(bench.acquire(&request).is_allowed());
    assert!(!bench.acquire(&ask(2).tokens(30)).is_allowed());
    assert_eq!(bench.settle(&request, 20), FIRST);
    assert_eq!(bench.used(&ask(0)), [1, 20, 20]);
    assert!(bench.acquire(&ask(3).tokens(80)).is_allowed());
}

pub fn settling_charges_what_was_too_little_as_debt<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/h", "100 tokens/min"]);
    bench.at_ms(0);
    let request = ask(1).tokens(80).hold(60);
    assert!(bench.acquire(&request).is_allowed());
    bench.at_ms(30_000);
    assert_eq!(bench.settle(&request, 170), FIRST);
    assert_eq!(bench.used(&ask(0)), [1, 170]);
    bench.at_ms(60_000);
    assert_eq!(bench.used(&ask(0)), [1, 90], "the debt counts from when it was known");
    assert!(!bench.acquire(&ask(2).tokens(20)).is_allowed());
    bench.at_ms(90_000);
    assert!(bench.acquire(&ask(3).tokens(100)).is_allowed());
}

pub fn settling_twice_is_once<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["100 tokens/h"]);
    bench.at_ms(0);
    let request = ask(1).tokens(80).hold(60);
    assert_eq!(bench.settle(&request, 20), Err(Error::Unknown));
    assert!(bench.acquire(&request).is_allowed());
    assert_eq!(bench.settle(&request, 20), FIRST);
    assert_eq!(bench.settle(&request, 20), AGAIN);
    assert_eq!(bench.settle(&request, 30), Err(Error::Conflict));
    assert_eq!(bench.used(&ask(0)), [20]);
    assert!(replayed(bench.acquire(&request)), "the work itself is not admitted again");
    assert_eq!(bench.cancel(&request), Err(Error::Conflict));
}

pub fn what_is_not_known_yet_is_charged_when_it_is_settled<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/h", "100 tokens/h"]);
    bench.at_ms(0);
    let request = ask(1).hold(60);
    assert!(bench.acquire(&request).is_allowed());
    assert_eq!(bench.used(&ask(0)), [1, 0]);
    assert_eq!(bench.settle(&request, 70), FIRST);
    assert_eq!(bench.used(&ask(0)), [1, 70]);
}

pub fn an_exhausted_budget_denies_work_of_unknown_cost<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["9/h", "100 tokens/h"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).tokens(100)).is_allowed());
    assert!(!bench.acquire(&ask(2)).is_allowed());
}

pub fn an_optimistic_budget_admits_until_it_is_used_up<S: StoreSubject>() {
    let optimistic = Rule { mode: EstimateMode::Optimistic, ..rule("BUDGET", &["100 tokens/h"]) };
    let mut bench = StoreBench::<S>::new([optimistic]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).tokens(99)).is_allowed());
    assert!(bench.acquire(&ask(2).tokens(500)).is_allowed(), "one token is left");
    assert_eq!(bench.used(&ask(0)), [599]);
    assert!(!bench.acquire(&ask(3).tokens(1)).is_allowed());
}

pub fn an_estimate_that_nobody_settles_stays_charged<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["100 tokens/min"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).tokens(80).hold(5)).is_allowed());
    bench.at_ms(59_999);
    assert_eq!(bench.used(&ask(0)), [80]);
    bench.at_ms(60_000);
    assert_eq!(bench.used(&ask(0)), [0]);
    assert_eq!(bench.settle(&ask(1).tokens(80), 90), FIRST, "late settlements are accepted");
    assert_eq!(bench.used(&ask(0)), [10]);
}

pub fn an_estimate_is_refunded_where_the_rule_says_so<S: StoreSubject>() {
    let refund = |limits: &[&str]| Rule { on_expiry: OnExpiry::Refund, ..rule("R", limits) };
    let mut bench = StoreBench::<S>::new([refund(&["100 tokens/h", "100 tokens/h burst 100"])]);
    bench.at_ms(0);
    let request = ask(1).tokens(80).hold(5);
    assert!(bench.acquire(&request).is_allowed());
    assert!(bench.acquire(&ask(2).tokens(10)).is_allowed());
    bench.at_ms(4_999);
    assert_eq!(bench.used(&ask(0)), [90, 90]);
    bench.at_ms(5_000);
    assert_eq!(bench.used(&ask(0))[0], 10);
    assert!(bench.used(&ask(0))[1] <= 11);
    assert_eq!(bench.settle(&request, 30), FIRST, "the work was done after all");
    assert_eq!(bench.used(&ask(0))[0], 40);
}

pub fn cancelling_gives_everything_back<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["2/h", "100 tokens/h", "9/min burst 9", "2 concurrent"]);
    bench.at_ms(0);
    let request = ask(1).tokens(80);
    assert!(bench.acquire(&request).is_allowed());
    assert_eq!(bench.cancel(&request), FIRST);
    assert_eq!(bench.cancel(&request), AGAIN);
    assert_eq!(bench.used(&ask(0)), [0, 0, 0, 0]);
    assert_eq!(bench.settle(&request, 10), Err(Error::Gone));
    assert_eq!(bench.release(&request), Err(Error::Gone));
    assert_eq!(bench.renew(&request), Err(Error::Gone));
}

pub fn a_cancelled_id_is_refused_even_if_it_comes_later<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["2/h"]);
    bench.at_ms(0);
    assert_eq!(bench.cancel(&ask(1)), FIRST);
    assert_eq!(bench.try_acquire(&ask(1).named()), Err(Error::Gone));
    bench.at_ms(59_999);
    assert_eq!(bench.try_acquire(&ask(1).named()), Err(Error::Gone));
    assert_eq!(bench.used(&ask(0)), [0]);
    bench.at_ms(60_000);
    assert!(bench.acquire(&ask(1).named()).is_allowed());
}

pub fn a_slot_is_given_back<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["9/h", "2 concurrent"]);
    bench.at_ms(0);
    assert_eq!(bench.admitted((1..=3).map(ask)), 2);
    assert_eq!(bench.release(&ask(1)), FIRST);
    assert_eq!(bench.release(&ask(1)), AGAIN);
    assert_eq!(bench.used(&ask(0)), [2, 1], "the request stays charged");
    assert!(bench.acquire(&ask(4)).is_allowed());
    assert_eq!(bench.release(&ask(1)), AGAIN, "a late duplicate frees nobody else's slot");
    assert!(!bench.acquire(&ask(5)).is_allowed());
    assert_eq!(bench.settle(&ask(4), 0), FIRST, "settling ends the lease too");
    assert!(bench.acquire(&ask(6)).is_allowed());
}

pub fn a_slot_comes_back_when_its_holder_dies<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1 concurrent"]);
    bench.at_ms(0);
    let Decision::Allow(allow) = bench.acquire(&ask(1)) else { panic!("the slot is free") };
    assert_eq!(allow.until.map(millis), Some(30_000));
    bench.at_ms(29_999);
    assert!(!bench.acquire(&ask(2)).is_allowed());
    bench.at_ms(30_000);
    assert!(bench.acquire(&ask(3)).is_allowed());
}

pub fn renewing_keeps_a_slot<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1 concurrent", "100 tokens/h"]);
    bench.at_ms(0);
    let request = ask(1).tokens(10).hold(40);
    assert!(bench.acquire(&request).is_allowed());
    for second in (10..100).step_by(10) {
        bench.at_ms(second * 1_000);
        let until = bench.renew(&request).expect("still held");
        assert_eq!(millis(until), (second + 30) * 1_000);
        assert!(!bench.acquire(&ask(2)).is_allowed());
    }
    assert_eq!(bench.release(&request), FIRST);
    assert!(bench.acquire(&ask(3)).is_allowed());
}

pub fn an_expired_lease_is_lost<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1 concurrent"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1)).is_allowed());
    bench.at_ms(30_000);
    assert_eq!(bench.renew(&ask(1)), Err(Error::Lost), "even if nobody else has the slot");
    assert!(bench.acquire(&ask(2)).is_allowed());
    assert_eq!(bench.renew(&ask(1)), Err(Error::Lost));
    assert_eq!(bench.release(&ask(1)), FIRST);
    assert!(!bench.acquire(&ask(3)).is_allowed(), "the slot is not the dead holder's to give");
    assert_eq!(bench.renew(&ask(9)), Err(Error::Unknown));
}

pub fn a_replay_without_its_lease_is_lost<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["2 concurrent"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1)).is_allowed() && bench.acquire(&ask(2)).is_allowed());
    assert!(replayed(bench.acquire(&ask(1))));
    assert_eq!(bench.release(&ask(1)), FIRST);
    assert_eq!(bench.try_acquire(&ask(1)), Err(Error::Lost), "it was given back");
    assert_eq!(bench.settle(&ask(2), 0), FIRST);
    assert_eq!(bench.try_acquire(&ask(2)), Err(Error::Lost), "it has ended");
    assert!(bench.acquire(&ask(3)).is_allowed());
    bench.at_ms(30_000);
    assert_eq!(bench.try_acquire(&ask(3)), Err(Error::Lost), "it has expired");
}

pub fn a_denied_slot_burns_no_request<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["3/h", "1 concurrent"]);
    bench.at_ms(0);
    assert_eq!(bench.admitted((1..=20).map(ask)), 1);
    assert_eq!(bench.used(&ask(0)), [1, 1]);
    assert_eq!(bench.release(&ask(1)), FIRST);
    assert!(bench.acquire(&ask(21)).is_allowed());
}

pub fn a_reset_does_not_let_old_refunds_touch_new_usage<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["3/h", "100 tokens/h", "2 concurrent"]);
    bench.at_ms(0);
    let old = ask(1).tokens(80).hold(60);
    assert!(bench.acquire(&old).is_allowed());
    bench.with(&old, async |store, plan| store.reset(plan).await).expect("reset");
    bench.at_ms(1);
    assert!(bench.acquire(&ask(2).tokens(90)).is_allowed());
    assert_eq!(bench.renew(&old), Err(Error::Lost));
    assert_eq!(bench.settle(&old, 0), FIRST);
    assert_eq!(bench.used(&ask(0)), [1, 90, 1]);
}

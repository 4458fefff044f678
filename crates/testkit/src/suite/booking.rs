//! Tests of book and claim.

use sluicegate_core::plan::Handle;
use sluicegate_core::rule::Rule;
use sluicegate_core::store::{Claim, Error};
use sluicegate_core::{Decision, Id, Span, Store};

use super::{StoreBench, StoreSubject, TestRequest, ask, millis, rule};

const ME: Id = Id::from_bits(1);
const OTHER: Id = Id::from_bits(2);

impl<S: StoreSubject> StoreBench<S> {
    fn book(&self, ask: &TestRequest) -> Result<u64, Box<Decision>> {
        let booked = self.with(ask, async |store, plan| store.book(plan).await);
        match booked.expect("an answer") {
            Decision::Allow(allow) => Ok(millis(allow.start)),
            other => Err(Box::new(other)),
        }
    }

    fn claim(&self, ask: &TestRequest, claimant: Id) -> Result<Claim, Error> {
        self.with(ask, async |store, plan| store.claim(plan, claimant).await)
    }

    fn goes(&self, ask: &TestRequest, claimant: Id) -> bool {
        matches!(self.claim(ask, claimant), Ok(Claim::Go { .. }))
    }

    fn rebooked(&self, ask: &TestRequest, claimant: Id) -> u64 {
        match self.claim(ask, claimant) {
            Ok(Claim::Rebooked { start, .. }) => millis(start),
            other => panic!("not booked anew: {other:?}"),
        }
    }
}

pub fn bookings_are_spaced_by_the_limit<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["2/10s"]);
    bench.at_ms(0);
    let starts: Vec<_> = (1..=6).map(|id| bench.book(&ask(id)).expect("booked")).collect();
    // The slack is 100 ms: a booking that may be used until 100 ms leaves its window at 10,100 ms.
    assert_eq!(starts, [0, 0, 10_100, 10_100, 20_200, 20_200]);
    assert_eq!(bench.book(&ask(3)), Ok(10_100), "the same booking again");
    assert_eq!(bench.used(&ask(0)), [6]);
}

pub fn a_booking_makes_an_acquire_wait<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    bench.at_ms(0);
    assert_eq!(bench.book(&ask(1)), Ok(0));
    assert_eq!(bench.book(&ask(2)), Ok(10_100));
    bench.at_ms(10_099);
    let Decision::Deny(deny) = bench.acquire(&ask(3)) else {
        panic!("an acquire must not take what is booked");
    };
    assert_eq!(millis(deny.start), 20_200);
}

/// Creates a bench with this limit per user and a gate.
fn gated<S: StoreSubject>(limit: &str) -> StoreBench<S> {
    StoreBench::new([rule("LIMIT", &[limit]).gated()])
}

impl<S: StoreSubject> StoreBench<S> {
    /// Closes the gate for this many milliseconds; returns the time until which it is closed.
    fn close(&self, ask: &TestRequest, wait: u64) -> u64 {
        let closed =
            self.with(ask, async |store, plan| store.close(plan, Span::from_millis(wait)).await);
        millis(closed.expect("an answer").until)
    }
}

pub fn nothing_starts_while_a_gate_is_closed<S: StoreSubject>() {
    let mut bench = gated::<S>("2/10s");
    bench.at_ms(0);
    assert!(matches!(bench.acquire(&ask(1)), Decision::Allow(_)));
    assert_eq!(bench.close(&ask(0), 5_000), 5_000);
    let Decision::Deny(deny) = bench.acquire(&ask(2)) else { panic!("it is closed") };
    assert_eq!(millis(deny.start), 5_000, "the true earliest start");
    assert_eq!(bench.book(&ask(3)), Ok(5_000));
    assert!(matches!(bench.acquire(&ask(4).by("bob")), Decision::Allow(_)), "another gate");
    bench.at_ms(5_000);
    assert!(bench.goes(&ask(3), ME));
    let Decision::Deny(deny) = bench.acquire(&ask(5)) else { panic!("two of two") };
    assert_eq!(millis(deny.start), 10_000, "the limit counts as before");
}

pub fn closing_a_gate_only_extends<S: StoreSubject>() {
    let mut bench = gated::<S>("2/10s");
    bench.at_ms(0);
    assert_eq!(bench.close(&ask(0), 5_000), 5_000);
    assert_eq!(bench.close(&ask(0), 1_000), 5_000, "a shorter hint opens nothing");
    bench.at_ms(1_000);
    assert_eq!(bench.close(&ask(0), 6_000), 7_000);
    bench.at_ms(6_999);
    assert!(matches!(bench.acquire(&ask(1)), Decision::Deny(_)));
    bench.at_ms(7_000);
    assert!(matches!(bench.acquire(&ask(1)), Decision::Allow(_)));
    assert_eq!(bench.used(&ask(0)), [1, 0], "being open is not charged");
}

pub fn what_is_booked_into_a_closed_gate_is_booked_anew<S: StoreSubject>() {
    let mut bench = gated::<S>("1/10s");
    bench.at_ms(0);
    assert_eq!(bench.book(&ask(1)), Ok(0));
    bench.close(&ask(0), 3_000);
    assert_eq!(bench.rebooked(&ask(1), ME), 3_000);
    bench.at_ms(3_000);
    assert!(bench.goes(&ask(1), ME));
}

pub fn a_reset_opens_the_gate<S: StoreSubject>() {
    let mut bench = gated::<S>("1/10s");
    bench.at_ms(0);
    bench.close(&ask(0), 3_000);
    bench.with(&ask(0), async |store, plan| store.reset(plan).await).expect("reset");
    bench.at_ms(1);
    assert!(matches!(bench.acquire(&ask(1)), Decision::Allow(_)));
}

pub fn closing_what_has_no_gate_closes_nothing<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    bench.at_ms(0);
    assert_eq!(bench.close(&ask(0), 3_000), 0);
    assert!(matches!(bench.acquire(&ask(1)), Decision::Allow(_)));
}

pub fn a_booking_past_the_horizon_is_denied<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/50min"]);
    bench.at_ms(0);
    assert!(bench.book(&ask(1)).is_ok());
    assert!(bench.book(&ask(2)).is_ok());
    let denied = bench.book(&ask(3)).expect_err("more than an hour ahead");
    let Decision::Deny(deny) = *denied else { panic!("it would fit later") };
    assert_eq!(millis(deny.start), 2 * (3_000_000 + 30_000));
    assert_eq!(bench.used(&ask(0)), [2]);
}

pub fn a_claim_on_time_goes<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    bench.at_ms(0);
    assert_eq!(bench.claim(&ask(1), ME), Err(Error::Unknown));
    assert!(bench.book(&ask(1)).is_ok());
    assert!(bench.book(&ask(2)).is_ok());
    assert!(bench.goes(&ask(1), ME));
    bench.at_ms(10_099);
    assert!(
        matches!(bench.claim(&ask(2), ME), Ok(Claim::Early { start, .. }) if millis(start) == 10_100)
    );
    bench.at_ms(10_200);
    assert!(bench.goes(&ask(2), ME));
    assert!(matches!(bench.claim(&ask(2), ME), Ok(Claim::Go { allow, .. }) if allow.replayed));
    assert_eq!(bench.used(&ask(0)), [1]);
}

pub fn a_late_claim_is_booked_anew<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    bench.at_ms(0);
    for (id, start) in [(1, 0), (2, 10_100), (3, 20_200)] {
        assert_eq!(bench.book(&ask(id)), Ok(start));
    }
    bench.at_ms(10_201);
    assert_eq!(bench.rebooked(&ask(2), ME), 30_300, "behind those who are booked");
    assert_eq!(bench.used(&ask(0)), [2], "what was not used is not charged");
    bench.at_ms(30_300);
    assert!(bench.goes(&ask(2), ME));
}

pub fn a_second_claimant_is_booked_anew<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    bench.at_ms(0);
    assert_eq!(bench.book(&ask(1)), Ok(0));
    assert!(bench.goes(&ask(1), ME));
    assert_eq!(bench.rebooked(&ask(1), OTHER), 10_100, "the first may have gone");
    bench.at_ms(10_100);
    assert!(bench.goes(&ask(1), OTHER));
    assert_eq!(bench.claim(&ask(1), ME), Ok(Claim::Spent), "one go for each");
    bench.at_ms(10_201);
    assert_eq!(bench.claim(&ask(1), OTHER), Ok(Claim::Spent), "a go is not good for ever");
    assert_eq!(bench.used(&ask(0)), [1]);
    assert_eq!(bench.rebooked(&ask(1), Id::from_bits(3)), 20_200);
}

pub fn a_claim_that_states_something_else_than_its_booking_is_refused<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["10/10s", "100 tokens/10s"]);
    bench.at_ms(0);
    let booked = || ask(1).tokens(1);
    assert_eq!(bench.book(&booked()), Ok(0));
    // Bob's limit is full: Ann's booking must not let him through.
    assert!(bench.acquire(&ask(2).by("bob").requests(10).tokens(100)).is_allowed());
    for other in [
        booked().by("bob"),
        booked().and("tier", "x"),
        booked().tokens(100),
        booked().requests(5),
        ask(1),
    ] {
        assert_eq!(bench.claim(&other, ME), Err(Error::Differs), "{other:?}");
    }
    assert_eq!(bench.used(&ask(0)), [1, 1], "nothing has changed");
    assert!(bench.goes(&booked().requests(1), ME), "one request is what is meant without a number");
    assert_eq!(bench.claim(&booked().by("bob"), OTHER), Err(Error::Differs), "also when claimed");
}

pub fn a_booking_whose_rules_were_reloaded_is_booked_anew<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/10s"]);
    bench.at_ms(0);
    assert_eq!(bench.book(&ask(1)), Ok(0));
    bench.reload([rule("OTHER", &["1/10s"])]);
    assert!(bench.acquire(&ask(2)).is_allowed(), "the new rule has not counted the booking");
    assert_eq!(bench.rebooked(&ask(1), ME), 10_000, "it has to fit under the new rule");
    assert_eq!(bench.used(&ask(0)), [2]);
    bench.at_ms(10_000);
    assert!(bench.goes(&ask(1), ME));
    bench.reload([rule("LIMIT", &["5/10s"])]);
    assert_eq!(bench.used(&ask(0)), [0], "what was booked under the old rule is given back");
}

pub fn a_booking_goes_under_another_limit_of_its_rule<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/10s"]);
    bench.at_ms(0);
    assert_eq!(bench.book(&ask(1)), Ok(0));
    bench.reload([rule("LIMIT", &["7/10s"])]);
    assert!(bench.goes(&ask(1), ME));
    assert_eq!(bench.used(&ask(0)), [1]);
}

pub fn only_its_claimant_can_take_a_claimed_booking_back<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s", "2 concurrent"]);
    bench.at_ms(0);
    for id in [1, 2] {
        assert!(bench.book(&ask(id).by(["ann", "bob"][id as usize - 1])).is_ok());
    }
    let cancel = |bench: &StoreBench<S>, ask: &TestRequest, claimant: Option<Id>| {
        bench.with(ask, async |store, plan| {
            let handle = Handle { claimant, ..plan.handle() };
            store.cancel(&handle).await
        })
    };
    assert!(bench.goes(&ask(1).by("ann"), ME) && bench.goes(&ask(2).by("bob"), ME));
    assert!(cancel(&bench, &ask(1).by("ann"), Some(OTHER)).is_ok());
    assert_eq!(bench.used(&ask(0).by("ann")), [1, 1], "it may have gone");
    assert!(cancel(&bench, &ask(2).by("bob"), Some(ME)).is_ok());
    assert_eq!(bench.used(&ask(0).by("bob")), [0, 0]);
}

pub fn who_was_told_to_go_is_remembered_when_a_booking_lapses<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/50min"]);
    bench.at_ms(0);
    assert!(bench.book(&ask(1)).is_ok() && bench.goes(&ask(1), ME));
    assert!(bench.book(&ask(2)).is_ok());
    assert!(matches!(bench.claim(&ask(1), OTHER), Ok(Claim::Deny(_))), "past the horizon");
    assert_eq!(bench.claim(&ask(1), OTHER), Err(Error::Unknown));
    bench.at_ms(2_600_000);
    assert!(bench.book(&ask(1)).is_ok(), "it can be booked again");
    assert_eq!(bench.claim(&ask(1), ME), Ok(Claim::Spent));
}

pub fn a_cancelled_booking_makes_room<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    bench.at_ms(0);
    assert!(bench.book(&ask(1)).is_ok());
    assert_eq!(bench.book(&ask(2)), Ok(10_100));
    let cancelled = bench.with(&ask(2), async |s, plan| s.cancel(&plan.handle()).await);
    assert!(cancelled.is_ok());
    assert_eq!(bench.book(&ask(3)), Ok(10_100));
    assert_eq!(bench.claim(&ask(2), ME), Err(Error::Gone));
}

pub fn a_booking_takes_its_lease_when_it_is_claimed<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["9/10s", "1 concurrent"]);
    bench.at_ms(0);
    assert_eq!(bench.book(&ask(1)), Ok(0));
    assert_eq!(bench.book(&ask(2)), Ok(0));
    assert_eq!(bench.used(&ask(0)), [2, 0]);
    let settle = |bench: &StoreBench<S>, id| {
        bench.with(&ask(id), async |s, plan| s.settle(&plan.handle(), &Default::default()).await)
    };
    assert_eq!(settle(&bench, 1), Err(Error::NotClaimed));
    assert!(bench.goes(&ask(1), ME));
    assert_eq!(bench.used(&ask(0)), [2, 1]);
    assert!(matches!(bench.claim(&ask(2), ME), Ok(Claim::Deny(deny)) if deny.hit.charge == 1));
    assert!(settle(&bench, 1).is_ok());
    bench.at_ms(100);
    assert!(bench.goes(&ask(2), ME), "the booking still stands");
}

pub fn a_bucket_can_be_booked<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/s burst 2"]);
    bench.at_ms(0);
    let starts: Vec<_> = (1..=4).map(|id| bench.book(&ask(id)).expect("booked")).collect();
    // The slack is 10 ms: each charge counts at the end of it.
    assert_eq!(starts, [0, 10, 1_010, 2_010]);
    assert!(!bench.acquire(&ask(5)).is_allowed());
}

pub fn a_booking_does_not_reach_into_the_next_calendar_day<S: StoreSubject>() {
    // A hundredth of the longest day, 25 hours, is 15 minutes; midnight is 16 hours away.
    let midnight = 16 * 3_600_000;
    let mut bench = StoreBench::<S>::of(&["1/calendar day"]);
    bench.at_ms(midnight - 900_000);
    assert_eq!(bench.book(&ask(1)), Ok(midnight));
    bench.at_ms(midnight - 900_000);
    assert!(bench.acquire(&ask(2)).is_allowed(), "today is still unused");
    assert!(!bench.acquire(&ask(3)).is_allowed());
}

pub fn paced_work_is_admitted_ahead_of_its_start<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    let start = |decision| match decision {
        Decision::Allow(allow) => Ok(millis(allow.start)),
        Decision::Deny(deny) => Err(millis(deny.start)),
        other => panic!("{other:?}"),
    };
    bench.at_ms(0);
    assert_eq!(start(bench.acquire(&ask(1).paced(50, 200))), Ok(0));
    // The first may be used until 200 ms, and leaves its window at 10,200 ms.
    bench.at_ms(10_149);
    assert_eq!(start(bench.acquire(&ask(2).paced(50, 200))), Err(10_200));
    bench.at_ms(10_150);
    assert_eq!(start(bench.acquire(&ask(2).paced(50, 200))), Ok(10_200));
    assert_eq!(
        start(bench.acquire(&ask(2).paced(50, 200))),
        Ok(10_200),
        "the same admission again"
    );
    assert_eq!(start(bench.acquire(&ask(3).paced(50, 200))), Err(20_400));
    assert_eq!(bench.used(&ask(0)), [2]);
    // Work that was admitted ahead and did not start is given back.
    let cancelled = bench.with(&ask(2), async |s, plan| s.cancel(&plan.handle()).await);
    assert!(cancelled.is_ok());
    assert_eq!(start(bench.acquire(&ask(3).paced(50, 200))), Ok(10_200));
}

pub fn a_booking_can_be_claimed_ahead_of_its_start<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    let paced = |id| ask(id).paced(50, 200);
    bench.at_ms(0);
    assert_eq!(bench.book(&paced(1)), Ok(50), "there is time for its claim");
    assert_eq!(bench.book(&paced(2)), Ok(10_250));
    let Ok(Claim::Go { allow, good_until }) = bench.claim(&paced(1), ME) else {
        panic!("its start is a lead away");
    };
    assert_eq!((millis(allow.at), millis(allow.start), millis(good_until)), (0, 50, 250));
    bench.at_ms(10_199);
    let early = bench.claim(&paced(2), ME);
    assert!(
        matches!(early, Ok(Claim::Early { start, .. }) if millis(start) == 10_250),
        "{early:?}"
    );
    bench.at_ms(10_200);
    assert!(bench.goes(&paced(2), ME));
    assert!(bench.goes(&paced(2), ME), "its answer may have been lost");
    assert_eq!(bench.rebooked(&paced(2), OTHER), 20_450, "the first has it, although it waits");
}

pub fn an_early_claim_can_be_taken_back_by_its_claimant<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["1/10s"]);
    let paced = |id| ask(id).paced(50, 20);
    bench.at_ms(0);
    assert_eq!(bench.book(&paced(1)), Ok(50));
    assert!(bench.goes(&paced(1), ME));
    let cancelled = bench
        .with(&paced(1), async |store, plan| store.cancel(&plan.handle().claimed_by(ME)).await);
    assert!(cancelled.is_ok());
    assert_eq!(bench.book(&paced(2)), Ok(50), "its turn is free again");
}

pub fn an_early_claim_needs_a_gate_that_is_open_at_the_start<S: StoreSubject>() {
    let mut bench = gated::<S>("1/10s");
    let paced = |id| ask(id).paced(500, 20);
    bench.at_ms(0);
    assert_eq!(bench.book(&paced(1)), Ok(500));
    bench.close(&ask(0), 400);
    assert!(bench.goes(&paced(1), ME), "open again at the start");
    bench.at_ms(10_100);
    assert_eq!(bench.book(&paced(2)), Ok(10_600));
    bench.close(&ask(0), 600);
    assert_eq!(bench.rebooked(&paced(2), ME), 10_700, "closed at the start");
    bench.close(&ask(0), 5_000);
    let Decision::Deny(deny) = bench.acquire(&paced(3)) else { panic!("it is closed") };
    assert!(millis(deny.start) >= 15_100);
}

pub fn a_rule_that_spreads_costs_one_start_whatever_the_slack<S: StoreSubject>() {
    let spread = Rule { spreads: true, ..rule("SPREAD", &["100/s burst 2"]) };
    let mut bench = StoreBench::<S>::new([rule("LIMIT", &["6000/min"]), spread]);
    bench.at_ms(0);
    let starts: Vec<_> = (1..=5).map(|id| bench.book(&ask(id)).expect("booked")).collect();
    // The slack is 600 ms. A limit of the same shape would start the third at 610 ms.
    assert_eq!(starts, [0, 0, 10, 20, 30]);
}

pub fn the_bookings_of_one_pacer_have_no_slack_between_them<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::new([rule("SMOOTH", &["10/s smooth"])]);
    let of_one = |id| ask(id).paced(0, 30).owned_by(1);
    let of_other = |id| ask(id).paced(0, 30).owned_by(2);
    bench.at_ms(0);
    assert_eq!(bench.book(&of_one(1)), Ok(0));
    assert_eq!(bench.book(&of_one(2)), Ok(100));
    assert_eq!(bench.book(&of_other(3)), Ok(230), "the slack is between the two pacers");
    assert_eq!(bench.book(&of_other(4)), Ok(330));
    assert_eq!(bench.book(&ask(5).paced(0, 30)), Ok(460), "and before work of no pacer");
    assert_eq!(bench.book(&of_other(6)), Ok(590), "and after it");
    let cancelled = bench.with(&of_other(6), async |s, plan| s.cancel(&plan.handle()).await);
    assert!(cancelled.is_ok());
    assert_eq!(bench.book(&of_other(7)), Ok(620), "and after a booking that was given back");
    bench.at_ms(725);
    let Decision::Allow(allow) = bench.acquire(&of_other(8)) else { panic!("720 is over") };
    assert_eq!(millis(allow.start), 725, "work that starts now continues the run");
    assert_eq!(bench.book(&of_other(9)), Ok(825));
}

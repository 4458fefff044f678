//! Tests of money and token budgets: no charge is lost, and a request as large as a forecast is
//! admitted.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use sluicegate_core::predict::{ExpectedUsage, Forecast, forecast};
use sluicegate_core::price::{ModelPrices, PriceBook, Rates, UnknownModels};
use sluicegate_core::query::{Cost, Query};
use sluicegate_core::rule::{Group, OnExpiry, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::Error;
use sluicegate_core::{Decision, Money, Store};

use super::{EPOCH, StoreBench, StoreSubject, TestRequest, ask, rule};

fn runner<S: StoreSubject>() -> TestRunner {
    let cases = if crate::long() { S::CASES * 50 } else { S::CASES };
    let failure_persistence = Some(Box::new(FileFailurePersistence::Off) as _);
    TestRunner::new(Config { cases, failure_persistence, ..Config::default() })
}

/// An operation on one of the reservations.
#[derive(Clone, Copy, Debug)]
enum BudgetStep {
    Reserve { nanos: u64, hold_s: u64 },
    Settle { which: usize, nanos: u64 },
    Cancel { which: usize },
    Wait { seconds: u64 },
}

/// The state of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservationState {
    Held,
    Settled(u64),
    Cancelled,
}

struct BudgetReservation {
    ask: TestRequest,
    nanos: u64,
    until_s: u64,
    state: ReservationState,
}

fn steps() -> impl Strategy<Value = Vec<BudgetStep>> {
    let step = prop_oneof![
        4 => (0..1_000u64, 1..40u64).prop_map(|(nanos, hold_s)| BudgetStep::Reserve { nanos, hold_s }),
        4 => (0..64usize, 0..2_000u64).prop_map(|(which, nanos)| BudgetStep::Settle { which, nanos }),
        1 => (0..64usize).prop_map(|which| BudgetStep::Cancel { which }),
        3 => (0..20u64).prop_map(|seconds| BudgetStep::Wait { seconds }),
    ];
    proptest::collection::vec(step, 1..60)
}

fn dollars(nanos: u64) -> Option<Money> {
    Money::from_nanos(nanos)
}

/// Checks at every step that a budget shows Σ settled + Σ held + Σ expired.
pub fn what_is_charged_is_settled_held_or_expired<S: StoreSubject>() {
    let run = |steps: Vec<BudgetStep>| {
        let refund = Rule { on_expiry: OnExpiry::Refund, ..rule("REFUND", &["9000 USD/7d"]) };
        let mut bench = StoreBench::<S>::new([rule("KEEP", &["9000 USD/7d"]), refund]);
        let (mut now_s, mut all) = (0, Vec::<BudgetReservation>::new());
        bench.at_ms(0);
        for step in steps {
            match step {
                BudgetStep::Wait { seconds } => {
                    now_s += seconds;
                    bench.at_ms(now_s * 1_000);
                }
                BudgetStep::Reserve { nanos, hold_s } => {
                    let mut ask = ask(all.len() as u128 + 1).hold(hold_s);
                    ask.cost.money = dollars(nanos);
                    assert!(bench.acquire(&ask).is_allowed());
                    let (until_s, state) = (now_s + hold_s, ReservationState::Held);
                    all.push(BudgetReservation { ask, nanos, until_s, state });
                }
                BudgetStep::Settle { which, nanos } => {
                    let Some(of) = pick(&mut all, which) else { continue };
                    let cost = Cost { money: dollars(nanos), ..Cost::default() };
                    let settled = bench.with(&of.ask, async |store, plan| {
                        store.settle(&plan.handle(), &cost).await.map(|ended| ended.replayed)
                    });
                    let expected = match of.state {
                        ReservationState::Held => Ok(false),
                        ReservationState::Settled(before) if before == nanos => Ok(true),
                        ReservationState::Settled(_) => Err(Error::Conflict),
                        ReservationState::Cancelled => Err(Error::Gone),
                    };
                    assert_eq!(settled, expected);
                    if settled == Ok(false) {
                        of.state = ReservationState::Settled(nanos);
                    }
                }
                BudgetStep::Cancel { which } => {
                    let Some(of) = pick(&mut all, which) else { continue };
                    let cancelled = bench.with(&of.ask, async |store, plan| {
                        store.cancel(&plan.handle()).await.map(|ended| ended.replayed)
                    });
                    if cancelled == Ok(false) {
                        of.state = ReservationState::Cancelled;
                    }
                }
            }
            let charged = |of: &BudgetReservation, expired: u64| match of.state {
                ReservationState::Settled(nanos) => nanos,
                ReservationState::Cancelled => 0,
                ReservationState::Held if of.until_s <= now_s => expired,
                ReservationState::Held => of.nanos,
            };
            let kept: u64 = all.iter().map(|of| charged(of, of.nanos)).sum();
            let refunded: u64 = all.iter().map(|of| charged(of, 0)).sum();
            assert_eq!(bench.used(&ask(0)), [kept, refunded], "after {step:?} at {now_s} s");
        }
        Ok(())
    };
    runner::<S>().run(&steps(), run).unwrap_or_else(|failure| panic!("{failure}"));
}

fn pick(all: &mut [BudgetReservation], which: usize) -> Option<&mut BudgetReservation> {
    let count = all.len();
    all.get_mut(which % count.max(1))
}

/// Existing usage, and a request that may not fit.
#[derive(Clone, Debug)]
struct ForecastCase {
    before: Vec<(u64, u64)>,
    input: u64,
    output: u64,
    choices: u64,
    prices: [u64; 3],
}

fn asked() -> impl Strategy<Value = ForecastCase> {
    let before = proptest::collection::vec((0..3_000u64, 0..3_000u64), 0..6);
    let prices = prop::array::uniform3(0..40u64);
    (before, 0..9_000u64, 0..60_000u64, 1..5u64, prices).prop_map(
        |(before, input, output, choices, prices)| ForecastCase {
            before,
            input,
            output,
            choices,
            prices,
        },
    )
}

/// Checks that the longest response that a denial names is admitted, and one token more is not.
pub fn a_forecast_is_admitted_and_one_token_more_is_not<S: StoreSubject>() {
    let forecasts = Cell::new(0);
    let run = |asked: ForecastCase| {
        let [input, output, reasoning] =
            asked.prices.map(|dollars| format!("{dollars} USD/1M").parse().expect("a price"));
        let rates = Rates { reasoning, ..Rates::new(input, output) };
        let book = PriceBook::new(UnknownModels::Default(ModelPrices::new(rates, Vec::new())));
        let settings = Settings { prices: Arc::new(book), ..Settings::default() };
        let groups = vec![
            Group::new("a", [rule("TOKENS", &["20000 tokens/min", "15000 output_tokens/h"])]),
            Group::new("b", [rule("MONEY", &["0.25 USD/day", "0.40 USD/calendar day"])]),
            Group::new("c", [rule("SENT", &["5/min", "12000 input_tokens/h"])]),
        ];
        let rules = Ruleset::new(groups, settings).expect("rules");
        let mut bench = StoreBench::<S> { subject: S::fresh(), rules, now: EPOCH };
        bench.at_ms(0);
        let query = |id: u128, input: u64, output: u64| {
            let mut query = ask(id).query();
            query.cost.input_tokens = Some(input);
            query.cost.output_tokens = Some(output);
            query
        };
        for (id, &(input, output)) in asked.before.iter().enumerate() {
            bench.decides(&query(id as u128 + 1, input, output));
        }
        bench.at_ms(1_000);
        let mut asks = query(1_000, asked.input, asked.output * asked.choices);
        asks.choices = NonZeroU64::new(asked.choices).expect("at least one");
        let (decision, told) = bench.decides(&asks);
        let told = told.expect("it says how long an answer it expects");
        if decision.is_allowed() {
            return Ok(());
        }
        assert!(told.now <= told.ever && told.now < asked.output.max(1), "{told:?}");
        if matches!(decision, Decision::Never(_)) && asked.input > 0 {
            assert!(told.ever < asked.output.max(1), "{told:?}");
        }
        forecasts.update(|count| count + u32::from(told.now > 0));
        let more = query(1_001, asked.input, (told.now + 1) * asked.choices);
        assert!(!bench.decides(&more).0.is_allowed(), "one more than {told:?}");
        if told.now > 0 {
            let fits = query(1_002, asked.input, told.now * asked.choices);
            assert!(bench.decides(&fits).0.is_allowed(), "{told:?}");
        }
        Ok(())
    };
    runner::<S>().run(&asked(), run).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(forecasts.get() > 0, "no denial had room for a shorter answer");
}

impl<S: StoreSubject> StoreBench<S> {
    /// Acquires; returns the decision and the forecast of what would fit.
    fn decides(&self, query: &Query<'_>) -> (Decision, Option<Forecast>) {
        let plan = self.rules.plan(query, self.now).expect("it can be planned");
        let decision = self.subject.run(self.subject.store().acquire(&plan)).expect("a decision");
        let told = ExpectedUsage::of(query)
            .and_then(|expected| forecast(expected, &plan, &decision, self.rules.prices()));
        (decision, told)
    }
}

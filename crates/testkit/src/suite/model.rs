//! Random operations, compared between the store and the model.

use crate::model::Model;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Cost, Pacing, RequestId};
use sluicegate_core::rule::{EstimateMode, OnExpiry, Rule};
use sluicegate_core::{Id, Money, Plan, Ruleset, Span, Store, Timestamp};

use super::{EPOCH, StoreSubject, TestRequest, rule, rules};

/// Returns rules of every kind. Each counts by its own dimension, so that the dimensions of a
/// request select the rules that apply.
fn every_kind() -> Ruleset {
    let by = |dimension: &str, rule: Rule| rule.per(&[dimension]);
    let refund = |rule: Rule| Rule { on_expiry: OnExpiry::Refund, ..rule };
    let optimistic = |rule: Rule| Rule { mode: EstimateMode::Optimistic, ..rule };
    let shadow = |rule: Rule| Rule { shadow: true, ..rule };
    let lease = |rule: Rule| Rule { lease: Span::from_secs(5), ..rule };
    rules([
        by("log", rule("LOG", &["3/10s", "5/min"])),
        by("bucket", rule("BUCKET", &["2/s burst 3"])),
        by("tokens", rule("TOKENS", &["100 tokens/10s", "70 input_tokens/s"])),
        by(
            "refund",
            refund(rule("REFUND", &["100 tokens/20s", "100 tokens/20s burst 100", "4/20s"])),
        ),
        by("optimistic", optimistic(rule("OPTIMISTIC", &["80 tokens/15s"]))),
        by("money", rule("MONEY", &["0.0000001 USD/calendar day", "0.0001 USD/h burst 0.0001"])),
        by("slots", lease(rule("SLOTS", &["2 concurrent"]))),
        by("shadow", shadow(rule("SHADOW", &["1/10s", "50 tokens/10s"]))),
        by("gate", rule("GATE", &["4/10s"]).gated()),
        by("spread", Rule { spreads: true, ..rule("SPREAD", &["3/s burst 1"]) }),
        by("smooth", rule("SMOOTH", &["5/s smooth"])),
    ])
}

const DIMENSIONS: [&str; 11] = [
    "log",
    "bucket",
    "tokens",
    "refund",
    "optimistic",
    "money",
    "slots",
    "shadow",
    "gate",
    "spread",
    "smooth",
];

/// An operation on the work with a small number as its id.
#[derive(Clone, Debug)]
enum Operation {
    Advance(u64),
    Acquire(u8, TestRequest),
    Peek(TestRequest),
    Book(u8, TestRequest),
    Claim(u8, u8, Option<TestRequest>),
    Cancel(u8, Option<u8>),
    Settle(u8, Cost),
    Release(u8),
    Renew(u8),
    Refund(TestRequest),
    Close(TestRequest, u64),
    Reset(TestRequest),
    Usage(TestRequest),
}

fn cost() -> impl Strategy<Value = Cost> {
    let requests = prop_oneof![6 => Just(None), 1 => (0..4u64).prop_map(Some)];
    let tokens = || prop_oneof![Just(None), (0..120u64).prop_map(Some)];
    let money = prop_oneof![Just(None), (0..120u64).prop_map(Money::from_nanos)];
    (requests, tokens(), tokens(), money).prop_map(
        |(requests, input_tokens, output_tokens, money)| Cost {
            requests,
            input_tokens,
            output_tokens,
            money,
        },
    )
}

fn asks() -> impl Strategy<Value = TestRequest> {
    let who = proptest::collection::vec(
        prop_oneof![3 => Just(None), 2 => Just(Some("x")), 1 => Just(Some("y"))],
        DIMENSIONS.len(),
    );
    let keep = prop_oneof![Just(None), (1..90u64).prop_map(|s| Some(Span::from_secs(s)))];
    let hold = prop_oneof![Just(None), (1..30u64).prop_map(|s| Some(Span::from_secs(s)))];
    let pacing = prop_oneof![
        3 => Just(None),
        2 => (0..3_000u64, 0..500u64, 0..3u128).prop_map(|(lead, slack, owner)| {
            let (lead, slack) = (Span::from_millis(lead), Span::from_millis(slack));
            Some(Pacing { lead, slack, owner: (owner > 0).then(|| Id::from_bits(owner)) })
        }),
    ];
    (who, cost(), keep, hold, pacing).prop_map(|(who, cost, keep, hold, pacing)| TestRequest {
        id: RequestId { id: Id::from_bits(0), keep },
        who: DIMENSIONS.into_iter().zip(who).filter_map(|(d, v)| Some((d, v?))).collect(),
        cost,
        hold,
        pacing,
    })
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    use Operation::*;
    let name = || 0..8u8;
    let micros = prop_oneof![
        3 => 0..20_000u64,
        3 => 0..2_000_000u64,
        2 => 0..20_000_000u64,
        1 => 0..200_000_000u64,
        1 => (0..400u64).prop_map(|s| s * 100_000),
    ];
    let operation = prop_oneof![
        4 => micros.prop_map(Advance),
        6 => (name(), asks()).prop_map(|(n, ask)| Acquire(n, ask)),
        1 => asks().prop_map(Peek),
        3 => (name(), asks()).prop_map(|(n, ask)| Book(n, ask)),
        3 => (name(), 0..3u8).prop_map(|(n, by)| Claim(n, by, None)),
        1 => (name(), 0..3u8, asks()).prop_map(|(n, by, other)| Claim(n, by, Some(other))),
        1 => (name(), proptest::option::of(0..3u8)).prop_map(|(n, by)| Cancel(n, by)),
        3 => (name(), cost()).prop_map(|(n, cost)| Settle(n, cost)),
        1 => name().prop_map(Release),
        2 => name().prop_map(Renew),
        2 => asks().prop_map(Refund),
        1 => (asks(), 0..20_000_000u64).prop_map(|(ask, micros)| Close(ask, micros)),
        1 => asks().prop_map(Reset),
        1 => asks().prop_map(Usage),
    ];
    proptest::collection::vec(operation, 1..60)
}

/// Checks that the store and the model return the same results for the same operations.
pub fn random_operations_agree_with_the_model<S: StoreSubject>() {
    let cases = if crate::long() { S::CASES * 50 } else { S::CASES };
    let config = Config {
        cases,
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        source_file: Some(file!()),
        ..Config::default()
    };
    let rules = every_kind();
    let result = TestRunner::new(config).run(&operations(), |operations| {
        compare::<S>(&rules, operations);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn compare<S: StoreSubject>(rules: &Ruleset, operations: Vec<Operation>) {
    let subject = S::fresh();
    let mut model = Model::default();
    let mut now = EPOCH;
    // Last request under each id: claims and settlements refer to it.
    let mut known: [Option<TestRequest>; 8] = Default::default();
    for (serial, operation) in (1_000..).zip(operations) {
        let context = format!("{operation:?} at {}us", now.since(EPOCH).as_micros());
        let last = |known: &[Option<TestRequest>; 8], n: u8| known[usize::from(n)].clone();
        match operation {
            Operation::Advance(micros) => {
                now = now + Span::from_micros(micros);
                subject.set_now(now);
            }
            Operation::Acquire(n, ask) => {
                let mut ask = again(&mut known, n, ask);
                if !both(&subject, rules, &ask, now, async |_, plan| plan.needs_record()) {
                    // Without a record, an id is reused only by the store's own retries.
                    ask.id.id = Id::from_bits(serial);
                }
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.acquire(plan).await, model.acquire(plan, now))
                });
                assert_eq!(real, expected, "{context}");
            }
            Operation::Peek(ask) => {
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.peek(plan).await, model.peek(plan, now))
                });
                assert_eq!(real, expected, "{context}");
            }
            Operation::Book(n, ask) => {
                let ask = again(&mut known, n, ask);
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.book(plan).await, model.book(plan, now))
                });
                assert_eq!(real, expected, "{context}");
            }
            Operation::Claim(n, by, other) => {
                let Some(mut ask) = last(&known, n) else { continue };
                if let Some(other) = other {
                    (ask.who, ask.cost) = (other.who, other.cost);
                }
                let by = Id::from_bits(u128::from(by));
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.claim(plan, by).await, model.claim(plan, by, now))
                });
                assert_eq!(real, expected, "{context}");
            }
            Operation::Cancel(n, by) => {
                let Some(ask) = last(&known, n) else { continue };
                let claimant = by.map(|by| Id::from_bits(u128::from(by)));
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    let handle = Handle { claimant, ..plan.handle() };
                    (store.cancel(&handle).await, model.cancel(&handle, now))
                });
                assert_eq!(real, expected, "{context}");
            }
            Operation::Settle(n, actual) => {
                let Some(ask) = last(&known, n) else { continue };
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    let real = store.settle(&plan.handle(), &actual).await;
                    (real, model.settle(plan.id.id, &actual, now))
                });
                assert_eq!(real, expected, "{context}");
            }
            Operation::Release(n) => {
                let Some(ask) = last(&known, n) else { continue };
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.release(&plan.handle()).await, model.release(plan.id.id, now))
                });
                assert_eq!(real, expected, "{context}");
            }
            Operation::Renew(n) => {
                let Some(ask) = last(&known, n) else { continue };
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.renew(&plan.handle()).await, model.renew(plan.id.id, now))
                });
                assert_eq!(real, expected, "{context}");
            }
            Operation::Refund(mut ask) => {
                ask.id.id = Id::from_bits(serial);
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.refund(plan).await, model.refund(plan, now))
                });
                assert_eq!(real, Ok(expected), "{context}");
            }
            Operation::Close(ask, micros) => {
                let wait = Span::from_micros(micros);
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.close(plan, wait).await, model.close(plan, wait, now))
                });
                assert_eq!(real, Ok(expected), "{context}");
            }
            Operation::Reset(ask) => {
                both(&subject, rules, &ask, now, async |store, plan| {
                    assert_eq!(store.reset(plan).await, Ok(now), "{context}");
                    model.reset(plan, now);
                });
                // A charge in the microsecond of a reset may or may not survive it.
                now = now + Span::from_micros(1);
                subject.set_now(now);
            }
            Operation::Usage(ask) => {
                let (real, expected) = both(&subject, rules, &ask, now, async |store, plan| {
                    (store.usage(plan).await, model.usage(plan, now))
                });
                assert_eq!(real, Ok(expected), "{context}");
            }
        }
    }
}

/// Returns the request under an id: mostly the previous one, so that replays occur.
fn again(known: &mut [Option<TestRequest>; 8], n: u8, mut ask: TestRequest) -> TestRequest {
    ask.id.id = Id::from_bits(u128::from(n) + 1);
    let slot = &mut known[usize::from(n)];
    // The number of dimensions stands for a coin toss: the choice has to be part of the test case.
    if !ask.who.len().is_multiple_of(4)
        && let Some(before) = slot
    {
        return before.clone();
    }
    *slot = Some(ask.clone());
    ask
}

/// Runs one operation on the plan of a request.
fn both<S: StoreSubject, T>(
    subject: &S,
    rules: &Ruleset,
    ask: &TestRequest,
    now: Timestamp,
    run: impl AsyncFnOnce(&S::Store, &Plan<'_>) -> T,
) -> T {
    let query = ask.query();
    let plan = rules.plan(&query, now).expect("requests of tests can be planned");
    subject.run(run(subject.store(), &plan))
}

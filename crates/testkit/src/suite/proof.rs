//! Random traffic, verified by the checker.
//!
//! The model shares its definitions with the algorithms, so it can't find a wrong definition. The
//! checker knows only the promise of a limit: it looks at the times at which work really started,
//! and at its real cost.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use sluicegate_checker::{Checker, Event};
use sluicegate_core::limit::Unit;
use sluicegate_core::query::Cost;
use sluicegate_core::rule::Rule;
use sluicegate_core::store::{Claim, Error};
use sluicegate_core::{Decision, Id, Limit, Span, Store, Timestamp};

use super::{StoreBench, StoreSubject, TestRequest, ask};

/// A step of the traffic after some time.
#[derive(Clone, Debug)]
enum TrafficStep {
    Acquire {
        tokens: u64,
        then: WorkOutcome,
    },
    Book {
        tokens: u64,
    },
    /// Claims the oldest, the newest or a middle one of the open bookings.
    Claim(u8),
    Cancel(u8),
}

/// The outcome of admitted work.
#[derive(Clone, Copy, Debug)]
enum WorkOutcome {
    Goes,
    /// The work never started, and is cancelled.
    Cancelled,
    /// The work cost less than was held for it, and is settled this much later.
    Settled {
        percent: u64,
        after_us: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<(u64, TrafficStep)>> {
    let tokens = || 1..60u64;
    let then = prop_oneof![
        3 => Just(WorkOutcome::Goes),
        1 => Just(WorkOutcome::Cancelled),
        1 => (0..=100u64, 0..3_000_000u64)
            .prop_map(|(percent, after_us)| WorkOutcome::Settled { percent, after_us }),
    ];
    let step = prop_oneof![
        3 => (tokens(), then).prop_map(|(tokens, then)| TrafficStep::Acquire { tokens, then }),
        5 => tokens().prop_map(|tokens| TrafficStep::Book { tokens }),
        8 => (0..3u8).prop_map(TrafficStep::Claim),
        2 => (0..3u8).prop_map(TrafficStep::Cancel),
    ];
    let wait = prop_oneof![
        6 => Just(0u64),
        4 => 0..50_000u64,
        3 => 0..1_000_000u64,
        1 => 0..8_000_000u64,
        1 => (0..80u64).prop_map(|tenths| tenths * 100_000),
    ];
    proptest::collection::vec((wait, step), 1..120)
}

/// Checks that no window of any limit ever contains more started work than the limit allows.
pub fn random_traffic_is_proven_by_the_checker<S: StoreSubject>() {
    let cases = if crate::long() { S::CASES * 50 } else { S::CASES };
    for limits in [
        &["3/10s", "5/min"][..],
        &["4/10s windowed"],
        &["2/s burst 3"],
        &["1/s smooth"],
        &["100 tokens/10s"],
        &["100 tokens/10s burst 100", "3/s"],
        &["6/calendar day", "2/s burst 2"],
        &["2 concurrent", "5/10s"],
    ] {
        let config = Config {
            cases,
            max_shrink_iters: 20_000,
            failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
            source_file: Some(file!()),
            ..Config::default()
        };
        let result = TestRunner::new(config).run(&steps(), |steps| {
            run::<S>(limits, &steps);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{limits:?}: {error}");
        }
    }
}

/// Started work, by its id.
type StartedWork = BTreeMap<u128, WorkItem>;

struct WorkItem {
    at: Timestamp,
    tokens: u64,
    /// Time at which its slot became free: its settlement or the end of its lease.
    ended: Timestamp,
}

impl WorkItem {
    fn new(at: Timestamp, tokens: u64) -> Self {
        Self { at, tokens, ended: at + Rule::LEASE }
    }
}

fn run<S: StoreSubject>(limits: &[&str], steps: &[(u64, TrafficStep)]) {
    let mut bench = StoreBench::<S>::of(limits);
    let (mut went, mut booked) = (StartedWork::new(), Vec::<TestRequest>::new());
    let mut unsettled: Vec<(Timestamp, TestRequest, u64)> = Vec::new();
    for (id, (wait, step)) in (1..).zip(steps) {
        bench.now = bench.now + Span::from_micros(*wait);
        bench.subject.set_now(bench.now);
        settle_due(&bench, &mut unsettled, &mut went);
        let chosen = |which: u8| match which {
            0 => 0,
            1 => booked.len().saturating_sub(1),
            _ => booked.len() / 2,
        };
        match *step {
            TrafficStep::Acquire { tokens, then } => {
                let request = ask(id).tokens(tokens).hold(60);
                let Decision::Allow(_) = bench.acquire(&request) else { continue };
                match then {
                    WorkOutcome::Goes => {}
                    WorkOutcome::Cancelled => {
                        cancel(&bench, &request);
                        continue;
                    }
                    WorkOutcome::Settled { percent, after_us } => {
                        let when = bench.now + Span::from_micros(after_us);
                        unsettled.push((when, request, tokens * percent / 100));
                    }
                }
                went.insert(id, WorkItem::new(bench.now, tokens));
            }
            TrafficStep::Book { tokens } => {
                let request = ask(id).tokens(tokens);
                let decision = bench.with(&request, async |s, plan| s.book(plan).await);
                if decision.expect("a decision").is_allowed() {
                    booked.push(request);
                }
            }
            TrafficStep::Claim(which) if !booked.is_empty() => {
                let request = booked[chosen(which)].clone();
                let claim = bench
                    .with(&request, async |store, plan| store.claim(plan, Id::from_bits(1)).await);
                match claim {
                    Ok(Claim::Go { .. }) => {
                        let tokens = request.cost.of(Unit::InputTokens).unwrap_or_default();
                        went.insert(request.id.id.to_bits(), WorkItem::new(bench.now, tokens));
                        booked.remove(chosen(which));
                    }
                    Ok(_) => {}
                    // The booking was not claimed for so long that it was forgotten.
                    Err(Error::Unknown) => {
                        booked.remove(chosen(which));
                    }
                    Err(error) => panic!("{request:?}: {error}"),
                }
            }
            TrafficStep::Cancel(which) if !booked.is_empty() => {
                let request = booked.remove(chosen(which));
                cancel(&bench, &request);
            }
            TrafficStep::Claim(_) | TrafficStep::Cancel(_) => {}
        }
    }
    prove(limits, &went);
}

fn cancel<S: StoreSubject>(bench: &StoreBench<S>, request: &TestRequest) {
    let cancelled = bench.with(request, async |s, plan| s.cancel(&plan.handle()).await);
    cancelled.expect("what was admitted or booked can be cancelled");
}

fn settle_due<S: StoreSubject>(
    bench: &StoreBench<S>,
    unsettled: &mut Vec<(Timestamp, TestRequest, u64)>,
    went: &mut StartedWork,
) {
    for (_, request, tokens) in unsettled.extract_if(.., |(when, ..)| *when <= bench.now) {
        let actual = Cost { input_tokens: Some(tokens), ..Cost::default() };
        bench
            .with(&request, async |s, plan| s.settle(&plan.handle(), &actual).await)
            .expect("what is held can be settled");
        if let Some(work) = went.get_mut(&request.id.id.to_bits()) {
            work.tokens = tokens;
            work.ended = work.ended.min(bench.now);
        }
    }
}

fn prove(limits: &[&str], went: &StartedWork) {
    let mut checker = Checker::new();
    for text in limits {
        let limit: Limit = text.parse().expect("a limit");
        let unit = limit.unit();
        checker.scope(text, limit).expect("a scope");
        for (id, work) in went {
            let (at, id) = (work.at, Id::from_bits(*id));
            let event = match unit {
                Unit::Requests => Event::Admit { at, amount: 1 },
                Unit::Slots => Event::Start { at, id, slots: 1, until: Some(work.ended) },
                _ => Event::Admit { at, amount: work.tokens },
            };
            checker.record(text, event).expect("a well-formed event");
        }
    }
    let report = checker.check().expect("well-formed");
    if let Err(violation) = report.proven() {
        panic!("{violation}");
    }
}

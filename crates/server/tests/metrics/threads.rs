//! Tests of the metrics with many threads, and of the cost of counting.

use std::hint::black_box;
use std::thread;

use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Store};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionEvent, Observer, Operation};
use sluicegate_store::clock::MonotonicClock;

use crate::observed::{Ask, Limiter, all_of, rule};
use crate::{WHO, check, series, watching};

#[test]
fn nothing_is_lost_between_threads() {
    const THREADS: u64 = 4;
    const EACH: u64 = 20_000;
    let limiter = Limiter::new(all_of([rule("R", &[], &["1000000/h"])]));
    let metrics = watching(&limiter);
    thread::scope(|threads| {
        for thread in 0..THREADS {
            let (metrics, limiter) = (metrics.clone(), &limiter);
            threads.spawn(move || {
                for n in 0..EACH {
                    let tenant = (n % 150).to_string();
                    let who = [("tenantId", tenant.as_str())];
                    limiter.ask(&metrics, &Ask::new(u128::from(thread * EACH + n), &who));
                    if n % 5_000 == 0 {
                        metrics.register_rules(&limiter.rules);
                        metrics.render();
                    }
                }
            });
        }
    });
    let requests = series(&metrics, "rate_limiter_requests_total");
    let counts = requests.iter().map(|line| line.rsplit(' ').next().expect("a value"));
    let counts: Vec<u64> = counts.map(|count| count.parse().expect("a number")).collect();
    assert_eq!(counts.len(), 101, "100 tenants and the others");
    assert_eq!(counts.iter().sum::<u64>(), THREADS * EACH);
    let decisions = format!(r#"{{operation="acquire",result="allowed"}} {}"#, THREADS * EACH);
    check(&metrics, "sluicegate_decisions_total", &[&decisions]);
}

/// Prints the cost: `cargo test --release --test metrics cost -- --nocapture`.
#[test]
fn the_cost_of_a_decision_of_three_scopes_is_that_of_counting_each_once() {
    const ROUNDS: u64 = 5;
    const TIMES: u64 = 200_000;
    let limiter = Limiter::new(all_of([
        rule("USER_MODEL", &["userId", "modelId"], &["1000000/h"]),
        rule("TENANT_MODEL_TIER", &["tenantId"], &["5000000/h"]),
        rule("GLOBAL_MODEL", &["modelId"], &["9000000/h"]),
    ]));
    let metrics = watching(&limiter);
    let ask = Ask::new(1, WHO);
    limiter.ask(&metrics, &ask);
    let query = ask.query();
    let plan = limiter.rules.plan(&query, limiter.clock.now()).expect("a plan");
    let decision = pollster::block_on(limiter.store.peek(&plan));
    let (query, plan, decision) = (&query, &plan, &decision.expect("a decision"));
    let answer = Answer::new(&limiter.rules, plan, decision);
    let (operation, latency) = (Operation::Acquire, Span::from_micros(30));
    let event = DecisionEvent {
        query,
        answer,
        operation,
        claimant: None,
        started: sluicegate_core::Timestamp::default(),
        latency,
        trace: None,
    };
    let clock = MonotonicClock::new();
    let fastest = (0..ROUNDS).map(|_| {
        let began = clock.now();
        for _ in 0..TIMES {
            metrics.on_decision(black_box(&event));
        }
        clock.now().since(began).as_micros() * 1_000 / TIMES
    });
    println!("metrics of a decision of three scopes: {} ns", fastest.min().unwrap_or_default());
    // The first, which created the series, and all that were timed.
    let counted = 1 + ROUNDS * TIMES;
    let decisions = format!(r#"{{operation="acquire",result="allowed"}} {counted}"#);
    check(&metrics, "sluicegate_decisions_total", &[&decisions]);
    let requests = series(&metrics, "rate_limiter_requests_total");
    assert_eq!(requests.len(), 3, "{requests:?}");
    assert!(requests.iter().all(|line| line.ends_with(&format!(" {counted}"))), "{requests:?}");
}

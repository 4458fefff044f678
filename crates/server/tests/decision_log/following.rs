//! Tests of the log lines of later changes, such as settle and claim.

use std::sync::Arc;

use pollster::block_on;
use serde_json::{Value, json};
use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::{Id, Limiter, Span};
use sluicegate_server::decision_log::{LineFormat, Options};
use sluicegate_server::metrics::{self, Metrics};
use sluicegate_service::{DecisionMode, Service};
use sluicegate_store::AnyStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;

use crate::observed::{all_of, rule};
use crate::{Page, log, options};

/// Returns the log of several admissions: settled, released, cancelled, claimed, reset.
fn lives(options: Options) -> (Vec<String>, Metrics) {
    let (page, metrics) = (Page::default(), Metrics::new(&metrics::Options::default()));
    let log = log(page.clone(), options);
    let clock = Arc::new(ManualClock::new(EPOCH));
    let store = Memory::with_clock(Capacity::default(), clock.clone());
    let rules = all_of([rule("R", &[], &["2/10s", "90 tokens/h", "9 concurrent"])]);
    let limiter = Limiter::new(
        Ruleset::new(rules, Settings::default()).expect("rules"),
        AnyStore::custom(store),
    );
    let observers: Vec<Box<dyn sluicegate_service::Observer>> =
        vec![Box::new(log.clone()), Box::new(metrics.clone())];
    let service = Service::new(limiter, clock.clone(), observers);
    let ask = |id: u128| {
        let mut query = Query::new(RequestId::of_caller(Id::from_bits(id), RequestId::KEEP));
        query.cost = Cost { input_tokens: Some(40), ..Cost::default() };
        query
    };
    let decide = |id, question| {
        let queries = [ask(id)];
        let handle = service.decide(&queries, question, |answer| answer.plan().handle());
        block_on(handle).expect("a decision")
    };
    let claim = |id, who| {
        block_on(service.claim(&ask(id), Id::from_bits(who), |_, _, _| ())).expect("an answer");
    };
    let first = decide(1, DecisionMode::Acquire);
    let cost = Cost { requests: Some(1), input_tokens: Some(7), ..Cost::default() };
    block_on(service.renew(&first)).expect("renewed");
    block_on(service.release(&first)).expect("released");
    block_on(service.settle(&first, &cost)).expect("settled");
    block_on(service.settle(&first, &cost)).expect("settled before");
    let second = decide(2, DecisionMode::Acquire);
    block_on(service.cancel(&second)).expect("cancelled");
    decide(3, DecisionMode::Acquire);
    decide(4, DecisionMode::Book);
    claim(4, 0xa);
    clock.advance(Span::from_secs(10));
    claim(4, 0xa);
    clock.advance(Span::from_secs(9));
    claim(4, 0xa);
    claim(4, 0xb);
    block_on(service.reset(&ask(5), |_| true, |_| ())).expect("reset");
    log.close();
    (page.lines(), metrics)
}

#[test]
fn everything_that_becomes_of_an_admission_has_a_line() {
    let (lines, metrics) = lives(options());
    let lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let told = |line: &Value| {
        let id = line["requestId"].as_str().expect("an id").trim_start_matches('0').to_owned();
        let mut told = json!([id, line["operation"], line["at"]]);
        let named = ["allowed", "replayed", "claimant", "cost", "effect", "start", "keys"];
        for name in named.into_iter().filter(|&name| !line[name].is_null()) {
            told.as_array_mut().expect("a list").push(json!({ name: line[name] }));
        }
        let charges = line["charges"].as_array().map_or(0, Vec::len);
        told.as_array_mut().expect("a list").push(charges.into());
        told
    };
    let (begin, later, last) =
        ("2027-01-15T08:00:00Z", "2027-01-15T08:00:10Z", "2027-01-15T08:00:19Z");
    let a = format!("{:032x}", 0xa);
    let keys = json!(["R#requests", "R#tokens/h", "R#concurrent"]);
    let start = "2027-01-15T08:00:10Z";
    let expected = [
        json!(["1", "acquire", begin, { "allowed": true }, 3]),
        json!(["1", "renew", begin, 0]),
        json!(["1", "release", begin, 0]),
        json!(["1", "settle", begin, { "cost": { "requests": 1, "tokens": 7, "input_tokens": 7 } }, 0]),
        json!(["1", "settle", begin, { "replayed": true }, { "cost": { "requests": 1, "tokens": 7, "input_tokens": 7 } }, 0]),
        json!(["2", "acquire", begin, { "allowed": true }, 3]),
        json!(["2", "cancel", begin, 0]),
        json!(["3", "acquire", begin, { "allowed": true }, 3]),
        json!(["4", "book", begin, { "allowed": true }, { "start": start }, 2]),
        json!(["4", "claim", begin, { "effect": "early" }, { "start": start }, 0]),
        json!(["4", "claim", later, { "allowed": true }, { "claimant": a }, 3]),
        json!(["4", "claim", null, { "effect": "spent" }, 0]),
        json!(["4", "claim", last, { "effect": "rebooked" }, { "start": "2027-01-15T09:00:00Z" }, 2]),
        json!(["5", "reset", last, { "keys": keys }, 0]),
    ];
    let told: Vec<_> = lines.map(|line| told(&line)).collect();
    for (told, expected) in told.iter().zip(&expected) {
        assert_eq!(told, expected);
    }
    assert_eq!(told.len(), expected.len());

    let text = metrics.render();
    for (operation, count) in
        [("settle", 2), ("release", 1), ("renew", 1), ("cancel", 1), ("claim", 4), ("reset", 1)]
    {
        let line =
            format!("rate_limiter_latency_seconds_count{{operation=\"{operation}\"}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn people_read_what_became_of_it() {
    let (lines, _) = lives(Options { format: LineFormat::Text, ..options() });
    let ends = lines.iter().filter_map(|line| line.split_once(" INFO "));
    let ends = ends.filter_map(|(_, rest)| rest.split_once(" | ")).map(|(words, _)| words);
    let ends: Vec<_> = ends.filter(|words| !words.contains("allowed")).collect();
    assert_eq!(
        ends,
        [
            "renew until 2027-01-15T08:00:30Z",
            "release done",
            "settle done",
            "settle done before",
            "cancel done",
            "claim too early, good from 2027-01-15T08:00:10Z",
            "claim spent",
            "claim late, booked for 2027-01-15T09:00:00Z",
            "reset \"R#requests\" \"R#tokens/h\" \"R#concurrent\"",
        ]
    );
}

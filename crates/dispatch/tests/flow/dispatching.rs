//! Tests of the dispatcher alone.

use sluicegate_core::Span;
use sluicegate_dispatch::{DelayMode, JobEvent, Strategy, Tier};

use sluicegate_testkit::{eventually_is_async, eventually_ok};

use crate::support::{BOOKED, DISPATCH, FlowBench, Provider, WORKER, done, worker_of};

fn numbered(number: usize) -> String {
    format!("{{\"id\":\"job-{number}\"}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_over_the_limit_arrive_after_the_delay() {
    let mut bench = FlowBench::new(&[("gemini", DISPATCH, "20/min")]);
    bench.produce("raw", numbered, 50).await;
    let delay = DelayMode::Fixed(Span::from_secs(5));
    bench.dispatch(Strategy::Fixed, &["gemini"], delay).await;
    bench.wait_for("gemini", 20, 30).await;
    bench.wait_for("raw", 0, 0).await;
    // A message is counted and tracked only after it was sent.
    eventually_is_async(|| bench.metrics.dispatched("gemini"), (20, 30)).await;
    eventually_is_async(|| bench.metrics.per_minute("gemini", Tier::Dispatch), 20).await;
    let tracked = |event| {
        let seen = (0..50).filter_map(|n| bench.tracker.find(&format!("job-{n}")));
        let seen = seen.map(|record| record.status);
        let seen = seen.filter(|seen| seen.queue == "gemini" && seen.event == event);
        seen.filter(|seen| seen.until.is_some() == (event == JobEvent::Delayed)).count()
    };
    eventually_is_async(|| (tracked(JobEvent::Dispatched), tracked(JobEvent::Delayed)), (20, 30))
        .await;
    bench.wait_for("gemini", 50, 0).await;
    bench.finish().await;
}

/// A slack that grows shows a store that is too far away, before bookings are lost to it.
#[tokio::test(flavor = "multi_thread")]
async fn lead_and_slack_of_both_tiers_are_metrics() {
    let mut bench = FlowBench::new(&[("gemini", WORKER, "10/s")]);
    bench.dispatch(Strategy::Fixed, &["gemini"], DelayMode::Booked).await;
    for _ in 0..2 {
        bench.work(worker_of("gemini"), Provider::new(|_, _| done())).await;
    }
    let text = bench.registry.render();
    for tier in ["dispatch", "worker"] {
        for metric in ["lead", "slack"] {
            let series = format!(
                "sluicegate_provider_{metric}_seconds{{provider=\"gemini\",tier=\"{tier}\"}} "
            );
            let values: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix(&series)).collect();
            let [value] = values[..] else { panic!("{series}: {values:?}") };
            assert!(value.parse::<f64>().expect("a number") > 0.0, "{series}{value}");
        }
    }
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_provider_does_not_block_other_providers() {
    let limits = [("slow", DISPATCH, "1/h"), ("fast", DISPATCH, "1000/s")];
    let mut bench = FlowBench::new(&limits);
    let body = |number| {
        let provider = if number < 100 { "slow" } else { "fast" };
        format!("{{\"id\":\"job-{number}\",\"provider\":\"{provider}\"}}")
    };
    bench.produce("raw", body, 120).await;
    let strategy = Strategy::MessageBased { field: "provider".to_owned() };
    bench.dispatch(strategy, &["slow", "fast"], DelayMode::Fixed(Span::from_secs(3_000))).await;
    bench.wait_for("fast", 20, 0).await;
    bench.wait_for("slow", 1, 99).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_a_valid_provider_is_a_dead_letter_with_its_reason() {
    let mut bench = FlowBench::new(&[("gemini", DISPATCH, "100/s")]);
    let body = |number| match number {
        0 => "no json".to_owned(),
        1 => "{\"provider\":\"mistral\"}".to_owned(),
        _ => "{\"provider\":\"gemini\"}".to_owned(),
    };
    bench.produce("raw", body, 3).await;
    let strategy = Strategy::MessageBased { field: "provider".to_owned() };
    bench.dispatch(strategy, &["gemini"], DelayMode::Fixed(Span::from_secs(1))).await;
    bench.wait_for("gemini", 1, 0).await;
    bench.wait_for("raw", 0, 0).await;
    let raw = bench.queue("raw").await;
    eventually_ok(async || {
        let dead = raw.dead_depth().await.expect("a depth").ready;
        (dead == 2).then_some(()).ok_or(format!("{dead} letters"))
    })
    .await;
    let mut letters = Vec::new();
    raw.dead_letters()
        .list(&Default::default(), 10, |letter| {
            letters.push((letter.original(), letter.failure().expect("a reason").message.clone()));
        })
        .await
        .expect("letters");
    letters.sort();
    let expected = [
        (b"no json".to_vec(), "the body is not JSON".to_owned()),
        (
            b"{\"provider\":\"mistral\"}".to_vec(),
            "unknown provider \"mistral\" (known: gemini)".to_owned(),
        ),
    ];
    assert_eq!(letters, expected);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headroom_tries_the_next_provider_before_it_delays() {
    let limits = [("a", DISPATCH, "20/min"), ("b", DISPATCH, "10/min")];
    let mut bench = FlowBench::new(&limits);
    bench.produce("raw", numbered, 40).await;
    bench.dispatch(Strategy::Headroom, &["a", "b"], DelayMode::Fixed(Span::from_secs(600))).await;
    bench.wait_for("raw", 0, 0).await;
    let at_once = || (bench.metrics.dispatched("a").0, bench.metrics.dispatched("b").0);
    let later = || bench.metrics.dispatched("a").1 + bench.metrics.dispatched("b").1;
    eventually_is_async(|| (at_once(), later()), ((20, 10), 10)).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headroom_books_where_it_is_soonest() {
    let limits = [("a", BOOKED, "10/min"), ("b", BOOKED, "10/s")];
    let mut bench = FlowBench::new(&limits);
    bench.produce("raw", numbered, 40).await;
    bench.dispatch(Strategy::Headroom, &["a", "b"], DelayMode::Booked).await;
    bench.wait_for("raw", 0, 0).await;
    eventually_ok(async || {
        let (a, b) = (bench.metrics.dispatched("a"), bench.metrics.dispatched("b"));
        (a.0 + a.1 + b.0 + b.1 == 40).then_some(()).ok_or(format!("{a:?} {b:?}"))
    })
    .await;
    // Messages are booked concurrently, so a few may go to the provider that was soonest just
    // before.
    let slow = bench.metrics.dispatched("a");
    assert!(slow.0 <= 10 && slow.1 < 30, "{slow:?}");
    bench.finish().await;
}

/// A rate or an alert on a missing series shows nothing.
#[tokio::test(flavor = "multi_thread")]
async fn counters_are_shown_as_0_before_anything_is_counted() {
    let mut bench = FlowBench::new(&[("p", DISPATCH, "10/s")]);
    bench.dispatch(Strategy::Fixed, &["p"], DelayMode::Booked).await;
    bench.work(worker_of("p"), Provider::new(|_, _| done())).await;
    let text = bench.registry.render();
    let dispatcher = ["checked", "allowed", "delayed"].map(|what| ("dispatch", what));
    let worker = ["checked", "allowed", "blocked", "requeued", "done", "failed", "dead", "pauses"];
    for (part, what) in dispatcher.into_iter().chain(worker.map(|what| ("worker", what))) {
        let line = format!("sluicegate_{part}_{what}_total{{provider=\"p\"}} 0");
        assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
    }
    bench.finish().await;
}

/// They were called "no JSON".
#[tokio::test(flavor = "multi_thread")]
async fn json_that_is_deep_or_begins_with_a_byte_order_mark_is_dispatched() {
    let mut bench = FlowBench::new(&[("p", DISPATCH, "100/s")]);
    let bodies = [
        format!("{{\"a\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000)),
        "\u{feff}{\"a\":1}".to_owned(),
    ];
    bench.produce("raw", |number| bodies[number].clone(), 2).await;
    bench.dispatch(Strategy::Fixed, &["p"], DelayMode::Booked).await;
    bench.wait_for("p", 2, 0).await;
    bench.finish().await;
}

/// All of them went to one provider.
#[tokio::test(flavor = "multi_thread")]
async fn headroom_with_a_fixed_delay_spreads_what_finds_no_room() {
    let limits = [("a", DISPATCH, "5/h"), ("b", DISPATCH, "5/h")];
    let mut bench = FlowBench::new(&limits);
    bench.produce("raw", numbered, 50).await;
    let delay = DelayMode::Fixed(Span::from_secs(3_600));
    bench.dispatch(Strategy::Headroom, &["a", "b"], delay).await;
    bench.wait_for("a", 5, 20).await;
    bench.wait_for("b", 5, 20).await;
    bench.finish().await;
}

//! Tests of what the metrics count, and of their text format.

use std::collections::BTreeSet;
use std::path::Path;

use sluicegate_core::query::{Cost, RequestId};
use sluicegate_core::time::Clock;
use sluicegate_core::{Id, Span, Store};
use sluicegate_server::metrics::{Metrics, Options};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionEvent, FailureEvent, Observer, Operation};

use crate::observed::{Ask, Limiter, all_of, rule};
use crate::{WHO, check, series, watching};

#[test]
fn a_page_reads_as_prometheus_expects_it() {
    let limiter = Limiter::new(all_of([
        rule("USER_MODEL", &["userId", "modelId"], &["2/min", "100/h"]),
        rule("GLOBAL_MODEL", &["modelId"], &["10000/h"]),
    ]));
    let metrics = watching(&limiter);
    for (id, micros) in [(1, 40), (2, 2_000), (3, 3_000_000)] {
        let latency = Span::from_micros(micros);
        limiter.ask(&metrics, &Ask { latency, ..Ask::new(id, WHO) });
    }
    metrics.config_loaded("file", 7);
    metrics.config_failed();
    let expected = r#"# HELP rate_limiter_config_load_failures_total Invalid configurations that were not loaded; the previous one stayed in force.
# TYPE rate_limiter_config_load_failures_total counter
rate_limiter_config_load_failures_total 1
# HELP rate_limiter_config_version The version of the configuration in force.
# TYPE rate_limiter_config_version gauge
rate_limiter_config_version{source="file"} 7
# HELP rate_limiter_fallback_total Decisions by an outage policy because the store did not answer.
# TYPE rate_limiter_fallback_total counter
rate_limiter_fallback_total{mode="closed"} 0
rate_limiter_fallback_total{mode="local"} 0
rate_limiter_fallback_total{mode="open"} 0
rate_limiter_fallback_total{mode="unlimited"} 0
# HELP rate_limiter_latency_seconds Duration of decisions and of later operations such as settle and release.
# TYPE rate_limiter_latency_seconds histogram
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.00005"} 1
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.0001"} 1
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.0002"} 1
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.0005"} 1
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.001"} 1
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.002"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.005"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.01"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.02"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.05"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.1"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.2"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="0.5"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="1"} 2
rate_limiter_latency_seconds_bucket{operation="acquire",le="+Inf"} 3
rate_limiter_latency_seconds_sum{operation="acquire"} 3.00204
rate_limiter_latency_seconds_count{operation="acquire"} 3
# HELP rate_limiter_requests_total Decisions: allowed for each charged rule, denied for the rule that was hit.
# TYPE rate_limiter_requests_total counter
rate_limiter_requests_total{result="allowed",scope="GLOBAL_MODEL",model_id="gpt4",tenant_id="acme"} 2
rate_limiter_requests_total{result="allowed",scope="USER_MODEL",model_id="gpt4",tenant_id="acme"} 2
rate_limiter_requests_total{result="denied",scope="USER_MODEL",model_id="gpt4",tenant_id="acme"} 1
# HELP rate_limiter_usage_ratio Used / limit as last seen, of the tightest window of the rule.
# TYPE rate_limiter_usage_ratio gauge
rate_limiter_usage_ratio{scope="GLOBAL_MODEL",model_id="gpt4",tenant_id="acme"} 0.0002
rate_limiter_usage_ratio{scope="USER_MODEL",model_id="gpt4",tenant_id="acme"} 1
# HELP sluicegate_config_last_load_successful 1 if the last loaded configuration was valid, 0 if not.
# TYPE sluicegate_config_last_load_successful gauge
sluicegate_config_last_load_successful 0
# HELP sluicegate_decisions_total Decisions, each counted once, independent of the number of rules.
# TYPE sluicegate_decisions_total counter
sluicegate_decisions_total{operation="acquire",result="allowed"} 2
sluicegate_decisions_total{operation="acquire",result="denied"} 1
# HELP sluicegate_denials_total Denials by the limit that was hit.
# TYPE sluicegate_denials_total counter
sluicegate_denials_total{scope="USER_MODEL",unit="requests",window="min"} 1
# HELP sluicegate_replays_total Replayed ids, which are not charged again.
# TYPE sluicegate_replays_total counter
sluicegate_replays_total 0
# HELP sluicegate_store_full_total Decisions on a counter that several keys share, because the store had no room for one each.
# TYPE sluicegate_store_full_total counter
sluicegate_store_full_total{result="allowed"} 0
sluicegate_store_full_total{result="denied"} 0
# HELP sluicegate_user_requests Requests of a user in a window, as each of its admissions saw them.
# TYPE sluicegate_user_requests histogram
sluicegate_user_requests_bucket{window="hour",le="1"} 1
sluicegate_user_requests_bucket{window="hour",le="2"} 2
sluicegate_user_requests_bucket{window="hour",le="5"} 2
sluicegate_user_requests_bucket{window="hour",le="10"} 2
sluicegate_user_requests_bucket{window="hour",le="20"} 2
sluicegate_user_requests_bucket{window="hour",le="50"} 2
sluicegate_user_requests_bucket{window="hour",le="100"} 2
sluicegate_user_requests_bucket{window="hour",le="200"} 2
sluicegate_user_requests_bucket{window="hour",le="500"} 2
sluicegate_user_requests_bucket{window="hour",le="1000"} 2
sluicegate_user_requests_bucket{window="hour",le="2000"} 2
sluicegate_user_requests_bucket{window="hour",le="5000"} 2
sluicegate_user_requests_bucket{window="hour",le="10000"} 2
sluicegate_user_requests_bucket{window="hour",le="+Inf"} 2
sluicegate_user_requests_sum{window="hour"} 3
sluicegate_user_requests_count{window="hour"} 2
sluicegate_user_requests_bucket{window="minute",le="1"} 1
sluicegate_user_requests_bucket{window="minute",le="2"} 2
sluicegate_user_requests_bucket{window="minute",le="5"} 2
sluicegate_user_requests_bucket{window="minute",le="10"} 2
sluicegate_user_requests_bucket{window="minute",le="20"} 2
sluicegate_user_requests_bucket{window="minute",le="50"} 2
sluicegate_user_requests_bucket{window="minute",le="100"} 2
sluicegate_user_requests_bucket{window="minute",le="200"} 2
sluicegate_user_requests_bucket{window="minute",le="500"} 2
sluicegate_user_requests_bucket{window="minute",le="1000"} 2
sluicegate_user_requests_bucket{window="minute",le="2000"} 2
sluicegate_user_requests_bucket{window="minute",le="5000"} 2
sluicegate_user_requests_bucket{window="minute",le="10000"} 2
sluicegate_user_requests_bucket{window="minute",le="+Inf"} 2
sluicegate_user_requests_sum{window="minute"} 3
sluicegate_user_requests_count{window="minute"} 2
"#;
    assert_eq!(metrics.render(), expected);
}

#[test]
fn what_nothing_feeds_is_not_shown() {
    let rendered = Metrics::new(&Options::default()).render();
    let named = |line: &&str| !line.starts_with('#') && !line.contains("fallback");
    let names: Vec<_> = rendered.lines().filter(named).collect();
    assert_eq!(
        names,
        [
            "rate_limiter_config_load_failures_total 0",
            "sluicegate_config_last_load_successful 1",
            "sluicegate_replays_total 0",
            "sluicegate_store_full_total{result=\"allowed\"} 0",
            "sluicegate_store_full_total{result=\"denied\"} 0",
        ]
    );
}

#[test]
fn users_are_seen_by_how_much_they_use_and_never_by_name() {
    let limits = ["10/min", "100/h", "5.00 USD/day", "900 tokens/min", "5/s"];
    let rules = [rule("USER", &["userId"], &limits), rule("ALL", &[], &["50/min"])];
    let limiter = Limiter::new(all_of(rules));
    let metrics = watching(&limiter);
    for id in 1..=3 {
        let cost = Cost { money: "0.02".parse().ok(), ..Cost::default() };
        limiter.ask(&metrics, &Ask { cost, ..Ask::new(id, &[("userId", "ann")]) });
    }
    let shown = metrics.render();
    for expected in [
        r#"sluicegate_user_requests_bucket{window="minute",le="1"} 1"#,
        r#"sluicegate_user_requests_bucket{window="minute",le="2"} 2"#,
        r#"sluicegate_user_requests_count{window="hour"} 3"#,
        r#"sluicegate_user_cost_usd_bucket{window="day",le="0.05"} 2"#,
        r#"sluicegate_user_cost_usd_count{window="day"} 3"#,
    ] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    assert!(!shown.contains("ann") && !shown.contains("requests_count{window=\"day\"}"));
}

/// Returns every metric that an alert rule uses.
fn asked_for(rules: &str) -> BTreeSet<&str> {
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let ours = words.filter(|word| !word.contains(':'));
    ours.filter(|word| word.starts_with("sluicegate_") || word.starts_with("rate_limiter_"))
        .map(|word| word.trim_end_matches("_bucket"))
        .collect()
}

#[test]
fn alerts_ask_for_metrics_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rules = root.join("../../deploy/prometheus/alerts.yaml");
    let rules = std::fs::read_to_string(rules).expect("the alerts");
    let sources = std::fs::read_dir(root.join("src/metrics")).expect("the metrics");
    let sources = sources.map(|entry| entry.expect("a file").path());
    let others =
        ["app", "dispatch", "gateway"].map(|name| root.join(format!("../{name}/src/metrics.rs")));
    let sources = sources.chain(others);
    let sources: String =
        sources.map(|path| std::fs::read_to_string(path).expect("text")).collect();
    let asked = asked_for(&rules);
    assert!(asked.len() > 8, "{asked:?}");
    for metric in asked {
        assert!(sources.contains(&format!("\"{metric}\"")), "nothing counts {metric}");
    }
}

#[test]
fn a_replay_charges_nothing_and_is_counted_as_such() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["5/h"])]));
    let metrics = watching(&limiter);
    let id = RequestId::of_caller(Id::from_bits(1), RequestId::KEEP);
    for _ in 0..3 {
        limiter.ask(&metrics, &Ask { id, ..Ask::new(1, &[]) });
    }
    let one = r#"{result="allowed",scope="R",model_id="",tenant_id=""} 1"#;
    check(&metrics, "rate_limiter_requests_total", &[one]);
    check(&metrics, "sluicegate_replays_total", &["2"]);
    check(&metrics, "sluicegate_decisions_total", &[r#"{operation="acquire",result="allowed"} 3"#]);
}

#[test]
fn a_peek_is_timed_but_charges_no_rule() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["1/h"])]));
    let metrics = watching(&limiter);
    let peek = Ask { operation: Operation::Peek, ..Ask::new(1, WHO) };
    limiter.ask(&metrics, &peek);
    limiter.ask(&metrics, &Ask { operation: Operation::Book, ..Ask::new(2, WHO) });
    limiter.ask(&metrics, &Ask { id: RequestId::ours(Id::from_bits(3)), ..peek });
    let one = r#"{result="allowed",scope="R",model_id="gpt4",tenant_id="acme"} 1"#;
    check(&metrics, "rate_limiter_requests_total", &[one]);
    check(
        &metrics,
        "sluicegate_decisions_total",
        &[
            r#"{operation="book",result="allowed"} 1"#,
            r#"{operation="peek",result="allowed"} 1"#,
            r#"{operation="peek",result="denied"} 1"#,
        ],
    );
}

#[test]
fn what_never_fits_is_told_apart_from_what_does_not_fit_now() {
    let limiter = Limiter::new(all_of([rule("BUDGET", &[], &["100 tokens/min", "1.00 USD/day"])]));
    let metrics = watching(&limiter);
    let money = Some(Default::default());
    let cost = |tokens| Cost { input_tokens: Some(tokens), money, ..Cost::default() };
    for (id, tokens) in [(1, 101), (2, 100), (3, 1)] {
        limiter.ask(&metrics, &Ask { cost: cost(tokens), ..Ask::new(id, &[]) });
    }
    check(
        &metrics,
        "rate_limiter_requests_total",
        &[
            r#"{result="allowed",scope="BUDGET",model_id="",tenant_id=""} 1"#,
            r#"{result="denied",scope="BUDGET",model_id="",tenant_id=""} 1"#,
            r#"{result="never",scope="BUDGET",model_id="",tenant_id=""} 1"#,
        ],
    );
    let by_window = r#"{scope="BUDGET",unit="tokens",window="min"} 2"#;
    check(&metrics, "sluicegate_denials_total", &[by_window]);
}

#[test]
fn a_shadow_rule_counts_what_it_would_have_denied() {
    let mut shadow = rule("STRICT", &[], &["1/h"]);
    shadow.shadow = true;
    let limiter = Limiter::new(all_of([shadow, rule("LOOSE", &[], &["3/h"])]));
    let metrics = watching(&limiter);
    for id in 1..=5 {
        limiter.ask(&metrics, &Ask::new(id, &[]));
    }
    check(
        &metrics,
        "rate_limiter_requests_total",
        &[
            r#"{result="allowed",scope="LOOSE",model_id="",tenant_id=""} 3"#,
            r#"{result="allowed",scope="STRICT",model_id="",tenant_id=""} 3"#,
            r#"{result="denied",scope="LOOSE",model_id="",tenant_id=""} 2"#,
        ],
    );
    check(&metrics, "sluicegate_shadow_denials_total", &[r#"{scope="STRICT"} 2"#]);
}

#[test]
fn a_rule_counts_once_however_many_counters_it_charges() {
    let limits = ["10/min", "4/h burst 4", "20 concurrent", "1000 tokens/min"];
    let limiter = Limiter::new(all_of([rule("ALL", &[], &limits)]));
    let metrics = watching(&limiter);
    for id in 1..=3 {
        limiter.ask(&metrics, &Ask::new(id, &[]));
    }
    let allowed = r#"{result="allowed",scope="ALL",model_id="",tenant_id=""} 3"#;
    check(&metrics, "rate_limiter_requests_total", &[allowed]);
    let tightest = r#"{scope="ALL",model_id="",tenant_id=""} 0.75"#;
    check(&metrics, "rate_limiter_usage_ratio", &[tightest]);
    check(&metrics, "sluicegate_concurrent_peak", &[r#"{scope="ALL"} 3"#]);
}

#[test]
fn several_queries_in_one_plan_are_one_decision() {
    let limiter = Limiter::new(all_of([
        rule("USER", &["userId"], &["10/min"]),
        rule("ALL", &[], &["100/min"]),
    ]));
    let metrics = watching(&limiter);
    let [ann, bob] = ["ann", "bob"].map(|user| [("userId", user)]);
    let queries = [Ask::new(1, &ann).query(), Ask::new(2, &bob).query()];
    let now = limiter.clock.now();
    let plan = limiter.rules.plan_together(&queries[0], &queries[1..], now).expect("a plan");
    let decision = pollster::block_on(limiter.store.acquire(&plan)).expect("a decision");
    let (query, plan, decision) = (&queries[0], &plan, &decision);
    let answer = Answer::new(&limiter.rules, plan, decision);
    let (operation, latency) = (Operation::Acquire, Span::ZERO);
    metrics.on_decision(&DecisionEvent {
        query,
        answer,
        operation,
        claimant: None,
        started: sluicegate_core::Timestamp::default(),
        latency,
        trace: None,
    });
    check(
        &metrics,
        "rate_limiter_requests_total",
        &[
            r#"{result="allowed",scope="ALL",model_id="",tenant_id=""} 1"#,
            r#"{result="allowed",scope="USER",model_id="",tenant_id=""} 1"#,
        ],
    );
    let two_of_a_hundred = r#"{scope="ALL",model_id="",tenant_id=""} 0.02"#;
    assert!(series(&metrics, "rate_limiter_usage_ratio").contains(&two_of_a_hundred.to_owned()));
}

#[test]
fn a_store_that_does_not_answer_is_an_error_of_every_rule() {
    let limiter = Limiter::new(all_of([
        rule("A", &[], &["10/min", "5 concurrent"]),
        rule("B", &["modelId"], &["10/min"]),
    ]));
    let metrics = watching(&limiter);
    let query = Ask::new(1, WHO).query();
    let plan = limiter.rules.plan(&query, limiter.clock.now()).expect("a plan");
    let (operation, latency) = (Operation::Acquire, Span::from_millis(45));
    metrics.on_failure(&FailureEvent {
        query: &query,
        plan: &plan,
        operation,
        started: sluicegate_core::Timestamp::default(),
        latency,
        trace: None,
    });
    check(
        &metrics,
        "rate_limiter_requests_total",
        &[
            r#"{result="error",scope="A",model_id="gpt4",tenant_id="acme"} 1"#,
            r#"{result="error",scope="B",model_id="gpt4",tenant_id="acme"} 1"#,
        ],
    );
    check(&metrics, "sluicegate_decisions_total", &[r#"{operation="acquire",result="error"} 1"#]);
}

#[test]
fn a_reload_keeps_what_was_counted() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["1/h"])]));
    let metrics = watching(&limiter);
    limiter.ask(&metrics, &Ask::new(1, &[]));
    limiter.ask(&metrics, &Ask::new(2, &[]));
    let reloaded = all_of([rule("R", &[], &["2/h", "1/day"]), rule("NEW", &[], &["5/h"])]);
    let limiter = Limiter { rules: Limiter::new(reloaded).rules, ..limiter };
    metrics.register_rules(&limiter.rules);
    limiter.ask(&metrics, &Ask::new(3, &[]));
    check(
        &metrics,
        "rate_limiter_requests_total",
        &[
            r#"{result="allowed",scope="R",model_id="",tenant_id=""} 1"#,
            r#"{result="denied",scope="R",model_id="",tenant_id=""} 2"#,
        ],
    );
    check(
        &metrics,
        "sluicegate_denials_total",
        &[
            r#"{scope="R",unit="requests",window="day"} 1"#,
            r#"{scope="R",unit="requests",window="h"} 1"#,
        ],
    );
}

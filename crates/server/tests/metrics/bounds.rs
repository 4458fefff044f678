//! Tests that clients cannot create an unlimited number of series.

use sluicegate_core::rule::{InlineRule, Pattern};
use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Store};
use sluicegate_server::metrics::{INLINE, Metrics, Options};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionEvent, Observer, Operation};

use crate::observed::{Ask, Limiter, all_of, rule};
use crate::{check, series, watching};

#[test]
fn rules_of_clients_are_one_scope_even_under_our_names() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["100000/h"])]));
    let metrics = watching(&limiter);
    for id in 0..1_000 {
        let name = if id == 0 { "R".to_owned() } else { format!("made up {id}") };
        let limits = ["5/h".parse().expect("a limit")];
        let inline = vec![InlineRule::new(name, &id.to_string(), limits).expect("a rule")];
        limiter.ask(&metrics, &Ask { inline, ..Ask::new(id, &[]) });
    }
    let requests = series(&metrics, "rate_limiter_requests_total");
    let expected = ["R", INLINE].map(|scope| {
        format!(r#"{{result="allowed",scope="{scope}",model_id="",tenant_id=""}} 1000"#)
    });
    assert_eq!(requests, expected);
}

#[test]
fn a_rule_of_ours_called_like_them_makes_no_second_series() {
    let limiter = Limiter::new(all_of([rule(INLINE, &[], &["5/h"])]));
    let metrics = watching(&limiter);
    limiter.ask(&metrics, &Ask::new(1, &[]));
    let one = r#"{result="allowed",scope="~inline",model_id="",tenant_id=""} 1"#;
    check(&metrics, "rate_limiter_requests_total", &[one]);
}

#[test]
fn values_that_rules_name_can_not_be_displaced() {
    let named = rule("VIP", &[], &["100000/h"])
        .when("tenantId", Pattern::OneOf(vec!["vip1".into(), "vip2".into()]));
    let limiter = Limiter::new(all_of([named, rule("ALL", &[], &["100000/h"])]));
    let metrics = Metrics::new(&Options { values_max: 3, ..Options::default() });
    metrics.register_rules(&limiter.rules);
    for tenant in ["junk1", "junk2", "junk3", "vip2"] {
        limiter.ask(&metrics, &Ask::new(1, &[("tenantId", tenant)]));
    }
    check(
        &metrics,
        "rate_limiter_requests_total",
        &[
            r#"{result="allowed",scope="ALL",model_id="",tenant_id="junk1"} 1"#,
            r#"{result="allowed",scope="ALL",model_id="",tenant_id="other"} 2"#,
            r#"{result="allowed",scope="ALL",model_id="",tenant_id="vip2"} 1"#,
            r#"{result="allowed",scope="VIP",model_id="",tenant_id="vip2"} 1"#,
        ],
    );
}

#[test]
fn label_values_can_not_break_out() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["100/h"])]));
    let metrics = watching(&limiter);
    let forged = "a\"} 1\nrate_limiter_requests_total{result=\"denied\\";
    limiter.ask(&metrics, &Ask::new(1, &[("modelId", forged)]));
    check(
        &metrics,
        "rate_limiter_requests_total",
        &[
            r#"{result="allowed",scope="R",model_id="a\"} 1\nrate_limiter_requests_total{result=\"denied\\",tenant_id=""} 1"#,
        ],
    );
}

#[test]
fn secrets_are_not_labels() {
    let limiter = Limiter::new(all_of([rule("KEY", &["apiKey"], &["100/h"])]));
    let secret = ["apiKey", "tenantId"].map(str::to_owned).into();
    let metrics = Metrics::new(&Options { secret, ..Options::default() });
    metrics.register_rules(&limiter.rules);
    let who = [("apiKey", "sk-s3cret-1"), ("tenantId", "s3cret-2"), ("token", "s3cret-3")];
    limiter.ask(&metrics, &Ask::new(1, &who));
    let rendered = metrics.render();
    assert!(rendered.contains(r#"scope="KEY",model_id="",tenant_id=""} 1"#), "{rendered}");
    assert!(!rendered.contains("s3cret"), "{rendered}");
}

#[test]
fn a_million_random_ids_make_no_series() {
    let rules =
        [rule("USER", &["userId"], &["1000000/h"]), rule("ALL", &[], &["9000000/h burst 9"])];
    let limiter = Limiter::new(all_of(rules));
    let metrics = watching(&limiter);
    let mut random = 1_u64;
    let mut next = || {
        // Xorshift: different ids without a crate for them.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let decide = |ids: [u64; 2]| {
        let [model, tenant] = ids.map(|id| id.to_string());
        // One user, so that a flood would fill the metrics and not the store.
        let who = [("userId", "u"), ("modelId", &*model), ("tenantId", &*tenant)];
        let ask = Ask::new(1, &who);
        let query = ask.query();
        let plan = limiter.rules.plan(&query, limiter.clock.now()).expect("a plan");
        let decision = pollster::block_on(limiter.store.peek(&plan));
        let (query, plan, decision) = (&query, &plan, &decision.expect("a decision"));
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
    };
    for _ in 0..20_000 {
        decide([next() % 300, next() % 300]);
    }
    let lines = metrics.render().lines().count();
    for _ in 0..1_000_000 {
        decide([next(), next()]);
    }
    assert_eq!(metrics.render().lines().count(), lines, "series");
    let requests = series(&metrics, "rate_limiter_requests_total");
    // Two rules; at most 1,000 pairs, and each of 102 models with other tenants.
    assert!(requests.len() <= 2 * (1_000 + 102), "{}", requests.len());
}

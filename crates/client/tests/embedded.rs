//! Tests of the limiter in this process, in memory and on a manual clock.

use std::time::Duration;

use sluicegate::{
    Admission, Cost, Decision, DecisionSource, Denial, ErrorKind, Limiter, ManualClock, Request,
    Rule, Unit,
};

const LIMITS: &str = "
limits:
  - name: user
    rules: [{name: USER, per: [userId], limit: [10/min, 100/h]}]
  - name: model
    rules: [{name: MODEL, per: [modelId], limit: 15/min}]
  - name: slots
    rules: [{name: SLOTS, per: [modelId], limit: 20 concurrent, lease: 30s}]
  - name: money
    rules: [{name: BUDGET, per: [userId], limit: 5.00 USD/day}]
prices: {default: {input: 0.20 USD/1M, output: 0.60 USD/1M}}
";

fn limited() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::builder().yaml(LIMITS).clock(&clock).build().expect("valid limits"), clock)
}

fn slots(limit: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let rule = Rule::new("SLOTS").limit(limit).lease(Duration::from_secs(30));
    (Limiter::builder().rule(rule).clock(&clock).build().expect("valid limits"), clock)
}

const NOBODY: [(&str, &str); 0] = [];

async fn allowed<'a>(limiter: &Limiter, request: impl Into<Request<'a>>) -> Admission {
    limiter.acquire(request).await.expect("a decision").admit().expect("it is allowed")
}

async fn denied<'a>(limiter: &Limiter, request: impl Into<Request<'a>>) -> Denial {
    match limiter.acquire(request).await.expect("a decision") {
        Decision::Denied(denial) => denial,
        Decision::Allowed(admission) => panic!("{admission:?}"),
    }
}

/// Lets the tasks of a single-threaded runtime run until they wait for the clock.
async fn settle_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_denial_names_the_limit_the_rule_and_the_time() {
    let (limiter, clock) = limited();
    let request = [("userId", "u1"), ("modelId", "gpt4")];
    for left in (0..10).rev() {
        let admission = allowed(&limiter, request).await;
        let minute = &admission.scopes()[0];
        assert_eq!((minute.rule.as_str(), minute.limit.as_str()), ("USER", "10/min"));
        assert_eq!((minute.unit, minute.max, minute.remaining), (Unit::Requests, 10, left));
        let names: Vec<_> = admission.headers().iter().map(|(name, _)| *name).collect();
        let expected = [
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "ratelimit-policy",
            "ratelimit",
        ];
        assert_eq!(names, expected);
    }
    clock.advance(Duration::from_millis(500));
    let denial = denied(&limiter, request).await;
    assert_eq!(denial.to_string(), "Rate limit exceeded: 10 requests per minute");
    assert_eq!((denial.status(), denial.reason()), (429, "HIT_USER_LIMIT"));
    assert_eq!(denial.rule(), Some("USER"));
    assert_eq!(denial.retry_after(), Some(Duration::from_millis(59_500)));
    assert!(denial.headers().contains(&("retry-after", "60".to_owned())));
    assert!(denial.body().starts_with(r#"{"#) && denial.body().contains(r#""retryAfterMs":59500"#));
    clock.advance(Duration::from_millis(59_500));
    drop(allowed(&limiter, request).await);
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.denied, stats.failed_open), (11, 1, 0));
}

#[tokio::test]
async fn a_denied_request_is_charged_on_no_limit() {
    let (limiter, _clock) = limited();
    for user in ["u1", "u2"] {
        for _ in 0..7 {
            drop(allowed(&limiter, [("userId", user), ("modelId", "gpt4")]).await);
        }
    }
    drop(allowed(&limiter, [("userId", "u3"), ("modelId", "gpt4")]).await);
    assert_eq!(
        denied(&limiter, [("userId", "u3"), ("modelId", "gpt4")]).await.rule(),
        Some("MODEL")
    );
    let usage = limiter.usage([("userId", "u3"), ("modelId", "other")]).await.expect("usage");
    let used: Vec<_> = usage.iter().map(|scope| (scope.rule.as_str(), scope.used)).collect();
    assert_eq!(used, [("USER", 1), ("USER", 1), ("MODEL", 0), ("SLOTS", 0), ("BUDGET", 0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifteen_concurrent_calls_are_ten_admissions_and_five_denials() {
    let (limiter, _clock) = limited();
    let calls: Vec<_> = (0..15)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                limiter.acquire([("userId", "u1"), ("modelId", "gpt4")]).await.expect("decided")
            })
        })
        .collect();
    let mut admitted = 0;
    for call in calls {
        admitted += u32::from(call.await.expect("no panic").is_allowed());
    }
    assert_eq!(admitted, 10);
}

#[tokio::test]
async fn an_estimate_is_replaced_by_the_actual_cost() {
    let (limiter, clock) = limited();
    let money = async |limiter: &Limiter| {
        let usage = limiter.usage([("userId", "u1"), ("modelId", "gpt4")]).await.expect("usage");
        usage.into_iter().find(|scope| scope.rule == "BUDGET").expect("a budget").used
    };
    let request = Request::from([("userId", "u1"), ("modelId", "gpt4")])
        .reserve(Cost::new().input_tokens(868).output_tokens_max(500));
    let admission = allowed(&limiter, request.clone()).await;
    assert_eq!(money(&limiter).await, 868 * 200 + 500 * 600);
    clock.advance(Duration::from_secs(2));
    let actual = Cost::new().query_tokens(12).context_tokens(856).output_tokens(145);
    let settled = admission.settle(actual).await.expect("settled");
    assert_eq!(money(&limiter).await, 260_600);
    assert!(settled.recorded && !settled.replayed);
    let expected = serde_json::json!({
        "request_duration_seconds": 2.0,
        "api_cost_usd": 0.0002606,
        "rate_limited": false,
        "query_tokens": 12,
        "context_tokens": 856,
        "output_tokens": 145,
    });
    assert_eq!(serde_json::Value::from(settled.metadata()), expected);

    let admission = allowed(&limiter, request.clone()).await;
    let estimate = Cost::new().output_tokens_max(5);
    let error = admission.settle(estimate).await.expect_err("it is no actual cost");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    drop(allowed(&limiter, request.clone()).await);
    let before = money(&limiter).await;
    allowed(&limiter, request).await.cancel().await.expect("cancelled");
    assert_eq!(money(&limiter).await, before, "a cancelled request costs nothing");
}

#[tokio::test]
async fn five_hundred_calls_cost_what_they_cost() {
    let rule = Rule::new("BUDGET").per(["userId"]).limit("5.00 USD/day");
    let limiter = Limiter::builder().rule(rule).build().expect("valid");
    for _ in 0..500 {
        let cost = Cost::new().money("0.0002606".parse().expect("an amount"));
        drop(allowed(&limiter, Request::from([("userId", "u1")]).cost(cost)).await);
    }
    let usage = limiter.usage([("userId", "u1")]).await.expect("usage");
    assert_eq!(usage[0].used, 130_300_000, "0.13030 USD");
}

#[tokio::test]
async fn a_slot_is_held_until_its_admission_is_dropped() {
    let (limiter, _clock) = slots("2 concurrent");
    let (first, second) = (allowed(&limiter, NOBODY).await, allowed(&limiter, NOBODY).await);
    assert_eq!(denied(&limiter, NOBODY).await.reason(), "HIT_SLOTS_LIMIT");
    drop(first);
    let third = allowed(&limiter, NOBODY).await;
    assert!(!limiter.check(NOBODY).await.expect("a decision").is_allowed());
    second.release().await.expect("released");
    third.cancel().await.expect("cancelled");
    assert_eq!(limiter.usage(NOBODY).await.expect("usage")[0].used, 0);
    assert_eq!(limiter.stats().unsettled, 0);
}

#[tokio::test]
async fn a_lease_is_renewed_while_its_admission_lives() {
    let (limiter, clock) = slots("1 concurrent");
    let admission = allowed(&limiter, NOBODY).await;
    settle_tasks().await;
    for _ in 0..10 {
        clock.advance(Duration::from_secs(20));
        settle_tasks().await;
    }
    let denial = denied(&limiter, NOBODY).await;
    assert_eq!(denial.rule(), Some("SLOTS"), "200 seconds are much more than the lease");
    drop(admission);
    drop(allowed(&limiter, NOBODY).await);
}

#[test]
fn without_a_runtime_slots_are_freed_at_once_and_leases_end() {
    let (limiter, clock) = slots("1 concurrent");
    let admission = pollster::block_on(allowed(&limiter, NOBODY));
    drop(admission);
    // Nothing renews it, as if its process had died.
    std::mem::forget(pollster::block_on(allowed(&limiter, NOBODY)));
    assert_eq!(pollster::block_on(denied(&limiter, NOBODY)).rule(), Some("SLOTS"));
    clock.advance(Duration::from_secs(30));
    drop(pollster::block_on(allowed(&limiter, NOBODY)));
}

#[tokio::test]
async fn the_same_id_is_counted_once() {
    let rule = Rule::new("USER").per(["userId"]).limit("2/min");
    let limiter = Limiter::builder().rule(rule).build().expect("valid");
    let request = || Request::from([("userId", "u1")]).id("order-17");
    assert!(!allowed(&limiter, request()).await.is_replayed());
    assert!(allowed(&limiter, request()).await.is_replayed());
    let scopes = limiter.usage([("userId", "u1")]).await.expect("usage");
    assert_eq!(scopes[0].used, 1);
    let other = Request::from([("userId", "u2")]).id("order-17");
    let error = limiter.acquire(other).await.expect_err("other work under the same id");
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn a_limit_of_the_request_is_checked_beside_those_of_the_rules() {
    let (limiter, _clock) = limited();
    let request =
        || Request::from([("userId", "u1"), ("modelId", "gpt4")]).limit("TRIAL", "u1", "1/min");
    drop(allowed(&limiter, request()).await);
    assert_eq!(denied(&limiter, request()).await.reason(), "HIT_TRIAL_LIMIT");
    let wrong = Request::from([("userId", "u1"), ("modelId", "m")]).limit("X", "k", "ten a day");
    let error = limiter.acquire(wrong).await.expect_err("no limit");
    assert!(error.to_string().starts_with("limit \"ten a day\": "), "{error}");
}

/// Six pieces of work under `2/min`, while the clock advances in steps.
async fn take_turns(step: Duration) {
    let clock = ManualClock::new();
    let rule = Rule::new("VENDOR").per(["provider"]).limit("2/min");
    let limiter = Limiter::builder().rule(rule).clock(&clock).build().expect("valid");
    let request = [("provider", "acme")];
    for _ in 0..2 {
        assert!(limiter.until_ready(request).await.expect("decided").is_allowed());
    }
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (limiter, clock) = (limiter.clone(), clock.clone());
            tokio::spawn(async move {
                let turn = limiter.until_ready(request).await.expect("decided");
                assert!(turn.is_allowed());
                clock.elapsed()
            })
        })
        .collect();
    settle_tasks().await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    let mut starts = Vec::new();
    for waiting in waiting {
        while !waiting.is_finished() {
            clock.advance(step);
            settle_tasks().await;
        }
        starts.push(waiting.await.expect("no panic"));
    }
    starts.sort();
    assert!(starts[0] >= Duration::from_secs(60), "{starts:?}");
    assert!(starts[2] >= starts[0] + Duration::from_secs(60), "{starts:?}");
}

#[tokio::test]
async fn work_waits_for_its_turn() {
    take_turns(Duration::from_millis(5)).await;
}

#[tokio::test]
async fn work_gets_its_turn_also_if_the_clock_jumps() {
    take_turns(Duration::from_secs(3)).await;
}

#[tokio::test]
async fn a_booking_is_given_back_if_nobody_waits_for_it() {
    let clock = ManualClock::new();
    let rule = Rule::new("VENDOR").per(["provider"]).limit("1/min");
    let limiter = Limiter::builder().rule(rule).clock(&clock).build().expect("valid");
    let request = [("provider", "acme")];
    drop(limiter.until_ready(request).await.expect("decided"));
    let leaves = limiter.clone();
    let waiting = tokio::spawn(async move { drop(leaves.until_ready(request).await) });
    settle_tasks().await;
    waiting.abort();
    settle_tasks().await;
    clock.advance(Duration::from_secs(61));
    assert!(limiter.acquire(request).await.expect("decided").is_allowed());
}

#[tokio::test]
async fn a_wait_that_is_too_long_and_work_that_never_fits_are_denied() {
    let clock = ManualClock::new();
    let rule = Rule::new("VENDOR").per(["provider"]).limit("2/min");
    let limiter = Limiter::builder().rule(rule).clock(&clock).build().expect("valid");
    let request = || Request::from([("provider", "acme")]);
    drop(limiter.until_ready(request().cost(Cost::new().requests(2))).await.expect("decided"));
    let waits = request().wait_max(Duration::from_secs(30));
    let denial = limiter.until_ready(waits).await.expect("decided").admit().expect_err("too long");
    assert_eq!((denial.status(), denial.reason()), (429, "WAIT_TOO_LONG"));
    assert!(denial.retry_after().is_some_and(|wait| wait > Duration::from_secs(59)));
    let large = request().cost(Cost::new().requests(3));
    let denial = limiter.until_ready(large).await.expect("decided").admit().expect_err("never");
    assert_eq!((denial.reason(), denial.retry_after()), ("EXCEEDS_VENDOR_LIMIT", None));
}

#[tokio::test]
async fn until_ready_waits_for_a_slot() {
    let (limiter, clock) = slots("1 concurrent");
    let first = allowed(&limiter, NOBODY).await;
    let waits = limiter.clone();
    let waiting = tokio::spawn(async move { waits.until_ready(NOBODY).await.expect("decided") });
    settle_tasks().await;
    assert!(!waiting.is_finished());
    drop(first);
    while !waiting.is_finished() {
        clock.advance(Duration::from_millis(150));
        settle_tasks().await;
    }
    let second = waiting.await.expect("no panic").admit().expect("it is allowed");
    assert!(!limiter.acquire(NOBODY).await.expect("decided").is_allowed());
    drop(second);
    assert!(limiter.acquire(NOBODY).await.expect("decided").is_allowed());
}

#[tokio::test]
async fn explain_shows_the_rules_that_apply_and_why_others_do_not() {
    let limiter = Limiter::builder()
        .group(
            "user",
            [
                Rule::new("PREMIUM").when("tier", "premium*").per(["userId"]).limit("100/min"),
                Rule::new("USER").per(["userId"]).limit("10/min"),
            ],
        )
        .optional(["tier"])
        .build()
        .expect("valid");
    let explained = limiter.explain([("userId", "u1"), ("tier", "free")]).await.expect("explained");
    assert_eq!(
        explained.to_string(),
        "user:\n  USER applies: 10/min on USER:u1#requests\n  PREMIUM does not apply: tier is \
         free, but the rule requires premium*\n"
    );
    let premium = [("userId", "u1"), ("tier", "premium-2")];
    let explained = limiter.explain(premium).await.expect("explained");
    assert_eq!(explained.groups[0].matched[0].rule, "PREMIUM");
    assert_eq!(explained.groups[0].skipped[0].because, "rule PREMIUM comes first and applies");
}

#[tokio::test]
async fn a_reload_keeps_the_usage_and_bad_rules_are_refused() {
    let (limiter, _clock) = limited();
    let request = [("userId", "u1"), ("modelId", "gpt4")];
    for _ in 0..4 {
        drop(allowed(&limiter, request).await);
    }
    limiter.reload_yaml("limits: [{name: x}]").expect_err("no rules");
    limiter.reload_yaml(&LIMITS.replace("10/min", "5/min")).expect("valid");
    drop(allowed(&limiter, request).await);
    assert_eq!(
        denied(&limiter, request).await.detail(),
        "Rate limit exceeded: 5 requests per minute"
    );
    limiter.reload_yaml("enabled: false").expect("valid");
    drop(allowed(&limiter, NOBODY).await);
}

#[tokio::test]
async fn invalid_requests_are_errors_that_name_the_field() {
    let (limiter, _clock) = limited();
    let long = "x".repeat(257);
    for (request, message) in [
        (Request::from([("userId", "u1")]), "modelId: is required"),
        (Request::from([("userId", ""), ("modelId", "m")]), "userId: is empty"),
        (Request::from([("userId", long.as_str()), ("modelId", "m")]), "userId: has 257 bytes"),
        (Request::from([("userId", "u"), ("userId", "u")]), "userId: is given twice"),
        (Request::from([("userId", "u1"), ("modelId", "m")]).id(""), "id: must have 1 to 256"),
        (
            Request::from([("userId", "u1"), ("modelId", "m")]).hold(Duration::ZERO),
            "hold: must be from",
        ),
        (
            Request::from([("userId", "u"), ("modelId", "m")])
                .cost(Cost::new().input_tokens(1).cached_input_tokens(2)),
            "cost.cachedInputTokens: is a part of inputTokens but larger",
        ),
    ] {
        for error in [
            limiter.acquire(request.clone()).await.expect_err(message),
            limiter.until_ready(request.clone()).await.expect_err(message),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }
}

#[test]
fn invalid_configurations_are_errors_with_all_mistakes() {
    let error =
        Limiter::from_yaml("limits: [{name: a, rules: [{name: R, per: [], limit: 5}]}]\nx: 1")
            .expect_err("two mistakes");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    let text = error.to_string();
    assert!(text.contains("unknown key") && text.contains("limit"), "{text}");
    for (yaml, message) in [
        (
            "workers: [{provider: p, queue: q, handler: {command: [cat]}}]",
            "workers: the library only",
        ),
        ("store: {kind: memory, snapshot: {path: x}}", "store.snapshot and store.overrides: "),
        ("prices: {file: does-not-exist.json}", "prices.file does-not-exist.json: "),
    ] {
        let error = Limiter::from_yaml(yaml).expect_err(yaml);
        assert!(error.to_string().starts_with(message), "{error}");
    }
    let rules =
        Limiter::builder().rule(Rule::new("A").limit("1/x")).rule(Rule::new("B").limit("0/s"));
    let text = rules.build().expect_err("two wrong limits").to_string();
    assert!(text.starts_with("rule A: limit \"1/x\": ") && text.contains("\nrule B: "), "{text}");
    let text = Limiter::builder().build().expect_err("nothing").to_string();
    assert!(text.starts_with("no rules: "), "{text}");
    let both = Limiter::builder().yaml(LIMITS).rule(Rule::new("A").limit("1/s"));
    let text = both.build().expect_err("both").to_string();
    assert!(text.starts_with("rule and group: can't be combined with yaml"), "{text}");
    let same =
        Limiter::builder().rule(Rule::new("A").limit("1/s")).rule(Rule::new("A").limit("1/s"));
    assert!(same.build().expect_err("twice").to_string().contains("already used"));
}

#[tokio::test]
async fn a_file_of_a_service_can_be_shared() {
    let text = format!("listen: {{http: 127.0.0.1:1}}\nlog: {{level: warn}}\n{LIMITS}");
    let limiter = Limiter::from_yaml(&text).expect("valid");
    let admission = allowed(&limiter, [("userId", "u1"), ("modelId", "gpt4")]).await;
    assert_eq!(admission.source(), DecisionSource::Store);
}

//! Tests of token, money and concurrency limits over REST, from the reservation to the settlement.
//!
//! Known bugs of other limiters have a test that is named after them.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_core::price::{ModelPrices, PriceBook, Rates, UnknownModels};
use sluicegate_core::rule::{EstimateMode, Group, OnExpiry, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Limit, Limiter};
use sluicegate_server::{auth, rest};
use sluicegate_service::Service;
use sluicegate_store::AnyStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use tower::ServiceExt as _;

/// 2027-01-15 08:00:00 UTC.
const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);

struct Api {
    router: Router,
    clock: Arc<ManualClock>,
}

/// Prices of 0.20 and 0.60 dollars per million tokens, and none for the model `new`.
fn example() -> PriceBook {
    let price = |text: &str| text.parse().expect("a price");
    let rates = Rates::new(price("0.20 USD/1M"), price("0.60 USD/1M"));
    let mut book = PriceBook::default();
    book.insert("gpt*", ModelPrices::new(rates, Vec::new()));
    book
}

fn rule(name: &str, limits: &[&str]) -> Rule {
    Rule::new(name, limits.iter().map(|text| text.parse::<Limit>().expect(text))).per(&["userId"])
}

impl Api {
    fn of(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::priced(rules, example())
    }

    fn priced(rules: impl IntoIterator<Item = Rule>, book: PriceBook) -> Self {
        let groups = rules.into_iter().map(|rule| Group::new(rule.name.clone(), [rule])).collect();
        let settings = Settings { prices: Arc::new(book), ..Settings::default() };
        let rules = Ruleset::new(groups, settings).expect("rules");
        let clock = Arc::new(ManualClock::new(EPOCH));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let service =
            Service::new(Limiter::new(rules, AnyStore::custom(store)), clock.clone(), Vec::new());
        let router = rest::router(Arc::new(service), rest::BODY_LIMIT);
        Self { router: router.layer(auth::require(Arc::default())), clock }
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, HeaderMap, String) {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        (head.status, head.headers, String::from_utf8(bytes.to_vec()).expect("UTF-8"))
    }

    async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, _, text) = self.post(path, &body).await;
        assert_eq!(status, StatusCode::OK, "{path} {body} {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    async fn acquire(&self, cost: Value) -> Value {
        self.ok("/v1/acquire", ask(cost)).await
    }

    async fn refused(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let (status, _, text) = self.post(path, &body).await;
        let problem: Value = serde_json::from_str(&text).expect("JSON");
        (status, problem["field"].clone())
    }

    /// Returns the usage of every limit.
    async fn used(&self) -> Vec<Value> {
        let usage = self.ok("/v1/usage", json!({ "dimensions": ann() })).await;
        usage["scopes"].as_array().expect("scopes").iter().map(|s| s["current"].clone()).collect()
    }
}

fn ann() -> Value {
    json!({ "userId": "ann", "modelId": "gpt-4o" })
}

fn ask(cost: Value) -> Value {
    json!({ "dimensions": ann(), "cost": cost, "hold": "30s" })
}

#[tokio::test]
async fn an_estimate_is_priced_and_settled_by_the_book() {
    let api = Api::of([rule("BUDGET", &["5.00 USD/day"])]);
    let held = api.acquire(json!({ "inputTokens": 1_000, "maxTokens": 1_000 })).await;
    assert_eq!(api.used().await, [json!(0.0008)]);
    api.clock.advance(Span::from_millis(1_250));
    let actual = json!({ "queryTokens": 12, "contextTokens": 856, "outputTokens": 145 });
    let settle = json!({ "handle": held["handle"], "cost": actual });
    let (_, _, text) = api.post("/v1/settle", &settle).await;
    assert_eq!(
        text,
        "{\"replayed\":false,\"metadata\":{\"request_duration_seconds\":1.250000,\
         \"api_cost_usd\":0.0002606,\"rate_limited\":false,\"query_tokens\":12,\
         \"context_tokens\":856,\"output_tokens\":145}}"
    );
    assert_eq!(api.used().await, [json!(0.0002606)]);
}

#[tokio::test]
async fn five_hundred_of_the_example_cost_0_13030() {
    let api = Api::of([rule("BUDGET", &["5.00 USD/day"])]);
    for _ in 0..500 {
        let held = api.acquire(json!({ "inputTokens": 868, "maxTokens": 1_000 })).await;
        let cost = json!({ "inputTokens": 868, "outputTokens": 145 });
        api.ok("/v1/settle", json!({ "handle": held["handle"], "cost": cost })).await;
    }
    assert_eq!(api.used().await, [json!(0.1303)]);
}

#[tokio::test]
async fn requests_tokens_money_and_a_slot_are_one_plan() {
    let limits = ["10/min", "5000 tokens/min", "0.01 USD/day", "2 concurrent"];
    let api = Api::of([rule("ALL", &limits)]);
    let held = api.acquire(json!({ "inputTokens": 1_000, "maxTokens": 1_000 })).await;
    assert_eq!(held["allowed"], true);
    assert_eq!(api.used().await, [json!(1), json!(2_000), json!(0.0008), json!(1)]);
    let denied = api.acquire(json!({ "inputTokens": 1_000, "maxTokens": 2_001 })).await;
    assert_eq!((&denied["allowed"], &denied["scopeHit"]), (&json!(false), &json!("ALL")));
    assert_eq!(api.used().await, [json!(1), json!(2_000), json!(0.0008), json!(1)]);
    let cost = json!({ "inputTokens": 500, "outputTokens": 100 });
    api.ok("/v1/settle", json!({ "handle": held["handle"], "cost": cost })).await;
    assert_eq!(api.used().await, [json!(1), json!(600), json!(0.00016), json!(0)]);
}

#[tokio::test]
async fn a_model_without_a_price_is_refused_where_money_is_limited() {
    let api = Api::of([rule("BUDGET", &["5.00 USD/day"])]);
    let asks = |cost: Value| json!({ "dimensions": { "userId": "ann", "modelId": "new" }, "cost": cost, "hold": "30s" });
    for cost in [json!({}), json!({ "inputTokens": 10 })] {
        let refused = api.refused("/v1/acquire", asks(cost)).await;
        assert_eq!(refused, (StatusCode::BAD_REQUEST, json!("modelId")));
    }
    let held = api.ok("/v1/acquire", asks(json!({ "usd": "0.01" }))).await;
    for (cost, field) in [
        (json!({ "inputTokens": 1, "outputTokens": 1 }), "cost.usd"),
        (json!({ "inputTokens": 1 }), "cost.outputTokens"),
        (json!({ "outputTokens": 1 }), "cost.inputTokens"),
    ] {
        let body = json!({ "handle": held["handle"], "cost": cost });
        let refused = api.refused("/v1/settle", body).await;
        assert_eq!(refused, (StatusCode::BAD_REQUEST, json!(field)));
    }
    assert_eq!(api.used().await, [json!(0.01)], "the estimate stands until it is known better");
    let free =
        Api::priced([rule("BUDGET", &["5.00 USD/day"])], PriceBook::new(UnknownModels::Free));
    assert_eq!(free.ok("/v1/acquire", asks(json!({ "inputTokens": 10 }))).await["allowed"], true);
    let tokens = Api::of([rule("TOKENS", &["100 tokens/day"])]);
    let answer = tokens.ok("/v1/acquire", asks(json!({ "inputTokens": 10 }))).await;
    assert_eq!(answer["allowed"], true, "no money is limited");
}

#[tokio::test]
async fn settled_twice_is_once_and_settled_differently_is_a_conflict() {
    let api = Api::of([rule("BUDGET", &["5.00 USD/day"])]);
    let held = api.acquire(json!({ "usd": "1.00" })).await;
    let settle = |usd: &str| json!({ "handle": held["handle"], "cost": { "usd": usd } });
    assert_eq!(api.ok("/v1/settle", settle("0.25")).await["replayed"], false);
    assert_eq!(api.ok("/v1/settle", settle("0.25")).await["replayed"], true);
    let (status, _, text) = api.post("/v1/settle", &settle("0.26")).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(text.contains("was settled before, with another cost"), "{text}");
    assert_eq!(api.used().await, [json!(0.25)]);
}

#[tokio::test]
async fn a_denial_in_a_status_mode_has_words_and_every_field() {
    let api = Api::of([rule("USER", &["10/min", "100/h"]), rule("BUDGET", &["0.01 USD/day"])]);
    for _ in 0..10 {
        api.acquire(json!({ "usd": "0.0001" })).await;
    }
    api.clock.advance(Span::from_millis(20_500));
    let body = ask(json!({ "usd": "0.0001" }));
    let (status, headers, text) = api.post("/v1/acquire?status=429", &body).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answer["detail"], "Rate limit exceeded: 10 requests per minute");
    let field = |name: &str| headers[name].to_str().expect("text").to_owned();
    assert_eq!(field("retry-after"), "40", "when the oldest leaves, not the whole window");
    assert_eq!(field("x-ratelimit-limit"), "10");
    assert_eq!(field("x-ratelimit-remaining"), "0");
    assert_eq!(field("x-ratelimit-reset"), "1800000060");
    assert_eq!(
        field("ratelimit-policy"),
        "\"USER-10/min\";q=10;w=60, \"USER-100/h\";q=100;w=3600, \
         \"BUDGET\";q=10000000;w=86400;qu=\"nano-USD\""
    );
    assert_eq!(
        field("ratelimit"),
        "\"USER-10/min\";r=0;t=40, \"USER-100/h\";r=90;t=3580, \"BUDGET\";r=9000000;t=86956"
    );
}

#[tokio::test]
async fn a_first_request_refused_because_its_estimate_is_larger_than_the_limit_is_told_what_fits() {
    let api = Api::of([rule("BUDGET", &["0.001 USD/day"]), rule("TOKENS", &["50000 tokens/min"])]);
    let cost = json!({ "inputTokens": 2_000, "maxTokens": 4_096 });
    let never = api.acquire(cost).await;
    assert_eq!(never["reason"], "EXCEEDS_BUDGET_LIMIT");
    // 0.001 dollars are 2,000 tokens in and 1,000 out.
    assert_eq!(never["maxOutputTokens"], 1_000);
    assert_eq!(never["maxOutputTokensEver"], 1_000);
    let advice = "the request never fits; an output of at most 1000 tokens fits now";
    assert_eq!(never["advice"], advice);
    let fits = api.acquire(json!({ "inputTokens": 2_000, "maxTokens": 1_000 })).await;
    assert_eq!(fits["allowed"], true);
}

#[tokio::test]
async fn a_denial_says_what_would_fit_now_or_when_all_of_it_would() {
    let api = Api::of([rule("TOKENS", &["10000 tokens/min"])]);
    api.acquire(json!({ "inputTokens": 7_000 })).await;
    let body = ask(json!({ "inputTokens": 1_000, "maxTokens": 2_000, "n": 2 }));
    let (_, _, text) = api.post("/v1/check?status=429", &body).await;
    let denied: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(denied["maxOutputTokens"], 1_000, "of each of two answers");
    assert_eq!(
        denied["detail"],
        "Rate limit exceeded: 10000 tokens per minute; an output of at most 1000 tokens fits now; \
         the whole request fits in 60 s"
    );
    api.acquire(json!({ "inputTokens": 3_000 })).await;
    let full = api.acquire(json!({ "inputTokens": 1, "maxTokens": 1 })).await;
    assert_eq!(full["maxOutputTokens"], 0);
    assert_eq!(full["advice"], "no output fits now; the whole request fits in 60 s");
}

#[tokio::test]
async fn max_tokens_1_with_max_completion_tokens_10000_does_not_reserve_2_tokens() {
    let api = Api::of([rule("TOKENS", &["50000 tokens/min"])]);
    api.acquire(json!({ "inputTokens": 1, "maxTokens": 1, "maxCompletionTokens": 10_000 })).await;
    assert_eq!(api.used().await, [json!(10_001)]);
}

#[tokio::test]
async fn a_reservation_that_nobody_settles_does_not_block_a_user_at_twice_the_real_spend() {
    let refund = Rule { on_expiry: OnExpiry::Refund, ..rule("BUDGET", &["1.00 USD/day"]) };
    let api = Api::of([refund]);
    api.acquire(json!({ "usd": "0.60" })).await;
    let held = api.acquire(json!({ "usd": "0.40" })).await;
    api.ok("/v1/settle", json!({ "handle": held["handle"], "cost": { "usd": "0.30" } })).await;
    assert_eq!(api.used().await, [json!(0.9)]);
    api.clock.advance(Span::from_secs(31));
    assert_eq!(api.used().await, [json!(0.3)], "only what was really spent");
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_pay_nothing() {
    let api = Api::of([rule("BUDGET", &["1.00 USD/day"])]);
    api.acquire(json!({ "usd": "0.60" })).await;
    api.clock.advance(Span::from_secs(3_600));
    assert_eq!(api.used().await, [json!(0.6)], "the cost is unknown: the estimate stays");
}

#[tokio::test]
async fn a_concurrency_denial_does_not_burn_a_request() {
    let api = Api::of([rule("USER", &["10/min", "1 concurrent"])]);
    assert_eq!(api.acquire(json!({})).await["allowed"], true);
    for _ in 0..5 {
        assert_eq!(api.acquire(json!({})).await["allowed"], false);
    }
    assert_eq!(api.used().await, [json!(1), json!(1)]);
}

#[tokio::test]
async fn concurrency_slots_are_not_leaked_until_the_store_is_restarted() {
    let api = Api::of([Rule { lease: Span::from_secs(5), ..rule("USER", &["1 concurrent"]) }]);
    assert_eq!(api.acquire(json!({})).await["allowed"], true);
    api.clock.advance(Span::from_secs(5));
    assert_eq!(api.acquire(json!({})).await["allowed"], true, "its holder never came back");
}

#[tokio::test]
async fn an_optimistic_budget_admits_while_anything_is_left() {
    let optimistic = Rule { mode: EstimateMode::Optimistic, ..rule("BUDGET", &["0.01 USD/day"]) };
    let api = Api::of([optimistic]);
    assert_eq!(api.acquire(json!({ "usd": "0.009" })).await["allowed"], true);
    assert_eq!(api.acquire(json!({ "usd": "0.009" })).await["allowed"], true);
    assert_eq!(api.acquire(json!({ "usd": "0.009" })).await["allowed"], false);
}

#[tokio::test]
async fn tenants_and_models_are_shown_where_they_stand_and_a_reset_forgets() {
    let tenant = Rule { per: vec!["tenantId".into()], ..rule("TENANT", &["10/min", "9 USD/day"]) };
    let model = Rule { per: vec!["modelId".into()], ..rule("MODEL", &["100/h"]) };
    let api = Api::of([tenant, model]);
    let dimensions = json!({ "tenantId": "t1", "modelId": "gpt-4o" });
    let body = json!({ "dimensions": dimensions, "cost": { "inputTokens": 10 } });
    assert_eq!(api.ok("/v1/acquire", body).await["allowed"], true);
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = api.router.clone().oneshot(request).await.expect("infallible");
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        serde_json::from_slice::<Value>(&bytes).expect("JSON")
    };
    let used = |current: u64, limit: u64| json!({ "current": current, "limit": limit, "remaining": limit - current });
    let shown = get("/v1/tenants/t1/usage").await;
    assert_eq!(shown["tenant_id"], "t1");
    assert_eq!(shown["limits"], json!({ "minute": used(1, 10) }));
    assert_eq!(shown["cost"]["today"], 0.000002);
    let shown = get("/v1/models/gpt-4o/usage").await;
    assert_eq!((&shown["model_id"], &shown["limits"]["hour"]), (&json!("gpt-4o"), &used(1, 100)));
    // Usage without a price can be reset, too.
    let other = json!({ "dimensions": { "tenantId": "t1", "modelId": "new" } });
    api.ok("/v1/reset?all=true", other).await;
    assert_eq!(get("/v1/tenants/t1/usage").await["limits"]["minute"], used(0, 10));
}

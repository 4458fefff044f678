//! Tests of the answers while the store does not answer.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_core::outage::{OutagePolicies, OutagePolicy};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::Timestamp;
use sluicegate_core::{Limit, Limiter};
use sluicegate_server::metrics::{Metrics, Options};
use sluicegate_server::{auth, rest};
use sluicegate_service::Service;
use sluicegate_store::AnyStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::{ManualClock, SwitchableStore};
use tower::ServiceExt as _;

const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A service without its store: the policy is closed, but local for INTERNAL callers.
fn cut_off() -> (Router, Metrics) {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let memory = || Memory::with_clock(Capacity::default(), clock.clone());
    let internal = ("INTERNAL".to_owned(), OutagePolicy::Local);
    let outage = OutagePolicies { by_client_type: [internal].into(), ..OutagePolicies::default() };
    let limit = "16/h".parse::<Limit>().expect("a limit");
    let groups = vec![Group::new("all", [Rule::new("USER", [limit]).per(&["userId"])])];
    let rules = Ruleset::new(groups, Settings { outage, ..Settings::default() }).expect("rules");
    let metrics = Metrics::new(&Options::default());
    metrics.register_rules(&rules);
    let store = SwitchableStore::new(memory());
    store.set_on(false);
    let limiter = Limiter::new(rules, AnyStore::custom(store))
        .with_fallback(AnyStore::custom(memory()), clock.clone());
    let service = Service::new(limiter, clock, vec![Box::new(metrics.clone())]);
    let router = rest::router(Arc::new(service), rest::BODY_LIMIT);
    (router.layer(auth::require(Arc::default())), metrics)
}

async fn post(router: &Router, path: &str, body: Value) -> (StatusCode, HeaderMap, Value) {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))
        .expect("a request");
    let response = router.clone().oneshot(request).await.expect("infallible");
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    (head.status, head.headers, serde_json::from_slice(&bytes).expect("JSON"))
}

#[tokio::test]
async fn a_closed_denial_has_its_own_reason_and_is_never_a_429() {
    let (router, metrics) = cut_off();
    let ann = json!({ "userId": "ann", "modelId": "m" });
    let (status, _, answer) = post(&router, "/rate-limit/allow", ann.clone()).await;
    let told = (&answer["allowed"], &answer["reason"], &answer["outage"]);
    assert_eq!(status, StatusCode::OK);
    assert_eq!(told, (&json!(false), &json!("STORE_UNAVAILABLE"), &json!("closed")));
    // NGINX auth_request answers 500 to every status other than 2xx, 401 and 403.
    for (mode, expected) in [("429", 503), ("403", 403)] {
        let path = format!("/rate-limit/allow?status={mode}");
        let (status, headers, problem) = post(&router, &path, ann.clone()).await;
        assert_eq!((status.as_u16(), &problem["status"]), (expected, &json!(expected)));
        assert_eq!(headers[header::RETRY_AFTER], "1");
        assert!(problem["detail"].as_str().expect("text").starts_with("STORE_UNAVAILABLE"));
    }
    let (_, _, answer) = post(&router, "/v1/acquire", json!({ "dimensions": ann })).await;
    assert_eq!(answer["reason"], "STORE_UNAVAILABLE", "{answer}");
    let shown = metrics.render();
    assert!(shown.contains("rate_limiter_fallback_total{mode=\"closed\"} 4"), "{shown}");
    assert!(shown.contains("result=\"error\""), "{shown}");
}

#[tokio::test]
async fn forward_auth_answers_an_outage_by_policy_with_a_status_that_proxies_understand() {
    let (router, _) = cut_off();
    let ask = async |query: &str| {
        let uri = format!("/v1/forward-auth?modelId=m&userId=@x-user&{query}");
        let request = Request::get(uri).header("x-user", "ann").body(Body::empty());
        router.clone().oneshot(request.expect("a request")).await.expect("infallible").status()
    };
    assert_eq!(ask("status=403").await, StatusCode::FORBIDDEN);
    assert_eq!(ask("").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ask("status=403&clientType=INTERNAL").await, StatusCode::OK);
}

#[tokio::test]
async fn a_client_type_with_a_share_of_its_own_gets_that_share() {
    let (router, metrics) = cut_off();
    let body = json!({ "userId": "ann", "modelId": "m", "clientType": "INTERNAL" });
    // Half of 16, divided by the four nodes that are the default.
    for (expected, remaining) in [(true, 1), (true, 0), (false, 0)] {
        let (_, _, answer) = post(&router, "/rate-limit/allow", body.clone()).await;
        let told = (&answer["allowed"], &answer["outage"], &answer["remaining"]);
        assert_eq!(told, (&json!(expected), &json!("local"), &json!(remaining)), "{answer}");
    }
    assert!(metrics.render().contains("rate_limiter_fallback_total{mode=\"local\"} 3"));
}

#[tokio::test]
async fn what_only_the_store_can_do_is_an_error_that_is_counted() {
    let (router, metrics) = cut_off();
    let (status, _, problem) =
        post(&router, "/v1/book", json!({ "dimensions": { "userId": "ann" } })).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
    let shown = metrics.render();
    assert!(shown.contains("result=\"error\""), "{shown}");
}

#[tokio::test]
async fn a_ban_holds_while_the_store_does_not_answer() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let memory = || Memory::with_clock(Capacity::default(), clock.clone());
    let outage = OutagePolicies { default: OutagePolicy::Unlimited, ..OutagePolicies::default() };
    let ban = Rule::new("BLOCKED", ["0".parse::<Limit>().expect("a ban")]).per(&["userId"]);
    let settings = Settings { outage, ..Settings::default() };
    let rules = Ruleset::new(vec![Group::new("all", [ban])], settings).expect("rules");
    let metrics = Metrics::new(&Options::default());
    metrics.register_rules(&rules);
    let store = SwitchableStore::new(memory());
    store.set_on(false);
    let limiter = Limiter::new(rules, AnyStore::custom(store))
        .with_fallback(AnyStore::custom(memory()), clock.clone());
    let service = Service::new(limiter, clock.clone(), vec![Box::new(metrics.clone())]);
    let router = rest::router(Arc::new(service), rest::BODY_LIMIT);
    let router = router.layer(auth::require(Arc::default()));
    let ann = json!({ "userId": "ann", "modelId": "m" });
    let (_, _, answer) = post(&router, "/rate-limit/allow", ann).await;
    assert_eq!((&answer["allowed"], &answer["reason"]), (&json!(false), &json!("BANNED")));
    let text = metrics.render();
    assert!(text.contains("result=\"banned\",scope=\"BLOCKED\""), "{text}");
}

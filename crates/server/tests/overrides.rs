//! Tests of `/v1/overrides`, called without a socket.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_core::Limiter;
use sluicegate_core::ruleset::Ruleset;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_server::overrides::Overrides;
use sluicegate_server::{auth, rest};
use sluicegate_service::Service;
use sluicegate_store::AnyStore;
use sluicegate_store::FileOverrideStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use tower::ServiceExt as _;

/// 2027-01-15 08:00:00 UTC.
const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);

type Clock = Arc<ManualClock>;

/// Two nodes with separate counters and one override store.
struct World {
    nodes: [Router; 2],
    overrides: [Arc<Overrides>; 2],
    clock: Clock,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = Arc::new(ManualClock::new(EPOCH));
        let path = folder.path().join("overrides.jsonl");
        let overrides_store =
            Arc::new(FileOverrideStore::open_with_clock(&path, clock.clone()).expect("a store"));
        let node = || {
            let store = Memory::with_clock(Capacity::default(), clock.clone());
            let limiter = Limiter::new(Ruleset::default_rules(), AnyStore::custom(store));
            let service = Arc::new(Service::new(limiter, clock.clone(), Vec::new()));
            let overrides = Arc::new(Overrides::new(service.clone(), overrides_store.clone()));
            let router = rest::router(service, rest::BODY_LIMIT)
                .merge(rest::overrides::router(overrides.clone(), rest::BODY_LIMIT));
            (router.layer(auth::require(Arc::default())), overrides)
        };
        let [(first, one), (second, two)] = [node(), node()];
        Self { nodes: [first, second], overrides: [one, two], clock, _folder: folder }
    }

    async fn ask(&self, node: usize, method: Method, path: &str, body: Value) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .expect("a request");
        let response = self.nodes[node].clone().oneshot(request).await.expect("infallible");
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&bytes).expect("JSON"))
    }

    /// Returns the limit of a user on a node.
    async fn limit(&self, node: usize, user: &str) -> Value {
        let who = json!({ "userId": user, "modelId": "gpt4" });
        self.ask(node, Method::POST, "/rate-limit/allow", who).await.1["effectiveLimit"].clone()
    }

    async fn set(&self, body: Value) -> (u16, Value) {
        self.ask(0, Method::POST, "/v1/overrides", body).await
    }
}

fn premium() -> Value {
    json!({
        "rule": "USER_MODEL",
        "when": { "userId": "premium_*" },
        "limit": "500/h",
        "expiresIn": "2h",
        "reason": "premium plan",
    })
}

#[tokio::test]
async fn an_override_applies_here_at_once_and_elsewhere_when_it_is_looked_for() {
    let world = World::new();
    let (status, set) = world.set(premium()).await;
    assert_eq!(status, 201, "{set}");
    assert_eq!(set["expiresAt"], "2027-01-15T10:00:00Z");
    assert_eq!(world.limit(0, "premium_ann").await, 500);
    assert_eq!(world.limit(0, "ann").await, 100);
    assert_eq!(world.limit(1, "premium_ann").await, 100, "it has not looked yet");
    world.overrides[1].refresh().await;
    assert_eq!(world.limit(1, "premium_ann").await, 500);

    let (_, listed) = world.ask(1, Method::GET, "/v1/overrides", Value::Null).await;
    assert_eq!(listed["overrides"], json!([set]));
    let path = format!("/v1/overrides/{}", set["id"].as_str().expect("an id"));
    assert_eq!(world.ask(1, Method::DELETE, &path, Value::Null).await.0, 200);
    assert_eq!(world.limit(1, "premium_ann").await, 100);
    world.overrides[0].refresh().await;
    assert_eq!(world.limit(0, "premium_ann").await, 100);
    assert_eq!(world.ask(0, Method::DELETE, &path, Value::Null).await.0, 404);
}

#[tokio::test]
async fn an_override_ends_by_itself() {
    let world = World::new();
    world.set(premium()).await;
    world.clock.set(EPOCH + Span::from_secs(2 * 3_600 - 1));
    world.overrides[0].refresh().await;
    assert_eq!(world.limit(0, "premium_ann").await, 500);
    world.clock.set(EPOCH + Span::from_secs(2 * 3_600));
    world.overrides[0].refresh().await;
    assert_eq!(world.limit(0, "premium_ann").await, 100);
}

#[tokio::test]
async fn usage_goes_on_in_the_counter_of_the_rule() {
    let world = World::new();
    let who = json!({ "userId": "bob", "modelId": "gpt4" });
    let allow = || world.ask(0, Method::POST, "/rate-limit/allow", who.clone());
    assert_eq!(allow().await.1["remaining"], 99);
    let body = json!({ "rule": "USER_MODEL", "when": { "userId": ["bob", "eve"] },
        "limit": ["2/h"], "reason": "too noisy" });
    assert_eq!(world.set(body).await.0, 201);
    assert_eq!(allow().await.1["remaining"], 0);
    assert_eq!(allow().await.1["allowed"], false);
}

#[tokio::test]
async fn a_secret_value_is_stored_and_shown_as_its_hash() {
    let world = World::new();
    let ban = |key: &str| json!({ "rule": "USER_MODEL", "when": { "apiKey": key }, "limit": 0, "reason": "leaked" });
    let (status, set) = world.set(ban("sk-live-1")).await;
    assert_eq!(status, 201, "{set}");
    let hash = set["when"]["apiKey"].as_str().expect("a condition");
    assert!(hash.starts_with("hash:") && !set.to_string().contains("sk-live"), "{set}");
    let (_, listed) = world.ask(1, Method::GET, "/v1/overrides", Value::Null).await;
    assert_eq!(listed["overrides"], json!([set]));
    for node in [0, 1] {
        for (key, allowed) in [("sk-live-1", false), ("sk-live-2", true)] {
            let who = json!({ "userId": "u", "modelId": "m", "apiKey": key });
            let (_, answer) = world.ask(node, Method::POST, "/rate-limit/allow", who).await;
            assert_eq!(answer["allowed"], allowed, "node {node}, {key}: {answer}");
        }
    }
    // The decision log shows the hash, which can be written instead of the value.
    let (status, again) = world.set(ban(hash)).await;
    assert_eq!((status, &again["when"]), (201, &set["when"]));
    let (status, answer) = world.set(ban("sk-*")).await;
    let detail = answer["detail"].as_str().expect("a detail");
    assert!(status == 400 && detail.starts_with("when.apiKey: values of this"), "{answer}");
}

#[tokio::test]
async fn mistakes_are_told_by_field_and_change_nothing() {
    let world = World::new();
    let cases = [
        ("rule", json!("NONE"), "rule NONE: unknown rule"),
        ("limit", json!("lots"), "limit: "),
        ("limit", json!([]), "limit: write 1 to 10 limits"),
        ("limit", json!(["1/h", "2/h"]), "rule USER_MODEL: 1/h and 2/h limit the same window"),
        ("reason", json!(" "), "reason: must have 1 to 500 bytes"),
        ("expiresIn", json!("soon"), "expiresIn: "),
        ("expiresIn", json!("0s"), "expiresIn: "),
        ("when", json!({ "userId": "" }), "when.userId: a value must have 1 to 256 bytes"),
        ("when", json!({ "userId": [] }), "rule USER_MODEL: when userId: an empty list"),
        ("colour", json!("red"), "colour: unknown field"),
    ];
    for (field, value, message) in cases {
        let mut body = premium();
        body[field] = value;
        let (status, answer) = world.set(body).await;
        let detail = answer["detail"].as_str().expect("a detail");
        let expected = if message.contains("unknown rule") { 404 } else { 400 };
        assert!(status == expected && detail.starts_with(message), "{field}: {status} {answer}");
    }
    let (_, listed) = world.ask(0, Method::GET, "/v1/overrides", Value::Null).await;
    assert_eq!(listed["overrides"], json!([]));
}

#[tokio::test]
async fn an_override_of_0_bans_until_it_ends_and_says_when() {
    let world = World::new();
    let body = json!({ "rule": "USER_MODEL", "when": { "userId": "eve" }, "limit": 0,
        "expiresIn": "10min", "reason": "abuse" });
    let (status, set) = world.set(body).await;
    assert_eq!((status, &set["limit"]), (201, &json!("0")), "{set}");
    let eve = || json!({ "userId": "eve", "modelId": "gpt4" });
    let (_, answer) = world.ask(0, Method::POST, "/rate-limit/allow", eve()).await;
    assert_eq!((&answer["reason"], &answer["scopeHit"]), (&json!("BANNED"), &json!("USER_MODEL")));
    assert_eq!(answer["retryAfterMs"], 600_000, "{answer}");
    assert_eq!(answer["resetAt"], "2027-01-15T08:10:00Z");
    let (status, _) = world.ask(0, Method::POST, "/rate-limit/allow?status=429", eve()).await;
    assert_eq!(status, 403);
    assert_eq!(world.limit(0, "ann").await, 100);
    world.clock.set(EPOCH + Span::from_secs(600));
    world.overrides[0].refresh().await;
    assert_eq!(world.limit(0, "eve").await, 100);
}

#[tokio::test]
async fn a_booking_of_a_caller_who_is_banned_meanwhile_does_not_go() {
    let world = World::new();
    let work = json!({ "id": "b1", "dimensions": { "userId": "eve", "modelId": "gpt4" } });
    let (_, booked) = world.ask(0, Method::POST, "/v1/book", work.clone()).await;
    assert_eq!(booked["allowed"], true, "{booked}");
    let body = json!({ "rule": "USER_MODEL", "when": { "userId": "eve" }, "limit": "0",
        "reason": "abuse" });
    assert_eq!(world.set(body).await.0, 201);
    let claim = json!({ "request": work, "claimant": "c1" });
    let (_, claimed) = world.ask(0, Method::POST, "/v1/claim", claim).await;
    assert_eq!((&claimed["claim"], &claimed["reason"]), (&json!("denied"), &json!("BANNED")));
}

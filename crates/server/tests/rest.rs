//! Tests of REST, called without a socket.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_config::QueueApiOptions;
use sluicegate_core::rule::{Group, Pattern, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::{Clock as _, Span, Timestamp};
use sluicegate_core::{Limit, Limiter};
use sluicegate_server::auth;
use sluicegate_server::overrides::Overrides;
use sluicegate_server::rest;
use sluicegate_service::Service;
use sluicegate_store::AnyStore;
use sluicegate_store::FileOverrideStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use tower::ServiceExt as _;

/// 2027-01-15 08:00:00 UTC.
const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);

struct Api {
    router: Router,
    clock: Arc<ManualClock>,
}

fn rule(name: &str, limits: &[&str], per: &[&str]) -> Rule {
    Rule::new(name, limits.iter().map(|text| text.parse::<Limit>().expect(text))).per(per)
}

impl Api {
    fn new(rules: Ruleset) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let service =
            Service::new(Limiter::new(rules, AnyStore::custom(store)), clock.clone(), Vec::new());
        let service = Arc::new(service);
        let overrides_store = Arc::new(FileOverrideStore::in_memory());
        let overrides = Arc::new(Overrides::new(service.clone(), overrides_store));
        let router = rest::router(service, rest::BODY_LIMIT)
            .merge(rest::overrides::router(overrides, rest::BODY_LIMIT))
            .merge(rest::queues::router(
                None,
                QueueApiOptions::default(),
                sluicegate_service::trace::Tracer::default(),
            ));
        Self { router: router.layer(auth::require(Arc::default())), clock }
    }

    fn of(groups: Vec<Group>) -> Self {
        Self::new(Ruleset::new(groups, Settings::default()).expect("rules"))
    }

    fn defaults() -> Self {
        Self::new(Ruleset::default_rules())
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, header::HeaderMap, String) {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        (head.status, head.headers, String::from_utf8(bytes.to_vec()).expect("UTF-8"))
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, header::HeaderMap, Value) {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .expect("a request");
        let (status, headers, text) = self.send(request).await;
        (status, headers, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
    }

    async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, _, answer) = self.post(path, &body).await;
        assert_eq!(status, StatusCode::OK, "{path} {body} {answer}");
        answer
    }
}

fn ann() -> Value {
    json!({ "userId": "ann", "modelId": "gpt4" })
}

#[tokio::test]
async fn a_hundred_are_allowed_and_the_next_is_denied() {
    let api = Api::defaults();
    for n in 1..=100 {
        let answer = api.ok("/rate-limit/allow", ann()).await;
        assert_eq!(
            answer,
            json!({
                "allowed": true,
                "remaining": 100 - n,
                "resetAt": "2027-01-15T09:00:00Z",
                "effectiveLimit": 100,
                "scopes": [{
                    "name": "USER_MODEL", "window": "100/h", "limit": 100, "current": n,
                    "remaining": 100 - n, "resetAt": "2027-01-15T09:00:00Z",
                }],
            })
        );
    }
    api.clock.advance(Span::from_secs(60));
    let answer = api.ok("/rate-limit/allow", ann()).await;
    assert_eq!(
        answer,
        json!({
            "allowed": false,
            "reason": "HIT_USER_MODEL_LIMIT",
            "scopeHit": "USER_MODEL",
            "retryAfterMs": 3_540_000,
            "remaining": 0,
            "resetAt": "2027-01-15T09:00:00Z",
            "effectiveLimit": 100,
            "scopes": [{
                "name": "USER_MODEL", "window": "100/h", "limit": 100, "current": 100,
                "remaining": 0, "resetAt": "2027-01-15T09:00:00Z",
            }],
        })
    );
    let bob = json!({ "userId": "bob", "modelId": "gpt4" });
    assert_eq!(api.ok("/rate-limit/allow", bob).await["allowed"], true);
}

#[tokio::test]
async fn a_status_mode_tells_clients_what_they_need() {
    let api = Api::of(vec![Group::new("g", [rule("USER", &["1/min", "5/h"], &["userId"])])]);
    let (status, headers, _) = api.post("/rate-limit/allow?status=429", &ann()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["x-ratelimit-limit"], "1");
    assert_eq!(headers["x-ratelimit-remaining"], "0");
    assert_eq!(headers["x-ratelimit-reset"], "1800000060");
    assert_eq!(headers["ratelimit-policy"], "\"USER-1/min\";q=1;w=60, \"USER-5/h\";q=5;w=3600");
    assert_eq!(headers["ratelimit"], "\"USER-1/min\";r=0;t=60, \"USER-5/h\";r=4;t=3600");
    assert!(!headers.contains_key("retry-after"));

    api.clock.advance(Span::from_millis(500));
    let (status, headers, body) = api.post("/rate-limit/allow?status=429", &ann()).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["retry-after"], "60");
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(body["detail"], "Rate limit exceeded: 1 request per minute");
    assert_eq!(body["reason"], "HIT_USER_LIMIT");
    let (status, _, _) = api.post("/rate-limit/allow?status=403", &ann()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _, body) = api.post("/rate-limit/allow?status=418", &ann()).await;
    assert_eq!((status, body["field"].as_str()), (StatusCode::BAD_REQUEST, Some("status")));
}

#[tokio::test]
async fn a_proxy_describes_a_request_with_headers() {
    let groups = vec![Group::new("g", [rule("USER", &["1/min"], &["userId", "path"])])];
    let api = Api::of(groups);
    let ask = async |query: &str, user: &str| {
        let uri = format!("/v1/forward-auth?{query}");
        let request = Request::get(uri).header("x-user", user).body(Body::empty());
        let (status, headers, body) = api.send(request.expect("a request")).await;
        let body: Value = serde_json::from_str(&body).expect("JSON");
        (status, headers, body)
    };
    let (status, headers, _) = ask("userId=@x-user&path=%2Flogin", "ann").await;
    assert_eq!((status, headers["x-ratelimit-remaining"].as_bytes()), (StatusCode::OK, &b"0"[..]));
    let (status, headers, body) = ask("userId=@X-User&path=/login", "ann").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "names of headers have no case");
    assert_eq!(
        (headers["retry-after"].as_bytes(), &body["reason"]),
        (&b"60"[..], &json!("HIT_USER_LIMIT"))
    );
    assert_eq!(ask("userId=@x-user&path=/login&status=403", "ann").await.0, StatusCode::FORBIDDEN);
    assert_eq!(ask("userId=@x-user&path=/logout", "ann").await.0, StatusCode::OK);
    // A client chooses the value of a header and nothing else.
    assert_eq!(ask("userId=@x-user&path=/login", "bob&path=/other").await.0, StatusCode::OK);
    assert_eq!(ask("userId=@x-user&path=/login", "@x-user").await.0, StatusCode::OK);
    // Nonsense: proxies that understand only 403 get one.
    for (query, expected) in [
        ("userId=&path=/", 400),
        ("userId=&path=/&status=403", 403),
        ("userId=%FF&path=/&status=403", 403),
        ("userId=a&userId=b&path=/", 400),
        ("userId=a&path=/&status=418", 400),
    ] {
        let (status, _, body) = ask(query, "ann").await;
        assert_eq!((status.as_u16(), &body["status"]), (expected, &json!(expected)), "{query}");
    }
}

#[tokio::test]
async fn a_forwarded_path_matches_in_every_spelling() {
    let login = rule("LOGIN", &["1/min"], &["userId"]).when("path", Pattern::exactly("/login"));
    let api = Api::of(vec![Group::new("login", [login])]);
    let ask = async |user: &str, header: &str, target: &str| {
        let uri = format!("/v1/forward-auth?userId=@x-user&path=@{header}");
        let request = Request::get(uri).header("x-user", user).header(header, target);
        api.send(request.body(Body::empty()).expect("a request")).await.0
    };
    let spellings =
        ["/login", "/login?x=1", "//login", "/%6cogin", "/%6Cogin?", "/./login", "/a/%2e./login#x"];
    for (number, target) in spellings.into_iter().enumerate() {
        let user = number.to_string();
        assert_eq!(ask(&user, "x-forwarded-uri", "/login").await, StatusCode::OK);
        let again = ask(&user, "X-Forwarded-Uri", target).await;
        assert_eq!(again, StatusCode::TOO_MANY_REQUESTS, "{target}");
        assert_eq!(ask(&user, "x-forwarded-uri", "/login/x").await, StatusCode::OK);
    }
    // Other headers are dimensions of any kind.
    assert_eq!(ask("0", "x-path", "/login?x=1").await, StatusCode::OK);
}

#[tokio::test]
async fn every_scope_is_checked_and_the_effective_one_is_the_callers() {
    let groups = vec![
        Group::new("caller", [rule("USER_MODEL", &["5/5s", "100/h"], &["userId", "modelId"])]),
        Group::new("model", [rule("GLOBAL_MODEL", &["3/h"], &["modelId"])]),
    ];
    let api = Api::of(groups);
    let answer = api.ok("/rate-limit/allow", ann()).await;
    assert_eq!((&answer["remaining"], &answer["effectiveLimit"]), (&json!(2), &json!(100)));
    let names: Vec<_> =
        answer["scopes"].as_array().expect("scopes").iter().map(|s| &s["window"]).collect();
    assert_eq!(names, ["5/5s", "100/h", "3/h"]);
}

#[tokio::test]
async fn bad_input_is_refused_by_name_and_consumes_nothing() {
    let api = Api::defaults();
    let long = "x".repeat(257);
    let deep = format!("{{\"userId\":{}{}}}", "[".repeat(4_000), "]".repeat(4_000));
    let table: Vec<(&str, String, &str)> = vec![
        ("nothing", String::new(), "the body is not valid JSON"),
        ("half an object", "{\"userId\":".into(), "the body is not valid JSON"),
        ("a list", "[]".into(), "must be an object"),
        ("nan", "{\"userId\":NaN}".into(), "the body is not valid JSON"),
        ("nesting", deep, "userId: must be a string, not a list"),
        ("no user", "{\"modelId\":\"m\"}".into(), "userId: is required"),
        ("no model", "{\"userId\":\"u\"}".into(), "modelId: is required"),
        ("an empty id", "{\"userId\":\"\",\"modelId\":\"m\"}".into(), "userId: is empty"),
        (
            "a long id",
            format!("{{\"userId\":\"{long}\",\"modelId\":\"m\"}}"),
            "userId: has 257 bytes",
        ),
        ("NUL", "{\"userId\":\"a\\u0000\",\"modelId\":\"m\"}".into(), "userId: contains a NUL"),
        (
            "a number",
            "{\"userId\":9007199254740993,\"modelId\":\"m\"}".into(),
            "userId: must be a string",
        ),
        ("negative", "{\"userId\":-1,\"modelId\":\"m\"}".into(), "userId: must be a string"),
        (
            "twice",
            "{\"userId\":\"a\",\"userId\":\"b\",\"modelId\":\"m\"}".into(),
            "userId: is given twice",
        ),
        (
            "a lone surrogate",
            "{\"userId\":\"\\ud800\",\"modelId\":\"m\"}".into(),
            "the body is not valid JSON",
        ),
    ];
    for (what, body, expected) in table {
        let request = Request::post("/rate-limit/allow")
            .header(header::CONTENT_TYPE, "application/json; charset=utf-8")
            .body(Body::from(body))
            .expect("a request");
        let (status, headers, text) = api.send(request).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {text}");
        assert_eq!(headers["content-type"], "application/problem+json", "{what}");
        assert!(text.contains(expected), "{what}: {text}");
    }
    let answer = api.ok("/rate-limit/allow", ann()).await;
    assert_eq!(answer["remaining"], 99);
}

#[tokio::test]
async fn wrong_types_sizes_paths_and_methods_are_problems() {
    let api = Api::defaults();
    let send = |method: &str, path: &str, kind: &str, body: Vec<u8>| {
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        api.send(request.body(Body::from(body)).expect("a request"))
    };
    let large = format!("{{\"userId\":\"{}\"}}", "x".repeat(70_000)).into_bytes();
    for (sent, status) in [
        (send("POST", "/rate-limit/allow", "text/plain", b"{}".to_vec()), 415),
        (send("POST", "/rate-limit/allow", "application/json", large.clone()), 413),
        (send("POST", "/v1/acquire", "application/json", large), 413),
        (send("GET", "/rate-limit/allow", "application/json", Vec::new()), 405),
        (send("POST", "/nowhere", "application/json", Vec::new()), 404),
        (send("POST", "/v1/acquire", "application/x-www-form-urlencoded", b"{}".to_vec()), 415),
    ] {
        let (got, headers, text) = sent.await;
        assert_eq!(got.as_u16(), status, "{text}");
        assert_eq!(headers["content-type"], "application/problem+json", "{text}");
        let problem: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(problem["status"], status);
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{text}");
    }
}

#[tokio::test]
async fn native_mistakes_name_their_path() {
    let api = Api::defaults();
    for (body, expected) in [
        (json!({}), "dimensions: is missing"),
        (json!({ "dimensions": { "userId": 1 } }), "dimensions.userId: "),
        (json!({ "dimensions": ann(), "colour": "red" }), "unknown field `colour`"),
        (json!({ "dimensions": ann(), "cost": { "inputTokens": -1 } }), "cost.inputTokens: "),
        (
            json!({ "dimensions": ann(), "cost": { "inputTokens": 9_007_199_254_740_992_u64 } }),
            "cost.inputTokens: must be at most",
        ),
        (json!({ "dimensions": ann(), "cost": { "usd": 0.1 } }), "cost.usd: "),
        (
            json!({ "dimensions": ann(), "cost": { "usd": "1e3" } }),
            "cost.usd: \"1e3\" is not an amount",
        ),
        (
            json!({ "dimensions": ann(), "cost": { "requests": 1001 }, "limits": [
                { "name": "X", "key": "k", "limit": "5000/s" },
            ] }),
            "at most 1000 at once",
        ),
        (json!({ "dimensions": ann(), "hold": "soon" }), "hold: \"soon\" is not a time span"),
        (json!({ "dimensions": ann(), "hold": "0s" }), "hold: must be from"),
        (json!({ "dimensions": ann(), "id": "" }), "id: is empty"),
        (
            json!({ "dimensions": ann(), "limits": [{ "name": "X", "key": "k", "limit": "5/parsec" }] }),
            "limits.limit: ",
        ),
        (json!({ "dimensions": { "userId": "" , "modelId": "m" } }), "dimensions.userId: is empty"),
        (
            json!({ "dimensions": ann(), "limits": [{ "name": "", "key": "k", "limit": "5/s" }] }),
            "limits.name: is empty",
        ),
        (
            json!({ "dimensions": ann(), "limits": [{ "name": "X", "key": "k".repeat(257), "limit": "5/s" }] }),
            "limits.key: has 257 bytes",
        ),
        (
            json!({ "dimensions": ann(), "limits": vec![json!({ "name": "X", "key": "k", "limit": "5/s" }); 11] }),
            "limits: has more than 10 limits",
        ),
        (
            json!({ "dimensions": ann(), "limits": [
                { "name": "X", "key": "k", "limit": "5/s" },
                { "name": "Y", "key": "k", "limit": "9/h" },
            ] }),
            "limits: rules [\"X\", \"Y\"] count under the same key",
        ),
        (json!({ "dimensions": ann(), "cost": { "inputTokens": 1.5 } }), "cost.inputTokens: "),
        (json!({ "dimensions": ann(), "cost": { "inputTokens": 1e300 } }), "must be at most"),
        (json!([]), "the list is empty"),
        (
            json!([{ "dimensions": ann() }, { "dimensions": { "userId": 1 } }]),
            "[1].dimensions.userId: ",
        ),
    ] {
        let (status, _, problem) = api.post("/v1/acquire", &body).await;
        let detail = problem["detail"].as_str().expect("a detail");
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {detail}");
        assert!(detail.contains(expected), "{body}: {detail}");
    }
}

#[tokio::test]
async fn an_estimate_is_held_settled_and_replayed() {
    let api = Api::of(vec![Group::new(
        "g",
        [rule("BUDGET", &["9/h", "100 tokens/h", "1.00 USD/day"], &["userId"])],
    )]);
    let ask = json!({
        "id": "job-1", "dimensions": ann(), "hold": "30s",
        "cost": { "inputTokens": 20, "outputTokens": 60, "usd": "0.25" },
    });
    let first = api.ok("/v1/acquire", ask.clone()).await;
    assert_eq!((&first["allowed"], &first["replayed"]), (&json!(true), &json!(false)));
    assert_eq!(first["until"], "2027-01-15T08:00:30Z");
    let used: Vec<_> =
        first["scopes"].as_array().expect("scopes").iter().map(|s| &s["current"]).collect();
    assert_eq!(used, [&json!(1), &json!(80), &json!(0.25)]);
    assert_eq!(api.ok("/v1/acquire", ask.clone()).await["replayed"], true);

    let mut other = ask.clone();
    other["cost"]["inputTokens"] = json!(21);
    assert_eq!(api.post("/v1/acquire", &other).await.0, StatusCode::CONFLICT);

    let more = json!({ "dimensions": ann(), "cost": { "inputTokens": 30, "usd": "0.01" } });
    let denied = api.ok("/v1/acquire", more).await;
    assert_eq!((&denied["allowed"], &denied["fits"]["tokens"]), (&json!(false), &json!(20)));

    let settle = json!({ "handle": first["handle"], "cost": { "inputTokens": 20, "outputTokens": 5, "usd": "0.05" } });
    let settled = api.ok("/v1/settle", settle.clone()).await;
    assert_eq!(
        (&settled["replayed"], &settled["metadata"]["api_cost_usd"]),
        (&json!(false), &json!(0.05))
    );
    assert_eq!(api.ok("/v1/settle", settle).await["replayed"], true);
    let usage = api.ok("/v1/usage", json!({ "dimensions": ann() })).await;
    let used: Vec<_> =
        usage["scopes"].as_array().expect("scopes").iter().map(|s| &s["current"]).collect();
    assert_eq!(used, [&json!(1), &json!(25), &json!(0.05)]);
}

#[tokio::test]
async fn slots_bookings_and_the_rest_of_the_port_are_reached() {
    let api = Api::of(vec![Group::new("g", [rule("R", &["1/10s", "1 concurrent"], &["userId"])])]);
    let ask = |id: &str| json!({ "id": id, "dimensions": ann() });
    let held = api.ok("/v1/acquire", ask("a")).await;
    let handle = json!({ "handle": held["handle"] });
    api.clock.advance(Span::from_secs(5));
    assert_eq!(api.ok("/v1/renew", handle.clone()).await["until"], "2027-01-15T08:00:35Z");
    assert_eq!(api.ok("/v1/release", handle.clone()).await, json!({ "replayed": false }));
    assert_eq!(api.post("/v1/renew", &json!({ "handle": "x" })).await.0, StatusCode::BAD_REQUEST);
    let stranger = json!({ "handle": format!("{:032x}.", 7) });
    assert_eq!(api.post("/v1/release", &stranger).await.0, StatusCode::NOT_FOUND);

    let booked = api.ok("/v1/book", ask("b")).await;
    assert_eq!(booked["start"], "2027-01-15T08:00:10Z");
    let claim = |who: &str| json!({ "request": ask("b"), "claimant": who });
    let early = api.ok("/v1/claim", claim("me")).await;
    assert_eq!((&early["claim"], &early["waitMs"]), (&json!("early"), &json!(5_000)));
    api.clock.set(EPOCH + Span::from_secs(10));
    let go = api.ok("/v1/claim", claim("me")).await;
    assert_eq!((&go["claim"], &go["goodMs"]), (&json!("go"), &json!(100)));
    assert_eq!(api.ok("/v1/claim", claim("other")).await["claim"], "rebooked");
    assert_eq!(api.ok("/v1/claim", claim("me")).await["claim"], "spent");

    let explained = api.ok("/v1/explain", json!({ "dimensions": ann() })).await;
    assert_eq!(explained["groups"][0]["matched"][0]["key"], "R:ann#requests");
    assert_eq!(explained["decision"]["allowed"], false);
    assert_eq!(api.ok("/v1/check", json!({ "dimensions": ann() })).await["allowed"], false);
    let reset = api.ok("/v1/reset", json!({ "dimensions": ann() })).await;
    assert_eq!(reset["reset"], json!(["R:ann#requests", "R:ann#concurrent"]));
    assert_eq!(api.ok("/v1/check", json!({ "dimensions": ann() })).await["allowed"], true);
    assert_eq!(api.ok("/v1/cancel", handle).await, json!({ "replayed": false }));
}

#[tokio::test]
async fn a_claim_with_a_lead_is_answered_with_an_interval_before_its_start() {
    let api = Api::of(vec![Group::new("g", [rule("R", &["1/10s"], &["userId"])])]);
    let ask = |id: &str| json!({ "id": id, "dimensions": ann() });
    let claim = |lead: &str| json!({ "request": ask("b"), "claimant": "me", "lead": lead });
    api.ok("/v1/book", ask("a")).await;
    assert_eq!(api.ok("/v1/book", ask("b")).await["start"], "2027-01-15T08:00:10.1Z");

    api.clock.set(EPOCH + Span::from_secs(10));
    let early = api.ok("/v1/claim", claim("99ms")).await;
    assert_eq!((&early["claim"], &early["waitMs"]), (&json!("early"), &json!(100)));
    let go = api.ok("/v1/claim", claim("100ms")).await;
    let interval = (&go["claim"], &go["waitMs"], &go["goodMs"]);
    assert_eq!(interval, (&json!("go"), &json!(100), &json!(200)), "{go}");

    for wrong in ["2s", "soon", "0ms"] {
        let (status, _, answer) = api.post("/v1/claim", &claim(wrong)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {answer}");
        assert_eq!(answer["field"], "lead", "{wrong}: {answer}");
    }
}

#[tokio::test]
async fn a_booking_with_a_lead_can_be_used_by_a_caller_that_is_so_far_away() {
    let api = Api::of(vec![Group::new("g", [rule("R", &["1/s"], &["userId"])])]);
    let ask = |id: &str| json!({ "id": id, "dimensions": ann() });
    let booked = api.ok("/v1/book?lead=60ms&status=429", ask("a")).await;
    assert_eq!(booked["start"], "2027-01-15T08:00:00.06Z", "{booked}");
    let claim = json!({ "request": ask("a"), "claimant": "me", "lead": "60ms" });
    let go = api.ok("/v1/claim", claim).await;
    let interval = (&go["claim"], &go["waitMs"], &go["goodMs"]);
    assert_eq!(interval, (&json!("go"), &json!(60), &json!(125)), "{go}");

    for (path, field) in [
        ("/v1/book?lead=2s", "lead"),
        ("/v1/book?lead=", "lead"),
        ("/v1/book?lead=soon", "lead"),
        ("/v1/book?leap=20ms", "leap"),
        ("/v1/acquire?lead=20ms", "lead"),
        ("/v1/check?lead=20ms", "lead"),
    ] {
        let (status, _, answer) = api.post(path, &ask("b")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {answer}");
        assert_eq!(answer["field"], field, "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_claim_that_states_something_else_than_its_booking_is_a_409() {
    let api =
        Api::of(vec![Group::new("g", [rule("R", &["5/h", "10000.00 USD/day"], &["userId"])])]);
    let ask = |id: &str, user: &str, requests: u64, usd: &str| {
        json!({ "id": id, "dimensions": { "userId": user, "modelId": "gpt4" },
            "cost": { "requests": requests, "usd": usd } })
    };
    let claim = |request: Value| json!({ "request": request, "claimant": "worker" });
    assert_eq!(api.ok("/v1/book", ask("a", "ann", 1, "0.01")).await["allowed"], true);
    // Bob has nothing left.
    assert_eq!(api.ok("/v1/acquire", ask("b", "bob", 5, "1")).await["allowed"], true);
    assert_eq!(api.ok("/v1/check", ask("c", "bob", 1, "1")).await["allowed"], false);
    for (user, requests, usd) in
        [("ann", 5, "9999"), ("ann", 1, "9999"), ("ann", 5, "0.01"), ("bob", 1, "0.01")]
    {
        let body = claim(ask("a", user, requests, usd));
        let (status, _, answer) = api.post("/v1/claim", &body).await;
        assert_eq!(status, StatusCode::CONFLICT, "{body} {answer}");
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(detail.contains("repeat those of the booking"), "{answer}");
    }
    let go = api.ok("/v1/claim", claim(ask("a", "ann", 1, "0.01"))).await;
    assert_eq!(go["claim"], "go", "{go}");
    assert_eq!(go["scopes"][0]["current"], 1, "{go}");
}

#[tokio::test]
async fn a_whole_number_may_be_written_as_a_float() {
    let api = Api::of(vec![Group::new("g", [rule("T", &["100 tokens/h"], &["userId"])])]);
    for (cost, used) in [("72.0", 72), ("2e1", 92), ("0.0", 92), ("-0.0", 92), ("null", 92)] {
        let cost: Value = serde_json::from_str(cost).expect("a number");
        let ask = json!({ "dimensions": ann(), "cost": { "inputTokens": cost } });
        assert_eq!(api.ok("/v1/acquire", ask).await["scopes"][0]["current"], used, "{cost}");
    }
}

#[tokio::test]
async fn a_handle_of_the_right_form_that_names_nothing_is_unknown() {
    let api = Api::defaults();
    for keys in ["", "A", "__", "YQ"] {
        let body = json!({ "handle": format!("{:032x}.{keys}", 7) });
        assert_eq!(api.post("/v1/release", &body).await.0, StatusCode::NOT_FOUND, "{keys}");
    }
    for text in ["", "x", "7.", &format!("{:032x}", 7), &format!("{:032x}.a=", 7)] {
        let body = json!({ "handle": text });
        assert_eq!(api.post("/v1/release", &body).await.0, StatusCode::BAD_REQUEST, "{text}");
    }
}

#[tokio::test]
async fn a_user_sees_where_it_stands_and_looking_consumes_nothing() {
    let premium = rule("PREMIUM", &["100/min"], &["userId"]);
    let premium = premium.when("tier", sluicegate_core::rule::Pattern::exactly("premium"));
    let mut watched = rule("WATCHED", &["1/min"], &["userId"]);
    watched.shadow = true;
    let api = Api::of(vec![
        Group::new("watched", [watched, rule("LAST", &["50/s"], &[])]),
        Group::new("user", [premium, rule("USER", &["10/min", "100/h", "500/day"], &["userId"])]),
        Group::new("model", [rule("USER_MODEL", &["40/h", "9/5s"], &["userId", "modelId"])]),
        Group::new("everybody", [rule("GLOBAL", &["4/h", "2 concurrent"], &[])]),
        Group::new("money", [rule("BUDGET", &["5.00 USD/calendar day"], &["userId"])]),
    ]);
    for cost in ["0.25", "0.0002606"] {
        let ask = json!({ "dimensions": ann(), "cost": { "usd": cost } });
        assert_eq!(api.ok("/v1/acquire", ask).await["allowed"], true);
    }
    let get = async |path: &str| {
        let (status, _, text) =
            api.send(Request::get(path).body(Body::empty()).expect("a request")).await;
        (status, serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    let used = |current, limit| json!({ "current": current, "limit": limit, "remaining": limit - current });
    for _ in 0..3 {
        assert_eq!(
            get("/v1/users/ann/usage").await,
            (
                StatusCode::OK,
                json!({
                    "user_id": "ann",
                    "timestamp": "2027-01-15T08:00:00Z",
                    "limits": { "minute": used(2, 10), "hour": used(2, 100), "day": used(2, 500) },
                    "cost": { "today": 0.2502606, "limit": 5.0, "remaining": 4.7497394 },
                })
            )
        );
    }
    let (_, with_model) = get("/v1/users/ann/usage?modelId=gpt4").await;
    assert_eq!(with_model["limits"]["hour"], used(2, 40), "the tightest of several");
    let (_, premium) = get("/v1/users/ann/usage?tier=premium").await;
    assert_eq!(premium["limits"], json!({ "minute": used(0, 100) }));
    let (_, other) = get("/v1/users/a%2Fb%20%C3%A9/usage").await;
    assert_eq!((&other["user_id"], &other["limits"]["day"]), (&json!("a/b é"), &used(0, 500)));
    for (path, field) in [
        ("/v1/users/ann/usage?userId=bob", "userId"),
        ("/v1/users/ann/usage?tier=", "tier"),
        ("/v1/users/%FF/usage", "userId"),
    ] {
        let (status, problem) = get(path).await;
        assert_eq!((status, &problem["field"]), (StatusCode::BAD_REQUEST, &json!(field)), "{path}");
    }
}

#[tokio::test]
async fn a_batch_is_one_plan() {
    let api = Api::of(vec![
        Group::new("u", [rule("USER", &["2/h"], &["userId"])]),
        Group::new("m", [rule("MODEL", &["3/h"], &["modelId"])]),
    ]);
    let of = |user: &str| json!({ "dimensions": { "userId": user, "modelId": "m" } });
    let batch = json!([of("a"), of("b"), of("a"), of("c")]);
    let denied = api.ok("/v1/acquire", batch).await;
    assert_eq!((&denied["allowed"], &denied["scopeHit"]), (&json!(false), &json!("MODEL")));
    let batch = json!([of("a"), of("b"), of("a")]);
    assert_eq!(api.ok("/v1/acquire", batch).await["allowed"], true);
    let usage = api.ok("/v1/usage", of("a")).await;
    let used: Vec<_> =
        usage["scopes"].as_array().expect("scopes").iter().map(|s| &s["current"]).collect();
    assert_eq!(used, [&json!(2), &json!(3)]);
}

#[tokio::test]
async fn the_document_describes_every_route_and_the_page_loads_nothing_from_elsewhere() {
    let api = Api::defaults();
    let (status, _, text) =
        api.send(Request::get("/openapi.json").body(Body::empty()).expect("a request")).await;
    assert_eq!(status, StatusCode::OK);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    for (path, methods) in document["paths"].as_object().expect("paths") {
        if path == "/health" || path == "/ready" {
            continue;
        }
        for method in methods.as_object().expect("methods").keys() {
            let request = Request::builder().method(method.to_uppercase().as_str()).uri(path);
            let request = request.header("content-type", "application/json");
            let request = request.body(Body::from("{}")).expect("a request");
            let (status, _, text) = api.send(request).await;
            assert!(!text.contains("unknown path"), "{path}");
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
        }
    }
    let (status, headers, page) =
        api.send(Request::get("/docs").body(Body::empty()).expect("a request")).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        headers["content-security-policy"].to_str().expect("text").contains("default-src 'none'")
    );
    assert!(!page.contains("http://") && !page.contains("https://"), "the page is self-contained");
}

#[tokio::test]
async fn fifteen_at_once_against_ten_per_minute_let_exactly_ten_through() {
    let api = Arc::new(Api::of(vec![Group::new("g", [rule("USER", &["10/min"], &["userId"])])]));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..15 {
        let api = api.clone();
        calls.spawn(async move { api.post("/rate-limit/allow?status=429", &ann()).await });
    }
    let mut answers = Vec::new();
    while let Some(answer) = calls.join_next().await {
        answers.push(answer.expect("no panic"));
    }
    let allowed = answers.iter().filter(|(status, ..)| *status == StatusCode::OK).count();
    assert_eq!(allowed, 10);
    for (status, headers, body) in answers {
        if status != StatusCode::OK {
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(headers["retry-after"], "60");
            assert_eq!(body["detail"], "Rate limit exceeded: 10 requests per minute");
        }
    }
    assert!(api.clock.now() == EPOCH);
}

/// Rules with a ban for ann and a limit for all users.
fn banned() -> Api {
    let everybody = Group::new("everybody", [rule("ALL", &["5/h"], &[])]);
    let ban = rule("BLOCKED", &["0"], &["userId"]).when("userId", Pattern::exactly("ann"));
    Api::of(vec![everybody, Group::new("caller", [ban, rule("USER", &["3/h"], &["userId"])])])
}

#[tokio::test]
async fn a_banned_caller_is_refused_for_good_and_charged_nothing() {
    let api = banned();
    for _ in 0..10 {
        let answer = api.ok("/rate-limit/allow", ann()).await;
        assert_eq!(
            answer,
            json!({
                "allowed": false, "reason": "BANNED", "scopeHit": "BLOCKED", "remaining": 0,
                "scopes": [{
                    "name": "BLOCKED", "window": "0", "limit": 0, "current": 0, "remaining": 0,
                    "resetAt": "2027-01-15T08:00:00Z",
                }],
            })
        );
    }
    let bob = json!({ "userId": "bob", "modelId": "gpt4" });
    assert_eq!(api.ok("/v1/usage", json!({ "dimensions": bob })).await["scopes"][0]["current"], 0);
    assert_eq!(api.ok("/rate-limit/allow", bob).await["allowed"], true);
}

#[tokio::test]
async fn a_ban_is_a_403_whatever_the_status_mode() {
    let api = banned();
    for mode in ["429", "403"] {
        let path = format!("/rate-limit/allow?status={mode}");
        let (status, headers, answer) = api.post(&path, &ann()).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(!headers.contains_key("retry-after"));
        assert_eq!(answer["detail"], "Banned by the rule BLOCKED");
    }
}

#[tokio::test]
async fn a_ban_holds_for_every_operation() {
    let api = banned();
    let work = json!({ "dimensions": ann(), "hold": "1min", "id": "w1" });
    for path in ["/v1/check", "/v1/acquire", "/v1/book"] {
        let answer = api.ok(path, work.clone()).await;
        assert_eq!((&answer["allowed"], &answer["reason"]), (&json!(false), &json!("BANNED")));
        assert_eq!(answer["retryAfterMs"], Value::Null, "{path}");
    }
    let explained = api.ok("/v1/explain", json!({ "dimensions": ann() })).await;
    assert_eq!(explained["groups"][1]["matched"][0]["limits"], json!(["0"]));
    assert_eq!(explained["decision"]["reason"], "BANNED");
}

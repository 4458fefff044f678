//! Tests of the dashboard: its data, its sessions, and its event stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::{Group, Limit, Limiter, Rule, Span, Timestamp};
use sluicegate_server::auth::{self, AuthScope, ENDPOINTS, Tokens};
use sluicegate_server::dashboard::{
    self, BrowserAccess, DashboardSources, GatewayStates, NodeSummaries, RoutePause, RouteReading,
    RouteStatesFuture, SummariesFuture,
};
use sluicegate_server::metrics::{Metrics, Options};
use sluicegate_server::overrides::Overrides;
use sluicegate_server::recorder::{NodeName, Recorder};
use sluicegate_server::reservations::{ReservationTracker, Reservations};
use sluicegate_server::rest;
use sluicegate_service::Service;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_store::{AnyStore, FileOverrideStore, MemoryReservationStore};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const HOST: &str = "localhost:9090";

/// Another node, whose gateway was asked for a pause.
struct OtherNodes;

impl NodeSummaries for OtherNodes {
    fn read(&self) -> SummariesFuture<'_> {
        let until = (EPOCH + Span::from_secs(90)).to_string();
        let pause =
            json!({ "gateway": "vendor", "route": "api", "until": until, "reason": "status 429" });
        let summary =
            json!({ "id": "other", "host": "node-2", "pauses": [pause], "started": "2100" });
        Box::pin(async move { Ok(vec![summary.to_string(), "damaged".to_owned()]) })
    }
}

/// A gateway with one route that is closed, as another node has asked for it.
struct OneRoute;

impl GatewayStates for OneRoute {
    fn read(&self) -> RouteStatesFuture<'_> {
        let reading = RouteReading {
            gateway: "vendor".to_owned(),
            route: "api".to_owned(),
            closed_until: Ok(Some(EPOCH + Span::from_secs(90))),
            windows: vec![json!({ "name": "requests", "limit": 60, "remaining": 0 })],
            seen: Some(EPOCH),
        };
        Box::pin(async move { vec![reading] })
    }

    fn pauses(&self) -> Vec<RoutePause> {
        let pause = |route: &str, until: Timestamp| RoutePause {
            gateway: "vendor".to_owned(),
            route: route.to_owned(),
            until: until.to_string(),
            reason: "of this node".to_owned(),
        };
        vec![pause("old", EPOCH), pause("other", EPOCH + Span::from_secs(60))]
    }
}

/// A node with the admin routes, on a clock that the test advances.
struct Node {
    app: Router,
    clock: Arc<ManualClock>,
    recorder: Recorder,
    tokens: Arc<ArcSwapOption<Tokens>>,
    shutdown: CancellationToken,
}

impl Node {
    /// Creates a node whose tokens are their names with scopes; none means no tokens.
    fn new(callers: &[(&str, &[AuthScope])]) -> Self {
        Self::bound_to("127.0.0.1", callers)
    }

    fn bound_to(host: &str, callers: &[(&str, &[AuthScope])]) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let limit = |text: &str| text.parse::<Limit>().expect("a limit");
        let mut user = Rule::new("USER", [limit("3/min")]).per(&["userId"]);
        user.description = Some("three per minute".to_owned());
        let budget = Rule::new("BUDGET", [limit("1.00 USD/day")]).per(&["userId"]);
        let tenant_budget =
            Rule::new("TENANT_BUDGET", [limit("1000.00 USD/day")]).per(&["tenantId"]);
        let groups = vec![
            Group::new("users", [user]),
            Group::new("money", [budget]),
            Group::new("tenants", [tenant_budget]),
        ];
        let rules = Ruleset::new(groups, Settings::default()).expect("rules");
        let metrics = Metrics::new(&Options::default());
        metrics.register_rules(&rules);
        let node = NodeName { host: "node-1".to_owned(), version: "1.2.3", started: EPOCH };
        let secret = vec!["apiKey".to_owned()];
        let recorder = Recorder::new(metrics.clone(), clock.clone(), node, secret, [7; 32]);
        let limiter = Limiter::new(rules, AnyStore::custom(store));
        let secret = vec!["apiKey".to_owned()];
        let tracker = ReservationTracker::new(clock.clone(), "node-1", secret, [7; 32]);
        let observers: Vec<Box<dyn sluicegate_service::Observer>> =
            vec![Box::new(metrics), Box::new(recorder.clone()), Box::new(tracker.clone())];
        let service = Arc::new(Service::new(limiter, clock.clone(), observers));
        let overrides_store = Arc::new(FileOverrideStore::in_memory());
        let overrides = Arc::new(Overrides::new(service.clone(), overrides_store));
        let reservation_store = Arc::new(MemoryReservationStore::with_clock(clock.clone()));
        let reservations = Reservations::new(service.clone(), reservation_store, tracker);
        let tokens = Arc::new(ArcSwapOption::empty());
        if !callers.is_empty() {
            let hashes = callers.iter().map(|(name, _)| (*name, auth::hash(name.as_bytes())));
            let known = Tokens::new(hashes).expect("tokens").with_scopes(|name| {
                let (_, scopes) = callers.iter().find(|(other, _)| *other == name).expect("known");
                scopes.iter().copied().collect()
            });
            tokens.store(Some(Arc::new(known)));
        }
        let browsers = Arc::new(BrowserAccess::new(clock.clone(), host, false));
        let shutdown = CancellationToken::new();
        let sources = DashboardSources {
            service: service.clone(),
            recorder: recorder.clone(),
            tokens: tokens.clone(),
            browsers: browsers.clone(),
            roles: vec!["limiter".to_owned()],
            id: "node-1-id".to_owned(),
            nodes: Some(Arc::new(OtherNodes)),
            gateways: Arc::new(OneRoute),
        };
        let reservations = Arc::new(reservations);
        let app = dashboard::router(Arc::new(sources), shutdown.clone())
            .merge(rest::reservations::router(reservations, rest::BODY_LIMIT))
            .merge(rest::overrides::router(overrides, rest::BODY_LIMIT))
            .merge(rest::router(service, rest::BODY_LIMIT))
            .layer(auth::require(tokens.clone()).with_browsers(browsers));
        recorder.tick();
        Self { app, clock, recorder, tokens, shutdown }
    }

    /// Lets a second pass.
    fn tick(&self) {
        self.clock.advance(Span::from_secs(1));
        self.recorder.tick();
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, HeaderMap, Value) {
        let response = self.app.clone().oneshot(request).await.expect("infallible");
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (head.status, head.headers, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn get(&self, path: &str) -> Value {
        let request = Request::get(path).header(header::HOST, HOST);
        let (status, _, body) = self.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    async fn post(
        &self,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> (u16, HeaderMap, Value) {
        let mut request = Request::post(path)
            .header(header::HOST, HOST)
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_string())).expect("a request");
        let (status, headers, body) = self.send(request).await;
        (status.as_u16(), headers, body)
    }

    /// Asks for a decision of a user.
    async fn acquire(&self, user: &str) -> bool {
        let body = json!({ "dimensions": { "userId": user, "apiKey": "k-secret" }, "cost": { "usd": "0.25" } });
        let (status, _, answer) = self.post("/v1/acquire", body, &[]).await;
        assert_eq!(status, 200, "{answer}");
        answer["allowed"] == true
    }
}

#[tokio::test]
async fn decisions_become_series_and_rankings() {
    let node = Node::new(&[]);
    node.tick();
    for user in ["ann", "ann", "ann", "ann", "ann", "bob"] {
        node.acquire(user).await;
    }
    node.tick();
    let series = node.get("/v1/dashboard/series?names=allowed%20denied%20[%22rule%22").await;
    let last = |name: &str| series["series"][name].as_array().expect("values").last().cloned();
    assert_eq!(last("allowed"), Some(json!(4.0)));
    assert_eq!(last("denied"), Some(json!(2.0)));
    assert_eq!(last(r#"["rule","USER","denied"]"#), Some(json!(2.0)));
    assert_eq!(series["step"], 1);
    assert!(series["series"].get("p50").is_none(), "only the names that were asked for");
    let limits = node.get("/v1/dashboard/limits").await;
    let denied = &limits["callers"]["userId"]["denied"];
    assert_eq!(denied, &json!([{ "value": "ann", "count": 2, "denied": 2, "error": 0 }]));
    let requested = &limits["callers"]["userId"]["requested"];
    assert_eq!((&requested[0]["value"], &requested[0]["count"]), (&json!("ann"), &json!(5)));
    let closest = &limits["closest"][0];
    assert_eq!(closest["rule"], "USER");
    assert_eq!(closest["dimensions"], json!([["userId", "ann"]]));
    assert_eq!((&closest["used"], &closest["of"]), (&json!(3), &json!(3)));
    let budget = &limits["budgets"][0];
    assert_eq!((&budget["rule"], &budget["used"]), (&json!("BUDGET"), &json!("0.75")));
    let user = &limits["groups"][0]["rules"][0];
    assert_eq!(user["description"], "three per minute");
    assert_eq!((&user["allowed"], &user["denied"]), (&json!(4), &json!(2)));
    let overview = node.get("/v1/dashboard/overview").await;
    assert_eq!(overview["decisions"], json!({ "allowed": 4, "denied": 2, "errors": 0 }));
    let is_denied = |one: &Value| one["title"].as_str().expect("a title").ends_with("5 minutes");
    let problems = overview["problems"].as_array().expect("problems");
    assert!(!problems.iter().any(is_denied), "six requests are too few: {problems:?}");
    for _ in 0..10 {
        node.acquire("ann").await;
    }
    node.tick();
    let overview = node.get("/v1/dashboard/overview").await;
    let problems = overview["problems"].as_array().expect("problems");
    let title = &problems.iter().find(|one| is_denied(one)).expect("a problem")["title"];
    assert_eq!(title, "75 % of the requests were denied in the last 5 minutes");
}

#[tokio::test]
async fn the_summaries_contain_that_of_this_node() {
    let node = Node::new(&[]);
    node.acquire("ann").await;
    node.tick();
    let nodes = node.get("/v1/dashboard/nodes").await;
    assert_eq!(nodes["own"], "node-1-id");
    let own = &nodes["nodes"][0];
    assert_eq!(own["host"], "node-1");
    assert_eq!(own["rates"]["allowed"], 1.0);
    assert_eq!(own["callers"]["userId"]["requested"][0]["value"], "ann");
    let pauses = own["pauses"].as_array().expect("pauses");
    assert_eq!(pauses.len(), 1, "without those that are over: {pauses:?}");
    assert_eq!(pauses[0]["route"], "other");
    assert_eq!(nodes["nodes"][1]["host"], "node-2");
}

#[tokio::test]
async fn the_reason_for_a_closed_route_comes_from_the_node_that_learned_it() {
    let node = Node::new(&[]);
    let gateways = node.get("/v1/dashboard/gateways").await;
    let route = &gateways["routes"][0];
    assert_eq!(route["closedUntil"], (EPOCH + Span::from_secs(90)).to_string());
    assert_eq!((&route["reason"], &route["learnedBy"]), (&json!("status 429"), &json!("node-2")));
    assert_eq!(route["announced"]["windows"][0]["limit"], 60);
}

impl Node {
    /// Reserves a part of the budget of a user, and returns the handle.
    async fn reserve(&self, user: &str, usd: &str) -> String {
        let dimensions = json!({ "userId": user, "apiKey": "k-secret" });
        let body = json!({ "dimensions": dimensions, "cost": { "usd": usd }, "hold": "30s" });
        let (status, _, answer) = self.post("/v1/acquire", body, &[]).await;
        assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
        answer["handle"].as_str().expect("a handle").to_owned()
    }

    /// Returns the dollars that a user has used of its budget.
    async fn spent(&self, user: &str) -> f64 {
        let body = json!({ "dimensions": { "userId": user } });
        let (_, _, usage) = self.post("/v1/usage", body, &[]).await;
        let scopes = usage["scopes"].as_array().expect("scopes").clone();
        let budget = scopes.into_iter().find(|scope| scope["name"] == "BUDGET");
        budget.expect("a budget")["current"].as_f64().expect("a number")
    }

    async fn reservations(&self) -> Vec<Value> {
        let listed = self.get("/v1/reservations").await;
        listed["reservations"].as_array().expect("a list").clone()
    }
}

#[tokio::test]
async fn a_reservation_that_nobody_settles_is_listed_and_settled_by_hand() {
    let node = Node::new(&[]);
    node.reserve("ann", "0.60").await;
    let settled = node.reserve("bob", "0.50").await;
    let body = json!({ "handle": settled, "cost": { "usd": "0.10" } });
    assert_eq!(node.post("/v1/settle", body, &[]).await.0, 200);
    node.clock.advance(Span::from_secs(29));
    assert!(node.reservations().await.is_empty(), "the hold is not over");
    node.clock.advance(Span::from_secs(2));
    let listed = node.reservations().await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    let text = listed[0].to_string();
    assert!(!text.contains("k-secret") && listed[0].get("handle").is_none(), "{text}");
    let caller = listed[0]["caller"].as_array().expect("pairs");
    assert!(caller.contains(&json!(["userId", "ann"])), "{caller:?}");
    let charge = json!({ "rule": "BUDGET", "unit": "USD", "amount": "0.60" });
    assert_eq!((&listed[0]["charges"], &listed[0]["node"]), (&json!([charge]), &json!("node-1")));
    let path = format!("/v1/reservations/{}/settle", listed[0]["id"].as_str().expect("an id"));
    let (status, _, answer) = node.post(&path, json!({ "reason": " " }), &[]).await;
    assert_eq!((status, &answer["field"]), (400, &json!("reason")), "{answer}");
    let body = json!({ "reason": "invoice 7", "cost": { "usd": "0.25" } });
    let (status, _, answer) = node.post(&path, body.clone(), &[]).await;
    assert_eq!((status, &answer["usd"]), (200, &json!("0.25")), "{answer}");
    assert_eq!(node.spent("ann").await, 0.25);
    assert!(node.reservations().await.is_empty(), "it is settled");
    assert_eq!(node.post(&path, body, &[]).await.0, 404);
    let entry = &node.get("/v1/dashboard/audit").await["audit"][0];
    assert_eq!(entry["action"], "reservation settled");
    assert_eq!(entry["reason"], "invoice 7");
    assert_eq!(entry["detail"], "estimated 0.60 USD (BUDGET); actual: 0.25 USD");
    assert!(entry["target"].as_str().expect("text").contains("userId=ann"), "{entry}");
}

#[tokio::test]
async fn a_cancelled_reservation_gives_its_estimate_back() {
    let node = Node::new(&[]);
    node.reserve("ann", "0.60").await;
    node.clock.advance(Span::from_secs(31));
    assert_eq!(node.spent("ann").await, 0.6);
    let listed = node.reservations().await;
    let path = format!("/v1/reservations/{}/cancel", listed[0]["id"].as_str().expect("an id"));
    let (status, _, answer) = node.post(&path, json!({ "reason": "it crashed" }), &[]).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(node.spent("ann").await, 0.0);
    assert!(node.reservations().await.is_empty());
}

#[tokio::test]
async fn only_estimates_that_stay_charged_are_listed() {
    let node = Node::new(&[]);
    // Without a hold, and with a hold that is released.
    node.acquire("ann").await;
    let handle = node.reserve("bob", "0.10").await;
    node.clock.advance(Span::from_secs(10));
    assert!(node.reservations().await.is_empty());
    assert_eq!(node.post("/v1/release", json!({ "handle": handle }), &[]).await.0, 200);
    node.reserve("eve", "0.10").await;
    node.clock.advance(Span::from_secs(40));
    assert_eq!(node.reservations().await.len(), 1);
    // A day later, the window of the budget is over.
    node.clock.advance(Span::from_secs(2 * 86_400));
    assert!(node.reservations().await.is_empty());
}

#[tokio::test]
async fn a_summary_has_a_maximum_size() {
    let node = Node::new(&[]);
    for number in 0..60 {
        node.acquire(&format!("{number}{}", "x".repeat(200))).await;
    }
    let summary = node.recorder.summary("n", &["p".repeat(50)], &[]);
    assert!(summary.len() <= 64 * 1_024 && summary.len() > 8_000, "{}", summary.len());
}

#[tokio::test]
async fn tokens_can_be_tried_a_few_times_per_second() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    let wrong = (0..20).map(|_| node.post("/login", json!({ "token": "wrong" }), &[]));
    let answers = futures_util::future::join_all(wrong).await;
    let of = |status: u16| answers.iter().filter(|(other, ..)| *other == status).count();
    assert_eq!((of(401), of(429)), (4, 16));
    log_in(&node, "reader").await;
}

#[tokio::test]
async fn the_page_of_another_host_cannot_end_a_session() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    let cookie = log_in(&node, "reader").await;
    let foreign = [("cookie", cookie.as_str()), ("origin", "http://evil.example")];
    assert_eq!(node.post("/logout", json!({}), &foreign).await.0, 403);
    let request = Request::get("/v1/dashboard/audit").header("cookie", &cookie);
    assert_eq!(node.send(request.body(Body::empty()).expect("a request")).await.0, 200);
}

#[tokio::test]
async fn budgets_are_ordered_by_the_money_that_was_spent() {
    let node = Node::new(&[]);
    // Sixty users spend most of their small budgets, and their tenant little of its large one.
    for user in 0..60 {
        let dimensions = json!({ "userId": format!("user-{user:02}"), "tenantId": "large" });
        let usd = if user == 7 { "0.95" } else { "0.90" };
        let body = json!({ "dimensions": dimensions, "cost": { "usd": usd } });
        let (_, _, answer) = node.post("/v1/acquire", body, &[]).await;
        assert_eq!(answer["allowed"], true, "{answer}");
    }
    let limits = node.get("/v1/dashboard/limits").await;
    let budgets = limits["budgets"].as_array().expect("budgets");
    let shown: Vec<_> = budgets[..3]
        .iter()
        .map(|one| format!("{} {} {}", one["rule"], one["dimensions"][0][1], one["used"]))
        .collect();
    assert_eq!(
        shown,
        [
            r#""TENANT_BUDGET" "large" "54.05""#,
            r#""BUDGET" "user-07" "0.95""#,
            r#""BUDGET" "user-00" "0.90""#,
        ]
    );
    assert_eq!(budgets[0]["share"], 0.05405);
}

#[tokio::test]
async fn the_money_chart_shows_what_is_reserved_and_settled() {
    let node = Node::new(&[]);
    node.tick();
    let handle = node.reserve("ann", "0.60").await;
    node.tick();
    let body = json!({ "handle": handle, "cost": { "usd": "0.25" } });
    assert_eq!(node.post("/v1/settle", body, &[]).await.0, 200);
    node.tick();
    let series = node.get("/v1/dashboard/series?names=reserved%20settled").await;
    let last = |name: &str| {
        let values = series["series"][name].as_array().expect("values");
        values[values.len() - 2..].to_vec()
    };
    assert_eq!(last("reserved"), [json!(0.6), json!(0.0)]);
    assert_eq!(last("settled"), [json!(null), json!(0.25)]);
}

#[tokio::test]
async fn secrets_are_shown_as_hashes() {
    let node = Node::new(&[]);
    node.acquire("ann").await;
    node.tick();
    for path in ["/v1/dashboard/limits", "/v1/dashboard/activity"] {
        let shown = node.get(path).await.to_string();
        assert!(shown.contains("ann") && !shown.contains("k-secret"), "{shown}");
    }
}

#[tokio::test]
async fn the_tail_contains_decisions_with_their_reasons() {
    let node = Node::new(&[]);
    for _ in 0..4 {
        node.acquire("<b>").await;
    }
    let activity = node.get("/v1/dashboard/activity").await;
    let decisions = activity["decisions"].as_array().expect("decisions");
    assert_eq!(decisions.len(), 4);
    assert_eq!(decisions[3]["reason"], "HIT_USER_LIMIT");
    let dimensions = decisions[3]["dimensions"].as_array().expect("dimensions");
    assert!(dimensions.contains(&json!(["userId", "<b>"])), "{dimensions:?}");
}

#[tokio::test]
async fn an_event_stream_sends_each_second_and_ends_at_the_shutdown() {
    let node = Node::new(&[]);
    let request = Request::get("/v1/dashboard/events?tail=true").header(header::HOST, HOST);
    let request = request.body(Body::empty()).expect("a request");
    let response = node.app.clone().oneshot(request).await.expect("infallible");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
    let mut body = response.into_body();
    node.acquire("ann").await;
    node.tick();
    let frame = body.frame().await.expect("an event").expect("no error");
    let text = String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text");
    let events: Vec<_> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
    assert!(events[0].starts_with("event: tick\ndata: {"), "{text}");
    assert!(events[0].contains("\"allowed\":1.0"), "{text}");
    assert!(events[1].starts_with("event: decisions\ndata: {\"skipped\":0,"), "{text}");
    for event in events {
        let data = event.split_once("data: ").expect("data").1;
        serde_json::from_str::<Value>(data).expect("JSON");
    }
    node.shutdown.cancel();
    assert!(body.frame().await.is_none(), "the stream ends");
}

/// Opens an event stream.
async fn open_stream(node: &Node, headers: &[(&str, &str)]) -> Body {
    let mut request = Request::get("/v1/dashboard/events?tail=true").header(header::HOST, HOST);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let response = node.app.clone().oneshot(request).await.expect("infallible");
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// Asserts that the stream sends the next second, or that it ends instead.
async fn check_stream(node: &Node, stream: &mut Body, sends: bool, when: &str) {
    node.tick();
    let event = stream.frame().await;
    assert_eq!(event.is_some_and(|event| event.is_ok()), sends, "{when}");
}

#[tokio::test]
async fn an_event_stream_ends_with_the_session_that_opened_it() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    let own = format!("http://{HOST}");
    let cookie = log_in(&node, "reader").await;
    let mut stream = open_stream(&node, &[("cookie", &cookie)]).await;
    check_stream(&node, &mut stream, true, "the session is open").await;
    node.post("/logout", json!({}), &[("cookie", cookie.as_str()), ("origin", &own)]).await;
    check_stream(&node, &mut stream, false, "after the logout").await;

    let cookie = log_in(&node, "reader").await;
    let mut stream = open_stream(&node, &[("cookie", &cookie)]).await;
    check_stream(&node, &mut stream, true, "the session is open").await;
    node.clock.advance(Span::from_secs(12 * 3_600));
    check_stream(&node, &mut stream, false, "the session is over").await;
}

#[tokio::test]
async fn an_event_stream_ends_with_its_token() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    let cookie = log_in(&node, "reader").await;
    let mut session = open_stream(&node, &[("cookie", &cookie)]).await;
    let mut bearer = open_stream(&node, &[("authorization", "Bearer reader")]).await;
    check_stream(&node, &mut session, true, "a session of the token").await;
    assert!(bearer.frame().await.is_some_and(|event| event.is_ok()));
    let hash = auth::hash(b"reader");
    let without_scope = Tokens::new([("reader", hash)]).expect("tokens");
    let decides = |_: &str| [AuthScope::Decide].into_iter().collect();
    node.tokens.store(Some(Arc::new(without_scope.with_scopes(decides))));
    check_stream(&node, &mut session, false, "the token may no longer read").await;
    assert!(bearer.frame().await.is_none(), "neither may the holder of the token");

    // A stream that was opened while no token was needed.
    let node = Node::new(&[]);
    let mut open = open_stream(&node, &[]).await;
    check_stream(&node, &mut open, true, "no token is needed").await;
    node.tokens.store(Some(Arc::new(Tokens::new([("new", hash)]).expect("tokens"))));
    check_stream(&node, &mut open, false, "a token is needed now").await;
}

/// Returns the cookie of a login.
async fn log_in(node: &Node, token: &str) -> String {
    let own = format!("http://{HOST}");
    let (status, headers, body) =
        node.post("/login", json!({ "token": token }), &[("origin", &own)]).await;
    assert_eq!(status, 200, "{body}");
    let cookie = headers[header::SET_COOKIE].to_str().expect("text");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    cookie.split(';').next().expect("a cookie").to_owned()
}

#[tokio::test]
async fn a_session_has_the_scopes_of_its_token() {
    let node = Node::new(&[
        ("reader", &[AuthScope::Read]),
        ("operator", &[AuthScope::Read, AuthScope::Admin]),
    ]);
    let body =
        json!({ "rule": "USER", "limit": "0", "when": { "userId": "eve" }, "reason": "abuse" });
    let own = format!("http://{HOST}");
    for (token, allowed) in [("reader", 403), ("operator", 201)] {
        let cookie = log_in(&node, token).await;
        let headers = [("cookie", cookie.as_str()), ("origin", own.as_str())];
        let (status, _, answer) = node.post("/v1/overrides", body.clone(), &headers).await;
        assert_eq!(status, allowed, "{token}: {answer}");
        let foreign = [("cookie", cookie.as_str()), ("origin", "http://evil.example")];
        assert_eq!(node.post("/v1/overrides", body.clone(), &foreign).await.0, 403);
        let request = Request::get("/v1/dashboard/audit").header("cookie", &cookie);
        let (status, _, audit) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 200, "{audit}");
        if token == "operator" {
            let entry = &audit["audit"][0];
            assert_eq!(
                (&entry["by"], &entry["action"]),
                (&json!("operator"), &json!("override set"))
            );
            assert_eq!((&entry["reason"], &entry["target"]), (&json!("abuse"), &json!("USER")));
            assert_eq!(entry["detail"], "userId=eve: 0");
        }
        node.post("/logout", json!({}), &headers).await;
        let request = Request::get("/v1/dashboard/audit").header("cookie", &cookie);
        let (status, ..) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 401, "the session is over");
    }
}

#[tokio::test]
async fn a_login_needs_a_known_token_that_may_read() {
    let node = Node::new(&[("reader", &[AuthScope::Read]), ("caller", &[AuthScope::Decide])]);
    for (token, detail) in [
        ("wrong", "unknown token: check that it is complete"),
        ("caller", "the token does not have the scope read: use one with this scope"),
    ] {
        let (status, headers, body) = node.post("/login", json!({ "token": token }), &[]).await;
        assert_eq!((status, body["detail"].as_str()), (401, Some(detail)));
        assert!(!headers.contains_key(header::SET_COOKIE));
    }
    let foreign = [("origin", "http://evil.example")];
    assert_eq!(node.post("/login", json!({ "token": "reader" }), &foreign).await.0, 403);
    assert_eq!(node.get("/login").await, json!({ "login": true }));
}

#[tokio::test]
async fn pages_are_open_and_contain_no_data_but_the_api_is_not() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    for path in ["/", "/assets/app.js", "/assets/style.css", "/assets/vendor/preact.js"] {
        let request = Request::get(path).header("accept-encoding", "gzip, br");
        let (status, headers, _) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 200, "{path}");
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
        assert!(policy.contains("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers[header::CONTENT_ENCODING], "gzip");
    }
    for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.path.starts_with("/v1/dashboard")) {
        let request = Request::builder().method(endpoint.method).uri(endpoint.path);
        let (status, ..) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 401, "{endpoint:?}");
    }
}

#[tokio::test]
async fn without_tokens_only_this_machine_sees_the_dashboard() {
    let node = Node::new(&[]);
    let from = |host: &str, path: &str| {
        Request::get(path).header(header::HOST, host).body(Body::empty()).expect("a request")
    };
    assert_eq!(node.send(from(HOST, "/")).await.0, 200);
    assert_eq!(node.send(from("rebound.example", "/")).await.0, 403);
    assert_eq!(node.send(from("rebound.example", "/v1/dashboard/audit")).await.0, 403);
    let open = Node::bound_to("0.0.0.0", &[]);
    let (status, _, body) = open.send(from(HOST, "/v1/dashboard/audit")).await;
    assert_eq!(status, 403);
    let detail = body["detail"].as_str().expect("a detail");
    assert!(detail.contains("set auth.tokens"), "{detail}");
}

#[tokio::test]
async fn a_reset_is_in_the_audit_log_with_its_reason() {
    let node = Node::new(&[]);
    node.acquire("ann").await;
    let body = json!({ "dimensions": { "userId": "ann" } });
    let (status, _, answer) =
        node.post("/v1/reset?rule=USER&reason=ticket%204711", body, &[]).await;
    assert_eq!(status, 200, "{answer}");
    let audit = node.get("/v1/dashboard/audit").await;
    let entry = &audit["audit"][0];
    assert_eq!((&entry["action"], &entry["reason"]), (&json!("reset"), &json!("ticket 4711")));
    assert_eq!(entry["target"], "USER:ann#requests");
}

#[tokio::test]
async fn wrong_parameters_are_named() {
    let node = Node::new(&[]);
    for (path, detail) in [
        ("/v1/dashboard/series?range=1h", "range: write 15m or 24h"),
        ("/v1/dashboard/metrics?names=secret", "names: secret is unknown"),
        ("/v1/dashboard/events?tail=perhaps", "tail"),
    ] {
        let request = Request::get(path).header(header::HOST, HOST);
        let (status, _, body) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 400, "{path}");
        let found = body["detail"].as_str().expect("a detail");
        assert!(found.contains(detail), "{found}");
    }
}

#[test]
fn every_path_of_the_dashboard_has_a_scope() {
    let node = Node::new(&[]);
    let printed = format!("{:?}", node.app);
    let printed = printed.split("fallback_router").next().unwrap_or_default();
    let paths: BTreeSet<_> =
        printed.split('"').filter(|text| text.starts_with("/v1/dashboard")).collect();
    assert!(paths.len() > 5, "{paths:?}");
    for path in paths {
        assert!(ENDPOINTS.iter().any(|endpoint| endpoint.path == path), "{path} has no scope");
    }
}

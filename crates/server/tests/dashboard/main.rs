//! Tests of the dashboard: its data, its sessions, and its event stream.

mod access;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::{Group, Limit, Limiter, Rule, Span, Timestamp};
use sluicegate_server::admin::{self, AdminOperations, ReloadFuture};
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

/// The summaries of other nodes; none means that they can't be read.
#[derive(Default)]
struct OtherNodes {
    texts: Arc<Mutex<Vec<String>>>,
    reads: Arc<AtomicUsize>,
}

impl NodeSummaries for OtherNodes {
    fn read(&self) -> SummariesFuture<'_> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let texts = self.texts.lock().expect("no panic").clone();
        Box::pin(async move {
            if texts.is_empty() { Err("Redis does not answer".to_owned()) } else { Ok(texts) }
        })
    }
}

/// The summary of another node, whose gateway was asked for a pause.
fn paused_node() -> String {
    let until = (EPOCH + Span::from_secs(90)).to_string();
    let pause =
        json!({ "gateway": "vendor", "route": "api", "until": until, "reason": "status 429" });
    json!({ "id": "other", "host": "node-2", "pauses": [pause], "started": "2100" }).to_string()
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

/// A process whose reload shows who asked for it, and why.
struct ShownReload;

impl AdminOperations for ShownReload {
    fn metrics(&self) -> String {
        String::new()
    }

    fn reload<'a>(&'a self, by: &'a str, reason: &'a str) -> ReloadFuture<'a> {
        Box::pin(async move { Ok(format!("{by}: {reason}")) })
    }
}

/// A node with the admin routes, on a clock that the test advances.
struct Node {
    app: Router,
    clock: Arc<ManualClock>,
    recorder: Recorder,
    tokens: Arc<ArcSwapOption<Tokens>>,
    sources: Arc<DashboardSources>,
    others: Arc<Mutex<Vec<String>>>,
    reads: Arc<AtomicUsize>,
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
        let tenant = Rule::new("TENANT", [limit("9000/min")]).per(&["tenantId"]);
        let groups = vec![
            Group::new("all", [tenant]),
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
        let others = Arc::new(Mutex::new(vec![paused_node(), "damaged".to_owned()]));
        let reads = Arc::new(AtomicUsize::new(0));
        let sources = DashboardSources {
            service: service.clone(),
            recorder: recorder.clone(),
            tokens: tokens.clone(),
            browsers: browsers.clone(),
            roles: vec!["limiter".to_owned()],
            id: "node-1-id".to_owned(),
            nodes: Some(Arc::new(OtherNodes { texts: others.clone(), reads: reads.clone() })),
            gateways: Arc::new(OneRoute),
        };
        let reservations = Arc::new(reservations);
        let sources = Arc::new(sources);
        let app = dashboard::router(sources.clone(), shutdown.clone())
            .merge(admin::router(Arc::new(ShownReload)))
            .merge(rest::reservations::router(reservations, rest::BODY_LIMIT))
            .merge(rest::overrides::router(overrides, rest::BODY_LIMIT))
            .merge(rest::router(service, rest::BODY_LIMIT))
            .layer(auth::require(tokens.clone()).with_browsers(browsers));
        recorder.tick();
        Self { app, clock, recorder, tokens, sources, others, reads, shutdown }
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
    let user = &limits["groups"][1]["rules"][0];
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
    let summary = node.sources.summary();
    assert!(summary.len() <= 64 * 1_024 && summary.len() > 8_000, "{}", summary.len());
}

/// Writes the summary of a second node with the same usage, and reads both together.
#[tokio::test]
async fn pages_show_all_nodes_together_and_each_alone() {
    let node = Node::new(&[]);
    for user in ["ann", "ann", "ann", "ann", "bob"] {
        node.acquire(user).await;
    }
    node.post(
        "/v1/reset?rule=USER&reason=ticket%207",
        json!({ "dimensions": { "userId": "bob" } }),
        &[],
    )
    .await;
    node.tick();
    let mut other: Value = serde_json::from_str(&node.sources.summary()).expect("JSON");
    for (name, value) in [("id", "other"), ("host", "node-2"), ("started", "2100")] {
        other[name] = value.into();
    }
    let budget = &mut other["budgets"][1];
    budget["dimensions"] = json!([["userId", "eve"]]);
    *node.others.lock().expect("no panic") = vec![other.to_string()];
    let of = async |node: &Node, name: &str| {
        node.tick();
        node.get(&format!("/v1/dashboard/summary?node={name}")).await
    };
    let all = of(&node, "all").await;
    let own = of(&node, "own").await;
    let second = of(&node, "other").await;
    let hosts = |answer: &Value| {
        let nodes = answer["nodes"].as_array().expect("nodes");
        nodes.iter().map(|node| node["host"].clone()).collect::<Vec<_>>()
    };
    for answer in [&all, &own, &second] {
        assert_eq!(
            (&answer["own"], hosts(answer)),
            (&json!("node-1-id"), vec![json!("node-1"), json!("node-2")])
        );
    }
    let summary = |answer: &Value, place: &str| answer["summary"].pointer(place).cloned();
    let allowed = |answer: &Value| summary(answer, "/decisions/allowed");
    assert_eq!((allowed(&own), allowed(&second)), (Some(json!(4)), Some(json!(4))));
    assert_eq!(allowed(&all), Some(json!(8)));
    let denied = summary(&all, "/callers/userId/denied/0/count");
    assert_eq!(
        (denied, summary(&own, "/callers/userId/denied/0/count")),
        (Some(json!(2)), Some(json!(1)))
    );
    let users = |answer: &Value| {
        let budgets = answer["summary"]["budgets"].as_array().expect("budgets");
        budgets
            .iter()
            .map(|one| one["dimensions"][0][1].as_str().expect("text").to_owned())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(users(&own).into_iter().collect::<Vec<_>>(), ["ann", "bob"]);
    assert_eq!(users(&second).into_iter().collect::<Vec<_>>(), ["ann", "eve"]);
    assert_eq!(users(&all).into_iter().collect::<Vec<_>>(), ["ann", "bob", "eve"]);
    for (answer, nodes) in [(&all, 2), (&own, 1), (&second, 1)] {
        let audit = answer["summary"]["audit"].as_array().expect("actions");
        assert_eq!(audit.len(), nodes, "{audit:?}");
        assert_eq!(audit[0]["reason"], "ticket 7");
        let values = answer["summary"]["series"]["values"]["allowed"].as_array().expect("values");
        assert_eq!(values.len(), 90);
        let tail = answer["summary"]["tail"].as_array().expect("decisions");
        assert_eq!(tail.len(), 5 * nodes);
    }
    assert_eq!(second["summary"]["audit"][0]["node"], "node-2");
    let gone = of(&node, "nobody").await;
    assert_eq!((&gone["summary"], hosts(&gone).len()), (&json!(null), 2));
}

#[tokio::test]
async fn open_pages_share_one_reading_per_second() {
    let node = Node::new(&[]);
    let reads = || node.reads.load(Ordering::SeqCst);
    let before = reads();
    node.tick();
    let asked = (0..10).map(|_| node.get("/v1/dashboard/summary"));
    futures_util::future::join_all(asked).await;
    assert_eq!(reads() - before, 1);
    let before = reads();
    node.tick();
    node.get("/v1/dashboard/summary").await;
    assert_eq!(reads() - before, 1, "a new second has new data");
}

#[tokio::test]
async fn the_own_node_is_shown_while_the_others_cannot_be_read() {
    let node = Node::new(&[]);
    node.others.lock().expect("no panic").clear();
    let answer = node.get("/v1/dashboard/summary").await;
    assert_eq!(answer["problem"], "Redis does not answer");
    assert_eq!(answer["summary"]["host"], "node-1");
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
    // The tenant has used the smallest share of its requests, too.
    let closest = limits["closest"].as_array().expect("keys");
    let has_tenant = |one: &Value| one["dimensions"][0] == json!(["tenantId", "large"]);
    assert!(closest.len() > 50 && closest.iter().any(has_tenant), "{closest:?}");
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
async fn a_budget_that_runs_out_today_says_when() {
    let node = Node::new(&[]);
    node.acquire("ann").await;
    node.clock.advance(Span::from_secs(100));
    node.acquire("ann").await;
    let limits = node.get("/v1/dashboard/limits").await;
    let budget = &limits["budgets"][0];
    // 0.25 in 100 s, and 0.50 is left.
    assert_eq!(budget["usedUpAt"], (EPOCH + Span::from_secs(100 + 200)).to_string());
    let summary: Value = serde_json::from_str(&node.sources.summary()).expect("JSON");
    assert_eq!(summary["budgets"][0]["usedUpAt"], budget["usedUpAt"]);
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

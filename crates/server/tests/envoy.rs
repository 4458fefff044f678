//! Tests of Envoy's protocol, called without a socket.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_core::descriptor::{DOMAIN, SHAPE};
use sluicegate_core::rule::{Group, EstimateMode, Pattern, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Limit, Limiter};
use sluicegate_server::decision_log::{self, DecisionLog};
use sluicegate_server::envoy::{self, EnvoyRls};
use sluicegate_server::grpc;
use sluicegate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use sluicegate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use sluicegate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use sluicegate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code::{
    self, Ok as Fine, OverLimit,
};
use sluicegate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluicegate_server::grpc::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use sluicegate_http::probe::Readiness;
use sluicegate_server::metrics::{self, Metrics};
use sluicegate_service::{Observer, Service};
use sluicegate_store::AnyStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use tonic::Status;
use tower::ServiceExt as _;

/// 2027-01-15 08:00:00 UTC.
const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);
const MINUTE: i32 = Unit::Minute as i32;

struct Api {
    grpc: Router,
    http: Router,
    clock: Arc<ManualClock>,
    metrics: Metrics,
    log: DecisionLog,
    written: tempfile::NamedTempFile,
}

impl Api {
    fn of(rules: Vec<Rule>) -> Self {
        // Required in whole queries; Envoy sends views.
        let settings = Settings { required: vec!["userId".to_owned()], ..Settings::default() };
        let rules = Ruleset::new(vec![Group::new("edge", rules)], settings).expect("rules");
        let clock = Arc::new(ManualClock::new(EPOCH));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let metrics = Metrics::new(&metrics::Options::default());
        metrics.register_rules(&rules);
        let written = tempfile::NamedTempFile::new().expect("a file");
        let out = Box::new(written.reopen().expect("the same file"));
        let options = decision_log::Options::new([0; 32]);
        let log = DecisionLog::new(out, clock.clone(), options).expect("a log");
        let observers: Vec<Box<dyn Observer>> =
            vec![Box::new(metrics.clone()), Box::new(log.clone())];
        let service =
            Service::new(Limiter::new(rules, AnyStore::custom(store)), clock.clone(), observers);
        let service = Arc::new(service);
        let rls = || EnvoyRls::new(service.clone(), envoy::EnvoyOptions::default());
        let ready = Arc::new(|| Readiness::Ready);
        let grpc = grpc::router(service.clone(), rls(), 64 * 1024, ready, Default::default());
        Self { grpc, http: envoy::router(rls(), 64 * 1024), clock, metrics, log, written }
    }

    /// Closes the decision log and returns its lines.
    fn logged(&self) -> Vec<Value> {
        self.log.close();
        let text = std::fs::read_to_string(self.written.path()).expect("a log");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    async fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.grpc.clone());
        client.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// Returns the overall code, and the codes and remaining hits of the descriptors.
    async fn codes(&self, descriptors: &[RateLimitDescriptor]) -> (Code, Vec<(Code, u32)>) {
        let told = self.ask(call(descriptors)).await.expect("an answer");
        let codes = told.statuses.iter().map(|status| (status.code(), status.limit_remaining));
        (told.overall_code(), codes.collect())
    }

    async fn json(&self, body: &Value) -> (u16, Value) {
        let request = Request::post("/json").body(Body::from(body.to_string())).expect("a request");
        let response = self.http.clone().oneshot(request).await.expect("infallible");
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&bytes).expect("JSON"))
    }
}

/// Creates a rule for descriptors of this shape.
fn rule(name: &str, shape: &str, limit: &str) -> Rule {
    let limit = limit.parse::<Limit>().expect(limit);
    let keys: Vec<_> = shape.split('/').collect();
    Rule::new(name, [limit]).per(&keys).when(SHAPE, Pattern::exactly(shape))
}

fn call(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    let descriptors = descriptors.to_vec();
    RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry =
        |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    let entries = entries.iter().map(entry).collect();
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

fn hits(hits: u64, entries: &[(&str, &str)]) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

fn refund(count: u64, entries: &[(&str, &str)]) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..hits(count, entries) }
}

fn with_limit(requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit });
    RateLimitDescriptor { limit, ..descriptor(&[("user", "ann")]) }
}

#[tokio::test]
async fn statuses_tell_the_limit_what_is_left_and_when_it_resets() {
    let api = Api::of(vec![rule("USER", "user", "2/min windowed")]);
    let asked = [descriptor(&[("user", "ann")]), descriptor(&[("other", "x")])];
    let told = api.ask(call(&asked)).await.expect("an answer");
    assert_eq!((told.overall_code(), told.statuses.len()), (Fine, 2));
    let [limited, unmatched] = told.statuses.as_slice() else { panic!() };
    let limit = limited.current_limit.as_ref().expect("a limit");
    assert_eq!(
        (limit.requests_per_unit, limit.unit(), limit.name.as_str()),
        (2, Unit::Minute, "USER")
    );
    assert_eq!(limited.limit_remaining, 1);
    assert_eq!(limited.duration_until_reset.as_ref().map(|d| d.seconds), Some(60));
    assert_eq!((unmatched.code(), unmatched.current_limit.is_none()), (Fine, true));
    let headers: Vec<_> = told.response_headers_to_add.iter().map(|h| h.key.as_str()).collect();
    for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit"] {
        assert!(headers.contains(&name), "{headers:?}");
    }
    assert_eq!(api.codes(&asked).await.0, Fine);
    let told = api.ask(call(&asked)).await.expect("an answer");
    assert_eq!((told.overall_code(), told.statuses[0].code()), (OverLimit, OverLimit));
    assert!(told.response_headers_to_add.iter().any(|h| h.key == "retry-after"));
}

#[tokio::test]
async fn all_descriptors_are_charged_or_none() {
    let api = Api::of(vec![rule("USER", "user", "9/min"), rule("PATH", "path", "1/min")]);
    let (user, path) = (descriptor(&[("user", "ann")]), descriptor(&[("path", "/")]));
    let both = [user.clone(), path];
    assert_eq!(api.codes(&both).await, (Fine, vec![(Fine, 8), (Fine, 0)]));
    for _ in 0..5 {
        assert_eq!(api.codes(&both).await, (OverLimit, vec![(Fine, 8), (OverLimit, 0)]));
    }
    assert_eq!(api.codes(&[user]).await, (Fine, vec![(Fine, 7)]));
}

#[tokio::test]
async fn order_depth_and_repeated_keys_make_different_descriptors() {
    let api = Api::of(vec![
        rule("AB", "a/b", "1/min"),
        Rule { per: vec!["a".into(), "a#2".into()], ..rule("AA", "a/a", "1/min") },
    ]);
    let limited = |entries: &[(&str, &str)]| {
        let asked = [descriptor(entries)];
        let api = &api;
        async move { api.codes(&asked).await.1[0].0 == Fine && api.codes(&asked).await.0 == OverLimit }
    };
    assert!(limited(&[("a", "1"), ("b", "2")]).await);
    assert!(limited(&[("a", "1"), ("a", "2")]).await);
    assert!(limited(&[("a", "2"), ("a", "1")]).await, "the order of values counts");
    for free in
        [&[("b", "2"), ("a", "1")][..], &[("a", "1")], &[("a", "1"), ("b", "2"), ("c", "3")]]
    {
        assert!(!limited(free).await, "{free:?}");
    }
}

#[tokio::test]
async fn hits_are_the_descriptors_or_else_the_requests() {
    let api =
        Api::of(vec![rule("USER", "user", "10/min windowed"), rule("PATH", "path", "10/min")]);
    let asked = [hits(3, &[("user", "ann")]), descriptor(&[("path", "/")])];
    let request = RateLimitRequest { hits_addend: 4, ..call(&asked) };
    let told = api.ask(request).await.expect("an answer");
    let left: Vec<_> = told.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(left, [7, 6]);
    let ask = [hits(0, &[("user", "ann")])];
    assert_eq!(api.codes(&ask).await, (Fine, vec![(Fine, 7)]), "no hits only ask");
    assert_eq!(api.codes(&[hits(8, &[("user", "ann")])]).await.0, OverLimit);
    assert_eq!(api.codes(&[hits(u64::MAX, &[("user", "ann")])]).await.0, OverLimit);
    assert_eq!(api.codes(&[hits(7, &[("user", "ann")])]).await, (Fine, vec![(Fine, 0)]));
    assert_eq!(api.codes(&ask).await.0, OverLimit);
}

#[tokio::test]
async fn negative_hits_give_back_and_never_below_nothing() {
    for limit in ["10/min windowed", "10/min", "10/min burst 10", "10/fixed min"] {
        let api = Api::of(vec![rule("USER", "user", limit), rule("PATH", "path", "9/min")]);
        assert_eq!(api.codes(&[hits(10, &[("user", "ann")])]).await.0, Fine);
        let both = [refund(4, &[("user", "ann")]), descriptor(&[("path", "/")])];
        assert_eq!(api.codes(&both).await, (Fine, vec![(Fine, 4), (Fine, 8)]), "{limit}");
        assert_eq!(api.codes(&[refund(99, &[("user", "ann")])]).await.1, [(Fine, 10)], "{limit}");
        assert_eq!(api.codes(&[refund(1, &[("user", "bob")])]).await.1, [(Fine, 10)], "{limit}");
        assert_eq!(api.codes(&[hits(11, &[("user", "ann")])]).await.0, OverLimit, "{limit}");
    }
}

#[tokio::test]
async fn a_limit_that_envoy_brings_along_takes_the_place_of_the_configured() {
    let api = Api::of(vec![rule("USER", "user", "1/min")]);
    for left in [1, 0] {
        assert_eq!(api.codes(&[with_limit(2, MINUTE)]).await, (Fine, vec![(Fine, left)]));
    }
    let told = api.ask(call(&[with_limit(2, MINUTE)])).await.expect("an answer");
    let limit = told.statuses[0].current_limit.as_ref().expect("a limit");
    assert_eq!(
        (told.overall_code(), limit.requests_per_unit, limit.unit()),
        (OverLimit, 2, Unit::Minute)
    );
    assert_eq!(api.codes(&[descriptor(&[("user", "ann")])]).await.0, Fine, "not charged there");
    assert_eq!(api.codes(&[with_limit(3, MINUTE)]).await, (Fine, vec![(Fine, 0)]), "raised");
    assert_eq!(api.codes(&[with_limit(0, MINUTE)]).await.0, OverLimit, "nothing may go");
    let status = api.ask(call(&[with_limit(2, 0)])).await.expect_err("no unit");
    assert!(status.message().starts_with("descriptors[0].limit.unit: "), "{status:?}");
}

#[tokio::test]
async fn a_call_that_asks_nothing_is_an_error_and_an_unknown_domain_is_not() {
    let in_edge = Pattern::exactly("edge");
    let api = Api::of(vec![rule("USER", "user", "1/min").when(DOMAIN, in_edge)]);
    let user = [descriptor(&[("user", "ann")])];
    let nowhere = RateLimitRequest { domain: String::new(), ..call(&user) };
    let message = |status: Status| status.message().to_owned();
    assert!(message(api.ask(nowhere).await.expect_err("refused")).starts_with("domain: "));
    assert!(message(api.ask(call(&[])).await.expect_err("refused")).starts_with("descriptors: "));
    let nameless = call(&[descriptor(&[("", "x")])]);
    let nameless = message(api.ask(nameless).await.expect_err("refused"));
    assert!(nameless.starts_with("descriptors[0].entries[0].key: "), "{nameless}");
    for _ in 0..3 {
        let other = RateLimitRequest { domain: "other".to_owned(), ..call(&user) };
        assert_eq!(api.ask(other).await.expect("an answer").overall_code(), Fine);
    }
    assert_eq!(api.codes(&user).await.0, Fine);
    assert_eq!(api.codes(&user).await.0, OverLimit);
}

/// An error would bypass the limit if Envoy fails open.
#[tokio::test]
async fn no_value_is_strange_enough_to_get_around_a_limit() {
    let api = Api::of(vec![rule("USER", "user", "1/min")]);
    for value in ["", "\0", "{a}:b", &"x".repeat(1_000), &format!("{}y", "x".repeat(999))] {
        let user = [descriptor(&[("user", value)])];
        assert_eq!(api.codes(&user).await.0, Fine, "{value:?} has a counter of its own");
        assert_eq!(api.codes(&user).await.0, OverLimit, "{value:?}");
    }
}

#[tokio::test]
async fn rules_that_set_free_and_rules_that_replace() {
    let mut strict = rule("STRICT", "path", "5/min");
    strict.replaces = vec!["USER".to_owned()];
    let free = Rule { when: rule("", "team", "1/s").when, ..Rule::unlimited("FREE") };
    let api = Api::of(vec![rule("USER", "user", "1/min"), strict, free]);
    let (user, path) = (descriptor(&[("user", "ann")]), descriptor(&[("path", "/")]));
    let team = descriptor(&[("team", "a")]);
    for left in [4, 3] {
        let asked = [user.clone(), path.clone(), team.clone()];
        let expected = vec![(Fine, 0), (Fine, left), (Fine, u32::MAX)];
        assert_eq!(api.codes(&asked).await, (Fine, expected));
    }
    assert_eq!(api.codes(std::slice::from_ref(&user)).await.0, Fine, "it was not charged before");
    assert_eq!(api.codes(&[user]).await.0, OverLimit);
}

#[tokio::test]
async fn a_tally_counts_like_envoyproxy_ratelimit() {
    let tally = |rule: Rule| Rule { counts_only: true, mode: EstimateMode::Optimistic, ..rule };
    let shadow = Rule { shadow: true, ..rule("TEAM", "team", "1/fixed min") };
    let api = Api::of(vec![
        tally(rule("USER", "user", "9/fixed min")),
        tally(rule("PATH", "path", "1/fixed min")),
        tally(shadow),
    ]);
    let user = || descriptor(&[("user", "ann")]);
    let both = [user(), descriptor(&[("path", "/")]), descriptor(&[("team", "a")])];
    assert_eq!(api.codes(&both).await.0, Fine);
    let denied = (OverLimit, vec![(Fine, 7), (OverLimit, 0), (Fine, 0)]);
    assert_eq!(api.codes(&both).await, denied, "what fits is counted although the call is denied");
    assert_eq!(api.codes(&[hits(9, &[("user", "ann")])]).await, (OverLimit, vec![(OverLimit, 0)]));
    assert_eq!(api.codes(&[user()]).await.0, OverLimit, "and so is what did not fit");
    api.clock.advance(Span::from_secs(60));
    assert_eq!(api.codes(&[user()]).await, (Fine, vec![(Fine, 8)]));
}

#[tokio::test]
async fn what_is_counted_beyond_a_limit_is_a_denial_to_everybody() {
    let optimistic = |rule: Rule| Rule { mode: EstimateMode::Optimistic, ..rule };
    let tally = |rule: Rule| optimistic(Rule { counts_only: true, ..rule });
    for rule in [
        tally(rule("USER", "user", "2/fixed min")),
        optimistic(rule("USER", "user", "2/min windowed")),
    ] {
        let api = Api::of(vec![rule]);
        let ann = [("user", "ann")];
        assert_eq!(api.codes(&[descriptor(&ann)]).await, (Fine, vec![(Fine, 1)]));
        let told = api.ask(call(&[hits(5, &ann)])).await.expect("an answer");
        assert_eq!(told.overall_code(), OverLimit);
        let header = |name: &str| {
            let all = &mut told.response_headers_to_add.iter();
            all.find(|header| header.key == name).map(|header| header.value.as_str())
        };
        let expected = ["2", "0", "\"USER\";q=2;w=60"];
        let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit-policy"];
        assert_eq!(names.map(header), expected.map(Some));
        let shown = api.metrics.render();
        for line in [
            "rate_limiter_requests_total{result=\"allowed\",scope=\"USER\",model_id=\"\",tenant_id=\"\"} 1",
            "rate_limiter_requests_total{result=\"denied\",scope=\"USER\",model_id=\"\",tenant_id=\"\"} 1",
            "sluicegate_decisions_total{operation=\"acquire\",result=\"denied\"} 1",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line} in\n{shown}");
        }
        assert!(!shown.contains("sluicegate_shadow_denials_total"), "{shown}");
        let [first, second, _end] = &api.logged()[..] else { panic!("two decisions and the end") };
        assert_eq!((&first["allowed"], &first["level"]), (&json!(true), &json!("INFO")));
        assert_eq!((&second["allowed"], &second["level"]), (&json!(false), &json!("WARN")));
        assert_eq!(second["reason"], "HIT_USER_LIMIT");
        assert_eq!((&second["scopeHit"], &second["remaining"]), (&json!("USER"), &json!(0)));
        assert_eq!(second["charges"][0]["take"], 5, "and it is counted");
    }
}

#[tokio::test]
async fn more_hits_than_a_log_takes_are_over_the_limit_and_no_error() {
    let api = Api::of(vec![rule("USER", "user", "10/min"), rule("PATH", "path", "5000/min")]);
    let user = hits(1_001, &[("user", "ann")]);
    let told = api.ask(call(std::slice::from_ref(&user))).await.expect("an answer");
    assert_eq!((told.overall_code(), told.statuses[0].limit_remaining), (OverLimit, 10));
    let path = hits(1_001, &[("path", "/")]);
    assert_eq!(api.codes(&[path]).await, (OverLimit, vec![(OverLimit, 0)]));
    assert_eq!(api.codes(&[hits(1_000, &[("path", "/")])]).await, (Fine, vec![(Fine, 4_000)]));
    let refund = RateLimitDescriptor { is_negative_hits: true, ..hits(2_000, &[("path", "/")]) };
    assert_eq!(api.codes(&[refund]).await, (Fine, vec![(Fine, 5_000)]));
}

#[tokio::test]
async fn the_same_in_json() {
    let api = Api::of(vec![rule("USER", "user", "1/min")]);
    let asked = json!({
        "domain": "edge",
        "descriptors": [{ "entries": [{ "key": "user", "value": "ann" }], "hitsAddend": "1" }],
    });
    let (status, told) = api.json(&asked).await;
    assert_eq!((status, &told["overallCode"]), (200, &json!("OK")));
    let limit = json!({ "name": "USER", "requestsPerUnit": 1, "unit": "MINUTE" });
    assert_eq!(told["statuses"][0]["currentLimit"], limit);
    assert_eq!(told["statuses"][0]["durationUntilReset"], "60s");
    let (status, told) = api.json(&asked).await;
    assert_eq!((status, &told["statuses"][0]["code"]), (429, &json!("OVER_LIMIT")));
    for wrong in [json!({}), json!({ "domain": "edge", "descriptor": [] }), json!([])] {
        assert_eq!(api.json(&wrong).await.0, 400, "{wrong}");
    }
}

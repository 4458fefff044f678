//! Runs one scenario through every protocol: the same requests get the same decisions.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_core::rule::{Group, Pattern, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Limit, Limiter};
use sluicegate_server::auth;
use sluicegate_server::envoy::{self, EnvoyRls};
use sluicegate_server::grpc;
use sluicegate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use sluicegate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use sluicegate_server::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use sluicegate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluicegate_server::grpc::proto::sluicegate::v1::AllowRequest;
use sluicegate_server::grpc::proto::sluicegate::v1::rate_limiter_service_client::RateLimiterServiceClient;
use sluicegate_http::probe::Readiness;
use sluicegate_server::rest;
use sluicegate_service::Service;
use sluicegate_store::AnyStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use tower::ServiceExt as _;

const SCENARIO: &str = include_str!("protocols.txt");

/// The servers of one service, with all protocols.
struct Servers {
    clock: Arc<ManualClock>,
    rest: Router,
    grpc: Router,
}

impl Servers {
    fn new() -> Self {
        let limit = |text: &str| text.parse::<Limit>().expect(text);
        let user = Rule::new("USER", [limit("3/10s"), limit("5/min")]).per(&["userId", "modelId"]);
        let vip = Rule::new("VIP", [limit("9/min")]).per(&["userId"]);
        let vip = vip.when("userId", Pattern::exactly("vip"));
        let model = Rule::new("MODEL", [limit("12/min windowed")]).per(&["modelId"]);
        Self::with(vec![Group::new("caller", [vip, user]), Group::new("model", [model])])
    }

    fn with(groups: Vec<Group>) -> Self {
        let rules = Ruleset::new(groups, Settings::default()).expect("rules");
        let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_800_000_000)));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let service =
            Service::new(Limiter::new(rules, AnyStore::custom(store)), clock.clone(), Vec::new());
        let service = Arc::new(service);
        let rls = EnvoyRls::new(service.clone(), envoy::EnvoyOptions::default());
        let ready = Arc::new(|| Readiness::Ready);
        let anonymous = auth::require(Arc::default());
        let rest = rest::router(service.clone(), rest::BODY_LIMIT).layer(anonymous);
        let grpc = grpc::router(service, rls, 64 * 1024, ready, Default::default());
        Self { clock, rest, grpc }
    }

    /// Posts a body; returns the answer.
    async fn post(&self, path: &str, body: &Value) -> Value {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .expect("a request");
        let response = self.rest.clone().oneshot(request).await.expect("infallible");
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        serde_json::from_slice(&bytes).expect("JSON")
    }

    /// Returns the decision and the remaining amount of the tightest limit.
    async fn ask(&self, protocol: Protocol, user: &str, model: &str) -> (bool, u64) {
        match protocol {
            Protocol::Rest => {
                let body = json!({ "userId": user, "modelId": model });
                let told = self.post("/rate-limit/allow", &body).await;
                let remaining = told["remaining"].as_u64().expect("a number");
                (told["allowed"].as_bool().expect("a verdict"), remaining)
            }
            Protocol::Grpc => {
                let (user_id, model_id) = (user.to_owned(), model.to_owned());
                let request = AllowRequest { user_id, model_id, ..AllowRequest::default() };
                let mut client = RateLimiterServiceClient::new(self.grpc.clone());
                let told = client.allow(request).await.expect("an answer").into_inner();
                (told.allowed, u64::try_from(told.remaining).expect("not below zero"))
            }
            Protocol::Envoy => {
                let entry = |(key, value): (&str, &str)| Entry {
                    key: key.to_owned(),
                    value: value.to_owned(),
                };
                let entries = [("userId", user), ("modelId", model)].map(entry).to_vec();
                let descriptor = RateLimitDescriptor { entries, ..Default::default() };
                let domain = "edge".to_owned();
                let request =
                    RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 1 };
                let mut client = RateLimitServiceClient::new(self.grpc.clone());
                let told = client.should_rate_limit(request).await.expect("an answer").into_inner();
                let allowed = told.overall_code() == Code::Ok;
                (allowed, told.statuses[0].limit_remaining.into())
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Rest,
    Grpc,
    Envoy,
}

#[tokio::test]
async fn every_protocol_gives_the_same_decisions() {
    for protocol in [Protocol::Rest, Protocol::Grpc, Protocol::Envoy] {
        let servers = Servers::new();
        let lines = (1..).zip(SCENARIO.lines()).filter(|(_, line)| !line.starts_with('#'));
        for (number, line) in lines {
            let words: Vec<_> = line.split_whitespace().collect();
            let [wait, user, model, verdict, remaining] = words[..] else {
                panic!("line {number}: {line}");
            };
            servers.clock.advance(wait.parse::<Span>().expect("a time"));
            let expected = (verdict == "allow", remaining.parse().expect("a number"));
            let told = servers.ask(protocol, user, model).await;
            assert_eq!(told, expected, "{protocol:?}, line {number}: {line}");
        }
    }
}

#[tokio::test]
async fn the_reason_of_a_rule_replaces_that_of_its_name_in_every_protocol() {
    const REASON: &str = "HIT_TENANT_TIER_MODEL_LIMIT";
    let limits = ["1/h", "5 tokens/h"].map(|text| text.parse::<Limit>().expect(text));
    let mut rule = Rule::new("TENANT_MODEL_TIER", limits).per(&["userId"]);
    rule.reason = Some(REASON.to_owned());
    let servers = Servers::with(vec![Group::new("tenant", [rule])]);
    assert_eq!(servers.ask(Protocol::Rest, "ann", "m").await, (true, 0));

    let user = json!({ "userId": "ann", "modelId": "m" });
    let denied = servers.post("/rate-limit/allow", &user).await;
    assert_eq!(
        (&denied["reason"], &denied["scopeHit"]),
        (&REASON.into(), &"TENANT_MODEL_TIER".into())
    );
    let request = json!({ "dimensions": user });
    assert_eq!(servers.post("/v1/acquire", &request).await["reason"], REASON);
    let explained = servers.post("/v1/explain", &request).await;
    assert_eq!(explained["decision"]["reason"], REASON, "{explained}");
    assert_eq!(explained["groups"][0]["matched"][0]["reason"], REASON, "{explained}");
    let mut client = RateLimiterServiceClient::new(servers.grpc.clone());
    let (user_id, model_id) = ("ann".to_owned(), "m".to_owned());
    let request = AllowRequest { user_id, model_id, ..AllowRequest::default() };
    let told = client.allow(request).await.expect("an answer").into_inner();
    assert_eq!((told.reason.as_str(), told.scope_hit.as_str()), (REASON, "TENANT_MODEL_TIER"));

    // A request that can never fit is not a limit that was hit.
    let large = json!({ "dimensions": { "userId": "bob" }, "cost": { "inputTokens": 6, "maxOutputTokens": 0 } });
    let never = servers.post("/v1/acquire", &large).await;
    assert_eq!(never["reason"], "EXCEEDS_TENANT_MODEL_TIER_LIMIT", "{never}");
}

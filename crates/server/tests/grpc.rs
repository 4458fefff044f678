//! Tests of gRPC, called without a socket: the router is the channel.

use std::sync::Arc;

use axum::Router;
use prost::Message as _;
use sluicegate_core::price::{ModelPrices, PriceBook, Rates, UnknownModels};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Limit, Limiter};
use sluicegate_http::probe::Readiness;
use sluicegate_server::auth::{self, Tokens};
use sluicegate_server::envoy::{self, EnvoyRls};
use sluicegate_server::grpc;
use sluicegate_server::grpc::proto::sluicegate::v1 as pb;
use sluicegate_server::grpc::proto::sluicegate::v1::claim_response::Claim;
use sluicegate_server::grpc::proto::sluicegate::v1::rate_limiter_service_client::RateLimiterServiceClient;
use sluicegate_service::Service;
use sluicegate_store::AnyStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_types::StatusExt as _;

/// 2027-01-15 08:00:00 UTC.
const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);

struct Api {
    router: Router,
    clock: Arc<ManualClock>,
    shutdown: CancellationToken,
}

impl Api {
    fn new(rules: Ruleset) -> Self {
        Self::guarded(rules, Readiness::Ready, None)
    }

    fn of(limits: &[&str]) -> Self {
        let limits = limits.iter().map(|text| text.parse::<Limit>().expect(text));
        let group = Group::new("g", [Rule::new("USER", limits).per(&["userId"])]);
        Self::new(Ruleset::new(vec![group], Settings::default()).expect("rules"))
    }

    /// An API with prices of 0.20 and 0.60 dollars per million input and output tokens.
    fn priced(limits: &[&str]) -> Self {
        let price = |text: &str| text.parse().expect("a price");
        let rates = Rates::new(price("0.20 USD/1M"), price("0.60 USD/1M"));
        let book = PriceBook::new(UnknownModels::Default(ModelPrices::new(rates, Vec::new())));
        let limits = limits.iter().map(|text| text.parse::<Limit>().expect(text));
        let group = Group::new("g", [Rule::new("USER", limits).per(&["userId"])]);
        let settings = Settings { prices: Arc::new(book), ..Settings::default() };
        Self::new(Ruleset::new(vec![group], settings).expect("rules"))
    }

    fn guarded(rules: Ruleset, readiness: Readiness, tokens: Option<Tokens>) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let service =
            Service::new(Limiter::new(rules, AnyStore::custom(store)), clock.clone(), Vec::new());
        let service = Arc::new(service);
        let rls = EnvoyRls::new(service.clone(), envoy::EnvoyOptions::default());
        let shutdown = CancellationToken::new();
        let ready = Arc::new(move || readiness);
        let router = grpc::router(service, rls, 64 * 1024, ready, shutdown.clone());
        let guard = auth::require(Arc::new(arc_swap::ArcSwapOption::from_pointee(tokens)));
        Self { router: router.layer(guard), clock, shutdown }
    }

    fn client(&self) -> RateLimiterServiceClient<Router> {
        RateLimiterServiceClient::new(self.router.clone())
    }

    async fn acquire(&self, requests: Vec<pb::Query>) -> Result<pb::Decision, Status> {
        let acquired = self.client().acquire(pb::AcquireRequest { requests }).await;
        acquired.map(tonic::Response::into_inner)
    }

    /// Claims the booking of [`query`] as a worker.
    async fn claim(&self, id: &str) -> pb::ClaimResponse {
        let request = Some(query(id));
        let claim =
            pb::ClaimRequest { request, claimant: "worker-1".to_owned(), ..Default::default() };
        self.client().claim(claim).await.expect("an answer").into_inner()
    }
}

fn ann() -> pb::AllowRequest {
    pb::AllowRequest {
        user_id: "ann".to_owned(),
        model_id: "gpt4".to_owned(),
        ..pb::AllowRequest::default()
    }
}

/// A request of ann, with this id if it is not empty.
fn query(id: &str) -> pb::Query {
    let dimensions = [("userId".to_owned(), "ann".to_owned())].into();
    pb::Query { id: id.to_owned(), dimensions, ..pb::Query::default() }
}

/// Returns the field and the description of an INVALID_ARGUMENT.
fn violation(status: &Status) -> (String, String) {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let details = status.get_details_bad_request().expect("details");
    let [violation] = details.field_violations.as_slice() else { panic!("{details:?}") };
    assert_eq!(status.message(), format!("{}: {}", violation.field, violation.description));
    (violation.field.clone(), violation.description.clone())
}

#[tokio::test]
async fn by_default_a_hundred_are_allowed_and_the_next_is_denied() {
    let api = Api::new(Ruleset::default_rules());
    for n in 1..=100 {
        let told = api.client().allow(ann()).await.expect("an answer").into_inner();
        assert!(told.allowed);
        assert_eq!((told.remaining, told.reset_at.as_str()), (100 - n, "2027-01-15T09:00:00Z"));
        assert_eq!(
            (told.scopes[0].name.as_str(), told.scopes[0].current),
            ("USER_MODEL", n.into())
        );
    }
    let told = api.client().allow(ann()).await.expect("an answer").into_inner();
    assert!(!told.allowed);
    assert_eq!((told.reason.as_str(), told.remaining), ("HIT_USER_MODEL_LIMIT", 0));
    assert_eq!(told.scope_hit, "USER_MODEL");
}

#[tokio::test]
async fn slots_that_allow_takes_are_given_back_by_its_handle() {
    let limits = ["1 concurrent", "9 tokens/h"].map(|text| text.parse().expect(text));
    let group = Group::new("g", [Rule::new("R", limits).per(&["userId"])]);
    let api = Api::new(Ruleset::new(vec![group], Settings::default()).expect("rules"));
    let mut client = api.client();
    let told = client.allow(ann()).await.expect("an answer").into_inner();
    assert!(told.allowed && !told.until.is_empty(), "{told:?}");
    let denied = client.allow(ann()).await.expect("an answer").into_inner();
    assert_eq!((denied.allowed, denied.handle.as_str()), (false, ""));
    let cost = Some(pb::Cost { input_tokens: Some(9), ..pb::Cost::default() });
    let settle = pb::SettleRequest { handle: told.handle, cost };
    client.settle(settle).await.expect("settled");
    let denied = client.allow(ann()).await.expect("an answer").into_inner();
    assert_eq!(denied.scopes[0].current, 0, "the slot is free: {denied:?}");
    assert_eq!((denied.allowed, denied.scopes[1].current), (false, 9), "{denied:?}");
}

/// Stubs generated from other protos use these field numbers.
#[test]
fn the_fields_of_allow_have_the_numbers_that_were_promised() {
    let text =
        |field: u8, text: &str| [&[field << 3 | 2, text.len() as u8], text.as_bytes()].concat();
    let mut bytes = Vec::new();
    for (field, value) in (1..).zip(["u", "m", "k", "t", "PREMIUM", "PARTNER"]) {
        bytes.extend(text(field, value));
    }
    let read = pb::AllowRequest::decode(bytes.as_slice()).expect("a request");
    let given = (read.api_key.as_deref(), read.tenant_id.as_deref());
    assert_eq!((read.user_id.as_str(), read.model_id.as_str()), ("u", "m"));
    assert_eq!(given, (Some("k"), Some("t")));
    assert_eq!(read.model_tier.as_deref(), Some("PREMIUM"));
    assert_eq!(read.client_type.as_deref(), Some("PARTNER"));

    let scope = pb::ScopeStatus {
        name: "n".to_owned(),
        limit: 9,
        current: 8,
        remaining: 1,
        ..pb::ScopeStatus::default()
    };
    let told = pb::AllowResponse {
        allowed: true,
        remaining: 7,
        reset_at: "r".to_owned(),
        scope_hit: "s".to_owned(),
        scopes: vec![scope],
        reason: "w".to_owned(),
        ..pb::AllowResponse::default()
    };
    let scope = [text(1, "n").as_slice(), &[2 << 3, 9, 3 << 3, 8, 4 << 3, 1]].concat();
    let expected = [
        [1 << 3, 1, 2 << 3, 7].as_slice(),
        &text(3, "r"),
        &text(4, "s"),
        &[5 << 3 | 2, scope.len() as u8],
        &scope,
        &text(6, "w"),
    ];
    assert_eq!(told.encode_to_vec(), expected.concat());
}

#[tokio::test]
async fn a_field_at_fault_is_named_and_nothing_is_consumed() {
    let api = Api::new(Ruleset::default_rules());
    let mut client = api.client();
    let refused = |status: Status| violation(&status).0;
    let nobody = pb::AllowRequest { user_id: String::new(), ..ann() };
    let status = client.allow(nobody).await.expect_err("refused");
    let right = "is required: set it, or call Acquire, which requires only what the rules need";
    assert_eq!(violation(&status), ("userId".to_owned(), right.to_owned()));
    let empty = pb::AllowRequest { tenant_id: Some(String::new()), ..ann() };
    assert_eq!(refused(client.allow(empty).await.expect_err("refused")), "tenantId");
    let twice = [("userId".to_owned(), "bob".to_owned())].into();
    let twice = pb::AllowRequest { dimensions: twice, ..ann() };
    assert_eq!(refused(client.allow(twice).await.expect_err("refused")), "dimensions.userId");

    for (wrong, field) in [
        (pb::Query { hold: "soon".to_owned(), ..query("") }, "requests[1].hold"),
        (
            pb::Query {
                cost: Some(pb::Estimate { usd: Some("much".to_owned()), ..Default::default() }),
                ..query("")
            },
            "requests[1].cost.usd",
        ),
        (query(&"x".repeat(300)), "requests[1].id"),
    ] {
        let status = api.acquire(vec![query(""), wrong]).await.expect_err("refused");
        assert_eq!(violation(&status).0, field);
    }
    let handle = pb::ReleaseRequest { handle: "nonsense".to_owned() };
    assert_eq!(refused(client.release(handle).await.expect_err("refused")), "handle");
    let none = api.acquire(Vec::new()).await.expect_err("refused");
    assert_eq!((none.code(), none.message().is_empty()), (Code::InvalidArgument, false));
    assert_eq!(client.allow(ann()).await.expect("an answer").into_inner().remaining, 99);
}

#[tokio::test]
async fn an_estimate_is_held_settled_and_replayed() {
    let api = Api::of(&["1000 tokens/h"]);
    let cost = |tokens| Some(pb::Estimate { output_tokens: Some(tokens), ..Default::default() });
    let request = pb::Query { cost: cost(900), hold: "30s".to_owned(), ..query("job-1") };
    let held = api.acquire(vec![request.clone()]).await.expect("an answer");
    assert!(held.allowed && !held.replayed && !held.handle.is_empty() && !held.until.is_empty());
    assert!(api.acquire(vec![request.clone()]).await.expect("an answer").replayed);

    let renewed = api.client().renew(pb::RenewRequest { handle: held.handle.clone() }).await;
    assert_eq!(renewed.expect("renewed").into_inner().until, "2027-01-15T08:00:30Z");
    let actual = pb::Cost { output_tokens: Some(100), ..Default::default() };
    let settle = pb::SettleRequest { handle: held.handle, cost: Some(actual) };
    let settled = api.client().settle(settle.clone()).await.expect("settled").into_inner();
    assert!(!settled.replayed);
    assert!(api.client().settle(settle).await.expect("settled").into_inner().replayed);

    let more = pb::Query { cost: cost(901), ..query("job-2") };
    let denied = api.acquire(vec![more]).await.expect("an answer");
    assert_eq!((denied.allowed, denied.fits["tokens"]), (false, 900));
    assert_eq!((denied.scope_hit.as_str(), denied.reason.as_str()), ("USER", "HIT_USER_LIMIT"));
    let other = pb::Query { cost: cost(1), hold: "30s".to_owned(), ..query("job-1") };
    let conflict = api.acquire(vec![other]).await.expect_err("an id is good for one thing");
    assert_eq!(conflict.code(), Code::AlreadyExists);
}

#[tokio::test]
async fn an_estimate_is_priced_and_settling_tells_what_it_came_to() {
    let api = Api::priced(&["5.00 USD/day", "20000 tokens/min"]);
    let estimate = pb::Estimate {
        input_chars: Some(3_000),
        max_tokens: Some(1),
        max_completion_tokens: Some(500),
        n: Some(2),
        ..Default::default()
    };
    let request = pb::Query { cost: Some(estimate), hold: "30s".to_owned(), ..query("job-1") };
    let held = api.acquire(vec![request]).await.expect("an answer");
    // 1,000 tokens for the text, and 500 for each of two completions.
    let used: Vec<_> = held.scopes.iter().map(|scope| scope.current).collect();
    assert_eq!(used, [800_000, 2_000]);

    api.clock.advance(Span::from_millis(1_250));
    let actual = pb::Cost {
        query_tokens: Some(12),
        context_tokens: Some(856),
        output_tokens: Some(145),
        ..Default::default()
    };
    let settle = pb::SettleRequest { handle: held.handle, cost: Some(actual) };
    let expected = pb::Metadata {
        request_duration_seconds: Some(1.25),
        api_cost_usd: Some("0.0002606".to_owned()),
        rate_limited: false,
        query_tokens: Some(12),
        context_tokens: Some(856),
        output_tokens: Some(145),
    };
    for replayed in [false, true] {
        let settled = api.client().settle(settle.clone()).await.expect("settled").into_inner();
        assert_eq!(settled, pb::Settled { replayed, metadata: Some(expected.clone()) });
    }
    let check = pb::CheckRequest { requests: vec![query("")] };
    let shown = api.client().check(check).await.expect("an answer").into_inner();
    let used: Vec<_> = shown.scopes.iter().map(|scope| scope.current).collect();
    assert_eq!(used, [260_600, 1_013]);
}

#[tokio::test]
async fn a_denial_says_which_answer_would_fit() {
    let api = Api::priced(&["0.001 USD/day"]);
    let ask = |id: &str, input, cap| {
        let (input_tokens, max_output_tokens) = (Some(input), Some(cap));
        let cost = pb::Estimate { input_tokens, max_output_tokens, ..Default::default() };
        vec![pb::Query { cost: Some(cost), ..query(id) }]
    };
    // 0.001 dollars are 2,000 tokens in and 1,000 out.
    let never = api.acquire(ask("a", 2_000, 4_096)).await.expect("an answer");
    assert_eq!((never.allowed, never.reason.as_str()), (false, "EXCEEDS_USER_LIMIT"));
    assert_eq!((never.max_output_tokens, never.max_output_tokens_ever), (Some(1_000), Some(1_000)));
    assert_eq!(never.advice, "the request never fits; an output of at most 1000 tokens fits now");

    assert!(api.acquire(ask("b", 1_000, 0)).await.expect("an answer").allowed);
    let later = api.acquire(ask("c", 1_000, 1_200)).await.expect("an answer");
    assert_eq!((later.allowed, later.reason.as_str()), (false, "HIT_USER_LIMIT"));
    assert_eq!((later.max_output_tokens, later.max_output_tokens_ever), (Some(1_000), None));
    assert!(later.advice.contains("an output of at most 1000 tokens fits now"), "{later:?}");
    assert!(!api.acquire(ask("d", 1_000, 1_001)).await.expect("an answer").allowed);
    assert!(api.acquire(ask("e", 1_000, 1_000)).await.expect("an answer").allowed);
    // Without a cap there is no forecast.
    let bare = api.acquire(vec![pb::Query {
        cost: Some(pb::Estimate { usd: Some("0.5".to_owned()), ..Default::default() }),
        ..query("f")
    }]);
    let bare = bare.await.expect("an answer");
    assert_eq!((bare.max_output_tokens, bare.max_output_tokens_ever), (None, None));
}

#[tokio::test]
async fn a_slot_is_released_and_a_check_takes_none() {
    let api = Api::of(&["1 concurrent"]);
    let check = pb::CheckRequest { requests: vec![query("")] };
    assert!(api.client().check(check.clone()).await.expect("an answer").into_inner().allowed);
    let held = api.acquire(vec![query("a")]).await.expect("an answer");
    assert!(held.allowed);
    assert!(!api.client().check(check.clone()).await.expect("an answer").into_inner().allowed);
    let release = pb::ReleaseRequest { handle: held.handle.clone() };
    assert!(!api.client().release(release).await.expect("released").into_inner().replayed);
    assert!(api.client().check(check).await.expect("an answer").into_inner().allowed);
    let unknown = held.handle.replacen(|_: char| true, "f", 32);
    let unknown = pb::ReleaseRequest { handle: unknown };
    assert_eq!(api.client().release(unknown).await.expect_err("unknown").code(), Code::NotFound);
}

#[tokio::test]
async fn a_booking_is_claimed_when_its_time_has_come() {
    let api = Api::of(&["1/min"]);
    assert!(api.acquire(vec![query("")]).await.expect("an answer").allowed);
    let book = |lead: &str| pb::BookRequest { requests: vec![query("job")], lead: lead.to_owned() };
    let status = api.client().book(book("2s")).await.expect_err("too long");
    assert_eq!(violation(&status).0, "lead");
    let book = book("20ms");
    let booked = api.client().book(book).await.expect("an answer").into_inner();
    assert!(booked.allowed);
    let early = api.claim("job").await;
    assert_eq!((early.claim(), early.start), (Claim::Early, booked.start));
    api.clock.advance(Span::from_micros(early.wait_ms * 1_000));
    let go = api.claim("job").await;
    assert_eq!(go.claim(), Claim::Go);
    assert!(go.good_ms > 0 && go.decision.expect("a decision").allowed);

    let nameless = pb::ClaimRequest {
        request: Some(query("")),
        claimant: "w".to_owned(),
        ..Default::default()
    };
    let status = api.client().claim(nameless).await.expect_err("refused");
    assert_eq!(violation(&status).0, "request.id");
    let nothing =
        pb::ClaimRequest { request: None, claimant: "w".to_owned(), ..Default::default() };
    let status = api.client().claim(nothing).await.expect_err("refused");
    assert_eq!(violation(&status).0, "request");
}

#[tokio::test]
async fn a_claim_of_somebody_elses_booking_already_exists() {
    let api = Api::of(&["1/min"]);
    let book = pb::BookRequest { requests: vec![query("job")], ..Default::default() };
    assert!(api.client().book(book).await.expect("an answer").into_inner().allowed);
    let bob =
        pb::Query { dimensions: [("userId".to_owned(), "bob".to_owned())].into(), ..query("job") };
    let claim = pb::ClaimRequest {
        request: Some(bob),
        claimant: "worker-1".to_owned(),
        ..Default::default()
    };
    let status = api.client().claim(claim).await.expect_err("refused");
    assert_eq!(status.code(), Code::AlreadyExists, "{status:?}");
    assert!(status.message().contains("repeat those of the booking"), "{status:?}");
    assert_eq!(api.claim("job").await.claim(), Claim::Go);
}

#[tokio::test]
async fn work_that_never_left_is_taken_back() {
    let api = Api::of(&["1/min"]);
    let held = api.acquire(vec![query("a")]).await.expect("an answer");
    let cancel = pb::CancelRequest { handle: held.handle };
    api.client().cancel(cancel).await.expect("taken back");
    assert!(api.acquire(vec![query("b")]).await.expect("an answer").allowed);
    assert_eq!(
        api.acquire(vec![query("a")]).await.expect_err("gone").code(),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused() {
    let api = Api::new(Ruleset::default_rules());
    let large = pb::AllowRequest { api_key: Some("x".repeat(65 * 1024)), ..ann() };
    let status = api.client().allow(large).await.expect_err("refused");
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
}

#[tokio::test]
async fn health_is_what_the_probes_say() {
    for (readiness, expected) in [
        (Readiness::Ready, ServingStatus::Serving),
        (Readiness::Degraded("redis"), ServingStatus::Serving),
        (Readiness::Unhealthy("redis"), ServingStatus::NotServing),
    ] {
        let api = Api::guarded(Ruleset::default_rules(), readiness, None);
        let mut health = HealthClient::new(api.router.clone());
        for service in ["", "sluicegate.v1.RateLimiterService"] {
            let asked = HealthCheckRequest { service: service.to_owned() };
            let told = health.check(asked).await.expect("an answer").into_inner();
            assert_eq!(told.status(), expected);
        }
        let asked = HealthCheckRequest { service: "no.such.Service".to_owned() };
        assert_eq!(health.check(asked).await.expect_err("unknown").code(), Code::NotFound);
    }
}

#[tokio::test]
async fn a_health_watch_ends_with_the_service() {
    let api = Api::new(Ruleset::default_rules());
    let mut health = HealthClient::new(api.router.clone());
    let asked = HealthCheckRequest { service: String::new() };
    let mut states = health.watch(asked).await.expect("a stream").into_inner();
    let mut next = async || states.message().await.expect("no error").map(|told| told.status());
    assert_eq!(next().await, Some(ServingStatus::Serving));
    api.shutdown.cancel();
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    assert_eq!(next().await, None);
}

#[tokio::test]
async fn reflection_lists_what_is_served() {
    let api = Api::new(Ruleset::default_rules());
    let list = MessageRequest::ListServices(String::new());
    let asked = ServerReflectionRequest { message_request: Some(list), ..Default::default() };
    let asked = futures_util::stream::iter([asked]);
    let mut client = ServerReflectionClient::new(api.router.clone());
    let mut told = client.server_reflection_info(asked).await.expect("a stream").into_inner();
    let told: ServerReflectionResponse = told.message().await.expect("no error").expect("one");
    let Some(MessageResponse::ListServicesResponse(list)) = told.message_response else {
        panic!("{told:?}");
    };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["sluicegate.v1.RateLimiterService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[tokio::test]
async fn strangers_are_unauthenticated_and_probes_are_not() {
    let tokens = Tokens::new([("alice", auth::hash(b"a"))]).expect("tokens");
    let api = Api::guarded(Ruleset::default_rules(), Readiness::Ready, Some(tokens));
    let status = api.client().allow(ann()).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("Authorization: Bearer"), "{status:?}");
    let mut known = tonic::Request::new(ann());
    known.metadata_mut().insert("authorization", "Bearer a".parse().expect("a value"));
    assert!(api.client().allow(known).await.expect("an answer").into_inner().allowed);
    let asked = HealthCheckRequest { service: String::new() };
    assert!(HealthClient::new(api.router.clone()).check(asked).await.is_ok());
}

//! Tests of the scopes of tokens, at every endpoint of every listener.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, header};
use http_body_util::BodyExt as _;
use prost::Message as _;
use serde_json::Value;
use sluicegate_config::QueueApiOptions;
use sluicegate_core::Limiter;
use sluicegate_core::ruleset::Ruleset;
use sluicegate_core::time::Timestamp;
use sluicegate_http::probe::{self, Probe, Readiness};
use sluicegate_server::admin::{self, AdminOperations, ReloadFuture};
use sluicegate_server::auth::{self, AuthScope, AuthScopes, ENDPOINTS, Endpoint, OPEN, Tokens};
use sluicegate_server::envoy::{self, EnvoyRls};
use sluicegate_server::overrides::Overrides;
use sluicegate_server::{grpc, rest};
use sluicegate_service::Service;
use sluicegate_store::AnyStore;
use sluicegate_store::FileOverrideStore;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use tower::ServiceExt as _;

struct Nothing;

impl AdminOperations for Nothing {
    fn metrics(&self) -> String {
        String::new()
    }

    fn reload<'a>(&'a self, _by: &'a str, _reason: &'a str) -> ReloadFuture<'a> {
        Box::pin(async { Ok(String::new()) })
    }
}

/// The routers of all listeners that require tokens.
fn routers() -> [Router; 2] {
    let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_800_000_000)));
    let store = Memory::with_clock(Capacity::default(), clock.clone());
    let limiter = Limiter::new(Ruleset::default_rules(), AnyStore::custom(store));
    let service = Arc::new(Service::new(limiter, clock.clone(), Vec::new()));
    let overrides_store = Arc::new(FileOverrideStore::in_memory());
    let overrides = Arc::new(Overrides::new(service.clone(), overrides_store));
    let ready: Probe = Arc::new(|| Readiness::Ready);
    let options = envoy::EnvoyOptions { headers: true, closed: envoy::EnvoyClosedReply::OverLimit };
    let rls = || EnvoyRls::new(service.clone(), options);
    let limit = rest::BODY_LIMIT;
    let http = rest::router(service.clone(), limit)
        .merge(envoy::router(rls(), limit))
        .merge(rest::overrides::router(overrides, limit))
        .merge(rest::queues::router(
            None,
            QueueApiOptions::default(),
            sluicegate_service::trace::Tracer::default(),
        ))
        .merge(admin::router(Arc::new(Nothing)))
        .merge(probe::router(ready.clone()));
    let grpc = grpc::router(service.clone(), rls(), limit, ready, Default::default());
    [http, grpc]
}

/// Creates a token per set of scopes; the token is its name.
fn tokens(callers: &[(&str, &[AuthScope])]) -> Arc<ArcSwapOption<Tokens>> {
    let hashes = callers.iter().map(|(name, _)| (*name, auth::hash(name.as_bytes())));
    let tokens = Tokens::new(hashes).expect("tokens").with_scopes(|name| {
        let (_, scopes) = callers.iter().find(|(other, _)| *other == name).expect("a caller");
        scopes.iter().copied().collect()
    });
    Arc::new(ArcSwapOption::from_pointee(tokens))
}

/// Returns the paths of a router, from its debug output.
fn paths(router: &Router) -> BTreeSet<String> {
    let printed = format!("{router:?}");
    let printed = printed.split("fallback_router").next().unwrap_or_default();
    let paths = printed.split('"').filter(|text| text.starts_with('/'));
    paths.map(str::to_owned).collect()
}

#[test]
fn a_new_endpoint_without_a_scope_is_found() {
    let [http, grpc] = routers();
    let known = |path: &str| ENDPOINTS.iter().any(|endpoint| endpoint.path == path);
    let of_http = paths(&http);
    assert!(of_http.len() > 20, "{of_http:?}");
    for path in &of_http {
        assert!(known(path) || OPEN.contains(&path.as_str()), "{path} has no scope in ENDPOINTS");
    }
    // A gRPC service is one route; its methods are in its description.
    let described = [grpc::proto::DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET];
    let files = described
        .into_iter()
        .flat_map(|bytes| prost_types::FileDescriptorSet::decode(bytes).expect("descriptors").file);
    let methods: BTreeSet<String> = files
        .flat_map(|file| {
            let package = file.package().to_owned();
            file.service.into_iter().flat_map(move |service| {
                let service_name = format!("/{package}.{}", service.name());
                service.method.into_iter().map(move |m| format!("{service_name}/{}", m.name()))
            })
        })
        .collect();
    assert!(methods.len() > 10, "{methods:?}");
    for path in paths(&grpc) {
        let service = path.strip_suffix("{*rest}").unwrap_or(&path);
        let mut of_service: Vec<_> = methods
            .iter()
            .filter(|method| method.starts_with(service))
            .map(String::as_str)
            .collect();
        if service.starts_with("/grpc.reflection.") {
            of_service.extend(ENDPOINTS.iter().map(|e| e.path).filter(|p| p.starts_with(service)));
        }
        assert!(!of_service.is_empty(), "{path} has no methods");
        for method in of_service {
            assert!(known(method) || OPEN.contains(&method), "{method} has no scope in ENDPOINTS");
        }
    }
    let document: Value =
        serde_json::from_str(include_str!("../src/rest/openapi.json")).expect("JSON");
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let method = method.to_uppercase();
            let same = |e: &Endpoint| e.path == path && e.method == method;
            let open = OPEN.contains(&path.as_str());
            assert!(open || ENDPOINTS.iter().any(same), "{method} {path} has no scope");
        }
    }
}

#[test]
fn every_endpoint_is_documented_with_its_scope() {
    let page = include_str!("../../../docs/configuration.md");
    for Endpoint { method, path, scope } in ENDPOINTS {
        let row = match path.strip_prefix("/").and_then(|path| path.split_once('/')) {
            Some((service, name)) if service.contains('.') => {
                format!("| `{service}/{name}` | `{scope}` |")
            }
            _ => format!("| `{method} {path}` | `{scope}` |"),
        };
        assert!(page.contains(&row), "docs/configuration.md lacks the row {row}");
    }
}

/// Sends a request; returns its status, headers and body.
async fn send(
    router: &Router,
    endpoint: &Endpoint,
    token: &str,
    kind: &str,
) -> (u16, HeaderMap, String) {
    let request = Request::builder()
        .method(endpoint.method)
        .uri(endpoint.path.replace("{id}", "x").replace("{queue}", "x"))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, kind)
        .body(Body::from("{}"))
        .expect("a request");
    let (head, body) = router.clone().oneshot(request).await.expect("infallible").into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    (head.status.as_u16(), head.headers, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn a_token_gets_in_with_the_scope_of_an_endpoint_and_with_no_other() {
    let callers = AuthScope::ALL.map(|scope| (scope.name(), [scope]));
    let callers: Vec<(&str, &[AuthScope])> =
        callers.iter().map(|(name, scopes)| (*name, scopes.as_slice())).collect();
    let [http, grpc] = routers();
    let guard = auth::require(tokens(&callers));
    let (http, grpc) = (http.layer(guard.clone()), grpc.layer(guard));
    for endpoint in &ENDPOINTS {
        let is_grpc = endpoint.path[1..].split('/').next().is_some_and(|first| first.contains('.'))
            && endpoint.path != "/openapi.json";
        for (name, _) in &callers {
            if is_grpc {
                let (_, headers, _) = send(&grpc, endpoint, name, "application/grpc").await;
                let status = headers.get("grpc-status").map(|status| status.as_bytes().to_vec());
                let refused = status.as_deref() == Some(b"7");
                assert_eq!(refused, *name != endpoint.scope.name(), "{endpoint:?} by {name}");
                continue;
            }
            let (status, headers, body) = send(&http, endpoint, name, "application/json").await;
            if *name == endpoint.scope.name() {
                assert_ne!(status, 403, "{endpoint:?} {body}");
                continue;
            }
            assert_eq!(status, 403, "{endpoint:?} by {name}: {body}");
            assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json");
            let challenge = headers[header::WWW_AUTHENTICATE].to_str().expect("text");
            let scope = endpoint.scope;
            assert_eq!(
                challenge,
                format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"")
            );
            let problem: Value = serde_json::from_str(&body).expect("JSON");
            let detail = problem["detail"].as_str().expect("a detail");
            assert!(
                detail.starts_with(&format!("the token does not have the scope {scope}:")),
                "{detail}"
            );
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_is_not_listed_needs_admin() {
    let listed = |path| Endpoint { method: "GET", path, scope: AuthScope::Admin };
    let nowhere =
        [listed("/v1/secret"), listed("/v1/overrides/a/b"), listed("/v1/users/a/b/usage")];
    let callers: [(&str, &[AuthScope]); 2] =
        [("decide", &[AuthScope::Decide]), ("admin", &[AuthScope::Admin])];
    let [http, _] = routers();
    let http = http.layer(auth::require(tokens(&callers)));
    for endpoint in nowhere {
        let (status, _, body) = send(&http, &endpoint, "decide", "application/json").await;
        assert_eq!(status, 403, "{body}");
        assert!(body.contains("unknown endpoint, or it needs the scope admin"), "{body}");
        assert_eq!(send(&http, &endpoint, "admin", "application/json").await.0, 404);
    }
}

#[tokio::test]
async fn a_token_with_every_scope_may_do_everything() {
    let all: AuthScopes = AuthScope::ALL.into_iter().collect();
    assert_eq!(all, AuthScopes::ALL);
    let [http, _] = routers();
    let http = http.layer(auth::require(tokens(&[("all", &AuthScope::ALL)])));
    for endpoint in ENDPOINTS.iter().filter(|endpoint| !endpoint.path.contains(".v")) {
        let (status, ..) = send(&http, endpoint, "all", "application/json").await;
        assert_ne!(status, 403, "{endpoint:?}");
    }
}

//! Authentication by bearer tokens and authorization by scopes, as the layer [`RequireToken`].
//!
//! [`ENDPOINTS`] lists the scope of each endpoint. A path that is not listed needs `admin`, so that
//! a forgotten endpoint is not open to every token.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwapOption;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use tower_layer::Layer;
use tower_service::Service;

pub use sluicegate_http::tokens::{AuthScope, AuthScopes, Caller, SharedToken, Tokens, hash};

use crate::dashboard::{BrowserAccess, access};
use crate::rest::Problem;

/// Paths without authentication: load balancers and orchestrators that probe them have no token.
pub const OPEN: [&str; 4] =
    ["/health", "/ready", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"];

/// An endpoint and the scope that a token needs for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The HTTP method; `POST` for gRPC.
    pub method: &'static str,
    /// The path; `{…}` stands for one segment.
    pub path: &'static str,
    /// The scope.
    pub scope: AuthScope,
}

const fn endpoint(method: &'static str, path: &'static str, scope: AuthScope) -> Endpoint {
    Endpoint { method, path, scope }
}

/// All endpoints of all listeners except those in [`OPEN`]. Gateways have separate tokens without
/// scopes.
pub static ENDPOINTS: [Endpoint; 65] = [
    endpoint("POST", "/rate-limit/allow", AuthScope::Decide),
    endpoint("GET", "/v1/forward-auth", AuthScope::Decide),
    endpoint("POST", "/v1/acquire", AuthScope::Decide),
    endpoint("POST", "/v1/check", AuthScope::Decide),
    endpoint("POST", "/v1/book", AuthScope::Decide),
    endpoint("POST", "/v1/claim", AuthScope::Decide),
    endpoint("POST", "/v1/settle", AuthScope::Decide),
    endpoint("POST", "/v1/release", AuthScope::Decide),
    endpoint("POST", "/v1/renew", AuthScope::Decide),
    endpoint("POST", "/v1/cancel", AuthScope::Decide),
    endpoint("POST", "/json", AuthScope::Decide),
    endpoint(
        "POST",
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        AuthScope::Decide,
    ),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Allow", AuthScope::Decide),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Acquire", AuthScope::Decide),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Check", AuthScope::Decide),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Book", AuthScope::Decide),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Claim", AuthScope::Decide),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Settle", AuthScope::Decide),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Release", AuthScope::Decide),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Renew", AuthScope::Decide),
    endpoint("POST", "/sluicegate.v1.RateLimiterService/Cancel", AuthScope::Decide),
    endpoint("POST", "/v1/usage", AuthScope::Read),
    endpoint("GET", "/v1/users/{id}/usage", AuthScope::Read),
    endpoint("GET", "/v1/tenants/{id}/usage", AuthScope::Read),
    endpoint("GET", "/v1/models/{id}/usage", AuthScope::Read),
    endpoint("POST", "/v1/explain", AuthScope::Read),
    endpoint("GET", "/v1/overrides", AuthScope::Read),
    endpoint("GET", "/v1/reservations", AuthScope::Read),
    endpoint("GET", "/metrics", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/overview", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/series", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/events", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/limits", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/metrics", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/activity", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/audit", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/nodes", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/summary", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/gateways", AuthScope::Read),
    endpoint("GET", "/v1/dashboard/dead-letters", AuthScope::Read),
    endpoint("POST", "/v1/dashboard/dead-letters/replay", AuthScope::Admin),
    endpoint("POST", "/v1/dashboard/dead-letters/delete", AuthScope::Admin),
    endpoint("GET", "/openapi.json", AuthScope::Read),
    endpoint("GET", "/docs", AuthScope::Read),
    endpoint("POST", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", AuthScope::Read),
    endpoint(
        "POST",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        AuthScope::Read,
    ),
    endpoint("POST", "/v1/overrides", AuthScope::Admin),
    endpoint("DELETE", "/v1/overrides/{id}", AuthScope::Admin),
    endpoint("POST", "/v1/reservations/{id}/settle", AuthScope::Admin),
    endpoint("POST", "/v1/reservations/{id}/cancel", AuthScope::Admin),
    endpoint("POST", "/v1/reset", AuthScope::Admin),
    endpoint("POST", "/reload", AuthScope::Admin),
    endpoint("GET", "/v1/jobs/{id}", AuthScope::Queue),
    endpoint("GET", "/v1/providers", AuthScope::Queue),
    endpoint("GET", "/v1/queues", AuthScope::Queue),
    endpoint("GET", "/v1/queues/{queue}", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/send", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/send-batch", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/receive", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/ack", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/defer", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/retry", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/requeue", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/extend", AuthScope::Queue),
    endpoint("POST", "/v1/queues/{queue}/dead-letter", AuthScope::Queue),
];

impl Endpoint {
    /// Returns the endpoint that serves a request. For a method that the path does not support it
    /// returns any endpoint of the path, which then refuses the method.
    pub fn of(method: &str, path: &str) -> Option<&'static Self> {
        let method = if method == "HEAD" { "GET" } else { method };
        let mut of_path = ENDPOINTS.iter().filter(|endpoint| endpoint.matches(path)).peekable();
        let first = of_path.peek().copied();
        of_path.find(|endpoint| endpoint.method == method).or(first)
    }

    fn matches(&self, path: &str) -> bool {
        let placeholder = self.path.split_once('{').and_then(|(start, rest)| {
            let (_, end) = rest.split_once('}')?;
            Some((start, end))
        });
        let Some((start, end)) = placeholder else { return self.path == path };
        let rest = path.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
        rest.is_some_and(|id| !id.contains('/'))
    }
}

const SCHEME: &[u8] = b"bearer";

/// The reason why a request is not authenticated or authorized. The text goes to the client and
/// reveals nothing about the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The request has no token.
    #[error("a token is required: send it as `Authorization: Bearer <token>`")]
    Missing,
    /// The Authorization header contains no bearer token.
    #[error("the Authorization header contains no bearer token: send `Bearer <token>`")]
    Malformed,
    /// The token is unknown.
    #[error("unknown token: check that it is complete and still valid")]
    Unknown,
    /// The token does not have this scope.
    #[error("the token does not have the scope {0}: use a token with this scope")]
    Scope(AuthScope),
    /// The session of a browser is over, or its token is no longer valid.
    #[error("the session is over: log in again")]
    SessionOver,
    /// The request comes from a web page of another host, or names a host that is not this one.
    #[error(
        "refused: the request comes from a web page of another host, or names this host in a way that \
         is not allowed without tokens: open the dashboard as http://localhost:<port>, or set \
         auth.tokens"
    )]
    CrossOrigin,
    /// There are no tokens, and other machines can reach the listener.
    #[error(
        "without tokens the dashboard is served on a loopback address only: set auth.tokens, or \
         listen.admin to 127.0.0.1"
    )]
    NotLocal,
    /// The path is unknown, and the token does not have all scopes.
    #[error("unknown endpoint, or it needs the scope {}", AuthScope::Admin)]
    UnknownEndpoint,
}

/// Returns the holder of the token in an `Authorization` header.
fn authenticate<'t>(
    tokens: &'t Tokens,
    header: Option<&HeaderValue>,
) -> Result<&'t Caller, AuthError> {
    tokens.holder(bearer(header.ok_or(AuthError::Missing)?)?).ok_or(AuthError::Unknown)
}

/// Checks that the scopes are sufficient for an endpoint.
fn permit(scopes: AuthScopes, method: &str, path: &str) -> Result<(), AuthError> {
    if scopes == AuthScopes::ALL {
        return Ok(());
    }
    let (needed, denied) = match Endpoint::of(method, path) {
        Some(endpoint) => (endpoint.scope, AuthError::Scope(endpoint.scope)),
        None => (AuthScope::Admin, AuthError::UnknownEndpoint),
    };
    if scopes.contains(needed) { Ok(()) } else { Err(denied) }
}

/// Returns the token in `Bearer <token>`; the scheme may be in either case (RFC 9110, 11.1).
fn bearer(header: &HeaderValue) -> Result<&[u8], AuthError> {
    let bytes = header.as_bytes();
    let (scheme, rest) = bytes.split_at_checked(SCHEME.len()).ok_or(AuthError::Malformed)?;
    let token = rest.trim_ascii();
    let is_bearer = scheme.eq_ignore_ascii_case(SCHEME) && rest.starts_with(b" ");
    if is_bearer && !token.is_empty() { Ok(token) } else { Err(AuthError::Malformed) }
}

impl AuthError {
    /// Returns the missing scope, if the token is known.
    const fn needed(self) -> Option<AuthScope> {
        match self {
            Self::Missing | Self::Malformed | Self::Unknown | Self::SessionOver => None,
            Self::CrossOrigin | Self::NotLocal => None,
            Self::Scope(scope) => Some(scope),
            Self::UnknownEndpoint => Some(AuthScope::Admin),
        }
    }

    /// Encodes the denial in the protocol of the client.
    fn response_for(self, headers: &HeaderMap) -> Response {
        let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
            let status = match self.needed() {
                None if matches!(self, Self::CrossOrigin | Self::NotLocal) => {
                    tonic::Status::permission_denied(self.to_string())
                }
                None => tonic::Status::unauthenticated(self.to_string()),
                Some(_) => tonic::Status::permission_denied(self.to_string()),
            };
            return status.into_http();
        }
        self.into_response()
    }
}

impl IntoResponse for AuthError {
    fn into_response(self) -> Response {
        if matches!(self, Self::CrossOrigin | Self::NotLocal) {
            return Problem::new(StatusCode::FORBIDDEN, self.to_string()).into_response();
        }
        // RFC 6750, 3.1.
        let (status, challenge) = match self.needed() {
            None => (StatusCode::UNAUTHORIZED, "Bearer".to_owned()),
            Some(scope) => {
                let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
                (StatusCode::FORBIDDEN, challenge)
            }
        };
        let problem = Problem::new(status, self.to_string());
        ([(header::WWW_AUTHENTICATE, challenge)], problem).into_response()
    }
}

/// Creates a layer that requires one of `tokens` and adds the [`Caller`] to the request. While
/// `tokens` holds `None`, every request is accepted as [`Caller::anonymous`].
///
/// The tokens may be replaced at any time; new ones apply from the next request. The paths in
/// [`OPEN`] are compared with the full path, so put the layer around the whole application.
pub fn require(tokens: Arc<ArcSwapOption<Tokens>>) -> RequireToken {
    RequireToken { tokens, anonymous: Caller::anonymous(), browsers: None, web_pages: None }
}

/// The layer that [`require`] creates.
#[derive(Clone, Debug)]
pub struct RequireToken {
    tokens: Arc<ArcSwapOption<Tokens>>,
    anonymous: Caller,
    /// Set for the listener with the dashboard.
    browsers: Option<Arc<BrowserAccess>>,
    /// Set for other listeners that browsers can reach.
    web_pages: Option<Arc<BrowserAccess>>,
}

impl RequireToken {
    /// Accepts sessions of browsers, too, and checks the origin of their requests.
    #[must_use]
    pub fn with_browsers(self, browsers: Arc<BrowserAccess>) -> Self {
        Self { browsers: Some(browsers), ..self }
    }

    /// Refuses requests from web pages of other hosts while there are no tokens. Decisions are
    /// exempt, because a proxy that asks for one may pass on the header fields of its client.
    #[must_use]
    pub fn without_web_pages(self, browsers: Arc<BrowserAccess>) -> Self {
        Self { web_pages: Some(browsers), ..self }
    }
}

impl<S> Layer<S> for RequireToken {
    type Service = RequireTokenService<S>;

    fn layer(&self, inner: S) -> RequireTokenService<S> {
        RequireTokenService { inner, require: self.clone() }
    }
}

/// The application behind [`require`].
#[derive(Clone, Debug)]
pub struct RequireTokenService<S> {
    inner: S,
    require: RequireToken,
}

impl<S, B> Service<Request<B>> for RequireTokenService<S>
where
    S: Service<Request<B>, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let checked = self.require.caller(request.method(), request.uri(), request.headers());
        match checked {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                Either::Left(self.inner.call(request))
            }
            Err(denied) => Either::Right(ready(Ok(denied.response_for(request.headers())))),
        }
    }
}

impl RequireToken {
    /// Returns the caller of a request, if it may use the endpoint now.
    pub(crate) fn caller(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Caller, AuthError> {
        if OPEN.contains(&uri.path()) {
            return Ok(self.anonymous.clone());
        }
        match (&*self.tokens.load(), &self.browsers) {
            (None, None) => {
                let checked = self.web_pages.as_ref().map(|one| one.check_web_page(uri, headers));
                if let Some(Err(denied)) = checked {
                    let endpoint = Endpoint::of(method.as_str(), uri.path());
                    if endpoint.is_none_or(|endpoint| endpoint.scope != AuthScope::Decide) {
                        return Err(denied);
                    }
                }
                Ok(self.anonymous.clone())
            }
            (None, Some(browsers)) => {
                browsers.check_anonymous(uri.path(), uri, headers)?;
                Ok(self.anonymous.clone())
            }
            (Some(_), Some(_)) if access::is_page(uri.path()) => Ok(self.anonymous.clone()),
            (Some(tokens), browsers) => {
                let caller = match (headers.get(header::AUTHORIZATION), browsers) {
                    (None, Some(browsers)) => {
                        browsers.session_caller(tokens, method, uri, headers)?
                    }
                    (header, _) => authenticate(tokens, header)?.clone(),
                };
                permit(caller.scopes(), method.as_str(), uri.path())?;
                Ok(caller)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use http_body_util::BodyExt;

    fn tokens(tokens: &[(&str, &str)]) -> Tokens {
        let hashed = tokens.iter().map(|(name, token)| (*name, hash(token.as_bytes())));
        Tokens::new(hashed).unwrap()
    }

    /// Checks the name that `header` resolves to, on a server with two tokens of alice and one of
    /// bob.
    #[track_caller]
    fn check(header: &str, expected: Result<&str, AuthError>) {
        let tokens = tokens(&[("alice", "old"), ("bob", "b0b"), ("alice", "new")]);
        let header = HeaderValue::from_str(header).unwrap();
        let found = authenticate(&tokens, Some(&header)).map(Caller::name);
        assert_eq!(found, expected, "{header:?}");
    }

    #[test]
    fn every_token_is_known_by_its_holder() {
        check("Bearer old", Ok("alice"));
        check("Bearer new", Ok("alice"));
        check("Bearer b0b", Ok("bob"));
    }

    #[test]
    fn the_scheme_may_be_written_as_clients_like() {
        check("bearer b0b", Ok("bob"));
        check("BEARER   b0b ", Ok("bob"));
    }

    #[test]
    fn other_tokens_are_unknown() {
        check("Bearer ol", Err(AuthError::Unknown));
        check("Bearer oldd", Err(AuthError::Unknown));
        check("Bearer OLD", Err(AuthError::Unknown));
        check("Bearer old new", Err(AuthError::Unknown));
        check("Bearer \u{e9}", Err(AuthError::Unknown));
    }

    #[test]
    fn what_is_no_bearer_token_is_malformed() {
        for header in
            ["", "b0b", "Bearer", "Bearer ", "Bearerb0b", "Basic Ym9iOmIwYg==", "Token b0b"]
        {
            check(header, Err(AuthError::Malformed));
        }
    }

    #[test]
    fn a_header_that_is_not_there_is_missing() {
        assert_eq!(authenticate(&tokens(&[("alice", "a")]), None), Err(AuthError::Missing));
    }

    #[test]
    fn without_tokens_nobody_is_known() {
        let header = HeaderValue::from_static("Bearer a");
        assert_eq!(authenticate(&tokens(&[]), Some(&header)), Err(AuthError::Unknown));
    }

    /// Returns an application that answers with the name of its caller.
    fn app(tokens: &Arc<ArcSwapOption<Tokens>>) -> Router {
        let name = |caller: axum::Extension<Caller>| async move { caller.name().to_owned() };
        let open =
            OPEN.into_iter().fold(Router::new(), |routes, path| routes.route(path, get(name)));
        open.route("/who", get(name)).layer(require(Arc::clone(tokens)))
    }

    /// Sends a request with `token` and returns status and body of the answer.
    async fn ask(app: &Router, path: &str, token: Option<&str>) -> (u16, String) {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).unwrap();
        let response = app.clone().call(request).await.unwrap();
        let status = response.status().as_u16();
        if status == 401 {
            assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        }
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn shared(tokens: Option<Tokens>) -> Arc<ArcSwapOption<Tokens>> {
        Arc::new(ArcSwapOption::from_pointee(tokens))
    }

    #[tokio::test]
    async fn the_application_is_told_the_caller() {
        let app = app(&shared(Some(tokens(&[("alice", "a")]))));
        assert_eq!(ask(&app, "/who", Some("a")).await, (200, "alice".to_owned()));
    }

    #[tokio::test]
    async fn a_refusal_is_a_problem_that_says_what_to_do() {
        let app = app(&shared(Some(tokens(&[("alice", "a")]))));
        let problem = r#"{"type":"about:blank","title":"Unauthorized","status":401,"detail":"a token is required: send it as `Authorization: Bearer <token>`"}"#;
        assert_eq!(ask(&app, "/who", None).await, (401, problem.to_owned()));
        let (status, body) = ask(&app, "/who", Some("b")).await;
        assert_eq!(status, 401);
        assert!(body.contains("unknown token"), "{body}");
    }

    #[tokio::test]
    async fn what_does_not_exist_is_not_shown_to_strangers() {
        let app = app(&shared(Some(tokens(&[("alice", "a")]))));
        assert_eq!(ask(&app, "/nowhere", None).await.0, 401);
        assert_eq!(ask(&app, "/health/x", None).await.0, 401);
        assert_eq!(ask(&app, "/nowhere", Some("a")).await.0, 404);
    }

    #[tokio::test]
    async fn probes_need_no_token() {
        let app = app(&shared(Some(tokens(&[("alice", "a")]))));
        for path in OPEN {
            assert_eq!(ask(&app, path, None).await, (200, "anonymous".to_owned()));
            assert_eq!(ask(&app, path, Some("wrong")).await.0, 200);
        }
    }

    #[tokio::test]
    async fn without_configured_tokens_everybody_is_anonymous() {
        let app = app(&shared(None));
        assert_eq!(ask(&app, "/who", None).await, (200, "anonymous".to_owned()));
        assert_eq!(ask(&app, "/who", Some("any")).await, (200, "anonymous".to_owned()));
    }

    #[tokio::test]
    async fn tokens_are_replaced_without_a_restart() {
        let known = shared(Some(tokens(&[("alice", "old")])));
        let app = app(&known);
        assert_eq!(ask(&app, "/who", Some("old")).await.0, 200);
        assert_eq!(ask(&app, "/who", Some("new")).await.0, 401);

        known.store(Some(Arc::new(tokens(&[("alice", "old"), ("alice", "new")]))));
        assert_eq!(ask(&app, "/who", Some("old")).await.0, 200);
        assert_eq!(ask(&app, "/who", Some("new")).await, (200, "alice".to_owned()));

        known.store(Some(Arc::new(tokens(&[("alice", "new")]))));
        assert_eq!(ask(&app, "/who", Some("old")).await.0, 401);
        assert_eq!(ask(&app, "/who", Some("new")).await.0, 200);
    }
}

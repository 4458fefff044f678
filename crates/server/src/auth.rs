//! Who asks: bearer tokens, each with the name of its holder.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwapOption;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use tower_layer::Layer;
use tower_service::Service;

pub use sluicegate_door::tokens::{Caller, Hash, SharedToken, Tokens, hash};

use crate::rest::Problem;

/// The paths that need no token: whoever asks them can't hold one.
pub const OPEN: [&str; 4] =
    ["/health", "/ready", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"];

const SCHEME: &[u8] = b"bearer";

/// Why a request is not let in. The text is for the client: it says nothing about the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no token.
    #[error("a token is required: send it as `Authorization: Bearer <token>`")]
    Missing,
    /// There is something else where the token should be.
    #[error("the Authorization header holds no bearer token: send `Bearer <token>`")]
    Malformed,
    /// It is not one of ours.
    #[error("the token is not known: was it mistyped or replaced?")]
    Unknown,
}

/// Whose token the value of an `Authorization` header is.
fn authenticate<'t>(
    tokens: &'t Tokens,
    header: Option<&HeaderValue>,
) -> Result<&'t Caller, Denied> {
    tokens.holder(bearer(header.ok_or(Denied::Missing)?)?).ok_or(Denied::Unknown)
}

/// The token in `Bearer <token>`; the scheme may be in either case (RFC 9110, 11.1).
fn bearer(header: &HeaderValue) -> Result<&[u8], Denied> {
    let bytes = header.as_bytes();
    let (scheme, rest) = bytes.split_at_checked(SCHEME.len()).ok_or(Denied::Malformed)?;
    let token = rest.trim_ascii();
    let is_bearer = scheme.eq_ignore_ascii_case(SCHEME) && rest.starts_with(b" ");
    if is_bearer && !token.is_empty() { Ok(token) } else { Err(Denied::Malformed) }
}

impl Denied {
    /// The refusal in the protocol of whoever asked.
    fn told_to(self, headers: &HeaderMap) -> Response {
        let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
            return tonic::Status::unauthenticated(self.to_string()).into_http();
        }
        self.into_response()
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let problem = Problem::new(StatusCode::UNAUTHORIZED, self.to_string());
        ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response()
    }
}

/// Lets in who has one of `tokens`, and tells the application the [`Caller`]. With `None` there,
/// everybody is let in as [`Caller::anonymous`].
///
/// What is in `tokens` may change at any time and holds from the next request on. [`OPEN`] paths
/// need no token, and as seen here: put the layer around the whole application.
pub fn require(tokens: Arc<ArcSwapOption<Tokens>>) -> Require {
    Require { tokens, anonymous: Caller::anonymous() }
}

/// The layer that [`require`] makes.
#[derive(Clone, Debug)]
pub struct Require {
    tokens: Arc<ArcSwapOption<Tokens>>,
    anonymous: Caller,
}

impl<S> Layer<S> for Require {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, require: self.clone() }
    }
}

/// The application behind [`require`].
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    inner: S,
    require: Require,
}

impl<S, B> Service<Request<B>> for Guarded<S>
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
        match self.require.caller(&request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                Either::Left(self.inner.call(request))
            }
            Err(denied) => Either::Right(ready(Ok(denied.told_to(request.headers())))),
        }
    }
}

impl Require {
    fn caller<B>(&self, request: &Request<B>) -> Result<Caller, Denied> {
        match &*self.tokens.load() {
            Some(tokens) if !OPEN.contains(&request.uri().path()) => {
                authenticate(tokens, request.headers().get(header::AUTHORIZATION)).cloned()
            }
            _ => Ok(self.anonymous.clone()),
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

    /// Whom `header` is taken for, by a server that knows two tokens of alice and one of bob.
    #[track_caller]
    fn check(header: &str, expected: Result<&str, Denied>) {
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
        check("Bearer ol", Err(Denied::Unknown));
        check("Bearer oldd", Err(Denied::Unknown));
        check("Bearer OLD", Err(Denied::Unknown));
        check("Bearer old new", Err(Denied::Unknown));
        check("Bearer \u{e9}", Err(Denied::Unknown));
    }

    #[test]
    fn what_is_no_bearer_token_is_malformed() {
        for header in
            ["", "b0b", "Bearer", "Bearer ", "Bearerb0b", "Basic Ym9iOmIwYg==", "Token b0b"]
        {
            check(header, Err(Denied::Malformed));
        }
    }

    #[test]
    fn a_header_that_is_not_there_is_missing() {
        assert_eq!(authenticate(&tokens(&[("alice", "a")]), None), Err(Denied::Missing));
    }

    #[test]
    fn without_tokens_nobody_is_known() {
        let header = HeaderValue::from_static("Bearer a");
        assert_eq!(authenticate(&tokens(&[]), Some(&header)), Err(Denied::Unknown));
    }

    /// An application that answers with the name of its caller.
    fn app(tokens: &Arc<ArcSwapOption<Tokens>>) -> Router {
        let name = |caller: axum::Extension<Caller>| async move { caller.name().to_owned() };
        let open =
            OPEN.into_iter().fold(Router::new(), |routes, path| routes.route(path, get(name)));
        open.route("/who", get(name)).layer(require(Arc::clone(tokens)))
    }

    /// Status and body of the answer to a request with `token`.
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
        assert!(body.contains("the token is not known"), "{body}");
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

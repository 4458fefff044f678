//! [`Refusal`]: an error response that the gateway sends instead of forwarding a request.
//!
//! | status | code | cause |
//! |---|---|---|
//! | 400 | `BAD_REQUEST` | the framing or the target of the request is ambiguous |
//! | 400 | `MISSING_HEADER` | the header field of a required dimension is missing or empty |
//! | 401 | `UNAUTHORIZED` | the token is missing or unknown |
//! | 403 | `BANNED` | a limit of 0 applies to the caller or to the route |
//! | 404 | `NO_ROUTE` | no route matches the path |
//! | 405 | `METHOD_NOT_ALLOWED` | the route does not accept the method |
//! | 408 | `REQUEST_TIMEOUT` | the caller stopped sending the request body |
//! | 413 | `BODY_TOO_LARGE` | the body exceeds the limit of the route |
//! | 414 | `URI_TOO_LONG` | the target is longer than the HTTP parser accepts |
//! | 429 | `TOO_MANY_REQUESTS` | a limit is reached, and the wait timed out, would be too long or is turned off |
//! | 431 | `HEADERS_TOO_LARGE` | the header is larger than the listener accepts |
//! | 499 | `CLIENT_CLOSED_REQUEST` | the caller disconnected before its response; only in log and metrics |
//! | 500 | `INTERNAL` | a bug in the gateway |
//! | 501 | `UPGRADE_NOT_ALLOWED` | the route does not allow upgrades |
//! | 502 | `UPSTREAM_UNREACHABLE` | no connection to the upstream: nothing was sent |
//! | 502 | `UPSTREAM_BROKEN` | the upstream closed the connection early or did not send valid HTTP |
//! | 502 | `LOGIN_FAILED` | the login at the upstream failed: nothing was sent |
//! | 503 | `STORE_UNAVAILABLE` | the store is unavailable and the route fails closed |
//! | 503 | `SHUTTING_DOWN` | the gateway is about to stop |
//! | 504 | `UPSTREAM_TIMEOUT` | the upstream did not answer in time |
//!
//! A gRPC caller gets the same as a gRPC status, see [`crate::grpc`].

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use sluicegate_config::ROUTE;
use sluicegate_core::rule::Pattern;
use sluicegate_core::{Rule, Span};
use sluicegate_http::listener::ParseErrorBody;
use sluicegate_http::upstream::LoginError;

/// Error code of a request whose caller disconnected.
pub(crate) const CLIENT_CLOSED: &str = "CLIENT_CLOSED_REQUEST";
const JSON: &str = "application/json";
/// Time after which callers of a gateway that stops should try again, at another replica.
const RETRY_AFTER_SHUTDOWN: Span = Span::from_secs(1);

/// The reason why a request gets no response from the upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    BadRequest(&'static str),
    #[error(
        "the header {header} is missing, empty or not ASCII: send the {dimension} of the request in it"
    )]
    MissingHeader { header: String, dimension: String },
    #[error("{0}: send a valid token in the header {1}")]
    Unauthorized(&'static str, String),
    #[error("{}", banned(*.retry_after, .rule.as_ref()))]
    Banned { retry_after: Option<Span>, rule: Option<HitRule> },
    #[error("no route matches this path")]
    NoRoute,
    #[error("method not allowed on this route: use {0}")]
    Method(String),
    #[error("the request body timed out: send it without long pauses")]
    BodyTimeout,
    #[error("the caller closed the connection before its response")]
    ClientClosed,
    #[error("the request body exceeds this route's limit of {0} bytes")]
    TooLarge(u64),
    #[error("{}", limited(*.retry_after, .rule.as_ref()))]
    Limited { retry_after: Option<Span>, rule: Option<HitRule> },
    #[error("the rate limit decision failed; see the gateway's log")]
    Internal,
    #[error("upgrades are not allowed on this route: send no Upgrade header")]
    Upgrade,
    #[error("the upstream can't be reached; the request was not sent")]
    Unreachable,
    #[error("the upstream closed the connection early, or did not send valid HTTP")]
    Broken,
    #[error("login at the upstream failed; the request was not sent")]
    Login,
    #[error("the rate limit store is unavailable, and this route fails closed")]
    StoreUnavailable,
    #[error("this gateway is shutting down: send the request again")]
    ShuttingDown,
    #[error("the upstream did not answer in time")]
    Timeout,
}

/// The rule that denied a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HitRule {
    /// A limit of a route.
    Route {
        gateway: String,
        route: String,
        /// Dimensions by which the limit counts besides the route.
        per: Vec<String>,
    },
    /// A rule of the section `limits`, by its name.
    Named(String),
}

impl HitRule {
    pub(crate) fn of(rule: &Rule) -> Self {
        let key = rule.when.iter().find_map(|(dimension, pattern)| match pattern {
            Pattern::OneOf(keys) if dimension == ROUTE => keys.first(),
            _ => None,
        });
        match key.map(|key| Self::of_route(key)) {
            Some(Self::Route { gateway, route, .. }) => {
                let per = rule.per.iter().filter(|dimension| *dimension != ROUTE);
                Self::Route { gateway, route, per: per.cloned().collect() }
            }
            _ => Self::Named(rule.name.clone()),
        }
    }

    /// Returns the limit of the route with this [key](sluicegate_config::GatewayOptions::route_key).
    pub(crate) fn of_route(key: &str) -> Self {
        match key.split_once('/') {
            None => Self::Named(key.to_owned()),
            Some((gateway, route)) => Self::Route {
                gateway: gateway.to_owned(),
                route: route.to_owned(),
                per: Vec::new(),
            },
        }
    }

    /// Describes the limit of the rule, or the rule itself, as `what` says.
    fn describe(&self, what: &str) -> String {
        match self {
            Self::Named(name) => format!("the {what} {name}"),
            Self::Route { gateway, route, per } => {
                let per = match per.as_slice() {
                    [] => String::new(),
                    per => format!(" per {}", per.join(" and ")),
                };
                format!("the {what}{per} of route `{route}` of gateway `{gateway}`")
            }
        }
    }
}

fn limited(retry_after: Option<Span>, rule: Option<&HitRule>) -> String {
    let limit = rule.map_or_else(|| "the limit".to_owned(), |rule| rule.describe("limit"));
    match retry_after {
        None => format!("{limit} is reached"),
        Some(span) => format!("{limit} is reached: try again in {} s", span.as_secs_ceil()),
    }
}

fn banned(retry_after: Option<Span>, rule: Option<&HitRule>) -> String {
    let rule = rule.map_or_else(|| "a limit of 0".to_owned(), |rule| rule.describe("rule"));
    match retry_after {
        None => format!("{rule} bans this request"),
        Some(span) => format!("{rule} bans this request for another {} s", span.as_secs_ceil()),
    }
}

impl From<LoginError> for Refusal {
    fn from(_: LoginError) -> Self {
        Self::Login
    }
}

impl Refusal {
    /// Returns the HTTP status and the error code.
    pub(crate) fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            Self::MissingHeader { .. } => (StatusCode::BAD_REQUEST, "MISSING_HEADER"),
            Self::Unauthorized(..) => (StatusCode::UNAUTHORIZED, "UNAUTHORIZED"),
            Self::Banned { .. } => (StatusCode::FORBIDDEN, "BANNED"),
            Self::NoRoute => (StatusCode::NOT_FOUND, "NO_ROUTE"),
            Self::Method(_) => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
            Self::ClientClosed => (client_closed(), CLIENT_CLOSED),
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE"),
            Self::Limited { .. } => (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL"),
            Self::Upgrade => (StatusCode::NOT_IMPLEMENTED, "UPGRADE_NOT_ALLOWED"),
            Self::Unreachable => (StatusCode::BAD_GATEWAY, "UPSTREAM_UNREACHABLE"),
            Self::Broken => (StatusCode::BAD_GATEWAY, "UPSTREAM_BROKEN"),
            Self::Login => (StatusCode::BAD_GATEWAY, "LOGIN_FAILED"),
            Self::StoreUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE"),
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "SHUTTING_DOWN"),
            Self::Timeout => (StatusCode::GATEWAY_TIMEOUT, "UPSTREAM_TIMEOUT"),
        }
    }

    /// Returns true if the request may be sent again: the upstream failed, and there is time.
    pub(crate) const fn is_retryable(&self) -> bool {
        self.is_upstream_error() && !matches!(self, Self::Timeout)
    }

    /// Returns true if the upstream caused it.
    pub(crate) const fn is_upstream_error(&self) -> bool {
        matches!(self, Self::Unreachable | Self::Broken | Self::Timeout)
    }

    /// Returns the time after which the caller should try again, if it is known.
    pub(crate) fn retry_after(&self) -> Option<Span> {
        match self {
            Self::Limited { retry_after, .. } | Self::Banned { retry_after, .. } => *retry_after,
            Self::ShuttingDown => Some(RETRY_AFTER_SHUTDOWN),
            _ => None,
        }
    }

    /// Returns the response for the caller.
    pub(crate) fn response(&self) -> Response<Body> {
        let (status, code) = self.code();
        let error = serde_json::json!({"error": {"code": code, "message": self.to_string()}});
        let mut response = Response::new(Body::from(error.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        if let Some(span) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(span.as_secs_ceil()));
        }
        match self {
            Self::Method(methods) => {
                if let Ok(methods) = HeaderValue::from_str(methods) {
                    headers.insert(header::ALLOW, methods);
                }
            }
            // Close the connection: if the framing is in doubt or the body is incomplete, the next
            // bytes may belong to this request.
            Self::BadRequest(_) | Self::BodyTimeout | Self::ClientClosed | Self::ShuttingDown => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// Returns the status 499, which nginx introduced for callers that disconnect.
fn client_closed() -> StatusCode {
    StatusCode::from_u16(499).expect("a status has three digits")
}

/// The responses to requests that the listener can't parse, in the form of all other rejections.
pub const PARSE_ERROR_BODIES: &[ParseErrorBody] = &[
    ParseErrorBody {
        status: 400,
        content_type: JSON,
        body: r#"{"error":{"code":"BAD_REQUEST","message":"the request is not valid HTTP"}}"#,
    },
    ParseErrorBody {
        status: 414,
        content_type: JSON,
        body: r#"{"error":{"code":"URI_TOO_LONG","message":"the request target is too long"}}"#,
    },
    ParseErrorBody {
        status: 431,
        content_type: JSON,
        body: r#"{"error":{"code":"HEADERS_TOO_LARGE","message":"the request header is too large: send fewer or shorter fields"}}"#,
    },
];

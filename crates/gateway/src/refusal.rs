//! Why a request gets no answer of the upstream, in the one form in which callers are told.
//!
//! | status | code | because |
//! |---|---|---|
//! | 400 | `BAD_REQUEST` | the request is framed or addressed in a way that proxies disagree about |
//! | 401 | `UNAUTHORIZED` | there is no token, or it is not known |
//! | 403 | `BANNED` | a limit of 0 applies to the caller or to the route |
//! | 404 | `NO_ROUTE` | no route takes the path |
//! | 405 | `METHOD_NOT_ALLOWED` | the route takes other methods |
//! | 413 | `BODY_TOO_LARGE` | the body is longer than the route takes |
//! | 429 | `TOO_MANY_REQUESTS` | a limit is reached, and waiting is over, too long or not wanted |
//! | 500 | `INTERNAL` | a mistake of ours |
//! | 501 | `UPGRADE_NOT_ALLOWED` | the route does not let connections be taken over |
//! | 502 | `UPSTREAM_UNREACHABLE` | no connection to the upstream: nothing was sent |
//! | 502 | `UPSTREAM_BROKEN` | it broke off, or what it sent is not HTTP |
//! | 502 | `LOGIN_FAILED` | it gave no token to log in with: nothing was sent |
//! | 503 | `STORE_UNAVAILABLE` | the store does not answer, and then nothing may go |
//! | 504 | `UPSTREAM_TIMEOUT` | it did not answer in time |

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use sluicegate_core::Span;
use sluicegate_http::upstream::LoginError;

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    BadRequest(&'static str),
    #[error("{0}: send a token of yours in the header {1}")]
    Unauthorized(&'static str, String),
    #[error("{}", banned(*.retry_after, .rule.as_deref()))]
    Banned { retry_after: Option<Span>, rule: Option<String> },
    #[error("no route takes this path")]
    NoRoute,
    #[error("this route takes {0}")]
    Method(String),
    #[error("the body is longer than the {0} bytes that this route takes")]
    TooLarge(u64),
    #[error("{}", limited(*.retry_after, .rule.as_deref()))]
    Limited { retry_after: Option<Span>, rule: Option<String> },
    #[error("the request could not be decided upon; the log says why")]
    Internal,
    #[error("this route does not let connections be taken over: send no Upgrade")]
    Upgrade,
    #[error("the upstream can't be reached; the request was not sent")]
    Unreachable,
    #[error("the upstream broke off, or sent what is not HTTP")]
    Broken,
    #[error("the upstream gave no token to log in with; the request was not sent")]
    Login,
    #[error("the store of limits does not answer, and this route stays closed then")]
    StoreUnavailable,
    #[error("the upstream did not answer in time")]
    Timeout,
}

fn limited(retry_after: Option<Span>, rule: Option<&str>) -> String {
    let limit = rule.map_or_else(|| "the limit".to_owned(), |rule| format!("the limit {rule}"));
    match retry_after {
        None => format!("{limit} is reached"),
        Some(span) => format!("{limit} is reached: try again in {} s", span.as_secs_ceil()),
    }
}

fn banned(retry_after: Option<Span>, rule: Option<&str>) -> String {
    let rule = rule.map_or_else(|| "a limit of 0".to_owned(), |rule| format!("the rule {rule}"));
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
    /// Its status, and the word that programs go by.
    pub(crate) const fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            Self::Unauthorized(..) => (StatusCode::UNAUTHORIZED, "UNAUTHORIZED"),
            Self::Banned { .. } => (StatusCode::FORBIDDEN, "BANNED"),
            Self::NoRoute => (StatusCode::NOT_FOUND, "NO_ROUTE"),
            Self::Method(_) => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE"),
            Self::Limited { .. } => (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL"),
            Self::Upgrade => (StatusCode::NOT_IMPLEMENTED, "UPGRADE_NOT_ALLOWED"),
            Self::Unreachable => (StatusCode::BAD_GATEWAY, "UPSTREAM_UNREACHABLE"),
            Self::Broken => (StatusCode::BAD_GATEWAY, "UPSTREAM_BROKEN"),
            Self::Login => (StatusCode::BAD_GATEWAY, "LOGIN_FAILED"),
            Self::StoreUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE"),
            Self::Timeout => (StatusCode::GATEWAY_TIMEOUT, "UPSTREAM_TIMEOUT"),
        }
    }

    /// The answer to the caller.
    pub(crate) fn response(&self) -> Response<Body> {
        let (status, code) = self.code();
        let error = serde_json::json!({"error": {"code": code, "message": self.to_string()}});
        let mut response = Response::new(Body::from(error.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self {
            Self::Limited { retry_after: Some(span), .. }
            | Self::Banned { retry_after: Some(span), .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(span.as_secs_ceil()));
            }
            Self::Method(methods) => {
                if let Ok(methods) = HeaderValue::from_str(methods) {
                    headers.insert(header::ALLOW, methods);
                }
            }
            // Framing that is in doubt: what follows on the connection may be part of it.
            Self::BadRequest(_) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

//! Logging in and out, and the session of a browser.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::DashboardSources;
use crate::auth::{AuthScope, Caller};
use crate::rest::decode::{self, JsonBody};
use crate::rest::{HandlerResult, Problem, json as json_response};

/// Time that a failed login takes. A token can't be guessed, so logins are not counted: a limit for all
/// clients would lock everybody else out.
const FAILURE_TAKES: Duration = Duration::from_millis(500);

/// The request to log in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

/// Opens a session for a token with the scope `read`.
pub(super) async fn login(
    State(sources): State<Arc<DashboardSources>>,
    headers: HeaderMap,
    uri: Uri,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    check_own_page(&uri, &headers)?;
    let Login { token } = decode::shaped(&body)?;
    let opened = open_session(&sources, &token);
    if opened.is_err() {
        tokio::time::sleep(FAILURE_TAKES).await;
    }
    opened
}

/// Opens a session for a token.
fn open_session(sources: &DashboardSources, token: &str) -> HandlerResult {
    let refused = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, detail);
    let tokens = sources.tokens.load();
    let Some(tokens) = &*tokens else {
        return Err(Problem::bad_request("this service has no tokens: no login is needed"));
    };
    let token = token.trim();
    let caller = tokens.holder(token.as_bytes());
    let caller = caller.ok_or_else(|| refused("unknown token: check that it is complete"))?;
    if !caller.scopes().contains(AuthScope::Read) {
        return Err(refused("the token does not have the scope read: use one with this scope"));
    }
    let opened = sources.browsers.open(token.as_bytes());
    let cookie = opened.ok_or_else(|| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the system has no random numbers: retry")
    })?;
    let mut response = json_response(json!({ "name": caller.name() }).to_string());
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Refuses a request that the page of another host sends.
fn check_own_page(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    if super::access::is_own_page(uri, headers) {
        return Ok(());
    }
    Err(Problem::new(StatusCode::FORBIDDEN, "log in and out on the page of this host"))
}

/// Ends the session.
pub(super) async fn logout(
    State(sources): State<Arc<DashboardSources>>,
    headers: HeaderMap,
    uri: Uri,
) -> HandlerResult {
    check_own_page(&uri, &headers)?;
    let mut response = json_response(json!({ "loggedOut": true }).to_string());
    if let Some(cookie) = sources.browsers.close(&headers) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Returns the session of a browser: its name and scopes, and this node; or only that a login is
/// needed. The page asks this first, so it is no error.
pub(super) async fn session(
    State(sources): State<Arc<DashboardSources>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let tokens = sources.tokens.load();
    let caller = match &*tokens {
        None => Ok(Caller::anonymous()),
        Some(tokens) => sources.browsers.session_caller(tokens, &Method::GET, &uri, &headers),
    };
    let Ok(caller) = caller else {
        return json_response(json!({ "login": true }).to_string());
    };
    let scopes: Vec<_> = AuthScope::ALL
        .into_iter()
        .filter(|&scope| caller.scopes().contains(scope))
        .map(AuthScope::name)
        .collect();
    let node = sources.recorder.node();
    let body = json!({
        "name": caller.name(),
        "scopes": scopes,
        "tokens": tokens.is_some(),
        "node": { "host": node.host, "version": node.version, "started": node.started.to_string() },
        "roles": sources.roles,
    });
    json_response(body.to_string())
}

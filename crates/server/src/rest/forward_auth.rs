//! `GET /v1/forward-auth`: decides on a request that a proxy describes with its headers, for Traefik's
//! ForwardAuth, NGINX `auth_request` and similar proxies that cannot send a JSON body.
//!
//! The proxy's configuration maps headers to dimensions in the query string:
//! `?userId=@x-user&modelId=gpt4` takes `userId` from the header `x-user` and sets `modelId`. Clients
//! choose only the values of headers, so they cannot add or rename a dimension.
//!
//! The value of `X-Forwarded-Uri` becomes a normalized path, so that `/login?x=1`, `//login` and
//! `/%6cogin` match a rule for `/login`.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use percent_encoding::percent_decode_str;
use sluicegate_core::query::Query;

use super::{DenialMode, Problem, Shared, encode, request_path, status};
use crate::request;
use crate::service::{DecisionMode, Service};
use crate::ticket::Ticket;

/// Marks a value of the query string as the name of a header.
const HEADER: char = '@';
/// The header with the path and query string of the request to the proxy.
const FORWARDED_URI: &str = "x-forwarded-uri";

pub(super) async fn forward_auth(
    State(service): Shared,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let pairs = query.unwrap_or_default();
    let pairs = pairs.split('&').filter(|pair| !pair.is_empty());
    let (modes, dimensions): (Vec<_>, Vec<_>) =
        pairs.partition(|pair| pair.split('=').next() == Some("status"));
    let mode = match DenialMode::read(Some(&modes.join("&"))) {
        Ok(DenialMode::Status(denied)) => denied,
        Ok(DenialMode::Body) => StatusCode::TOO_MANY_REQUESTS,
        Err(problem) => return problem.into_response(),
    };
    let decided = decide(&service, &dimensions, &headers, mode).await;
    decided.unwrap_or_else(|problem| match mode {
        // NGINX answers 500 to every status other than 2xx, 401 and 403.
        StatusCode::FORBIDDEN => problem.with_status(StatusCode::FORBIDDEN).into_response(),
        _ => problem.into_response(),
    })
}

async fn decide(
    service: &Service,
    dimensions: &[&str],
    headers: &HeaderMap,
    denied: StatusCode,
) -> Result<Response, Problem> {
    let mut query = Query::new(service.request_id());
    for pair in dimensions {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded(name)?;
        let value = decoded(value)?;
        match value.strip_prefix(HEADER) {
            None => query.insert(name, value)?,
            Some(header) => {
                let mut values = headers.get_all(header).iter().map(|value| value.as_bytes());
                let given = values.next();
                if values.next().is_some() {
                    // The server behind the proxy might use the value that was not counted.
                    let detail = format!("{header}: the header is there twice: send it once");
                    return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
                }
                // A missing or empty header is a missing dimension.
                if let Some(given) = given.filter(|given| !given.is_empty()) {
                    let given = String::from_utf8_lossy(given);
                    let is_uri = header.eq_ignore_ascii_case(FORWARDED_URI);
                    let value =
                        if is_uri { request_path::normalize(&given) } else { given.into_owned() };
                    query.insert_any(name, value);
                }
            }
        }
    }
    query.settle_within = Some(request::SETTLE_WITHIN);
    let queries = [query];
    let response = service.decide(&queries, DecisionMode::Acquire, |answer| {
        let handle = Ticket::of(answer, DecisionMode::Acquire).map(|ticket| ticket.text());
        status(answer, encode::allow(answer, handle.as_deref()), denied)
    });
    Ok(response.await?)
}

fn decoded(text: &str) -> Result<String, Problem> {
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8();
    let decoded = decoded.map_err(|_| Problem::field(&text, "is not valid UTF-8"))?;
    Ok(decoded.into_owned())
}

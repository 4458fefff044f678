//! Builds the HTTP request of a job. A value from a message can't change the structure of the
//! request: it is percent-encoded in the URL, and rejected in a header field if it has control
//! characters.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue, Request, Uri};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use sluicegate_config::{HttpOptions, RequestBody};
use sluicegate_template::{RenderError, Text, scalar};

use super::super::chat::{self, ImageError};
use super::super::job_scope::JobScope;

/// Characters that are percent-encoded in a URL: all except the unreserved ones (RFC 3986, 2.3).
const IN_URL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Characters that are percent-encoded in an idempotency key. They include `%`, so that two
/// different ids stay different.
const IN_KEY: &AsciiSet = &CONTROLS.add(b'%');
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("sluicegate/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// The reason why a message does not make a valid request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum RequestError {
    #[error("{field}: {error}")]
    Render { field: String, error: RenderError },
    #[error("url: a value from the message makes a path segment . or ..")]
    Dots,
    #[error("url: a value from the message makes an invalid URL, or one longer than 64 KB")]
    Address,
    #[error("headers.{0}: a value from the message is not valid in a header field")]
    Header(String),
    #[error("images: {0}")]
    Images(#[from] ImageError),
}

impl RequestError {
    /// Returns a function that adds the name of the field to a template error.
    pub(in super::super) fn of(field: impl Into<String>) -> impl FnOnce(RenderError) -> Self {
        |error| Self::Render { field: field.into(), error }
    }
}

/// Builds the request for a job.
pub(super) fn of(
    options: &HttpOptions,
    facts: &JobScope<'_>,
) -> Result<Request<Body>, RequestError> {
    let (content_type, body) = content(&options.content, facts)?;
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, AGENT);
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    for (name, text) in &options.headers {
        let field = || format!("headers.{name}");
        let value = text.render_with(facts, in_header).map_err(RequestError::of(field()))?;
        let value = HeaderValue::from_bytes(value.as_bytes());
        headers.insert(name, value.map_err(|_| RequestError::Header(name.to_string()))?);
    }
    if let Some(name) = &options.idempotency_header {
        let key = utf8_percent_encode(facts.job.key(), IN_KEY).to_string();
        let key = HeaderValue::from_bytes(key.as_bytes());
        headers.insert(name, key.map_err(|_| RequestError::Header(name.to_string()))?);
    }
    let mut request = Request::new(body);
    *request.method_mut() = options.method.clone();
    *request.uri_mut() = address(options, facts)?;
    *request.headers_mut() = headers;
    Ok(request)
}

fn content(
    content: &RequestBody,
    facts: &JobScope<'_>,
) -> Result<(Option<HeaderValue>, Body), RequestError> {
    Ok(match content {
        RequestBody::Nothing => (None, Body::empty()),
        RequestBody::Message => {
            let message = &facts.job.message;
            let named = message.content_type.as_deref().and_then(|name| name.parse().ok());
            let guessed = || if facts.is_json() { JSON } else { BYTES };
            (Some(named.unwrap_or_else(guessed)), Body::from(message.body.clone()))
        }
        RequestBody::Json(tree) => {
            let value = tree.render(facts).map_err(RequestError::of("body"))?;
            (Some(JSON), Body::from(value.to_string()))
        }
        RequestBody::Text(text) => {
            let text = text.render(facts).map_err(RequestError::of("text"))?;
            (Some(TEXT), Body::from(text))
        }
        RequestBody::Chat(chat) => (Some(JSON), Body::from(chat::body(chat, facts)?.to_string())),
    })
}

/// Returns the URL of the request for a job.
pub(super) fn address(options: &HttpOptions, facts: &JobScope<'_>) -> Result<Uri, RequestError> {
    let url = &options.url;
    let mut text = url.render_with(facts, in_url).map_err(RequestError::of("url"))?;
    for (name, value) in &options.query {
        let field = format!("query.{name}");
        let value = value.render_with(facts, in_query).map_err(RequestError::of(field))?;
        if value.is_empty() {
            continue;
        }
        text.push(if text.contains('?') { '&' } else { '?' });
        text.extend(utf8_percent_encode(name, IN_URL));
        text.push('=');
        text.extend(utf8_percent_encode(&value, IN_URL));
    }
    let uri: Uri = text.parse().map_err(|_| RequestError::Address)?;
    if !url.is_fixed() && uri.path().split('/').any(|part| part == "." || part == "..") {
        return Err(RequestError::Dots);
    }
    Ok(uri)
}

fn in_url(so_far: &mut String, value: &Value) -> Result<(), &'static str> {
    let value = scalar(value)?;
    // Otherwise DELETE /users/{{id}} could become DELETE /users/.
    if value.is_empty() && !so_far.contains('?') {
        return Err("is empty, which would change the path");
    }
    so_far.extend(utf8_percent_encode(&value, IN_URL));
    Ok(())
}

fn in_query(so_far: &mut String, value: &Value) -> Result<(), &'static str> {
    so_far.push_str(&scalar(value)?);
    Ok(())
}

fn in_header(so_far: &mut String, value: &Value) -> Result<(), &'static str> {
    let value = scalar(value)?;
    if value.chars().any(char::is_control) {
        return Err("has control characters, which are not valid in a header field");
    }
    so_far.push_str(&value);
    Ok(())
}

/// Returns the host of a URL, which must not depend on the message.
pub(super) fn host(url: &Text) -> Option<String> {
    let beginning = url.beginning();
    let (scheme, rest) = beginning.split_once("://")?;
    let end = rest.find(['/', '?']);
    // A placeholder before the path would be a part of the host.
    let authority = if url.is_fixed() { &rest[..end.unwrap_or(rest.len())] } else { &rest[..end?] };
    let sound = matches!(scheme, "http" | "https") && !authority.contains('@');
    let host = authority.parse::<axum::http::uri::Authority>().ok().filter(|_| sound)?;
    Some(host.to_string())
}

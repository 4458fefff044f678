//! From a job to a request. Whatever a message holds, it stays where the template puts it: values are
//! escaped in the address, and refused in a header field that they would end.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue, Request, Uri};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use sluicegate_template::{RenderError, Text, scalar};

use super::super::chat::ImageError;
use super::super::facts::Facts;
use super::{Content, HttpOptions};

/// What stays as it is in an address (RFC 3986, 2.3).
const IN_URL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What is escaped in the id of a job: a percent sign, too, so that two ids stay two.
const IN_KEY: &AsciiSet = &CONTROLS.add(b'%');
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("sluicegate/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Why a message makes no request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum RequestError {
    #[error("{field}: {error}")]
    Render { field: String, error: RenderError },
    #[error("url: the message would lead to another path: a part of it is . or ..")]
    Dots,
    #[error("url: the message makes an address that can't be used: is it longer than 64 KB?")]
    Address,
    #[error("headers.{0}: the message makes a value that can't be sent")]
    Header(String),
    #[error("images: {0}")]
    Images(#[from] ImageError),
}

impl RequestError {
    /// Names the field that could not be filled.
    pub(in super::super) fn of(field: impl Into<String>) -> impl FnOnce(RenderError) -> Self {
        |error| Self::Render { field: field.into(), error }
    }
}

/// The request for a job.
pub(super) fn of(options: &HttpOptions, facts: &Facts<'_>) -> Result<Request<Body>, RequestError> {
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
    *request.uri_mut() = address(&options.url, facts)?;
    *request.headers_mut() = headers;
    Ok(request)
}

fn content(
    content: &Content,
    facts: &Facts<'_>,
) -> Result<(Option<HeaderValue>, Body), RequestError> {
    Ok(match content {
        Content::Nothing => (None, Body::empty()),
        Content::Message => {
            let message = &facts.job.message;
            let named = message.content_type.as_deref().and_then(|name| name.parse().ok());
            let guessed = || if facts.body().is_some() { JSON } else { BYTES };
            (Some(named.unwrap_or_else(guessed)), Body::from(message.body.clone()))
        }
        Content::Json(tree) => {
            let value = tree.render(facts).map_err(RequestError::of("body"))?;
            (Some(JSON), Body::from(value.to_string()))
        }
        Content::Text(text) => {
            let text = text.render(facts).map_err(RequestError::of("text"))?;
            (Some(TEXT), Body::from(text))
        }
        Content::Chat(chat) => (Some(JSON), Body::from(chat.body(facts)?.to_string())),
    })
}

fn address(url: &Text, facts: &Facts<'_>) -> Result<Uri, RequestError> {
    let text = url.render_with(facts, in_url).map_err(RequestError::of("url"))?;
    let uri: Uri = text.parse().map_err(|_| RequestError::Address)?;
    if !url.is_fixed() && uri.path().split('/').any(|part| part == "." || part == "..") {
        return Err(RequestError::Dots);
    }
    Ok(uri)
}

fn in_url(so_far: &mut String, value: &Value) -> Result<(), &'static str> {
    let value = scalar(value)?;
    // Otherwise DELETE /users/{{id}} would one day be DELETE /users/.
    if value.is_empty() && !so_far.contains('?') {
        return Err("is empty, which would lead to another path");
    }
    so_far.extend(utf8_percent_encode(&value, IN_URL));
    Ok(())
}

fn in_header(so_far: &mut String, value: &Value) -> Result<(), &'static str> {
    let value = scalar(value)?;
    if value.chars().any(char::is_control) {
        return Err("has control characters, which no header field can hold");
    }
    so_far.push_str(&value);
    Ok(())
}

/// The host that an address leads to, whatever a message says.
pub(super) fn host(url: &Text) -> Option<String> {
    let beginning = url.beginning();
    let (scheme, rest) = beginning.split_once("://")?;
    let end = rest.find(['/', '?']);
    // A place that comes before the path would be a part of the host.
    let authority = if url.is_fixed() { &rest[..end.unwrap_or(rest.len())] } else { &rest[..end?] };
    let sound = matches!(scheme, "http" | "https") && !authority.contains('@');
    let host = authority.parse::<axum::http::uri::Authority>().ok().filter(|_| sound)?;
    Some(host.to_string())
}

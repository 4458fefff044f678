//! Upgraded connections (HTTP/1.1 `Upgrade`, such as WebSocket): after the response 101, bytes are
//! copied in both directions until one side closes.

use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tracing::debug;

/// Returns the protocols that a request asks to upgrade to.
///
/// Ignored are offers that a server may always ignore: HTTP/2 (`h2c`), which ends at this gateway,
/// and those in a request that is not HTTP/1.1 or does not name `Upgrade` in `Connection`.
pub(crate) fn requested_protocol(parts: &Parts) -> Option<HeaderValue> {
    let headers = &parts.headers;
    let is_upgrade = |name: &str| name.eq_ignore_ascii_case("upgrade");
    if parts.version != Version::HTTP_11 || !names(headers, CONNECTION).any(is_upgrade) {
        return None;
    }
    let is_http = |name: &str| {
        let protocol = name.split('/').next().unwrap_or_default();
        protocol.eq_ignore_ascii_case("h2c") || protocol.eq_ignore_ascii_case("http")
    };
    let protocols: Vec<_> = names(headers, UPGRADE).filter(|name| !is_http(name)).collect();
    let protocols = HeaderValue::try_from(protocols.join(", ")).ok()?;
    Some(protocols).filter(|protocols| !protocols.is_empty())
}

/// Returns the elements of a header field that is a list.
fn names(headers: &HeaderMap, field: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(field).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|name| !name.is_empty())
}

/// Returns false for a response 101 that the request did not ask for, with the protocols in
/// `requested`.
pub(crate) fn is_solicited<B>(response: &Response<B>, requested: Option<&HeaderValue>) -> bool {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return true;
    }
    let Some(requested) = requested.and_then(|requested| requested.to_str().ok()) else {
        return false;
    };
    let is_requested =
        |name: &str| requested.split(", ").any(|requested| requested.eq_ignore_ascii_case(name));
    let mut chosen = names(response.headers(), UPGRADE).peekable();
    chosen.peek().is_some() && chosen.all(is_requested)
}

/// Adds the upgrade request again, after the hop-by-hop fields were removed.
pub(crate) fn request_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Returns the caller's side of a connection that may be upgraded.
pub(crate) fn caller_side<B>(request: &mut Request<B>) -> OnUpgrade {
    hyper::upgrade::on(request)
}

/// Returns the tunnel between both sides, after the upstream agreed. Either side may close it in any way.
pub(crate) fn connect(
    response: &mut Response<Incoming>,
    caller: OnUpgrade,
) -> impl Future<Output = ()> + Send + 'static {
    debug_assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let upstream = hyper::upgrade::on(response);
    async move {
        match tokio::try_join!(caller, upstream) {
            Ok((caller, upstream)) => {
                let (mut caller, mut upstream) = (TokioIo::new(caller), TokioIo::new(upstream));
                let _ = tokio::io::copy_bidirectional(&mut caller, &mut upstream).await;
            }
            Err(error) => debug!(%error, "connection upgrade failed"),
        }
    }
}

//! Upgraded connections (HTTP/1.1 `Upgrade`, such as WebSocket): after the response 101, bytes are
//! copied in both directions until one side closes.

use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tracing::debug;

/// Returns the protocol that a request asks to upgrade to.
pub(crate) fn requested_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let named = |value: &HeaderValue| {
        let value = value.to_str().unwrap_or_default();
        value.split(',').any(|name| name.trim().eq_ignore_ascii_case("upgrade"))
    };
    let asks = headers.get_all(CONNECTION).iter().any(named);
    headers.get(UPGRADE).filter(|_| asks).cloned()
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

/// Connects both sides after the upstream agreed. `guard` lives as long as the tunnel.
pub(crate) fn connect(
    response: &mut Response<Incoming>,
    caller: OnUpgrade,
    guard: impl Send + 'static,
) {
    debug_assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let upstream = hyper::upgrade::on(response);
    tokio::spawn(async move {
        let _guard = guard;
        match tokio::try_join!(caller, upstream) {
            Ok((caller, upstream)) => {
                let (mut caller, mut upstream) = (TokioIo::new(caller), TokioIo::new(upstream));
                // Either side may close the tunnel in any way.
                let _ = tokio::io::copy_bidirectional(&mut caller, &mut upstream).await;
            }
            Err(error) => debug!(%error, "connection upgrade failed"),
        }
    });
}

//! A connection that is taken over (HTTP/1.1 `Upgrade`, such as WebSocket): from the answer 101 on,
//! bytes pass in both directions until one side ends.

use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tracing::debug;

/// What a request asks to be taken over for.
pub(crate) fn wished(headers: &HeaderMap) -> Option<HeaderValue> {
    let named = |value: &HeaderValue| {
        let value = value.to_str().unwrap_or_default();
        value.split(',').any(|name| name.trim().eq_ignore_ascii_case("upgrade"))
    };
    let asks = headers.get_all(CONNECTION).iter().any(named);
    headers.get(UPGRADE).filter(|_| asks).cloned()
}

/// Passes the wish on; what belongs to the connection was taken off before.
pub(crate) fn wish(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// The caller's half of a connection that may be taken over.
pub(crate) fn half<B>(request: &mut Request<B>) -> OnUpgrade {
    hyper::upgrade::on(request)
}

/// Connects both halves if the upstream agreed. `guard` lives as long as the tunnel.
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
                // Either side may end it in whatever way it likes.
                let _ = tokio::io::copy_bidirectional(&mut caller, &mut upstream).await;
            }
            Err(error) => debug!(%error, "a connection was not taken over"),
        }
    });
}

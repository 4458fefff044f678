//! Tests of rejections as a gRPC client receives them.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use tonic_types::StatusExt as _;

use crate::support::{Proxy, TOKEN, Upstream, limited, route, soon};

/// Sends a gRPC call over HTTP/2; returns the status of the response.
async fn call(proxy: &Proxy, path: &str, token: &str) -> tonic::Status {
    let mut sender = proxy.http2().await;
    let request = axum::http::Request::post(format!("http://{}{path}", proxy.address))
        .header("x-internal-token", token)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(&[0; 5])))
        .expect("a request");
    let response = soon(sender.send_request(request)).await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let status = tonic::Status::from_header_map(response.headers()).expect("a gRPC status");
    let body = soon(response.into_body().collect()).await.expect("a body").to_bytes();
    assert!(body.is_empty());
    status
}

#[tokio::test]
async fn a_grpc_caller_over_the_limit_is_told_when_to_try_again() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(limited(upstream.address, "1/h", Duration::ZERO)).await;
    assert_eq!(proxy.get("/first").await.status, 200);
    let status = call(&proxy, "/a.B/C", TOKEN).await;
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
    let wait = status.get_details_retry_info().and_then(|info| info.retry_delay);
    assert!(wait.is_some_and(|wait| wait > Duration::from_secs(60)), "{wait:?}");
    let pushback = status.metadata().get("grpc-retry-pushback-ms").expect("a pushback");
    assert!(pushback.to_str().is_ok_and(|ms| ms.parse::<u64>().is_ok()), "{pushback:?}");
    // Log and metrics have the status that other callers get.
    assert_eq!(proxy.requests(429), 1.0);
}

#[tokio::test]
async fn a_grpc_caller_gets_a_grpc_status_for_every_rejection() {
    let proxy = Proxy::start(route("127.0.0.1:1")).await;
    assert_eq!(call(&proxy, "/a.B/C", "wrong").await.code(), tonic::Code::Unauthenticated);
    assert_eq!(call(&proxy, "/a.B/C", TOKEN).await.code(), tonic::Code::Unavailable);

    let upstream = Upstream::start().await;
    let mut to = route(upstream.address);
    to.timeout = Duration::from_millis(200).into();
    let proxy = Proxy::start(to).await;
    assert_eq!(call(&proxy, "/held", TOKEN).await.code(), tonic::Code::DeadlineExceeded);
}

//! Tests of HTTP/1.1 and HTTP/2 on both sides, with and without TLS.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};

use crate::support::{Proxy, TOKEN, Upstream, route, secure_server, soon};

#[tokio::test]
async fn http2_is_spoken_on_both_sides() {
    let upstream = Upstream::start().await;
    let mut to = route(upstream.address);
    to.http2 = true;
    let proxy = Proxy::start(to).await;
    let mut sender = proxy.http2().await;
    let many = (0..50).map(|number| {
        let request = axum::http::Request::post(format!("http://{}/{number}", proxy.address))
            .header("x-internal-token", TOKEN)
            .body(Full::new(Bytes::from(number.to_string())))
            .expect("a request");
        let answer = sender.send_request(request);
        async move {
            let body = answer.await.expect("an answer").into_body().collect().await;
            assert_eq!(body.expect("a body").to_bytes(), number.to_string());
        }
    });
    soon(futures_util::future::join_all(many.collect::<Vec<_>>())).await;
    assert_eq!(upstream.count(), 50);
    // In HTTP/2 the host is not a header field but part of the target.
    assert!(upstream.last().uri.starts_with("http://"), "{}", upstream.last().uri);
}

#[tokio::test]
async fn an_upstream_with_a_certificate_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let app = axum::Router::new().fallback(|request: axum::extract::Request| async move {
        format!("{:?}", request.version())
    });
    let port = secure_server(folder.path(), app).await;

    let mut to = route(format!("https://localhost:{port}"));
    to.ca = Some(folder.path().join("cert.pem"));
    let trusting = Proxy::start(to).await;
    let answer = trusting.get("/").await;
    assert_eq!((answer.status, answer.text()), (200, "HTTP/2.0"));

    let other =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let ca = folder.path().join("other.pem");
    std::fs::write(&ca, other.cert.pem()).expect("written");
    let mut to = route(format!("https://localhost:{port}"));
    to.ca = Some(ca);
    let wary = Proxy::start(to).await;
    let answer = wary.get("/").await;
    assert_eq!((answer.status, answer.code().as_str()), (502, "UPSTREAM_UNREACHABLE"));
}

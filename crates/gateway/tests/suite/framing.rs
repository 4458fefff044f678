//! Tests of ambiguous requests, which proxies interpret differently: an upstream receives only
//! whole requests that the gateway meant to send, or none.

use crate::support::{Proxy, TOKEN, Upstream, route};

/// Raw request with `TOKEN` in place of the token's header field; status of the first response,
/// empty if the connection is just closed; maximum number of requests that the upstream receives.
const CORPUS: [(&str, &str, usize); 26] = [
    // Absolute form, CONNECT, invalid targets.
    ("GET http://evil/ HTTP/1.1\r\nhost: a\r\nTOKEN\r\n\r\n", "400", 0),
    ("CONNECT evil:443 HTTP/1.1\r\nhost: a\r\nTOKEN\r\n\r\n", "405", 0),
    ("OPTIONS * HTTP/1.1\r\nhost: a\r\nTOKEN\r\n\r\n", "400", 0),
    // Transfer-Encoding other than chunked.
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.0\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    // Both lengths, in both orders, and tricks to hide one of them.
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\nTOKEN\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\nTOKEN\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ncontent-length: 5\r\ncontent-length: 5\r\nTransfer-Encoding:\tChunked\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ntransfer-encoding: chunked\r\ncontent-length: none\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.1\nhost: a\nTOKEN\ncontent-length: 5\ntransfer-encoding: chunked\n\n0\r\n\r\n",
        "400",
        0,
    ),
    (
        "POST / HTTP/1.0\r\nhost: a\r\nTOKEN\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "400",
        0,
    ),
    // Lengths that contradict each other or are invalid.
    (
        "POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        "400",
        0,
    ),
    ("POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ncontent-length: +1\r\n\r\nx", "400", 0),
    ("POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ncontent-length: 0x1\r\n\r\nx", "400", 0),
    ("POST / HTTP/1.1\r\nhost: a\r\nTOKEN\r\ncontent-length: 1, 2\r\n\r\nxx", "400", 0),
    // Invalid names and lines.
    ("GET / HTTP/1.1\r\nhost: a\r\nTOKEN\r\nbad name: x\r\n\r\n", "400", 0),
    ("GET / HTTP/1.1\r\nhost: a\r\nTOKEN\r\n folded: x\r\n\r\n", "400", 0),
    ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nTOKEN\r\n\r\n", "400", 0),
    ("GET /a b HTTP/1.1\r\nhost: a\r\nTOKEN\r\n\r\n", "400", 0),
    ("GET / HTTP/1.1\r\nhost: a\r\nTOKEN\r\nx: a\rb\r\n\r\n", "400", 0),
];

#[tokio::test]
async fn no_request_is_smuggled() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    for (sent, status, at_most) in CORPUS {
        let before = upstream.count();
        let answer = proxy
            .raw(sent.replace("TOKEN", &format!("x-internal-token: {TOKEN}")).as_bytes())
            .await;
        let found = answer.split(' ').nth(1).unwrap_or_default();
        assert_eq!(found, status, "{sent:?}\n{answer}");
        assert!(upstream.count() - before <= at_most, "{sent:?}");
        let seen = upstream.seen.lock().expect("the lock");
        assert!(seen.iter().all(|seen| seen.uri != "/smuggled"), "{sent:?}");
        assert!(seen.iter().all(|seen| seen.header("content-length").is_none()
            || seen.header("transfer-encoding").is_none()));
    }
}

#[tokio::test]
async fn a_request_with_two_lengths_is_refused_behind_those_that_have_one() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    let head = format!("host: a\r\nx-internal-token: {TOKEN}\r\n");
    let one = format!("POST /1 HTTP/1.1\r\n{head}content-length: 3\r\n\r\none");
    let two = format!(
        "POST /2 HTTP/1.1\r\n{head}transfer-encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
    );
    let both = format!(
        "POST /3 HTTP/1.1\r\n{head}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    );
    let answer = proxy.raw(format!("{one}{two}{both}{one}").as_bytes()).await;
    let statuses: Vec<_> =
        answer.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
    assert_eq!(statuses, ["200", "200", "400"], "{answer}");
    let refusal = answer.rsplit("HTTP/1.1 ").next().expect("the last");
    assert!(refusal.contains("BAD_REQUEST") && refusal.contains("Content-Length"), "{refusal}");
    assert!(refusal.contains("connection: close"), "{refusal}");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn invalid_chunks_end_the_request() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    for chunks in
        ["z\r\nx\r\n0\r\n\r\n", "-1\r\nx\r\n", "ffffffffffffffffff\r\nx", "1\r\nxx\r\n0\r\n\r\n"]
    {
        let request = format!(
            "POST / HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"
        );
        let answer = proxy.raw(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{chunks:?}\n{answer}");
        assert!(answer.contains("BAD_REQUEST"), "{chunks:?}\n{answer}");
    }
}

//! Tests of HTTP responses and the outcome of their jobs.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use sluicegate_config::ByteSize;
use sluicegate_dispatch::Handler;
use sluicegate_dispatch::handler::{HttpError, HttpHandler, ResponseCondition, ResultSource};
use sluicegate_queue::WallClock;
use sluicegate_template::JsonPath;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{
    LIMITED, PERMANENT, Server, TRANSIENT, body, done, failed, handler, job, options, response,
};

fn member(path: &str) -> JsonPath {
    JsonPath::parse(path).unwrap()
}

#[tokio::test]
async fn the_status_says_what_to_do() {
    for (status, headers, kind) in [
        (301, &[("location", "/x")][..], PERMANENT),
        (400, &[], PERMANENT),
        (401, &[], PERMANENT),
        (403, &[], PERMANENT),
        (404, &[], PERMANENT),
        (408, &[], TRANSIENT),
        (409, &[], TRANSIENT),
        (422, &[], PERMANENT),
        (425, &[], TRANSIENT),
        (429, &[], LIMITED),
        (403, &[("x-ratelimit-remaining", "0")], LIMITED),
        (403, &[("retry-after", "60")], LIMITED),
        (500, &[], TRANSIENT),
        (503, &[], TRANSIENT),
        (503, &[("retry-after", "1")], LIMITED),
        (529, &[], TRANSIENT),
    ] {
        let server = Server::answering(status, headers, "why \u{1b}[0m not").await;
        let handled = handler(options(&server.url)).handle(&job("{}")).await;
        let failure = handled.outcome.unwrap_err();
        assert_eq!(failure.kind, kind, "{status}");
        assert!(failure.message.starts_with(&format!("HTTP {status} ")), "{}", failure.message);
        assert!(failure.message.ends_with(server.url.trim_start_matches("http://")));
        assert_eq!(failure.response.as_deref(), Some("why \u{fffd}[0m not"));
        assert_eq!(handled.rate_limit_info.unwrap().status, status);
    }
}

#[tokio::test]
async fn rate_limit_information_is_returned_for_every_status() {
    let fields = &[
        ("x-ratelimit-remaining", "99"),
        ("retry-after", "7"),
        ("anthropic-ratelimit-tokens-remaining", "5"),
        ("x-other", "1"),
    ];
    for status in [200, 404, 429] {
        let server = Server::answering(status, fields, r#"{"error": {"status": "x"}}"#).await;
        let rate_limit_info =
            handler(options(&server.url)).handle(&job("{}")).await.rate_limit_info.unwrap();
        assert_eq!(rate_limit_info.status, status);
        let mut names: Vec<_> =
            rate_limit_info.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["anthropic-ratelimit-tokens-remaining", "retry-after", "x-ratelimit-remaining"]
        );
        assert_eq!(
            rate_limit_info.body.is_empty(),
            status != 429,
            "a hint is in the body of a refusal"
        );
    }
}

#[tokio::test]
async fn statuses_can_be_chosen() {
    for (status, good) in [(404, true), (200, true), (202, false), (418, false)] {
        let server = Server::answering(status, &[], "").await;
        let mut options = options(&server.url);
        options.success = vec![200..=200, 404..=404];
        options.retry = vec![418..=418];
        let outcome = handler(options).handle(&job("{}")).await.outcome;
        match good {
            true => assert!(outcome.is_ok(), "{status}"),
            false => assert_eq!(outcome.unwrap_err().kind, TRANSIENT, "{status}"),
        }
    }
}

#[tokio::test]
async fn a_response_has_to_meet_the_success_condition() {
    let state = |values| Some(ResponseCondition { path: member("data.state"), values });
    for (condition, answer, good) in [
        (state(vec![]), r#"{"data": {"state": "any"}}"#, true),
        (state(vec![]), r#"{"data": {"state": 0}}"#, true),
        (state(vec![]), r#"{"data": {"state": null}}"#, false),
        (state(vec![]), r#"{"data": {"state": false}}"#, false),
        (state(vec![]), r#"{"data": {}}"#, false),
        (state(vec![json!("done"), json!(1)]), r#"{"data": {"state": "done"}}"#, true),
        (state(vec![json!("done"), json!(1)]), r#"{"data": {"state": 1}}"#, true),
        (state(vec![json!("done")]), r#"{"data": {"state": "pending"}}"#, false),
        (state(vec![]), "<html>", false),
    ] {
        let server = Server::answering(200, &[], answer).await;
        let mut options = options(&server.url);
        options.condition = condition;
        let outcome = handler(options).handle(&job("{}")).await.outcome;
        match good {
            true => assert!(outcome.is_ok(), "{answer}: {outcome:?}"),
            false => {
                let failure = outcome.unwrap_err();
                assert_eq!((failure.kind, failure.response.as_deref()), (TRANSIENT, Some(answer)));
            }
        }
    }
}

#[tokio::test]
async fn a_part_of_the_answer_can_be_the_result() {
    let server = Server::answering(200, &[], r#"{"data": [{"x": 1}, "two"]}"#).await;
    let of = |path: &str| {
        let mut options = options(&server.url);
        options.result = ResultSource::Member(member(path));
        handler(options)
    };
    for (path, expected) in [("data.0", r#"{"x":1}"#), ("data.1", r#""two""#), ("data.0.x", "1")] {
        let done = done(&of(path), &job("{}")).await;
        assert_eq!(body(&done), expected);
        assert_eq!(done.result.unwrap().content_type.as_deref(), Some("application/json"));
    }
    let failure = failed(&of("data.2"), &job("{}")).await;
    assert_eq!(failure.kind, PERMANENT);
    assert!(failure.message.ends_with("the response has no data.2"), "{}", failure.message);
}

#[tokio::test]
async fn a_response_over_the_size_limit_is_cut() {
    let endless = Server::start(|_| {
        let parts =
            stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 10_000])));
        response(200, &[], Body::from_stream(parts))
    })
    .await;
    let mut cut = options(&endless.url);
    cut.response_limit = ByteSize(25_000);
    let failure = failed(&handler(cut), &job("{}")).await;
    assert_eq!(failure.kind, PERMANENT);
    assert!(failure.message.contains("the response exceeds 25000 bytes: raise response_limit"));
    assert_eq!(failure.response.unwrap().len(), 1_024);

    let exact = Server::start(|_| response(200, &[], "y".repeat(25_000))).await;
    let mut fits = options(&exact.url);
    fits.response_limit = ByteSize(25_000);
    assert_eq!(body(&done(&handler(fits), &job("{}")).await).len(), 25_000);
}

/// Starts a server that reads a request and then sends exactly these bytes.
async fn raw(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let _ = socket.read(&mut buffer).await;
            let _ = socket.write_all(&bytes).await;
        }
    });
    url
}

#[tokio::test]
async fn connection_errors_are_retried() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let cut = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this".to_vec()).await;
    let silent = raw(Vec::new()).await;
    let foreign = raw(b"SSH-2.0-OpenSSH\r\n".to_vec()).await;
    for (url, expected) in [
        (refused.as_str(), "no response from"),
        (&cut, "ended early"),
        (&silent, "no response from"),
        (&foreign, "no response from"),
        ("http://nowhere.invalid/", "no response from nowhere.invalid"),
    ] {
        let failure = failed(&handler(options(url)), &job("{}")).await;
        assert_eq!(failure.kind, TRANSIENT, "{url}");
        assert!(failure.message.contains(expected), "{}", failure.message);
    }
}

#[tokio::test]
async fn dropping_a_call_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let handler = handler(options(&url));
    let job = job("{}");
    let call = tokio::spawn(async move { handler.handle(&job).await.outcome.is_ok() });
    let (mut socket, _) = listener.accept().await.unwrap();
    let mut buffer = [0; 4096];
    assert!(socket.read(&mut buffer).await.unwrap() > 0, "the request");
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    let gone = async { while !matches!(socket.read(&mut buffer).await, Ok(0) | Err(_)) {} };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the connection is closed");
}

#[test]
fn an_address_whose_host_a_message_would_choose_is_refused() {
    for url in
        ["{{host}}/x", "http://{{host}}/", "http://a{{host}}/", "ftp://a/", "http://u@a/", "a"]
    {
        let made = HttpHandler::new(options(url), Arc::new(WallClock));
        assert!(matches!(made, Err(HttpError::Address)), "{url}");
    }
}

/// Every response gives an outcome that can be printed.
#[test]
fn any_response_bytes_give_an_outcome() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let head = prop_oneof![
        Just("HTTP/1.1 200 OK\r\n\r\n"),
        Just("HTTP/1.1 429 X\r\nretry-after: x\r\n\r\n"),
        Just("HTTP/1.1 503 \r\nx-ratelimit-reset: \u{ff}\r\ncontent-length: 9\r\n\r\n"),
        Just("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        Just("HTTP/1.1 999 OK\r\n\r\n"),
        Just("HTTP/1.1 200 OK\r\ncontent-type: \u{80}\r\n\r\n{\"a\":"),
        Just(""),
    ];
    let answer = (head, prop::collection::vec(any::<u8>(), 0..200));
    let mut runner = TestRunner::new(Config::with_cases(150));
    let checked = runner.run(&answer, |(head, rest)| {
        let bytes = [head.as_bytes(), &rest].concat();
        let handled = runtime.block_on(async {
            let mut options = options(&raw(bytes).await);
            options.result = ResultSource::Member(member("a"));
            handler(options).handle(&job("{}")).await
        });
        if let Err(failure) = &handled.outcome {
            prop_assert!(!failure.message.chars().any(char::is_control), "{}", failure.message);
            let short = failure.response.as_ref().is_none_or(|shown| shown.len() <= 1_024);
            prop_assert!(short);
        }
        Ok(())
    });
    checked.unwrap();
}

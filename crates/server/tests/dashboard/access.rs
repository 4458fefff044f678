//! Who may use the dashboard: sessions, tokens, origins, and reasons of actions.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluicegate_core::Span;
use sluicegate_server::auth::{self, AuthScope, ENDPOINTS, Tokens};
use tower::ServiceExt as _;

use crate::{HOST, Node};

#[tokio::test]
async fn an_event_stream_sends_each_second_and_ends_at_the_shutdown() {
    let node = Node::new(&[]);
    let request = Request::get("/v1/dashboard/events?tail=true").header(header::HOST, HOST);
    let request = request.body(Body::empty()).expect("a request");
    let response = node.app.clone().oneshot(request).await.expect("infallible");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
    let mut body = response.into_body();
    node.acquire("ann").await;
    node.tick();
    let frame = body.frame().await.expect("an event").expect("no error");
    let text = String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text");
    let events: Vec<_> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
    assert!(events[0].starts_with("event: tick\ndata: {"), "{text}");
    assert!(events[0].contains("\"allowed\":1.0"), "{text}");
    assert!(events[1].starts_with("event: decisions\ndata: {\"skipped\":0,"), "{text}");
    for event in events {
        let data = event.split_once("data: ").expect("data").1;
        serde_json::from_str::<Value>(data).expect("JSON");
    }
    node.shutdown.cancel();
    assert!(body.frame().await.is_none(), "the stream ends");
}

/// Opens an event stream.
async fn open_stream(node: &Node, headers: &[(&str, &str)]) -> Body {
    let mut request = Request::get("/v1/dashboard/events?tail=true").header(header::HOST, HOST);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let response = node.app.clone().oneshot(request).await.expect("infallible");
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// Asserts that the stream sends the next second, or that it ends instead.
async fn check_stream(node: &Node, stream: &mut Body, sends: bool, when: &str) {
    node.tick();
    let event = stream.frame().await;
    assert_eq!(event.is_some_and(|event| event.is_ok()), sends, "{when}");
}

#[tokio::test]
async fn an_event_stream_ends_with_the_session_that_opened_it() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    let own = format!("http://{HOST}");
    let cookie = log_in(&node, "reader").await;
    let mut stream = open_stream(&node, &[("cookie", &cookie)]).await;
    check_stream(&node, &mut stream, true, "the session is open").await;
    node.post("/logout", json!({}), &[("cookie", cookie.as_str()), ("origin", &own)]).await;
    check_stream(&node, &mut stream, false, "after the logout").await;

    let cookie = log_in(&node, "reader").await;
    let mut stream = open_stream(&node, &[("cookie", &cookie)]).await;
    check_stream(&node, &mut stream, true, "the session is open").await;
    node.clock.advance(Span::from_secs(12 * 3_600));
    check_stream(&node, &mut stream, false, "the session is over").await;
}

#[tokio::test]
async fn an_event_stream_ends_with_its_token() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    let cookie = log_in(&node, "reader").await;
    let mut session = open_stream(&node, &[("cookie", &cookie)]).await;
    let mut bearer = open_stream(&node, &[("authorization", "Bearer reader")]).await;
    check_stream(&node, &mut session, true, "a session of the token").await;
    assert!(bearer.frame().await.is_some_and(|event| event.is_ok()));
    let hash = auth::hash(b"reader");
    let without_scope = Tokens::new([("reader", hash)]).expect("tokens");
    let decides = |_: &str| [AuthScope::Decide].into_iter().collect();
    node.tokens.store(Some(Arc::new(without_scope.with_scopes(decides))));
    check_stream(&node, &mut session, false, "the token may no longer read").await;
    assert!(bearer.frame().await.is_none(), "neither may the holder of the token");

    // A stream that was opened while no token was needed.
    let node = Node::new(&[]);
    let mut open = open_stream(&node, &[]).await;
    check_stream(&node, &mut open, true, "no token is needed").await;
    node.tokens.store(Some(Arc::new(Tokens::new([("new", hash)]).expect("tokens"))));
    check_stream(&node, &mut open, false, "a token is needed now").await;
}

/// Returns the cookie of a login.
async fn log_in(node: &Node, token: &str) -> String {
    let own = format!("http://{HOST}");
    let (status, headers, body) =
        node.post("/login", json!({ "token": token }), &[("origin", &own)]).await;
    assert_eq!(status, 200, "{body}");
    let cookie = headers[header::SET_COOKIE].to_str().expect("text");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    cookie.split(';').next().expect("a cookie").to_owned()
}

#[tokio::test]
async fn a_session_has_the_scopes_of_its_token() {
    let node = Node::new(&[
        ("reader", &[AuthScope::Read]),
        ("operator", &[AuthScope::Read, AuthScope::Admin]),
    ]);
    let body =
        json!({ "rule": "USER", "limit": "0", "when": { "userId": "eve" }, "reason": "abuse" });
    let own = format!("http://{HOST}");
    for (token, allowed) in [("reader", 403), ("operator", 201)] {
        let cookie = log_in(&node, token).await;
        let headers = [("cookie", cookie.as_str()), ("origin", own.as_str())];
        let (status, _, answer) = node.post("/v1/overrides", body.clone(), &headers).await;
        assert_eq!(status, allowed, "{token}: {answer}");
        let foreign = [("cookie", cookie.as_str()), ("origin", "http://evil.example")];
        assert_eq!(node.post("/v1/overrides", body.clone(), &foreign).await.0, 403);
        let request = Request::get("/v1/dashboard/audit").header("cookie", &cookie);
        let (status, _, audit) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 200, "{audit}");
        if token == "operator" {
            let entry = &audit["audit"][0];
            assert_eq!(
                (&entry["by"], &entry["action"]),
                (&json!("operator"), &json!("override set"))
            );
            assert_eq!((&entry["reason"], &entry["target"]), (&json!("abuse"), &json!("USER")));
            assert_eq!(entry["detail"], "userId=eve: 0");
        }
        node.post("/logout", json!({}), &headers).await;
        let request = Request::get("/v1/dashboard/audit").header("cookie", &cookie);
        let (status, ..) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 401, "the session is over");
    }
}

#[tokio::test]
async fn a_login_needs_a_known_token_that_may_read() {
    let node = Node::new(&[("reader", &[AuthScope::Read]), ("caller", &[AuthScope::Decide])]);
    for (token, detail) in [
        ("wrong", "unknown token: check that it is complete"),
        ("caller", "the token does not have the scope read: use one with this scope"),
    ] {
        let (status, headers, body) = node.post("/login", json!({ "token": token }), &[]).await;
        assert_eq!((status, body["detail"].as_str()), (401, Some(detail)));
        assert!(!headers.contains_key(header::SET_COOKIE));
    }
    let foreign = [("origin", "http://evil.example")];
    assert_eq!(node.post("/login", json!({ "token": "reader" }), &foreign).await.0, 403);
    assert_eq!(node.get("/login").await, json!({ "login": true }));
}

/// Wrong tokens of others must not keep a person out.
#[tokio::test]
async fn failed_logins_do_not_disturb_others() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    let wrong = (0..20).map(|_| node.post("/login", json!({ "token": "wrong" }), &[]));
    let (answers, _) =
        futures_util::future::join(futures_util::future::join_all(wrong), log_in(&node, "reader"))
            .await;
    assert!(answers.iter().all(|(status, ..)| *status == 401));
}

#[tokio::test]
async fn the_page_of_another_host_cannot_end_a_session() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    let cookie = log_in(&node, "reader").await;
    let foreign = [("cookie", cookie.as_str()), ("origin", "http://evil.example")];
    assert_eq!(node.post("/logout", json!({}), &foreign).await.0, 403);
    let request = Request::get("/v1/dashboard/audit").header("cookie", &cookie);
    assert_eq!(node.send(request.body(Body::empty()).expect("a request")).await.0, 200);
}

#[tokio::test]
async fn an_action_on_the_dashboard_needs_a_reason() {
    let node = Node::new(&[]);
    let own = format!("http://{HOST}");
    let set = json!({ "rule": "USER", "limit": "9/min", "reason": "test" });
    let (_, _, set) = node.post("/v1/overrides", set, &[]).await;
    let remove = format!("/v1/overrides/{}", set["id"].as_str().expect("an id"));
    let send = async |method: &str, path: &str, page: bool| {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, HOST);
        request = request.header(header::CONTENT_TYPE, "application/json");
        if page {
            request = request.header(header::ORIGIN, &own);
        }
        let body = json!({ "dimensions": { "userId": "ann" } }).to_string();
        let (status, _, answer) =
            node.send(request.body(Body::from(body)).expect("a request")).await;
        (status.as_u16(), answer)
    };
    for (method, path) in [
        ("POST", "/v1/reset?rule=USER"),
        ("POST", "/v1/reset?rule=USER&reason=%20"),
        ("POST", "/reload"),
        ("DELETE", &remove),
    ] {
        let (status, answer) = send(method, path, true).await;
        assert_eq!(
            (status, &answer["field"]),
            (400, &json!("reason")),
            "{method} {path}: {answer}"
        );
        let long = format!(
            "{path}{}reason={}",
            if path.contains('?') { "&" } else { "?" },
            "x".repeat(501)
        );
        assert_eq!(send(method, &long, false).await.0, 400, "{method} {path}");
    }
    // A dry run changes nothing, and programs may leave the reason out.
    assert_eq!(send("POST", "/v1/reset?rule=USER&dry_run=true", true).await.0, 200);
    assert_eq!(send("POST", "/v1/reset?rule=USER", false).await.0, 200);
    assert_eq!(send("POST", "/reload", false).await.0, 200);
    assert_eq!(
        send("POST", "/reload?reason=new%20limits", true).await,
        (200, json!({ "reloaded": true, "changes": ["anonymous: new limits"] }))
    );
    assert_eq!(send("DELETE", &format!("{remove}?reason=over"), true).await.0, 200);
    let audit = node.get("/v1/dashboard/audit").await;
    assert_eq!(
        (&audit["audit"][0]["action"], &audit["audit"][0]["reason"]),
        (&json!("override removed"), &json!("over"))
    );
}

#[tokio::test]
async fn pages_are_open_and_contain_no_data_but_the_api_is_not() {
    let node = Node::new(&[("reader", &[AuthScope::Read])]);
    for path in ["/", "/assets/app.js", "/assets/style.css", "/assets/vendor/preact.js"] {
        let request = Request::get(path).header("accept-encoding", "gzip, br");
        let (status, headers, _) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 200, "{path}");
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
        assert!(policy.contains("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers[header::CONTENT_ENCODING], "gzip");
    }
    for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.path.starts_with("/v1/dashboard")) {
        let request = Request::builder().method(endpoint.method).uri(endpoint.path);
        let (status, ..) = node.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, 401, "{endpoint:?}");
    }
}

#[tokio::test]
async fn without_tokens_only_this_machine_sees_the_dashboard() {
    let node = Node::new(&[]);
    let from = |host: &str, path: &str| {
        Request::get(path).header(header::HOST, host).body(Body::empty()).expect("a request")
    };
    assert_eq!(node.send(from(HOST, "/")).await.0, 200);
    assert_eq!(node.send(from("rebound.example", "/")).await.0, 403);
    assert_eq!(node.send(from("rebound.example", "/v1/dashboard/audit")).await.0, 403);
    let open = Node::bound_to("0.0.0.0", &[]);
    let (status, _, body) = open.send(from(HOST, "/v1/dashboard/audit")).await;
    assert_eq!(status, 403);
    let detail = body["detail"].as_str().expect("a detail");
    assert!(detail.contains("set auth.tokens"), "{detail}");
}

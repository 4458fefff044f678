//! Tests of the HTTP requests that messages turn into, as a server receives them.

use std::io::Write as _;

use axum::http::Method;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use sluicegate_config::{Credentials, Login, SecretSource};
use sluicegate_core::Span;
use sluicegate_dispatch::handler::RequestBody;
use sluicegate_dispatch::{Handler as _, PreparedCall};
use sluicegate_testkit::eventually_is_async;
use sluicegate_testkit::proxy::FaultProxy;

use crate::support::{
    PERMANENT, Server, TRANSIENT, body, done, failed, handler, job, map, options, response, text,
};

#[tokio::test]
async fn without_a_template_the_message_is_sent_as_it_is() {
    let server = Server::answering(200, &[("content-type", "text/x-answer")], "fine").await;
    let handler = handler(options(&server.url));
    let done = done(&handler, &job(r#"{ "a" :1}"#)).await;
    assert_eq!(body(&done), "fine");
    assert_eq!(done.result.unwrap().content_type.as_deref(), Some("text/x-answer"));
    let asked = server.asked_once();
    assert_eq!((asked.method.clone(), asked.uri.as_str()), (Method::POST, "/"));
    assert_eq!(&asked.body[..], br#"{ "a" :1}"#);
    assert_eq!(asked.header("content-type"), Some("application/json"));
    assert_eq!(asked.header("idempotency-key"), Some("a-17"));
    assert!(asked.header("user-agent").unwrap().starts_with("sluicegate/"));
}

/// Two calls that are prepared at the same time have a connection each, and open no further one.
#[tokio::test]
async fn a_prepared_call_has_its_connection() {
    let server = Server::answering(200, &[], "").await;
    let port = server.url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap();
    let network = FaultProxy::start(port);
    let handler = handler(options(&format!("http://127.0.0.1:{}/{{{{id}}}}", network.port)));
    let jobs = [job(r#"{"id": 1}"#), job(r#"{"id": 2}"#)];
    let prepared = [handler.prepare(&jobs[0]).await, handler.prepare(&jobs[1]).await];
    assert!(prepared.iter().all(PreparedCall::is_ready));
    eventually_is_async(|| network.connections(), 2).await;
    drop(prepared);
    tokio::join!(done(&handler, &jobs[0]), done(&handler, &jobs[1]));
    assert_eq!(network.connections(), 2);
}

#[tokio::test]
async fn the_media_type_of_a_message_travels_along() {
    let server = Server::answering(200, &[], "").await;
    let handler = handler(options(&server.url));
    let mut typed = job("<a/>");
    typed.message.content_type = Some("application/xml".to_owned());
    let mut broken = job("<a/>");
    broken.message.content_type = Some("a\r\nx: y".to_owned());
    for job in [&typed, &broken] {
        done(&handler, job).await;
    }
    let types: Vec<_> = server
        .asked()
        .iter()
        .map(|asked| asked.header("content-type").unwrap().to_owned())
        .collect();
    assert_eq!(types, ["application/xml", "application/octet-stream"]);
}

#[tokio::test]
async fn templates_fill_the_address_the_fields_and_the_body() {
    let server = Server::answering(200, &[], "").await;
    let mut options =
        options(&format!("{}/users/{{{{user}}}}?q={{{{q:-}}}}&n={{{{job.attempt}}}}", server.url));
    options.method = Method::PUT;
    options.headers = vec![("x-kind".parse().unwrap(), text("{{job.type}}/{{job.provider}}"))];
    options.content = RequestBody::Json(map([
        ("id", "{{job.id}}"),
        ("list", "{{list}}"),
        ("say", "hi {{user}}"),
    ]));
    options.idempotency_header = Some("x-job".parse().unwrap());
    let message = json!({"user": "a/b c?d=e&f#g%", "list": [1, "2"]});
    done(&handler(options), &job(message.to_string())).await;
    let asked = server.asked_once();
    assert_eq!(asked.uri, "/users/a%2Fb%20c%3Fd%3De%26f%23g%25?q=&n=1");
    assert_eq!(asked.header("x-kind"), Some("crawl_org/openai"));
    assert_eq!(asked.header("x-job"), Some("a-17"));
    assert_eq!(asked.header("idempotency-key"), None);
    assert_eq!(asked.json(), json!({"id": "a-17", "list": [1, "2"], "say": "hi a/b c?d=e&f#g%"}));
}

#[tokio::test]
async fn text_is_sent_as_text_and_get_sends_nothing() {
    let server = Server::answering(200, &[], "").await;
    let mut as_text = options(&server.url);
    as_text.content = RequestBody::Text(text("dear {{user}}"));
    as_text.headers = vec![("content-type".parse().unwrap(), text("text/markdown"))];
    as_text.idempotency_header = None;
    let mut get = options(&server.url);
    (get.method, get.content) = (Method::GET, RequestBody::Nothing);
    for options in [as_text, get] {
        done(&handler(options), &job(r#"{"user": "Ann"}"#)).await;
    }
    let [first, second] = &server.asked()[..] else { panic!("two") };
    assert_eq!(
        (&first.body[..], first.header("content-type")),
        (&b"dear Ann"[..], Some("text/markdown"))
    );
    assert_eq!(first.header("idempotency-key"), None);
    assert_eq!((second.body.len(), second.header("content-type")), (0, None));
}

#[tokio::test]
async fn a_message_that_does_not_fit_is_a_dead_letter_that_names_the_field() {
    let server = Server::answering(200, &[], "").await;
    let mut options = options(&format!("{}/u/{{{{user}}}}", server.url));
    options.headers = vec![("x-a".parse().unwrap(), text("{{a:-}}"))];
    options.content = RequestBody::Json(map([("b", "{{b.c:-1}}")]));
    let handler = handler(options);
    for (body, expected) in [
        ("{}", "url: {{user}} can't be filled: it is missing"),
        (r#"{"user": null}"#, "url: {{user}} can't be filled: it is null"),
        (r#"{"user": ["a"]}"#, "url: {{user}} can't be filled: its value is a list"),
        (r#"{"user": {}}"#, "url: {{user}} can't be filled: its value is a map"),
        (
            r#"{"user": ""}"#,
            "url: {{user}} can't be filled: its value is empty, which would change the path",
        ),
        (r#"{"user": ".."}"#, "url: a value from the message makes a path segment . or .."),
        (
            r#"{"user": "x", "a": "1\r\nx: y"}"#,
            "headers.x-a: {{a}} can't be filled: its value has control characters, which are not valid in a header field",
        ),
        // A template with a default needs no JSON; the URL does.
        ("<a/>", "url: {{user}} can't be filled: the message is not JSON"),
        ("", "url: {{user}} can't be filled: the message is not JSON"),
    ] {
        let failure = failed(&handler, &job(body)).await;
        assert_eq!((failure.kind, failure.message.as_str()), (PERMANENT, expected), "{body}");
    }
    let long = json!({"user": "x".repeat(70_000)}).to_string();
    let failure = failed(&handler, &job(long)).await;
    assert_eq!(failure.kind, PERMANENT);
    assert!(failure.message.contains("longer than 64 KB"), "{}", failure.message);
    assert!(server.asked().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn an_id_that_is_not_ascii_is_still_an_idempotency_key() {
    let server = Server::answering(200, &[], "").await;
    let handler = handler(options(&server.url));
    for id in ["größe/7 {}", "a%b"] {
        let mut job = job("{}");
        job.message.meta.job = id.to_owned().try_into().unwrap();
        done(&handler, &job).await;
    }
    let keys: Vec<_> = server
        .asked()
        .iter()
        .map(|asked| asked.header("idempotency-key").unwrap().to_owned())
        .collect();
    assert_eq!(keys, ["gr%C3%B6%C3%9Fe/7 {}", "a%25b"]);
}

#[tokio::test]
async fn credentials_are_sent_and_never_shown() {
    let server = Server::start(|asked| {
        let said = format!(
            "what is {:?} and {:?}",
            asked.header("authorization"),
            asked.header("x-api-key")
        );
        response(400, &[], said)
    })
    .await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "k3y-of-the-file").unwrap();
    let text = SecretSource::from;
    for (credentials, sent, hidden) in [
        (Credentials::Bearer(text("t0ken-of-ours")), "Bearer t0ken-of-ours", "t0ken"),
        (
            Credentials::Basic { user: text("ann"), password: text("pa55word") },
            "Basic YW5uOnBhNTV3b3Jk",
            "YW5uOnBhNTV3b3Jk",
        ),
        (
            Credentials::Headers(vec![(
                "x-api-key".parse().unwrap(),
                SecretSource::File(file.path().to_owned()),
            )]),
            "k3y-of-the-file",
            "k3y",
        ),
    ] {
        let mut options = options(&server.url);
        options.credentials = Some(credentials);
        let printed = format!("{options:?}");
        let failure = failed(&handler(options), &job("{}")).await;
        let asked = server.asked().pop().unwrap();
        let found = asked.header("authorization").or(asked.header("x-api-key"));
        assert_eq!(found, Some(sent));
        let told = format!("{failure:?} {printed}");
        assert!(told.contains("what is") && !told.contains(hidden), "{told}");
    }
}

#[tokio::test]
async fn a_token_that_expired_early_is_renewed() {
    let server = Server::start(|asked| match (asked.uri.as_str(), asked.header("authorization")) {
        ("/login", _) => response(200, &[], r#"{"access_token": "t-1", "expires_in": 3600}"#),
        _ => response(401, &[], "who are you?"),
    })
    .await;
    let mut options = options(&format!("{}/work", server.url));
    options.credentials = Some(Credentials::Login(Box::new(Login {
        url: format!("{}/login", server.url).parse().unwrap(),
        body: "{}".into(),
        content_type: "application/json".to_owned(),
        token: "/access_token".to_owned(),
        expires_in: "/none".to_owned(),
        ttl: Span::from_secs(60),
        header: "authorization".parse().unwrap(),
        scheme: "Bearer".to_owned(),
    })));
    let handler = handler(options);
    for _ in 0..2 {
        assert_eq!(failed(&handler, &job("{}")).await.kind, TRANSIENT);
    }
    let paths: Vec<_> = server.asked().into_iter().map(|asked| asked.uri).collect();
    assert_eq!(paths, ["/login", "/work", "/login", "/work"]);
}

/// Whatever a message contains, the server receives one request with every value where the template
/// put it.
#[test]
fn no_value_changes_the_structure_of_a_request() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::answering(200, &[], ""));
    let mut options = options(&format!("{}/a/{{{{v}}}}/b?x={{{{v}}}}&y=1", server.url));
    options.headers = vec![("x-v".parse().unwrap(), text("<{{v}}>"))];
    options.content = RequestBody::Json(map([("alone", "{{v}}"), ("inside", "<{{v}}>")]));
    let handler = handler(options);
    let mut runner = TestRunner::new(Config::with_cases(200));
    let value = prop_oneof![any::<String>(), "[\\r\\n\\t \"'{}\\[\\]/?&#%=:.\\\\a]{0,12}"];
    let sent = std::cell::Cell::new(0);
    let checked = runner.run(&value, |value| {
        let job = job(json!({"v": value.clone()}).to_string());
        let before = server.asked().len();
        let outcome = runtime.block_on(handler.handle(&job)).outcome;
        let asked = server.asked();
        let sound =
            !value.chars().any(char::is_control) && !matches!(value.as_str(), "" | "." | "..");
        prop_assert_eq!(outcome.is_ok(), sound, "{:?}", outcome);
        prop_assert_eq!(asked.len() - before, usize::from(sound));
        let Some(asked) = asked.last().filter(|_| sound) else { return Ok(()) };
        let (path, query) = asked.uri.split_once('?').unwrap();
        let decoded = |text: &str| {
            percent_encoding::percent_decode_str(text).decode_utf8().unwrap().into_owned()
        };
        let parts: Vec<_> = path.split('/').collect();
        prop_assert_eq!(parts.len(), 4, "{}", path);
        prop_assert_eq!(decoded(parts[2]), value.clone());
        let query: Vec<_> = query.split('&').collect();
        prop_assert_eq!(query.len(), 2);
        prop_assert_eq!(decoded(&query[0][2..]), value.clone());
        let field = asked.headers.get("x-v").unwrap().as_bytes();
        let expected = format!("<{value}>");
        prop_assert_eq!(field, expected.as_bytes());
        prop_assert_eq!(
            asked.json(),
            json!({"alone": value.clone(), "inside": format!("<{value}>")})
        );
        sent.set(sent.get() + 1);
        Ok(())
    });
    checked.unwrap();
    assert!(sent.get() > 20, "only {} of the values were sent", sent.get());
}

//! Tests of query parameters, pages, conditional requests, GitHub's limits and the usage of calls.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use axum::http::Method;
use serde_json::{Value, json};
use sluicegate_core::query::Cost;
use sluicegate_dispatch::handler::{HttpOptions, NextPage, PageOptions, UsagePaths};
use sluicegate_dispatch::{Handler as _, Job};
use sluicegate_queue::JobId;
use sluicegate_template::JsonPath;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::{
    LIMITED, PERMANENT, Server, body, done, failed, handler, job, options, response, text,
};

const GITHUB: &str = r#"<https://api.github.com/organizations/9/repos?per_page=100&page=2>; rel="next", <https://x/?page=6>; rel="last""#;

fn get(url: &str) -> HttpOptions {
    HttpOptions { method: Method::GET, idempotency_header: None, ..options(url) }
}

fn by_link(url: &str) -> HttpOptions {
    HttpOptions {
        query: vec![
            ("per_page".to_owned(), text("100")),
            ("page".to_owned(), text("{{page:-1}}")),
            ("cursor".to_owned(), text("{{cursor:-}}")),
        ],
        pages: Some(PageOptions {
            next: NextPage::Link("page".to_owned()),
            field: "page".to_owned(),
        }),
        ..get(&format!("{url}/orgs/{{{{org}}}}/repos?sort=name"))
    }
}

fn of(id: &str, body: &Value) -> Job {
    let mut job = job(body.to_string());
    job.message.meta.job = JobId::try_from(id.to_owned()).unwrap();
    job
}

#[tokio::test]
async fn query_parameters_are_encoded_and_empty_ones_left_out() {
    let server = Server::answering(200, &[], "[]").await;
    let mut options = by_link(&server.url);
    options.query.push(("a b&c".to_owned(), text("{{org}}?&=ü")));
    done(&handler(options), &job(r#"{"org": "acme"}"#)).await;
    let asked = server.asked_once();
    assert_eq!(
        asked.uri,
        "/orgs/acme/repos?sort=name&per_page=100&page=1&a%20b%26c=acme%3F%26%3D%C3%BC"
    );
}

#[tokio::test]
async fn the_next_link_becomes_a_message_with_that_page() {
    let server = Server::start(|asked| match asked.uri.contains("page=2") {
        true => response(200, &[], "[2]"),
        false => response(200, &[("link", GITHUB)], "[1]"),
    })
    .await;
    let handler = handler(by_link(&server.url));
    let mut job = of("acme", &json!({"org": "acme", "type": "crawl_org"}));
    job.message.meta.max_attempts = Some(7);
    let first = done(&handler, &job).await;
    let next = first.next_page.clone().expect("a next page");
    assert_eq!(body(&first), "[1]");
    assert_eq!(next.meta.job.as_str(), "acme#page=2");
    assert_eq!((next.kind.as_deref(), next.meta.max_attempts), (Some("crawl_org"), Some(7)));
    let expected = json!({"org": "acme", "type": "crawl_org", "page": "2"});
    assert_eq!(serde_json::from_slice::<Value>(&next.body).unwrap(), expected);
    let second = done(&handler, &Job::new(next, "p".to_owned())).await;
    assert_eq!((body(&second), second.next_page.is_none()), ("[2]", true));
    assert!(server.asked()[1].uri.ends_with("per_page=100&page=2"), "{:?}", server.asked()[1].uri);
}

/// The base URL of GitHub Enterprise has a path, and so have its links.
#[tokio::test]
async fn the_next_page_keeps_the_path_of_the_base_url() {
    const ENTERPRISE: &str =
        r#"<https://github.acme.example/api/v3/organizations/9/repos?page=2>; rel="next""#;
    let server = Server::start(|asked| match asked.uri.contains("page=2") {
        true => response(200, &[], "[2]"),
        false => response(200, &[("link", ENTERPRISE)], "[1]"),
    })
    .await;
    let handler = handler(by_link(&format!("{}/api/v3", server.url)));
    let first = done(&handler, &of("acme", &json!({"org": "acme"}))).await;
    let next = first.next_page.expect("a next page");
    let second = done(&handler, &Job::new(next, "p".to_owned())).await;
    assert_eq!((body(&second), second.next_page.is_none()), ("[2]", true));
    let asked: Vec<_> = server.asked().into_iter().map(|asked| asked.uri).collect();
    let of_page = |page| format!("/api/v3/orgs/acme/repos?sort=name&per_page=100&page={page}");
    assert_eq!(asked, [of_page(1), of_page(2)]);
}

/// A byte order mark is no part of the JSON, and a message that is too deep for a tree is JSON as well.
#[tokio::test]
async fn a_page_is_added_to_json_with_a_byte_order_mark_and_a_deep_message_is_an_error() {
    let server = Server::answering(200, &[("link", GITHUB)], "[]").await;
    let marked = done(&handler(by_link(&server.url)), &job("\u{feff}{\"org\": \"acme\"}")).await;
    let next = marked.next_page.expect("a next page");
    let expected = json!({"org": "acme", "page": "2"});
    assert_eq!(serde_json::from_slice::<Value>(&next.body).unwrap(), expected);

    let deep = format!("{{\"a\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000));
    for (message, expected) in [
        (deep.as_str(), "the message is nested too deeply: at most 127 levels can be read"),
        ("[1]", "the message is not a JSON object, which could take \"page\""),
        ("{", "the message is not a JSON object, which could take \"page\""),
    ] {
        let pages = by_link("").pages;
        let handler = handler(HttpOptions { pages, ..get(&server.url) });
        let error = failed(&handler, &job(message.to_owned())).await;
        assert_eq!(error.kind, PERMANENT);
        assert!(error.message.contains(expected), "{}", error.message);
    }
}

/// Collects the messages of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "message" {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn pages_that_are_not_read_are_logged_once() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let server = Server::answering(200, &[("link", GITHUB)], "[]").await;
    let unread = handler(get(&server.url));
    for _ in 0..2 {
        assert!(done(&unread, &job("{}")).await.next_page.is_none());
    }
    done(&handler(by_link(&server.url)), &job(r#"{"org": "acme"}"#)).await;
    let expected = r#"response has further pages (Link: rel="next") that are not read: set pages"#;
    assert_eq!(*warnings.0.lock().unwrap(), [expected]);
}

#[tokio::test]
async fn a_link_that_does_not_lead_on_is_an_error() {
    let server = Server::answering(200, &[("link", GITHUB)], "[]").await;
    let again = of("acme#page=2", &json!({"org": "acme", "page": 2}));
    let error = failed(&handler(by_link(&server.url)), &again).await;
    assert_eq!(error.kind, PERMANENT);
    assert!(error.message.contains("the next page is this page again: use {{page}}"), "{error:?}");
    let mut after = by_link(&server.url);
    after.pages.as_mut().unwrap().next = NextPage::Link("after".to_owned());
    let error = failed(&handler(after), &of("acme", &json!({"org": "acme"}))).await;
    assert!(error.message.contains("has no parameter \"after\""), "{error:?}");
}

#[tokio::test]
async fn a_cursor_becomes_a_message_until_there_is_none() {
    let cursor = |value: &str| {
        let answer = format!(r#"{{"items": [], "meta": {{"next": {value}}}}}"#);
        async move {
            let server = Server::start(move |_| response(200, &[], answer.clone())).await;
            let next = NextPage::Cursor(JsonPath::parse("meta.next").unwrap());
            let pages = Some(PageOptions { next, field: "cursor".to_owned() });
            let handler = handler(HttpOptions { pages, ..get(&server.url) });
            let outcome = handler.handle(&of("q", &json!({"q": 1}))).await.outcome;
            outcome.map(|done| {
                done.next_page.map(|next| String::from_utf8(next.body.to_vec()).unwrap())
            })
        }
    };
    let message = |cursor: Value| Some(json!({"q": 1, "cursor": cursor}).to_string());
    assert_eq!(cursor("\"c+/=\"").await.unwrap(), message(json!("c+/=")));
    assert_eq!(cursor("7").await.unwrap(), message(json!(7)));
    for last in ["null", "false", "\"\""] {
        assert_eq!(cursor(last).await.unwrap(), None, "{last}");
    }
    assert!(cursor("[1]").await.unwrap_err().message.contains("neither a text nor a number"));
}

#[tokio::test]
async fn an_unchanged_page_sends_only_the_next_one() {
    let server = Server::start(|asked| match asked.header("if-none-match") {
        Some("W/\"a\"") => response(304, &[], ""),
        _ => response(200, &[("link", GITHUB), ("etag", "W/\"a\"")], "[1]"),
    })
    .await;
    let handler = handler(HttpOptions { conditional: true, ..by_link(&server.url) });
    let message = json!({"org": "acme"});
    let first = done(&handler, &of("monday", &message)).await;
    assert!(!first.unchanged && first.result.is_some());
    let repeated = done(&handler, &of("monday", &message)).await;
    assert!(repeated.result.is_some(), "a repeated job gets the whole answer");
    let unchanged = done(&handler, &of("tuesday", &message)).await;
    assert!(unchanged.unchanged && unchanged.result.is_none());
    assert_eq!(unchanged.next_page.expect("a page").meta.job.as_str(), "tuesday#page=2");
    let plain = self::handler(by_link(&server.url));
    assert!(done(&plain, &of("wednesday", &message)).await.result.is_some());
}

#[tokio::test]
async fn both_limits_of_github_are_no_failures_of_the_job() {
    let primary = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "4102444800")];
    let secondary = r#"{"message": "You have exceeded a secondary rate limit."}"#;
    let forbidden = r#"{"message": "Resource not accessible by personal access token"}"#;
    let left = [("x-ratelimit-remaining", "4000")];
    for (headers, answer, kind) in [
        (&primary[..], "{}", LIMITED),
        (&left[..], secondary, LIMITED),
        (&left[..], forbidden, PERMANENT),
    ] {
        let (headers, answer) = (headers.to_vec(), answer.to_owned());
        let server = Server::start(move |_| response(403, &headers, answer.clone())).await;
        let handled = handler(get(&server.url)).handle(&job("{}")).await;
        assert_eq!(handled.outcome.unwrap_err().kind, kind);
        let told = handled.rate_limit_info.unwrap();
        assert_eq!(told.body.is_empty(), kind != LIMITED, "the worker reads the limit from it");
    }
}

#[tokio::test]
async fn a_call_says_what_it_took() {
    let answer = r#"{"usage": {"in": 12, "out": 5}, "cost": 0.00026060}"#;
    let server = Server::answering(200, &[], answer).await;
    let path = |text: &str| Some(JsonPath::parse(text).unwrap());
    let usage = UsagePaths {
        input_tokens: path("usage.in"),
        output_tokens: path("usage.out"),
        usd: path("cost"),
    };
    let handled = handler(HttpOptions { usage, ..options(&server.url) }).handle(&job("{}")).await;
    let cost = Cost {
        requests: None,
        input_tokens: Some(12),
        output_tokens: Some(5),
        money: Some("0.0002606".parse().unwrap()),
    };
    assert_eq!(handled.usage.expect("usage").cost, cost);
    assert_eq!(handler(options(&server.url)).handle(&job("{}")).await.usage, None);
}

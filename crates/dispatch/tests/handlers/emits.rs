//! Tests of follow-up messages.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use sluicegate_dispatch::handler::{EmitRule, EmittingHandler, Output};
use sluicegate_dispatch::{Handler, HandlerResult, Job, JobSuccess};
use sluicegate_queue::Message;
use sluicegate_template::JsonPath;

use crate::support::{PERMANENT, done, failed, job, map, text, tree};

/// A handler that always returns this result.
struct Results(String);

impl Handler for Results {
    fn handle<'a>(&'a self, _job: &'a Job) -> BoxFuture<'a, HandlerResult> {
        let output = Output { body: Bytes::from(self.0.clone()), content_type: None };
        let own = ("own".to_owned(), Message::new("by the handler itself"));
        let done =
            JobSuccess { result: Some(output), follow_ups: vec![own], ..JobSuccess::default() };
        Box::pin(async { HandlerResult::done(done) })
    }
}

fn emitting(result: &str, emit: EmitRule) -> EmittingHandler {
    EmittingHandler::new(Arc::new(Results(result.to_owned())), vec![emit])
}

fn plain() -> EmitRule {
    EmitRule { each: None, when: None, queue: "next".to_owned(), kind: None, body: None, id: None }
}

fn each(path: &str) -> EmitRule {
    EmitRule {
        each: Some(JsonPath::parse(path).unwrap()),
        kind: Some("crawl_repo".to_owned()),
        ..plain()
    }
}

async fn sent(handler: &EmittingHandler, job: &Job) -> Vec<(String, Message)> {
    let mut follow_ups = done(handler, job).await.follow_ups;
    assert_eq!(follow_ups.remove(0).0, "own", "what the handler sends itself stays");
    follow_ups
}

fn bodies(sent: &[(String, Message)]) -> Vec<Value> {
    sent.iter().map(|(_, message)| serde_json::from_slice(&message.body).unwrap()).collect()
}

#[tokio::test]
async fn each_item_of_a_list_gives_a_message() {
    let result = r#"{"repos": [{"name": "a", "id": 1}, {"name": "b", "id": 2}]}"#;
    let mut emit = each("repos");
    emit.body =
        Some(map([("org", "{{message.org}}"), ("repo", "{{item.name}}"), ("by", "{{job.id}}")]));
    emit.id = Some(text("repo-{{item.id}}"));
    let mut parent = job(r#"{"org": "acme"}"#);
    parent.message.priority = 7;
    parent.message.headers.insert("traceparent".to_owned(), "00-1".to_owned());
    parent.message.headers.insert("x-else".to_owned(), "no".to_owned());
    let sent = sent(&emitting(result, emit), &parent).await;
    let expected = ["a", "b"].map(|repo| json!({"org": "acme", "repo": repo, "by": "a-17"}));
    assert_eq!(bodies(&sent), expected);
    for ((queue, message), id) in sent.iter().zip(["repo-1", "repo-2"]) {
        assert_eq!((queue.as_str(), message.meta.job.as_str()), ("next", id));
        assert_eq!((message.kind.as_deref(), message.priority), (Some("crawl_repo"), 7));
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
        assert_eq!(message.headers.keys().collect::<Vec<_>>(), ["traceparent"]);
        assert_eq!((message.meta.attempt, message.meta.hop), (0, 0));
    }
}

#[tokio::test]
async fn without_a_body_the_item_or_the_result_is_sent() {
    let sent_each = sent(&emitting(r#"["x", {"y": 1}]"#, each(".")), &job("{}")).await;
    assert_eq!(bodies(&sent_each), [json!("x"), json!({"y": 1})]);
    let sent_once = sent(&emitting(r#"{"a": 1}"#, plain()), &job("{}")).await;
    assert_eq!(bodies(&sent_once), [json!({"a": 1})]);
}

#[tokio::test]
async fn a_condition_can_suppress_the_message() {
    for (result, count) in [
        (r#"{"next": "c-2"}"#, 1),
        (r#"{"next": 0}"#, 1),
        (r#"{"next": ""}"#, 0),
        (r#"{"next": null}"#, 0),
        (r#"{"next": []}"#, 0),
        (r#"{}"#, 0),
        ("no JSON", 0),
    ] {
        let mut emit = plain();
        emit.when = Some(JsonPath::parse("next").unwrap());
        emit.body = Some(tree("{{result.next}}"));
        assert_eq!(sent(&emitting(result, emit), &job("{}")).await.len(), count, "{result}");
    }
}

#[tokio::test]
async fn a_repeated_run_sends_the_same_ids() {
    let names = async |result: &str| {
        let sent = sent(&emitting(result, each(".")), &job("{}")).await;
        let names = sent.into_iter().map(|(_, message)| message.meta.job.to_string());
        names.collect::<Vec<_>>()
    };
    let first = names(r#"["a", "b", "a"]"#).await;
    assert_eq!(first, names(r#"["a", "b", "a"]"#).await);
    assert!(first.iter().all(|name| name.starts_with("a-17.")), "{first:?}");
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), 3, "two that are alike stay two");
    // The list changed between two runs: only unchanged items keep their ids.
    let changed = names(r#"["new", "b", "a"]"#).await;
    assert_eq!((&changed[1], &changed[2]), (&first[1], &first[0]));
    assert!(!first.contains(&changed[0]));
}

#[tokio::test]
async fn ids_of_many_generations_stay_valid() {
    let handler = emitting(r#"["a"]"#, each("."));
    let mut parent = job("{}");
    let mut seen = HashSet::new();
    for _ in 0..40 {
        let (_, child) = sent(&handler, &parent).await.remove(0);
        assert!(seen.insert(child.meta.job.clone()), "{}", child.meta.job);
        parent.message = child;
    }
}

#[tokio::test]
async fn an_invalid_follow_up_message_names_the_option() {
    let mut without_member = each("repos");
    without_member.body = Some(tree("{{item.name}}"));
    let mut with_bad_id = each("repos");
    with_bad_id.id = Some(text("{{item.id}}"));
    let repos = r#"{"repos": [{"id": ""}]}"#;
    for (result, emit, expected) in [
        (repos, each("gone"), "emit[0].each: the result has no list at gone"),
        ("no JSON", each("."), "emit[0].each: the result has no list at ."),
        (repos, without_member, "emit[0].body: {{item.name}} can't be filled: it is missing"),
        (repos, with_bad_id, "emit[0].id: "),
        (
            "no JSON",
            plain(),
            "emit[0].body: not set, and the result is not JSON: set it, or return JSON",
        ),
    ] {
        let failure = failed(&emitting(result, emit), &job("{}")).await;
        assert_eq!(failure.kind, PERMANENT);
        assert!(failure.message.starts_with(expected), "{}", failure.message);
    }
}

#[tokio::test]
async fn the_number_of_messages_per_job_is_limited() {
    let numbers: Vec<_> = (0..10_001).collect();
    let failure = failed(&emitting(&json!(numbers).to_string(), each(".")), &job("{}")).await;
    assert!(failure.message.contains("exceeds 10000 messages"), "{}", failure.message);
    let numbers = &numbers[..10_000];
    assert_eq!(
        sent(&emitting(&json!(numbers).to_string(), each(".")), &job("{}")).await.len(),
        10_000
    );
    // Small items, but the body template repeats a large message in each.
    let mut emit = each(".");
    emit.body = Some(tree("{{message}}"));
    let large = json!("x".repeat(1 << 20)).to_string();
    let failure = failed(&emitting(&json!(vec![1; 100]).to_string(), emit), &job(large)).await;
    assert!(failure.message.contains("67108864 bytes"), "{}", failure.message);
}

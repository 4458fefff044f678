//! Encodes the answers of `/v1/queues`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sluicegate_core::Timestamp;
use sluicegate_queue::MessageId;
use sluicegate_queue::remote::{LeasedMessage, QueueDepths};

use crate::rest::Problem;

/// Maximum nesting of a body that is returned as JSON. The parsers of many languages fail beyond
/// some depth, and their caller would lose the handle together with the answer.
const DEPTH_MAX: usize = 64;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReceiveAnswer<'m> {
    node: &'m str,
    messages: Vec<MessageAnswer<'m>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessageAnswer<'m> {
    handle: String,
    id: String,
    job: &'m str,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'m str>,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    deferrals: u32,
    redeliveries: u32,
    priority: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_at: Option<String>,
    lease_until: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'m str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'m BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'m RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// Encodes received messages.
pub(super) fn received(node: &str, messages: &[LeasedMessage], always_base64: bool) -> Vec<u8> {
    let messages = messages.iter().map(|leased| message(leased, always_base64)).collect();
    serde_json::to_vec(&ReceiveAnswer { node, messages }).unwrap_or_default()
}

fn message(leased: &LeasedMessage, always_base64: bool) -> MessageAnswer<'_> {
    let LeasedMessage { handle, message, redeliveries, until } = leased;
    let meta = &message.meta;
    let body = if always_base64 { None } else { as_json(&message.body) };
    let base64 = body.is_none().then(|| STANDARD.encode(&message.body));
    MessageAnswer {
        handle: handle.to_string(),
        id: message.id().to_string(),
        job: meta.job.as_str(),
        kind: message.kind.as_deref(),
        attempt: meta.attempt,
        max_attempts: meta.max_attempts,
        deferrals: meta.deferrals,
        redeliveries: *redeliveries,
        priority: message.priority,
        sent_at: meta.sent_at.map(|at| at.to_string()),
        lease_until: until.to_string(),
        content_type: message.content_type.as_deref(),
        headers: &message.headers,
        body,
        base64,
    }
}

/// Returns the body as JSON, if all of it is JSON that other parsers accept. Many parsers reject
/// deep nesting, numbers such as 1e999, and half of a surrogate pair, and would reject the whole
/// answer because of it.
fn as_json(body: &[u8]) -> Option<&RawValue> {
    if depth(body) > DEPTH_MAX {
        return None;
    }
    let json: &RawValue = serde_json::from_slice(body).ok()?;
    serde_json::from_str::<serde_json::Value>(json.get()).ok()?;
    (json.get().len() == body.len()).then_some(json)
}

/// Returns the depth of a JSON text.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => depth += 1,
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Encodes the id of a sent message.
pub(super) fn sent(id: &MessageId) -> String {
    sent_value(id).to_string()
}

/// Returns the id of a sent message.
pub(super) fn sent_value(id: &MessageId) -> Value {
    json!({ "id": id.to_string(), "job": id.job.as_str() })
}

/// Encodes the answer to a settled lease.
pub(super) fn settled(replayed: bool) -> String {
    settled_value(replayed).to_string()
}

/// Returns the answer to a settled lease.
pub(super) fn settled_value(replayed: bool) -> Value {
    json!({ "replayed": replayed })
}

/// Encodes the results of a batch. A failed entry has the member `problem`.
pub(super) fn results(results: Vec<Value>) -> String {
    let failed = results.iter().filter(|result| result.get("problem").is_some()).count();
    json!({ "failed": failed, "results": results }).to_string()
}

/// Returns the result of a failed entry.
pub(super) fn problem(problem: &Problem) -> Value {
    json!({ "problem": problem })
}

/// Encodes the end of an extended lease.
pub(super) fn extended(until: Timestamp) -> String {
    json!({ "leaseUntil": until.to_string() }).to_string()
}

/// Encodes the number of messages.
pub(super) fn depths(queue: &str, depths: &QueueDepths) -> String {
    let QueueDepths { depth, dead_letter_queue, dead_letters, open_leases } = depths;
    json!({
        "queue": queue,
        "ready": depth.map(|depth| depth.ready),
        "delayed": depth.and_then(|depth| depth.delayed),
        "inFlight": depth.and_then(|depth| depth.in_flight),
        "oldestMs": depth.and_then(|depth| depth.oldest).map(|age| age.as_micros() / 1_000),
        "deadLetterQueue": dead_letter_queue,
        "deadLetters": dead_letters,
        "openLeases": open_leases,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_byte_by_byte_or_not_at_all() {
        for body in ["{\"a\": 1.50,  \"a\":2}", "[]", "\"x\"", "1e99", "null"] {
            assert_eq!(as_json(body.as_bytes()).map(RawValue::get), Some(body));
        }
        for body in ["", " {}", "{}\n", "{", "\u{feff}{}", "x", "1e999", r#""\ud800""#] {
            assert!(as_json(body.as_bytes()).is_none(), "{body:?}");
        }
        assert!(as_json(b"\"\xff\"").is_none());
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(as_json(deep(DEPTH_MAX).as_bytes()).is_some());
        assert!(as_json(deep(DEPTH_MAX + 1).as_bytes()).is_none());
        assert_eq!(depth(br#"{"a[[": "\"[[", "b": [1]}"#), 2);
    }
}

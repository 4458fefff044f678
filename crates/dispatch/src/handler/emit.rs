//! [`EmittingHandler`]: a handler that sends follow-up messages when a job is done: one per job, or
//! one per item of a list in its result.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::Value;
use sluicegate_config::EmitRule;
use sluicegate_queue::{JobId, Message};
use sluicegate_template::{Root, ValueSource};

use super::job_scope::JobScope;
use super::{Handler, HandlerResult, Job, JobFailure, JobSuccess, PreparedCall};

/// Maximum number of follow-up messages of one job.
const MESSAGES_MAX: usize = 10_000;
/// Maximum total size of their bodies, in bytes.
const BYTES_MAX: usize = 64 << 20;
/// Headers that are copied from a message to its follow-up messages.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// A handler that wraps another one and adds follow-up messages.
pub struct EmittingHandler {
    handler: Arc<dyn Handler>,
    emit: Vec<EmitRule>,
}

impl EmittingHandler {
    /// Wraps a handler.
    pub fn new(handler: Arc<dyn Handler>, emit: Vec<EmitRule>) -> Self {
        Self { handler, emit }
    }

    fn follow_ups(
        &self,
        job: &Job,
        done: &JobSuccess,
    ) -> Result<Vec<(String, Message)>, JobFailure> {
        let facts = JobScope::new(job);
        let result = done.result.as_ref();
        let result: Option<Value> =
            result.and_then(|output| serde_json::from_slice(&output.body).ok());
        let mut batch =
            FollowUpBatch { parent: job, messages: Vec::new(), bytes: 0, seen: HashMap::new() };
        for (number, emit) in self.emit.iter().enumerate() {
            let failed = |what: String| JobFailure::permanent(format!("emit[{number}]{what}"));
            if !applies(emit, result.as_ref()) {
                continue;
            }
            let scope = ResultScope { facts: &facts, result: result.as_ref(), item: None };
            let Some(each) = &emit.each else {
                batch.push(emit, &scope).map_err(failed)?;
                continue;
            };
            let list = result.as_ref().and_then(|result| each.of(result)).and_then(Value::as_array);
            let list =
                list.ok_or_else(|| failed(format!(".each: the result has no list at {each}")))?;
            for item in list {
                batch.push(emit, &ResultScope { item: Some(item), ..scope }).map_err(failed)?;
            }
        }
        Ok(batch.messages)
    }
}

impl Handler for EmittingHandler {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, HandlerResult> {
        Box::pin(async move {
            let handled = self.handler.handle(job).await;
            let outcome = handled.outcome.and_then(|mut done| {
                if !done.unchanged {
                    done.follow_ups.extend(self.follow_ups(job, &done)?);
                }
                Ok(done)
            });
            HandlerResult { outcome, ..handled }
        })
    }

    fn prepare<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, PreparedCall> {
        self.handler.prepare(job)
    }
}

/// Returns true if a result calls for this message.
fn applies(emit: &EmitRule, result: Option<&Value>) -> bool {
    let Some(when) = &emit.when else { return true };
    match result.and_then(|result| when.of(result)) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    }
}

/// The values that templates can use after a job is done.
#[derive(Clone, Copy)]
struct ResultScope<'a> {
    facts: &'a JobScope<'a>,
    result: Option<&'a Value>,
    item: Option<&'a Value>,
}

impl ValueSource for ResultScope<'_> {
    fn value(&self, root: Root) -> Option<&Value> {
        match root {
            Root::Result => self.result,
            Root::Item => self.item,
            Root::Message | Root::Job => self.facts.value(root),
        }
    }

    fn missing_because(&self, root: Root) -> &'static str {
        self.facts.missing_because(root)
    }
}

/// The follow-up messages of a job.
struct FollowUpBatch<'j> {
    parent: &'j Job,
    messages: Vec<(String, Message)>,
    bytes: usize,
    /// Number of messages with the same content.
    seen: HashMap<blake3::Hash, u32>,
}

impl FollowUpBatch<'_> {
    /// Adds a message. An error starts with the name of the option that is wrong.
    fn push(&mut self, emit: &EmitRule, scope: &ResultScope<'_>) -> Result<(), String> {
        let body = match &emit.body {
            Some(tree) => tree.render(scope).map_err(|error| format!(".body: {error}"))?,
            None => {
                let value = scope.item.or(scope.result).cloned();
                value.ok_or(".body: not set, and the result is not JSON: set it, or return JSON")?
            }
        };
        let body = Bytes::from(body.to_string());
        self.bytes += body.len();
        if self.messages.len() == MESSAGES_MAX || self.bytes > BYTES_MAX {
            return Err(format!(": exceeds {MESSAGES_MAX} messages or {BYTES_MAX} bytes per job"));
        }
        let id = match &emit.id {
            Some(text) => {
                let text = text.render(scope).map_err(|error| format!(".id: {error}"))?;
                JobId::try_from(text).map_err(|error| format!(".id: {error}"))?
            }
            None => self.id(emit, &body),
        };
        let of_parent = &self.parent.message;
        let traced = TRACE.iter().filter_map(|&name| of_parent.headers.get_key_value(name));
        let mut message = Message::of_job(id, body).with_priority(of_parent.priority);
        message.headers = traced.map(|(name, value)| (name.clone(), value.clone())).collect();
        message.content_type = Some("application/json".to_owned());
        message.kind.clone_from(&emit.kind);
        self.messages.push((emit.queue.clone(), message));
        Ok(())
    }

    /// Derives a job id from the parent's id and the content of the message.
    ///
    /// By content and not by position: when a job is repeated after a crash, its list may have
    /// changed, and an id by position would then name a different message.
    fn id(&mut self, emit: &EmitRule, body: &[u8]) -> JobId {
        let mut hasher = blake3::Hasher::new();
        for part in [emit.queue.as_bytes(), emit.kind.as_deref().unwrap_or_default().as_bytes()] {
            hasher.update(&part.len().to_le_bytes()).update(part);
        }
        let content = hasher.update(body).finalize();
        let times = self.seen.entry(content).or_default();
        *times += 1;
        let again = if *times > 1 { format!("-{times}") } else { String::new() };
        let parent = self.parent.key();
        let short = format!("{parent}.{}{again}", &content.to_hex()[..16]);
        JobId::try_from(short).unwrap_or_else(|_| {
            // Ids get longer with each generation and have a maximum length.
            let parent = blake3::hash(parent.as_bytes()).to_hex();
            let long = format!("{}.{}{again}", &parent[..32], &content.to_hex()[..16]);
            JobId::try_from(long).expect("hexadecimal digits and a number are a valid id")
        })
    }
}

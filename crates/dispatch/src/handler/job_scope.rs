//! [`JobScope`]: the values that templates can use: a job and its message. The message is parsed as
//! JSON at its first use.

use std::sync::OnceLock;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use sluicegate_queue::without_byte_order_mark;
use sluicegate_template::{Root, ValueSource};

use super::Job;

/// The template values of a job before it is done.
pub(super) struct JobScope<'j> {
    pub(super) job: &'j Job,
    about: Value,
    body: OnceLock<Option<Value>>,
}

impl<'j> JobScope<'j> {
    pub(super) fn new(job: &'j Job) -> Self {
        let mut about = json!({
            "id": job.key(),
            "attempt": job.message.meta.attempt,
            "provider": job.provider,
        });
        if let Some(kind) = &job.message.kind {
            about["type"] = Value::from(kind.as_str());
        }
        Self { job, about, body: OnceLock::new() }
    }

    /// Returns the message, if it is JSON.
    pub(super) fn body(&self) -> Option<&Value> {
        self.body.get_or_init(|| serde_json::from_slice(self.json()).ok()).as_ref()
    }

    /// Returns true if the message is JSON, of any depth.
    pub(super) fn is_json(&self) -> bool {
        serde_json::from_slice::<IgnoredAny>(self.json()).is_ok()
    }

    fn json(&self) -> &[u8] {
        without_byte_order_mark(&self.job.message.body)
    }
}

impl ValueSource for JobScope<'_> {
    fn value(&self, root: Root) -> Option<&Value> {
        match root {
            Root::Message => self.body(),
            Root::Job => Some(&self.about),
            Root::Result | Root::Item => None,
        }
    }

    fn missing_because(&self, root: Root) -> &'static str {
        match root {
            Root::Message if self.is_json() => {
                "is nested too deeply: at most 127 levels can be read"
            }
            _ => "is not JSON",
        }
    }
}

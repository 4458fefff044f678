//! [`JobScope`]: the values that templates can use: a job and its message. The message is parsed as
//! JSON at its first use.

use std::sync::OnceLock;

use serde_json::{Value, json};
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
        self.body.get_or_init(|| serde_json::from_slice(&self.job.message.body).ok()).as_ref()
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
}

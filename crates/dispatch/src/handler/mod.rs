//! What is done with a job: the port of everything that works for a living, and the handlers that
//! need no Rust: a call over HTTP, a program, a question to a model.

mod chat;
mod command;
mod emit;
mod excerpt;
mod facts;
mod http;

pub use chat::{Chat, ChatProvider};
pub use command::{CommandHandler, CommandOptions};
pub use emit::Emitting;
pub use http::{
    Condition, Content, Extract, HttpError, HttpHandler, HttpOptions, Statuses, Success,
};
pub use sluicegate_config::EmitRule;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sluicegate_queue::Message;

/// Works on jobs, one call each. It may be called again for the same job: after a failure, and
/// after a crash that kept its success from being told. [`Job::key`] is the same each time.
pub trait Handler: Send + Sync {
    /// Does the work. Dropping the future stops it.
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Handled>;
}

/// A piece of work, as a handler sees it.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is to be done.
    pub message: Message,
    /// Who it goes to.
    pub provider: String,
}

impl Job {
    /// What tells a provider that it has seen this job before.
    pub fn key(&self) -> &str {
        self.message.meta.job.as_str()
    }
}

/// How a call went.
#[derive(Clone, Debug)]
pub struct Handled {
    /// What became of the job.
    pub outcome: Result<Done, Failure>,
    /// What the provider answered, as far as it may speak of its limits.
    pub heard: Option<Heard>,
}

/// The work is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// What came of it, for the queue of results.
    pub result: Option<Output>,
    /// Further work, and the queue that it goes to.
    pub further: Vec<(String, Message)>,
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The bytes.
    pub body: Bytes,
    /// What they are, if that is known.
    pub content_type: Option<String>,
}

/// The work is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What to do about it.
    pub kind: FailureKind,
    /// What went wrong, in words.
    pub message: String,
    /// The beginning of what the provider answered.
    pub response: Option<String>,
}

impl Failure {
    /// It may work the next time.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Transient, message: message.into(), response: None }
    }

    /// It will never work.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Permanent, ..Self::transient(message) }
    }
}

/// A failure of which no provider has said anything.
impl From<Failure> for Handled {
    fn from(failure: Failure) -> Self {
        Self { outcome: Err(failure), heard: None }
    }
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Try again later: it counts as an attempt.
    Transient,
    /// It will never work: to the dead letters at once.
    Permanent,
    /// The provider has no room now. Nobody's fault: it counts as no attempt.
    Limited,
}

/// What a provider answered, as far as it may speak of its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The status.
    pub status: u16,
    /// The header fields that [speak of limits](sluicegate_vendors::is_limit_header), names
    /// in lower case.
    pub headers: Vec<(String, String)>,
    /// The beginning of the body of a refusal.
    pub body: Bytes,
}

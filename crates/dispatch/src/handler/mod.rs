//! [`Handler`]: the trait for code that processes jobs, and the built-in handlers: HTTP requests,
//! programs and chat requests to models.

mod chat;
mod command;
mod emit;
mod excerpt;
mod http;
mod job_scope;

pub use command::CommandHandler;
pub use emit::EmittingHandler;
pub use http::{HttpError, HttpHandler};

use bytes::Bytes;
use futures_util::future::BoxFuture;
pub use sluicegate_config::{
    ChatPrompt, ChatProvider, CommandOptions, EmitRule, HttpOptions, RequestBody,
    ResponseCondition, ResultSource,
};
use sluicegate_queue::Message;

/// Processes jobs, one call per attempt. It may be called again for the same job: after a failure,
/// and after a crash before the success was recorded. [`Job::key`] is the same each time.
pub trait Handler: Send + Sync {
    /// Processes the job. Dropping the future cancels it.
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, HandlerResult>;
}

/// A job, as a handler sees it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Message of the job.
    pub message: Message,
    /// Provider that the job is for.
    pub provider: String,
}

impl Job {
    /// Returns the idempotency key: the job id, which is the same in every attempt.
    pub fn key(&self) -> &str {
        self.message.meta.job.as_str()
    }
}

/// The result of a handler call.
#[derive(Clone, Debug)]
pub struct HandlerResult {
    /// Outcome of the job.
    pub outcome: Result<JobSuccess, JobFailure>,
    /// Rate limit information in the provider's response.
    pub rate_limit_info: Option<RateLimitInfo>,
}

/// The outcome of a job that is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSuccess {
    /// Result, for the queue of results.
    pub result: Option<Output>,
    /// Follow-up messages and the names of their queues.
    pub follow_ups: Vec<(String, Message)>,
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Content.
    pub body: Bytes,
    /// Content type, if known.
    pub content_type: Option<String>,
}

/// The outcome of a job that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFailure {
    /// Kind of failure, which decides if the job is retried.
    pub kind: FailureKind,
    /// Error message.
    pub message: String,
    /// Beginning of the provider's response.
    pub response: Option<String>,
}

impl JobFailure {
    /// Creates a failure that may succeed at the next attempt.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Transient, message: message.into(), response: None }
    }

    /// Creates a failure that will never succeed.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Permanent, ..Self::transient(message) }
    }
}

/// A failure without a response of the provider.
impl From<JobFailure> for HandlerResult {
    fn from(failure: JobFailure) -> Self {
        Self { outcome: Err(failure), rate_limit_info: None }
    }
}

/// The kind of a failure, which decides if the job is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Retry later; counts as an attempt.
    Transient,
    /// Will never succeed: dead-letter at once.
    Permanent,
    /// The provider's limit is reached. Retry later; does not count as an attempt.
    Limited,
}

/// The part of a provider's response that contains rate limit information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitInfo {
    /// HTTP status.
    pub status: u16,
    /// Header fields that [contain rate limit information](sluicegate_vendors::is_limit_header),
    /// with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Beginning of the body of a rate-limit response.
    pub body: Bytes,
}

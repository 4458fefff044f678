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
    ChatPrompt, ChatProvider, CommandOptions, EmitRule, HttpOptions, NextPage, PageOptions,
    RequestBody, ResponseCondition, ResultSource, UsagePaths,
};
use sluicegate_core::query::Cost;
pub use sluicegate_http::upstream::LatestStart;
use sluicegate_http::upstream::ReadyConnection;
use sluicegate_queue::Message;

/// Processes jobs, one call per attempt. It may be called again for the same job: after a failure,
/// and after a crash before the success was recorded. [`Job::key`] is the same each time.
pub trait Handler: Send + Sync {
    /// Processes the job. Dropping the future cancels it.
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, HandlerResult>;

    /// Prepares a call that is made soon, so that it reaches the provider at the time that the
    /// limit counts: an HTTP handler logs in and connects. Otherwise the call would arrive late,
    /// and too close to the next one. Drop the result right before the call.
    ///
    /// If the preparation fails, so does the call, which reports the error.
    fn prepare<'a>(&'a self, _job: &'a Job) -> BoxFuture<'a, PreparedCall> {
        Box::pin(std::future::ready(PreparedCall::default()))
    }
}

/// A connection reserved for a call, if its handler needs one; returned to its pool on drop.
#[derive(Default)]
pub struct PreparedCall {
    connection: Option<ReadyConnection>,
}

impl PreparedCall {
    /// Returns false if the connection was closed meanwhile, so that the call has to be prepared again.
    pub fn is_ready(&self) -> bool {
        self.connection.as_ref().is_none_or(ReadyConnection::is_open)
    }
}

/// A job, as a handler sees it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Message of the job.
    pub message: Message,
    /// Provider that the job is for.
    pub provider: String,
    /// End of the interval in which the provider may be called; `None` if it may be called at any
    /// time. A handler that is too late returns [`JobFailure::late`] and does not call.
    pub latest_start: Option<LatestStart>,
}

impl Job {
    /// Creates a job that may be processed at any time.
    pub const fn new(message: Message, provider: String) -> Self {
        Self { message, provider, latest_start: None }
    }

    /// Returns true if it is too late to call the provider.
    pub fn is_late(&self) -> bool {
        self.latest_start.as_ref().is_some_and(LatestStart::is_over)
    }

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
    /// Tokens and money that the call took, if the provider's response contains them.
    pub usage: Option<CallUsage>,
}

impl HandlerResult {
    /// Creates the result of work that is done.
    pub const fn done(done: JobSuccess) -> Self {
        Self { outcome: Ok(done), rate_limit_info: None, usage: None }
    }

    /// Returns true if the provider was not called, because it was too late.
    pub(crate) fn is_late(&self) -> bool {
        matches!(&self.outcome, Err(failure) if failure.kind == FailureKind::Late)
    }
}

/// The tokens and the money that a call took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// Tokens and money, as far as they are known.
    pub cost: Cost,
    /// Model, whose prices apply if the money is not known.
    pub model: Option<String>,
}

/// The outcome of a job that is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSuccess {
    /// Result, for the queue of results.
    pub result: Option<Output>,
    /// Follow-up messages and the names of their queues.
    pub follow_ups: Vec<(String, Message)>,
    /// Message for the next page of the response, in the queue of the job.
    pub next_page: Option<Message>,
    /// True if the provider's response is the same as before, so that there is nothing to send.
    pub unchanged: bool,
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
    /// Causes of the failure: each is the cause of the one before.
    pub causes: Vec<String>,
    /// Beginning of the provider's response.
    pub response: Option<String>,
}

impl JobFailure {
    /// Creates a failure that may succeed at the next attempt.
    pub fn transient(message: impl Into<String>) -> Self {
        let (kind, causes) = (FailureKind::Transient, Vec::new());
        Self { kind, message: message.into(), causes, response: None }
    }

    /// Creates a failure that will never succeed.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Permanent, ..Self::transient(message) }
    }

    /// Creates the failure of a call that was not made because it was too late.
    pub fn late() -> Self {
        let message = "the turn ended before the provider was called";
        Self { kind: FailureKind::Late, ..Self::transient(message) }
    }

    /// Adds an error and all its sources as causes.
    #[must_use]
    pub fn caused_by(mut self, error: &(dyn std::error::Error + 'static)) -> Self {
        let sources = std::iter::successors(Some(error), |error| error.source());
        self.causes.extend(sources.map(ToString::to_string));
        self
    }

    /// Returns the chain of causes, one per line, for the dead letter.
    pub(crate) fn stack(&self) -> String {
        stack(&self.message, &self.causes)
    }
}

/// Formats an error and its causes, one per line. A cause that only repeats the one before is left
/// out.
pub(crate) fn stack(message: &str, causes: &[String]) -> String {
    let mut lines = vec![message];
    for cause in causes.iter().map(String::as_str) {
        if lines.last() != Some(&cause) {
            lines.push(cause);
        }
    }
    lines.join("\n  caused by: ")
}

/// A failure without a response of the provider.
impl From<JobFailure> for HandlerResult {
    fn from(failure: JobFailure) -> Self {
        Self { outcome: Err(failure), rate_limit_info: None, usage: None }
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
    /// The provider was not called, because the turn of the job was over. The job gets another turn;
    /// does not count as an attempt.
    Late,
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

//! [`HttpHandler`]: sends an HTTP request for each job. The response decides the outcome of the
//! job.
//!
//! | response | outcome of the job |
//! |---|---|
//! | a `success` status, and the condition holds | done |
//! | a `success` status, but the condition does not hold | retried |
//! | 429; 403 or 503 with rate limit information | deferred; does not count as an attempt |
//! | 408, 409, 425, 5xx, a `retry` status, or no response | retried |
//! | any other | dead-lettered at once |
//!
//! 409 is retried because servers send it while the first request with the same idempotency key is
//! still running.

mod request;
mod response;

pub(super) use request::RequestError;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, Method};
use futures_util::future::BoxFuture;
use sluicegate_config::{ChatProvider, ChatWork, ResponseCondition, StatusRanges};
use sluicegate_core::time::Clock;
use sluicegate_http::upstream::{
    CaError, ClientOptions, Credentials, CredentialsError, Signer, Upstream,
};
use sluicegate_template::{JsonPath, Text, Tree};

use super::job_scope::JobScope;
use super::{Handler, HandlerResult, Job, JobFailure};

/// Configuration of an HTTP handler: the request and the meaning of its responses.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// HTTP method.
    pub method: Method,
    /// URL template. Scheme and host are fixed, so that credentials go only to the configured
    /// server.
    pub url: Text,
    /// Additional header fields.
    pub headers: Vec<(HeaderName, Text)>,
    /// Content of the request body.
    pub content: RequestBody,
    /// Credentials that are sent to the server.
    pub credentials: Option<Credentials>,
    /// Header field for the idempotency key, by which the server recognizes a repeated job.
    pub idempotency_header: Option<HeaderName>,
    /// Statuses that mean success.
    pub success: StatusRanges,
    /// Condition that the body of a success must meet as well.
    pub condition: Option<ResponseCondition>,
    /// Additional statuses that are retried.
    pub retry: StatusRanges,
    /// Part of the response that is the result.
    pub result: ResultSource,
    /// Maximum size of a response, in bytes.
    pub response_bytes_max: usize,
    /// Connect timeout. The timeout of the whole call is set by the worker.
    pub connect_timeout: Duration,
    /// Use HTTP/2 without negotiation, also over plain TCP.
    pub http2_only: bool,
    /// PEM file with the certificate authorities for the server's certificate, instead of those of
    /// the system.
    pub ca: Option<PathBuf>,
}

/// The content of a request body.
#[derive(Clone, Debug)]
pub enum RequestBody {
    /// No body.
    Nothing,
    /// The message, unchanged.
    Message,
    /// JSON from a template.
    Json(Tree),
    /// Text from a template.
    Text(Text),
    /// A chat request to a model.
    Chat(Box<ChatWork>),
}

/// The part of a response that is the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultSource {
    /// The whole body.
    Whole,
    /// This member of the JSON body.
    Member(JsonPath),
    /// Text and usage of a chat response.
    Chat(ChatProvider),
}

/// A handler that sends an HTTP request for each job.
pub struct HttpHandler {
    options: HttpOptions,
    upstream: Upstream,
    signer: Signer,
    /// Host name for error messages.
    host: String,
    clock: Arc<dyn Clock>,
}

/// The reason why a handler can't be created.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL has no valid scheme and host.
    #[error(
        "url: not an address: write http:// or https:// and a host before the first placeholder"
    )]
    Address,
    /// The certificate authorities can't be used.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The credentials can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

impl HttpHandler {
    /// Creates the HTTP client and reads the credentials.
    pub fn new(options: HttpOptions, clock: Arc<dyn Clock>) -> Result<Self, HttpError> {
        let host = request::host(&options.url).ok_or(HttpError::Address)?;
        let upstream = Upstream::new(&ClientOptions {
            connect_timeout: options.connect_timeout,
            http2_only: options.http2_only,
            ca: options.ca.clone(),
        })?;
        let signer = Signer::new(options.credentials.as_ref())?;
        Ok(Self { options, upstream, signer, host, clock })
    }

    async fn call(&self, job: &Job) -> HandlerResult {
        let mut request = match request::of(&self.options, &JobScope::new(job)) {
            Ok(request) => request,
            Err(error) => return JobFailure::permanent(error.to_string()).into(),
        };
        let signed = self.signer.sign(request.headers_mut(), &self.upstream, &*self.clock).await;
        if let Err(failed) = signed {
            return JobFailure::transient(format!("{failed}: {}", self.host)).into();
        }
        match self.upstream.request(request).await {
            Ok(response) => self.evaluate(response).await,
            Err(error) => {
                JobFailure::transient(format!("no response from {}: {error}", self.host)).into()
            }
        }
    }
}

impl Handler for HttpHandler {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, HandlerResult> {
        Box::pin(self.call(job))
    }
}

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

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sluicegate_config::HttpOptions;
use sluicegate_core::time::Clock;
use sluicegate_http::upstream::{CaError, ClientOptions, CredentialsError, Signer, Upstream};

use super::job_scope::JobScope;
use super::{Handler, HandlerResult, Job, JobFailure};

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
            connect_timeout: options.connect_timeout.into(),
            http2_only: options.http2,
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

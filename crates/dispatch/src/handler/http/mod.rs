//! [`HttpHandler`]: sends an HTTP request for each job. The response decides the outcome of the
//! job.
//!
//! | response | outcome of the job |
//! |---|---|
//! | a `success` status, and the condition holds | done |
//! | a `success` status, but the condition does not hold | retried |
//! | 429; 403 or 503 with rate limit information | deferred; does not count as an attempt |
//! | 304 to a conditional request | done; nothing is sent, except for the next page |
//! | 408, 409, 425, 5xx, a `retry` status, or no response | retried |
//! | any other | dead-lettered at once |
//!
//! 409 is retried because servers send it while the first request with the same idempotency key is
//! still running.

mod etags;
mod link;
mod pages;
mod request;
mod response;

pub(super) use request::RequestError;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::http::{HeaderValue, header};
use futures_util::future::BoxFuture;
use sluicegate_config::HttpOptions;
use sluicegate_core::time::Clock;
use sluicegate_http::upstream::{
    CaError, ClientOptions, CredentialsError, ReadyConnection, SendError, Signer, Upstream,
};
use sluicegate_service::trace::{self, TraceContext};

use super::job_scope::JobScope;
use etags::{EtagCache, EtagEntry};

use super::{Handler, HandlerResult, Job, JobFailure, PreparedCall};

/// A handler that sends an HTTP request for each job.
pub struct HttpHandler {
    options: HttpOptions,
    upstream: Upstream,
    signer: Signer,
    /// Host name for error messages.
    host: String,
    clock: Arc<dyn Clock>,
    etags: EtagCache,
    /// True once the log says that a response has pages that are not read.
    warned_of_pages: AtomicBool,
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
        let (etags, warned_of_pages) = (EtagCache::default(), AtomicBool::new(false));
        Ok(Self { options, upstream, signer, host, clock, etags, warned_of_pages })
    }

    /// Logs in, and returns a connection to the server of a job.
    async fn connect(&self, job: &Job) -> Option<ReadyConnection> {
        let address = request::address(&self.options, &JobScope::new(job)).ok()?;
        self.signer.prepare(&self.upstream, &*self.clock).await.ok()?;
        let pool = self.upstream.pool(&address)?;
        pool.checkout(self.options.connect_timeout.into()).await.ok()
    }

    async fn call(&self, job: &Job) -> HandlerResult {
        let mut request = match request::of(&self.options, &JobScope::new(job)) {
            Ok(request) => request,
            Err(error) => {
                return JobFailure::permanent(error.to_string()).caused_by(&error).into();
            }
        };
        let address = request.uri().to_string();
        let known = Some(&self.etags).filter(|_| self.options.conditional);
        let known = known.and_then(|etags| etags.find(&address, job.key()));
        if let Some(known) = &known {
            request.headers_mut().insert(header::IF_NONE_MATCH, known.etag.clone());
        }
        // The server of the call continues the trace, unless the configuration sets the fields.
        for (name, value) in trace::current().iter().flat_map(TraceContext::fields) {
            if let Ok(value) = HeaderValue::try_from(value) {
                request.headers_mut().entry(name).or_insert(value);
            }
        }
        let signed = self.signer.sign(request.headers_mut(), &self.upstream, &*self.clock).await;
        if let Err(failed) = signed {
            let message = format!("{failed}: {}", self.host);
            return JobFailure::transient(message).caused_by(&failed).into();
        }
        if let Some(latest) = &job.latest_start {
            request.extensions_mut().insert(latest.clone());
        }
        match self.upstream.request(request).await {
            Ok(response) => self.evaluate(job, CallContext { address, known }, response).await,
            Err(SendError::Late) => JobFailure::late().into(),
            Err(error) => {
                let message = format!("no response from {}: {error}", self.host);
                JobFailure::transient(message).caused_by(&error).into()
            }
        }
    }
}

/// The values of a call that its response is checked against.
struct CallContext {
    address: String,
    /// Earlier response of the address, if the request was conditional.
    known: Option<EtagEntry>,
}

impl Handler for HttpHandler {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, HandlerResult> {
        Box::pin(self.call(job))
    }

    fn prepare<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, PreparedCall> {
        Box::pin(async move {
            let connection = self.connect(job).await;
            PreparedCall { connection }
        })
    }
}

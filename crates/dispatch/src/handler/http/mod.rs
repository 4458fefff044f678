//! A call over HTTP: the message fills a request, the answer decides what becomes of the job.
//!
//! | the answer | the job |
//! |---|---|
//! | a status of `success`, and its condition holds | done |
//! | such a status, but the condition does not hold | tried again |
//! | 429; 403 or 503 that speak of a limit | waits, which is no attempt |
//! | 408, 409, 425, 5xx, a status of `retry`, or none at all | tried again |
//! | any other | dead letter at once |
//!
//! 409 is tried again because that is what servers answer while the first request with the same
//! idempotency key is still under way.

mod answer;
mod request;

pub(super) use request::RequestError;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, Method};
use futures_util::future::BoxFuture;
use serde_json::Value;
use sluicegate_core::time::Clock;
use sluicegate_http::upstream::{
    CaError, ClientOptions, Credentials, CredentialsError, Signer, Upstream,
};
use sluicegate_template::{JsonPath, Text, Tree};

use super::chat::{Chat, ChatProvider};
use super::facts::Facts;
use super::{Failure, Handled, Handler, Job};

/// What is called, and what its answers mean.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// How.
    pub method: Method,
    /// Where. Scheme and host have no places: credentials go only where the configuration says.
    pub url: Text,
    /// Further header fields.
    pub headers: Vec<(HeaderName, Text)>,
    /// What is sent.
    pub content: Content,
    /// What the server wants to see.
    pub credentials: Option<Credentials>,
    /// The header field that tells the server that it has seen this job before.
    pub idempotency_header: Option<HeaderName>,
    /// Which answers are good.
    pub success: Success,
    /// Which further statuses are worth another attempt.
    pub retry: Statuses,
    /// What of the answer is the result.
    pub result: Extract,
    /// The longest answer.
    pub response_bytes_max: usize,
    /// How long a connection may take to be made. How long the whole takes is up to the worker.
    pub connect_timeout: Duration,
    /// HTTP/2 without asking, also in the clear.
    pub http2_only: bool,
    /// The authorities of the server's certificate, in PEM, instead of those of the system.
    pub ca: Option<PathBuf>,
}

/// What is sent.
#[derive(Clone, Debug)]
pub enum Content {
    /// Nothing.
    Nothing,
    /// The message, byte by byte.
    Message,
    /// JSON, filled from the message.
    Json(Tree),
    /// Text, filled from the message.
    Text(Text),
    /// A question to a model.
    Chat(Box<Chat>),
}

/// Which answers are good.
#[derive(Clone, Debug)]
pub struct Success {
    /// With these statuses.
    pub statuses: Statuses,
    /// If this holds, too.
    pub condition: Option<Condition>,
}

/// Something that the JSON of an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Where.
    pub member: JsonPath,
    /// Any of these; if there are none, anything but null and false.
    pub values: Vec<Value>,
}

/// Ranges of statuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statuses(pub Vec<RangeInclusive<u16>>);

impl Statuses {
    /// Whether a status is in one of them.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

/// What of an answer is the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extract {
    /// All of it.
    Whole,
    /// What its JSON has here.
    Member(JsonPath),
    /// The text and the usage of a model's answer.
    Chat(ChatProvider),
}

/// Calls a server for each job.
pub struct HttpHandler {
    options: HttpOptions,
    upstream: Upstream,
    signer: Signer,
    /// What failures call the server.
    host: String,
    clock: Arc<dyn Clock>,
}

/// Why a handler can't be made.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// It calls no address.
    #[error("the address is not one: write http:// or https:// and a host before the first place")]
    Address,
    /// The authorities can't be used.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The credentials can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

impl HttpHandler {
    /// Makes the client and reads the credentials.
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

    async fn call(&self, job: &Job) -> Handled {
        let mut request = match request::of(&self.options, &Facts::new(job)) {
            Ok(request) => request,
            Err(error) => return Failure::permanent(error.to_string()).into(),
        };
        let signed = self.signer.sign(request.headers_mut(), &self.upstream, &*self.clock).await;
        if let Err(failed) = signed {
            return Failure::transient(format!("{failed}: {}", self.host)).into();
        }
        match self.upstream.request(request).await {
            Ok(response) => self.judge(response).await,
            Err(error) => {
                Failure::transient(format!("no answer from {}: {error}", self.host)).into()
            }
        }
    }
}

impl Handler for HttpHandler {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Handled> {
        Box::pin(self.call(job))
    }
}

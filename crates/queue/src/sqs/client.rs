//! [`SqsClient`]: the AWS client and the URLs of queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::Client;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

use super::receipt::{DeleteEntry, VisibilityEntry};
use super::send::SendEntry;
use super::{Options, failure};
use crate::Error;
use crate::batcher::{Batcher, REQUESTS_MAX};
use crate::broker::QueueName;
use crate::requeues::PendingRequeues;

/// Timeout of one attempt, longer than any poll waits. Long polls have been observed to hang, so
/// they need a timeout, too.
const ATTEMPT: Duration = Duration::from_secs(26);
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct SqsClient {
    pub(super) client: Client,
    /// Queues by name; their URLs do not change.
    queues: Mutex<HashMap<String, Arc<QueueHandle>>>,
    pub(super) requeues: PendingRequeues,
}

/// A queue and the client for it.
#[derive(Debug)]
pub(super) struct SqsQueue {
    pub(super) client: Client,
    pub(super) name: QueueName,
    pub(super) url: String,
}

/// A queue with the batchers for its operations.
#[derive(Debug)]
pub(super) struct QueueHandle {
    pub(super) queue: Arc<SqsQueue>,
    pub(super) sends: Batcher<SendEntry>,
    pub(super) deletes: Batcher<DeleteEntry>,
    pub(super) visibilities: Batcher<VisibilityEntry>,
}

impl SqsClient {
    pub(super) async fn new(Options { endpoint, region }: Options) -> Result<Self, Error> {
        // With ring: building the default provider requires cmake.
        let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT)
            .operation_attempt_timeout(ATTEMPT)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http)
            .timeout_config(timeouts);
        if let Some(endpoint) = endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        Self::from_config(&loader.load().await)
    }

    pub(super) fn from_config(config: &SdkConfig) -> Result<Self, Error> {
        if config.region().is_none() {
            let remedy = "SQS has no region: write queue.region, or set AWS_REGION";
            return Err(Error::Invalid(remedy.to_owned()));
        }
        let (queues, requeues) = (Mutex::default(), PendingRequeues::new());
        Ok(Self { client: Client::new(config), queues, requeues })
    }

    /// Returns the handle of a queue, which is looked up once.
    pub(super) async fn queue(&self, queue_name: &QueueName) -> Result<Arc<QueueHandle>, Error> {
        let known = || self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue_handle) = known().get(queue_name.name()) {
            return Ok(queue_handle.clone());
        }
        let (client, url) = (self.client.clone(), self.url(queue_name).await?);
        let queue = Arc::new(SqsQueue { client, name: queue_name.clone(), url });
        let (sends, deletes, visibilities) = (
            Batcher::start(&queue, REQUESTS_MAX),
            Batcher::start(&queue, REQUESTS_MAX),
            Batcher::start(&queue, REQUESTS_MAX),
        );
        let queue_handle = Arc::new(QueueHandle { queue, sends, deletes, visibilities });
        Ok(known().entry(queue_name.name().to_owned()).or_insert(queue_handle).clone())
    }

    /// Returns the URL of a queue. A name that is a URL is used as it is.
    async fn url(&self, queue_name: &QueueName) -> Result<String, Error> {
        let name = queue_name.name();
        if name.ends_with(".fifo") {
            let detail = "FIFO queues can't delay single messages: use a standard queue";
            let detail = detail.to_owned();
            return Err(Error::Unusable { queue: name.to_owned(), detail });
        }
        if name.contains("://") {
            return Ok(name.to_owned());
        }
        let found = self.client.get_queue_url().queue_name(name).send().await;
        let found = found.map_err(|error| failure::of_queue(queue_name, &error))?;
        found.queue_url.ok_or_else(|| Error::NoQueue { queue: name.to_owned() })
    }
}

/// Returns the name for creating a queue; the last part of a URL.
pub(super) fn name(queue_name: &QueueName) -> Result<&str, Error> {
    let name = queue_name.name().rsplit('/').next().unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if (1..=80).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(name);
    }
    let remedy = "write 1 to 80 letters, digits, - and _";
    Err(Error::Invalid(format!("{name:?} is not a valid SQS queue name: {remedy}")))
}

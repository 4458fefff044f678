//! [`Link`]: the AWS client and the URLs of queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::Client;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

use super::gather::Gather;
use super::receipt::{Delete, Hide};
use super::send::Sending;
use super::{Options, failure};
use crate::Error;
use crate::broker::Place;

/// Timeout of one attempt, longer than any poll waits. Long polls have been observed to hang, so
/// they need a timeout, too.
const ATTEMPT: Duration = Duration::from_secs(26);
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: Client,
    /// Queues by name; their URLs do not change.
    lines: Mutex<HashMap<String, Arc<Line>>>,
}

/// A queue and the client for it.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) client: Client,
    pub(super) place: Place,
    pub(super) url: String,
}

/// A queue with the batchers for its operations.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) queue: Arc<Address>,
    pub(super) sends: Gather<Sending>,
    pub(super) deletes: Gather<Delete>,
    pub(super) hides: Gather<Hide>,
}

impl Link {
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
        Ok(Self { client: Client::new(config), lines: Mutex::default() })
    }

    /// Returns the handle of a queue, which is looked up once.
    pub(super) async fn line(&self, place: &Place) -> Result<Arc<Line>, Error> {
        let known = || self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = known().get(place.name()) {
            return Ok(line.clone());
        }
        let (client, url) = (self.client.clone(), self.url(place).await?);
        let queue = Arc::new(Address { client, place: place.clone(), url });
        let (sends, deletes, hides) =
            (Gather::start(&queue), Gather::start(&queue), Gather::start(&queue));
        let line = Arc::new(Line { queue, sends, deletes, hides });
        Ok(known().entry(place.name().to_owned()).or_insert(line).clone())
    }

    /// Returns the URL of a queue. A name that is a URL is used as it is.
    async fn url(&self, place: &Place) -> Result<String, Error> {
        let name = place.name();
        if name.ends_with(".fifo") {
            let detail = "FIFO queues can't delay single messages: use a standard queue";
            let detail = detail.to_owned();
            return Err(Error::Unusable { queue: name.to_owned(), detail });
        }
        if name.contains("://") {
            return Ok(name.to_owned());
        }
        let found = self.client.get_queue_url().queue_name(name).send().await;
        let found = found.map_err(|error| failure::of_queue(place, &error))?;
        found.queue_url.ok_or_else(|| Error::NoQueue { queue: name.to_owned() })
    }
}

/// Returns the name for creating a queue; the last part of a URL.
pub(super) fn name(place: &Place) -> Result<&str, Error> {
    let name = place.name().rsplit('/').next().unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if (1..=80).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(name);
    }
    let remedy = "write 1 to 80 letters, digits, - and _";
    Err(Error::Invalid(format!("{name:?} is not a valid SQS queue name: {remedy}")))
}

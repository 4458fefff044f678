//! The client of AWS, and the addresses of queues.

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

/// How long an attempt may take, longer than any question waits. Long polls have been seen to hang,
/// so they have an end, too.
const ATTEMPT: Duration = Duration::from_secs(26);
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: Client,
    /// By the names of queues, whose addresses do not change.
    lines: Mutex<HashMap<String, Arc<Line>>>,
}

/// Where a queue is.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) client: Client,
    pub(super) place: Place,
    pub(super) url: String,
}

/// A queue, with what is asked of it together.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) queue: Arc<Address>,
    pub(super) sends: Gather<Sending>,
    pub(super) deletes: Gather<Delete>,
    pub(super) hides: Gather<Hide>,
}

impl Link {
    pub(super) async fn new(Options { endpoint, region }: Options) -> Result<Self, Error> {
        // On ring: the default would have to be built with cmake.
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
            let remedy = "SQS needs a region: write queue.region, or set AWS_REGION";
            return Err(Error::Invalid(remedy.to_owned()));
        }
        Ok(Self { client: Client::new(config), lines: Mutex::default() })
    }

    /// The way to a queue, which is looked for once.
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

    /// The address of a queue. One that is named by its address is taken at its word.
    async fn url(&self, place: &Place) -> Result<String, Error> {
        let name = place.name();
        if name.ends_with(".fifo") {
            let detail = "FIFO queues know no delay of a single message: use a standard queue";
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

/// The name of a queue that is made; an address ends with it.
pub(super) fn name(place: &Place) -> Result<&str, Error> {
    let name = place.name().rsplit('/').next().unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if (1..=80).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(name);
    }
    let remedy = "write 1 to 80 letters, digits, - and _";
    Err(Error::Invalid(format!("{name:?} can't name a queue of SQS: {remedy}")))
}

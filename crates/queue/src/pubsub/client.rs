//! [`PubSubClient`]: the connections to Pub/Sub, its topics, and the tasks that move delayed messages.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::transport::{ClientTlsConfig, Endpoint};

use super::api::Api;
use super::delay_topic::{self, DelayTopic};
use super::login::Login;
use super::publish::PublishEntry;
use super::receipt::{AckEntry, LeaseEntry};
use super::topic::{SubscriptionSettings, Topic};
use super::{LEASE_MAX, LEASE_MIN, NAME, Options};
use crate::Error;
use crate::batcher::{Batcher, REQUESTS_MAX};
use crate::broker::QueueName;
use crate::requeues::PendingRequeues;

/// Address of Google.
const GOOGLE: &str = "https://pubsub.googleapis.com";
const CONNECT: Duration = Duration::from_secs(5);
/// Time without a response after which a ping checks the connection, and its timeout. An empty poll
/// takes longer than other requests, and servers close a connection that pings too often.
const PING_CALLS: Duration = Duration::from_secs(15);
const PING_POLLS: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of connections of each kind. Google allows a hundred requests at a time on each, and each
/// poll is one.
const CONNECTIONS: usize = 8;

#[derive(Debug)]
pub(super) struct PubSubClient {
    project: String,
    subscription_suffix: String,
    settings: SubscriptionSettings,
    /// Connections, which the topics share.
    apis: Vec<Api>,
    queues: Mutex<HashMap<String, Arc<QueueHandle>>>,
    movers: Mutex<Movers>,
    pub(super) requeues: PendingRequeues,
}

/// A topic with the batchers for its operations.
#[derive(Debug)]
pub(super) struct QueueHandle {
    pub(super) topic: Arc<Topic>,
    pub(super) publishes: Batcher<PublishEntry>,
    pub(super) acks: Batcher<AckEntry>,
    pub(super) leases: Batcher<LeaseEntry>,
}

/// The tasks that move due messages out of delay topics, and the names of these topics. The tasks end
/// with the client.
#[derive(Debug, Default)]
struct Movers {
    topics: HashSet<String>,
    tasks: JoinSet<()>,
}

impl PubSubClient {
    pub(super) async fn new(options: Options) -> Result<Self, Error> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let emulator = || variable("PUBSUB_EMULATOR_HOST").map(|host| format!("http://{host}"));
        let address = options.endpoint.or_else(emulator).unwrap_or_else(|| GOOGLE.to_owned());
        let login = match address.starts_with("https://") {
            true => Login::open(options.credentials.as_deref()).await?,
            false => Login::NONE,
        };
        let project = match options.project.or_else(|| variable("GOOGLE_CLOUD_PROJECT")) {
            Some(project) => project,
            None => login.project().await.ok_or_else(|| {
                let remedy = "write queue.project, or set GOOGLE_CLOUD_PROJECT";
                Error::Invalid(format!("{NAME} has no project: {remedy}"))
            })?,
        };
        let visibility = options.visibility.clamp(LEASE_MIN, LEASE_MAX);
        let settings = SubscriptionSettings {
            visibility,
            ordering: options.ordering,
            exactly_once: options.exactly_once,
        };
        let endpoint = endpoint(&address)?;
        let connection = |ping| endpoint.clone().http2_keep_alive_interval(ping).connect_lazy();
        let api = |_| Api {
            polls: connection(PING_POLLS),
            calls: connection(PING_CALLS),
            login: login.clone(),
        };
        Ok(Self {
            project,
            subscription_suffix: options.subscription_suffix,
            settings,
            apis: (0..CONNECTIONS).map(api).collect(),
            queues: Mutex::default(),
            movers: Mutex::default(),
            requeues: PendingRequeues::new(),
        })
    }

    /// Returns the handle of a queue that exists.
    pub(super) async fn queue(&self, queue_name: &QueueName) -> Result<Arc<QueueHandle>, Error> {
        let queue_handle = self.handle(queue_name)?;
        queue_handle.topic.verify().await?;
        Ok(queue_handle)
    }

    /// Returns the handle of a queue that may not exist.
    pub(super) fn handle(&self, queue_name: &QueueName) -> Result<Arc<QueueHandle>, Error> {
        self.handle_with(queue_name, self.settings)
    }

    /// Returns the handle of a delay topic, which is created if it does not exist. This process moves
    /// its due messages from now on.
    pub(super) async fn delay_queue(
        &self,
        target: &QueueName,
        delay_topic: DelayTopic,
    ) -> Result<Arc<QueueHandle>, Error> {
        let queue_name = delay_topic.queue(target.name());
        let delayed = self.handle_with(&queue_name, SubscriptionSettings::OF_DELAYS)?;
        match delayed.topic.verify().await {
            Err(Error::NoQueue { .. }) => {
                delayed.topic.create(None).await?;
                delayed.topic.verify().await?;
            }
            verified => verified?,
        }
        self.serve_delays(target, [delay_topic])?;
        Ok(delayed)
    }

    /// Starts moving due messages from delay topics to their target.
    pub(super) fn serve_delays(
        &self,
        target: &QueueName,
        delay_topics: impl IntoIterator<Item = DelayTopic>,
    ) -> Result<(), Error> {
        let target_handle = self.handle(target)?;
        for delay_topic in delay_topics {
            let queue_name = delay_topic.queue(target.name());
            let delayed = self.handle_with(&queue_name, SubscriptionSettings::OF_DELAYS)?;
            let mut movers = self.movers.lock().unwrap_or_else(PoisonError::into_inner);
            if movers.topics.insert(queue_name.name().to_owned()) {
                movers.tasks.spawn(delay_topic::run_mover(delayed, target_handle.clone()));
            }
        }
        Ok(())
    }

    fn handle_with(
        &self,
        queue_name: &QueueName,
        settings: SubscriptionSettings,
    ) -> Result<Arc<QueueHandle>, Error> {
        let mut queues = self.queues();
        if let Some(queue_handle) = queues.get(queue_name.name()) {
            return Ok(queue_handle.clone());
        }
        let names = (self.project.as_str(), self.subscription_suffix.as_str());
        let api = self.apis[queues.len() % CONNECTIONS].clone();
        let topic = Arc::new(Topic::new(queue_name.clone(), names, settings, api)?);
        // Two requests at a time could arrive in the other order.
        let publishing = if settings.ordering { 1 } else { REQUESTS_MAX };
        let queue_handle = Arc::new(QueueHandle {
            publishes: Batcher::start(&topic, publishing),
            acks: Batcher::start(&topic, REQUESTS_MAX),
            leases: Batcher::start(&topic, REQUESTS_MAX),
            topic,
        });
        queues.insert(queue_name.name().to_owned(), queue_handle.clone());
        Ok(queue_handle)
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<String, Arc<QueueHandle>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the options of a connection.
fn endpoint(address: &str) -> Result<Endpoint, Error> {
    let invalid = |error: tonic::transport::Error| {
        let form = "write https://pubsub.googleapis.com, a regional address of Google, or \
                    http://host:port of an emulator";
        Error::Invalid(format!("{address:?} is not an address of {NAME} ({error}): {form}"))
    };
    let endpoint = Endpoint::from_shared(address.to_owned()).map_err(invalid)?;
    let endpoint = match address.starts_with("https://") {
        true => endpoint.tls_config(ClientTlsConfig::new().with_native_roots()).map_err(invalid)?,
        false => endpoint,
    };
    Ok(endpoint.connect_timeout(CONNECT).tcp_nodelay(true).keep_alive_timeout(PING_TIMEOUT))
}

//! Opens the queue broker that the configuration selects, for the dispatcher, the workers, the
//! commands and the HTTP API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_config::{self as config, QueueBroker, QueueOptions as Config, ServiceBusLogin};
use sluicegate_core::Span;
use sluicegate_queue::rabbitmq::{self, QueueType};
use sluicegate_queue::remote::{ClientObserver, QueueOpener, RemoteOptions, RemoteQueues};
use sluicegate_queue::servicebus::{self, Credential, Transport};
use sluicegate_queue::{
    Broker, Embedded, Error, Options, PubSub, Queue, RabbitMq, ServiceBus, Sqs, WallClock, pubsub,
    sqs,
};
use tokio::sync::OnceCell;
use tracing::info;

/// The broker of a process, which is opened when it is first needed: a limiter whose clients use no
/// queue works without it.
pub(crate) struct LazyQueues {
    options: Config,
    opened: OnceCell<Queues>,
}

impl LazyQueues {
    /// Creates it without contacting the broker.
    pub(crate) fn new(options: Config) -> Self {
        Self { options, opened: OnceCell::new() }
    }

    /// Returns the options.
    pub(crate) const fn options(&self) -> &Config {
        &self.options
    }

    /// Returns the broker, and opens it if necessary.
    pub(crate) async fn get(&self) -> anyhow::Result<&Queues> {
        self.opened.get_or_try_init(|| Queues::open(&self.options)).await
    }

    /// Waits until the messages of dropped deliveries are requeued.
    pub(crate) async fn flush(&self) {
        if let Some(queues) = self.opened.get() {
            queues.broker.flush().await;
        }
    }
}

/// A connected broker and the options of its queues.
pub(crate) struct Queues {
    broker: Arc<dyn Broker>,
    options: Options,
    /// Dead-letter queues of single queues.
    dead_letters: BTreeMap<String, String>,
    /// True if a queue was created.
    created: AtomicBool,
}

impl Queues {
    /// Opens the embedded queue or connects to the broker. Fails on a wrong address or login.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        let broker: Arc<dyn Broker> = match &config.broker {
            QueueBroker::Embedded { path } => Arc::new(Embedded::open(path)?),
            QueueBroker::RabbitMq { url, quorum } => {
                let mut options = rabbitmq::Options::new(url.expose());
                options.queue_type = if *quorum { QueueType::Quorum } else { QueueType::Classic };
                Arc::new(RabbitMq::connect(options).await?)
            }
            QueueBroker::ServiceBus { login, websockets, admin_url } => {
                let mut options = match login {
                    ServiceBusLogin::ConnectionString(text) => {
                        servicebus::Options::from_connection_string(text.expose())?
                    }
                    ServiceBusLogin::Namespace(name) => {
                        let identity = Credential::from_variables(|name| std::env::var(name).ok());
                        servicebus::Options::new(name, identity?)
                    }
                };
                options.transport =
                    if *websockets { Transport::WebSockets } else { Transport::Tcp };
                options.admin_url.clone_from(admin_url);
                options.deduplication = config.deduplication;
                Arc::new(ServiceBus::connect(options).await?)
            }
            QueueBroker::Sqs { endpoint, region } => {
                let (endpoint, region) = (endpoint.clone(), region.clone());
                Arc::new(Sqs::connect(sqs::Options { endpoint, region }).await?)
            }
            QueueBroker::PubSub(options) => {
                let options = options.clone();
                let options = pubsub::Options {
                    project: options.project,
                    endpoint: options.endpoint,
                    credentials: options.credentials,
                    subscription_suffix: options.subscription_suffix,
                    ordering: options.ordering,
                    exactly_once: options.exactly_once,
                    visibility: config.visibility,
                };
                Arc::new(PubSub::connect(options).await?)
            }
        };
        let options = Options {
            dead_letter: config.dead_letter.clone(),
            visibility: config.visibility,
            job_field: config.job_id.clone(),
            type_field: config.type_field.clone(),
            priorities: config.priorities,
            size_max: config.size_max.map(config::ByteSize::as_usize),
            age_max: config.age_max,
            redeliveries_max: config.redeliveries_max,
            deduplication: config.deduplication,
            ..Options::default()
        };
        let (dead_letters, created) = (BTreeMap::new(), AtomicBool::new(false));
        Ok(Self { broker, options, dead_letters, created })
    }

    /// Uses the dead-letter queues that a configuration names for its dispatcher and workers.
    pub(crate) fn with_dead_letters(mut self, config: &config::Config) -> Self {
        self.dead_letters.extend(dead_letters(config));
        self
    }

    /// Counts messages that wait for the fixed delay of a configuration, whichever process delayed
    /// them.
    pub(crate) fn expect_delays(&self, config: &config::Config) {
        let delay = config.dispatch.as_ref().map(|dispatch| dispatch.delay);
        let fixed = match delay {
            Some(config::DelayMode::Fixed(delay)) => Some(delay),
            _ => None,
        };
        // A process with workers only does not know the delay of the dispatchers.
        self.broker.expect_delays(&[fixed.unwrap_or(config::DelayMode::FIXED)]);
    }

    /// Returns a handle to a queue, without contacting the broker.
    fn handle(&self, name: &str, dead_letter: Option<&str>) -> Queue {
        let mut options = self.options.clone();
        let dead_letter = dead_letter.or_else(|| self.dead_letters.get(name).map(String::as_str));
        options.dead_letter = dead_letter.map(str::to_owned).or(options.dead_letter);
        Queue::new(self.broker.clone(), name, options)
    }

    /// Returns the time until queues that this process has just created survive a crash of the broker.
    pub(crate) fn creation_flush(&self) -> Span {
        match self.created.load(Ordering::Relaxed) {
            true => self.broker.capabilities().creation_flush,
            false => Span::ZERO,
        }
    }

    /// Waits until queues that were created survive a crash of the broker.
    pub(crate) async fn flush_created(&self) {
        let wait = self.creation_flush();
        if wait > Span::ZERO {
            tokio::time::sleep(wait.into()).await;
        }
    }

    /// Opens a queue by name.
    pub(crate) async fn queue(&self, name: &str, missing: MissingQueue) -> anyhow::Result<Queue> {
        self.queue_with(name, None, missing).await
    }

    /// Opens a queue with a dead letter queue that differs from the configuration's.
    pub(crate) async fn queue_with(
        &self,
        name: &str,
        dead_letter: Option<&str>,
        missing: MissingQueue,
    ) -> anyhow::Result<Queue> {
        let queue = self.handle(name, dead_letter);
        match missing {
            MissingQueue::Create => {
                if queue.create().await? {
                    self.created.store(true, Ordering::Relaxed);
                }
            }
            // A dead-letter queue by its own name, to read the letters of all queues.
            MissingQueue::Fail if name == queue.dead_letter_name() => queue.check_dead().await?,
            // Does not check for its dead letter queue, because it may be one itself.
            MissingQueue::Fail => queue.check_live().await?,
        }
        Ok(queue)
    }
}

/// Returns the dead-letter queues that a configuration names for the queues of its dispatcher and
/// workers.
fn dead_letters(config: &config::Config) -> BTreeMap<String, String> {
    let dispatch = config.dispatch.iter().map(|d| (&d.source, &d.dead_letter));
    let workers = config.workers.iter().map(|worker| (&worker.queue, &worker.dead_letter));
    let named = dispatch.chain(workers);
    named.filter_map(|(queue, dead)| Some((queue.clone(), dead.clone()?))).collect()
}

/// The queues of the HTTP API.
struct ClientQueues {
    queues: Arc<LazyQueues>,
    dead_letters: BTreeMap<String, String>,
    missing: MissingQueue,
}

impl QueueOpener for ClientQueues {
    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Queue, Error>> {
        async move {
            let queues = self.queues.get().await.map_err(|error| match error.downcast() {
                Ok(error) => error,
                Err(error) => Error::Invalid(format!("{error:#}")),
            })?;
            Ok(queues.handle(name, self.dead_letters.get(name).map(String::as_str)))
        }
        .boxed()
    }

    fn create<'a>(&'a self, queue: &'a Queue) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            if self.missing == MissingQueue::Fail {
                return Ok(false);
            }
            if queue.create().await? {
                info!(queue = queue.name(), "queue created for a client");
                tokio::time::sleep(queue.capabilities().creation_flush.into()).await;
            }
            Ok(true)
        }
        .boxed()
    }
}

/// Returns the queues of the HTTP API, whose use is reported to `observer`.
pub(crate) fn for_clients(
    queues: Arc<LazyQueues>,
    config: &config::Config,
    missing: MissingQueue,
    host: &str,
    observer: Arc<dyn ClientObserver>,
) -> RemoteQueues {
    let options = RemoteOptions {
        host: host.to_owned(),
        leases_max: queues.options().api.leases_max,
        clock: Arc::new(WallClock),
    };
    let missing = missing.of(queues.options());
    let opener = ClientQueues { queues, dead_letters: dead_letters(config), missing };
    RemoteQueues::new(Arc::new(opener), options).with_observer(observer)
}

/// Policy for queues that do not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingQueue {
    Create,
    Fail,
}

impl MissingQueue {
    /// Returns the policy of a broker. The embedded queue is ours alone, so no other tool could have
    /// created its queues.
    pub(crate) const fn of(self, options: &Config) -> Self {
        match options.broker {
            QueueBroker::Embedded { .. } => Self::Create,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_queue::servicebus::Options;

    /// `check` and the adapter read a connection string each on their own.
    #[test]
    fn a_connection_string_that_is_refused_at_the_start_is_refused_by_check() {
        let end = "SharedAccessKeyName=a;SharedAccessKey=geheim";
        for (text, is_valid) in [
            (format!("Endpoint=sb://ns.servicebus.windows.net/;{end}"), true),
            (format!("endpoint = sb://localhost:5672 ; {end} ; UseDevelopmentEmulator=true"), true),
            ("Endpoint=sb://h;SharedAccessSignature=sr=x&sig=y".to_owned(), true),
            (end.to_owned(), false),
            (format!("Endpoint=sb://;{end}"), false),
            (format!("Endpoint=sb://h:x;{end}"), false),
            (format!("Endpoint=sb://h:70000;{end}"), false),
            ("Endpoint=sb://h;SharedAccessKey=geheim".to_owned(), false),
            ("Endpoint=sb://h;SharedAccessKeyName=a".to_owned(), false),
            ("Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=".to_owned(), false),
            (format!("Endpoint=sb://h;{end};EntityPath=jobs"), false),
        ] {
            let read = Options::from_connection_string(&text);
            assert_eq!(read.is_ok(), is_valid, "{text}");
            let file = format!("queue:\n  kind: servicebus\n  connection_string: '{text}'\n");
            let checked = sluicegate_config::load("file", &file, &|_| None);
            let said = checked.err().map(|problems| problems.to_string());
            assert_eq!(said.is_none(), is_valid, "{text}");
            if let Some(said) = said {
                assert!(said.starts_with("file:3:22: queue.connection_string: "), "{said}");
                assert!(!said.contains("geheim"), "{said}");
            }
        }
    }
}

//! Shared setup of the dispatch tests and the cloud tests: queues, store, providers and processes.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use simulators::{GitHub, Provider, Record};
use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::{
    Broker, DeadLetterFilter, DeliveryTime, Depth, Embedded, Error, JobId, Message, Options, Queue,
    RabbitMq, rabbitmq,
};
use sluicegate_testkit::delay_proxy::DelayProxy;
use sluicegate_testkit::limit_check::{
    Early, assert_arrivals, assert_bucket_arrivals, assert_limit, early, longest_delay,
};
use sluicegate_testkit::rabbitmq::RabbitServer;
use sluicegate_testkit::redis::{RedisServer, Version};
use tokio::runtime::Runtime;

use crate::common::RunningService;
use crate::proof;

static RABBIT: LazyLock<RabbitServer> = LazyLock::new(RabbitServer::start);

/// The kind of queues and store.
pub(crate) enum Backend {
    /// Embedded queue in a file, and the memory of one process.
    Alone(tempfile::TempDir),
    /// RabbitMQ and Redis.
    Shared(Box<RedisServer>),
    /// RabbitMQ and a Redis behind a proxy that delays its traffic.
    Distant { _redis: Box<RedisServer>, proxy: DelayProxy },
    /// RabbitMQ and Redis, with a broker of its own that can be stopped.
    Own(Box<(Mutex<RabbitServer>, Mutex<RedisServer>)>),
    /// The broker of a cloud, by its `queue` section, and Redis.
    Cloud { queue: String, redis: Box<RedisServer> },
}

/// Test setup: queues, store, and a runtime for the servers of the test.
pub(crate) struct TestSetup {
    pub(crate) backend: Backend,
    /// Prefix of queue names, because tests share a broker.
    pub(crate) name: String,
    broker: Arc<dyn Broker>,
    pub(crate) runtime: Runtime,
    /// Jobs that may have been sent twice, because the broker did not confirm the first time.
    resent: Mutex<BTreeSet<String>>,
    /// Timeouts of the store that are configured.
    timeouts: &'static str,
    /// Lease of the embedded queue that is configured.
    lease: &'static str,
}

/// Maximum time that a test waits for the next message.
const RECEIVE_MAX: Duration = Duration::from_secs(300);
/// Timeouts longer than in production: tests share the machine, and a call to the store that times out
/// may already be charged.
const LONG_TIMEOUTS: &str = ", timeout: 10s, deadline: 25s";

impl TestSetup {
    pub(crate) fn alone(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Embedded::open(&folder.path().join("queue.db")).expect("a file");
        Self::on(name, Backend::Alone(folder), |_| Arc::new(broker))
    }

    pub(crate) fn shared(name: &str) -> Self {
        let redis = Box::new(RedisServer::start(Version::System, &[]));
        Self::on(name, Backend::Shared(redis), |runtime| connect(runtime, &RABBIT.url()))
    }

    /// RabbitMQ, and Redis at this round trip.
    pub(crate) fn distant(name: &str, round_trip: Duration) -> Self {
        let redis = Box::new(RedisServer::start(Version::System, &[]));
        let proxy = DelayProxy::start(redis.port, round_trip);
        let backend = Backend::Distant { _redis: redis, proxy };
        Self::on(name, backend, |runtime| connect(runtime, &RABBIT.url()))
    }

    pub(crate) fn own(name: &str) -> Self {
        let (rabbit, redis) = (RabbitServer::start(), RedisServer::start(Version::System, &[]));
        let url = rabbit.url();
        let backend = Backend::Own(Box::new((Mutex::new(rabbit), Mutex::new(redis))));
        Self::on(name, backend, |runtime| connect(runtime, &url))
    }

    /// The broker of a cloud, and Redis.
    pub(crate) fn cloud(
        name: &str,
        queue: String,
        broker: impl FnOnce(&Runtime) -> Arc<dyn Broker>,
    ) -> Self {
        let redis = Box::new(RedisServer::start(Version::System, &[]));
        Self::on(name, Backend::Cloud { queue, redis }, broker)
    }

    fn on(name: &str, backend: Backend, broker: impl FnOnce(&Runtime) -> Arc<dyn Broker>) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let broker = broker(&runtime);
        let (name, resent) = (name.to_owned(), Mutex::default());
        Self { backend, name, broker, runtime, resent, timeouts: LONG_TIMEOUTS, lease: "" }
    }

    /// Makes the embedded queue deliver the messages of a killed process again after this time, instead
    /// of after its default. On a machine whose disk is busy for longer than that, a message can be
    /// delivered twice without a kill.
    #[must_use]
    pub(crate) fn with_short_lease(self) -> Self {
        Self { lease: ", visibility: 2s", ..self }
    }

    /// Leaves the timeouts of the store at their defaults, as in production.
    #[must_use]
    pub(crate) fn with_default_timeouts(self) -> Self {
        Self { timeouts: "", ..self }
    }

    /// Returns the `queue` and `store` sections of the configuration.
    pub(crate) fn config(&self) -> String {
        let queue = match &self.backend {
            Backend::Alone(folder) => format!(
                "queue: {{kind: embedded, path: {}, job_id: AnalysisId{}}}\n",
                folder.path().join("queue.db").display(),
                self.lease
            ),
            Backend::Shared(_) | Backend::Distant { .. } => rabbit(&RABBIT.url()),
            Backend::Own(servers) => rabbit(&lock(&servers.0).url()),
            Backend::Cloud { queue, .. } => queue.clone(),
        };
        let timeouts = self.timeouts;
        let redis = |port: u16| {
            format!("store: {{kind: redis, url: 'redis://127.0.0.1:{port}'{timeouts}}}\n")
        };
        let store = match &self.backend {
            Backend::Alone(_) => String::new(),
            Backend::Shared(server) => redis(server.port),
            Backend::Distant { proxy, .. } => redis(proxy.port),
            Backend::Own(servers) => redis(lock(&servers.1).port),
            Backend::Cloud { redis: server, .. } => redis(server.port),
        };
        format!("log: {{format: json}}\n{queue}{store}")
    }

    /// Starts a process with this configuration after the `queue` and `store` sections.
    pub(crate) fn run(&self, only: &str, config: &str) -> RunningService {
        RunningService::start_only(&format!("{}{config}", self.config()), only)
    }

    /// Opens a queue by its name without prefix.
    pub(crate) fn queue(&self, name: &str) -> Queue {
        let queue = self.named(&format!("{}-{name}", self.name));
        self.insist(async || queue.create().await);
        queue
    }

    fn named(&self, name: &str) -> Queue {
        let options = Options { job_field: Some("AnalysisId".to_owned()), ..Options::default() };
        Queue::new(self.broker.clone(), name, options)
    }

    /// Deletes a queue of RabbitMQ by its name without prefix.
    pub(crate) fn delete(&self, name: &str) {
        RABBIT.ctl(&["delete_queue", &format!("{}-{name}", self.name)]);
    }

    /// Returns the names of this test's queues on RabbitMQ.
    pub(crate) fn queues_on_rabbitmq(&self) -> BTreeSet<String> {
        let prefix = format!("{}-", self.name);
        let names = RABBIT.ctl(&["list_queues", "name", "--no-table-headers"]);
        names.lines().filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
    }

    /// Sends bytes to a queue of RabbitMQ as a program does that knows nothing of us.
    pub(crate) fn send_foreign(&self, queue: &str, body: &[u8]) {
        let queue = format!("{}-{queue}", self.name);
        self.runtime.block_on(async {
            let properties = lapin::ConnectionProperties::default();
            let connection = lapin::Connection::connect(&RABBIT.url(), properties).await;
            let channel = connection.expect("a connection").create_channel().await;
            let channel = channel.expect("a channel");
            let select = lapin::options::ConfirmSelectOptions::default();
            channel.confirm_select(select).await.expect("confirms");
            let options = lapin::options::BasicPublishOptions::default();
            let properties = lapin::BasicProperties::default().with_delivery_mode(2);
            let name = queue.as_str().into();
            let sent = channel.basic_publish("".into(), name, options, body, properties).await;
            sent.expect("sent").await.expect("confirmed");
        });
    }

    /// Returns the number of ready messages, and of messages waiting for this fixed delay.
    pub(crate) fn ready_and_delayed(&self, queue: &str, delay: Span) -> (u64, u64) {
        let depth = self.depth(queue);
        let delayed = match &self.backend {
            Backend::Alone(_) | Backend::Cloud { .. } => {
                depth.delayed.expect("it knows what waits")
            }
            // RabbitMQ reports the depth of a queue by name; an undeclared queue counts as empty.
            Backend::Shared(_) | Backend::Distant { .. } | Backend::Own(_) => {
                let target = format!("{}-{queue}", self.name);
                let delayed = self.named(&rabbitmq::delayed_queue(&target, delay));
                self.insist(async || match delayed.depth().await {
                    Err(Error::NoQueue { .. }) => Ok(0),
                    depth => depth.map(|depth| depth.ready),
                })
            }
        };
        (depth.ready, delayed)
    }

    /// Retries a call until the broker responds: on a busy machine that may take a while.
    fn insist<T>(&self, ask: impl AsyncFn() -> Result<T, Error>) -> T {
        self.runtime.block_on(async {
            for _ in 0..12 {
                match ask().await {
                    Err(error) if error.is_transient() => {}
                    answer => return answer.expect("an answer"),
                }
            }
            panic!("the broker does not respond");
        })
    }

    /// Returns the job id of an analysis by its number.
    fn job(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// Returns the job ids of this many analyses.
    pub(crate) fn jobs(&self, count: usize) -> BTreeSet<String> {
        (0..count).map(|number| self.job(number)).collect()
    }

    /// Asserts that each of this many analyses succeeded exactly once: no call failed, was rejected
    /// or was repeated.
    pub(crate) fn each_was_called_once(&self, count: usize, record: &Record) {
        let mut times: HashMap<String, usize> = HashMap::new();
        for call in record.calls() {
            assert_eq!(call.status, 200, "{call:?}");
            *times.entry(call.job).or_default() += 1;
        }
        let resent = lock(&self.resent);
        let twice: BTreeSet<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        let ours = twice.iter().filter(|(job, _)| !resent.contains(*job)).collect::<Vec<_>>();
        assert!(ours.is_empty(), "called more than once: {ours:?}");
        assert_eq!(times.into_keys().collect::<BTreeSet<_>>(), self.jobs(count));
    }

    /// Returns the number of jobs that may have been sent twice.
    pub(crate) fn resent(&self) -> usize {
        lock(&self.resent).len()
    }

    /// Returns the job ids of all dead letters of a queue.
    pub(crate) fn dead_jobs(&self, queue: &str) -> BTreeSet<String> {
        let letters = self.queue(queue).dead_letters();
        let all = DeadLetterFilter::default();
        self.insist(async || {
            let mut jobs = BTreeSet::new();
            let listed = letters.list(&all, u64::MAX, |letter| {
                jobs.insert(letter.message.meta.job.to_string());
            });
            listed.await?;
            Ok(jobs)
        })
    }

    /// Sends this many analyses.
    pub(crate) fn produce(&self, queue: &str, count: usize) {
        let queue = self.queue(queue);
        let batch = (0..count).map(|number| {
            let id = self.job(number);
            let body = format!("{{\"AnalysisId\":\"{id}\",\"ImageUrls\":[\"http://x/{number}\"]}}");
            (Message::of_job(JobId::try_from(id).expect("a job id"), body), DeliveryTime::Now)
        });
        let batch: Vec<_> = batch.collect();
        for part in batch.chunks(500) {
            let sent = self.runtime.block_on(queue.send_batch(part.to_vec()));
            for (sent, (message, when)) in sent.into_iter().zip(part) {
                if sent.is_err() {
                    // It may be a second time, with the same id.
                    lock(&self.resent).insert(message.meta.job.to_string());
                    self.insist(async || queue.send_at(message.clone(), *when).await);
                }
            }
        }
    }

    pub(crate) fn depth(&self, queue: &str) -> Depth {
        let queue = self.queue(queue);
        self.insist(async || queue.depth().await)
    }

    pub(crate) fn dead(&self, queue: &str) -> u64 {
        let queue = self.queue(queue);
        self.insist(async || queue.dead_depth().await).ready
    }

    /// Starts a provider and returns it with its address.
    pub(crate) fn provider(&self, provider: Provider) -> (String, Arc<Record>) {
        let (router, record) = provider.router();
        (self.serve(router), record)
    }

    pub(crate) fn github(&self, github: GitHub) -> (String, Arc<Record>) {
        let (router, record) = github.router();
        (self.serve(router), record)
    }

    fn serve(&self, router: axum::Router) -> String {
        let served = self.runtime.block_on(simulators::serve(0, router));
        let (address, _) = served.expect("a port");
        format!("http://{address}")
    }
}

/// Returns a provider without a limit, so that early calls are recorded and not rejected.
pub(crate) fn patient(latency_ms: u64) -> Provider {
    Provider {
        limit: usize::MAX,
        window: Duration::from_secs(60),
        latency: Duration::from_millis(latency_ms),
        failures_percent: 0,
    }
}

fn rabbit(url: &str) -> String {
    format!("queue: {{kind: rabbitmq, url: '{url}', job_id: AnalysisId}}\n")
}

fn connect(runtime: &Runtime, url: &str) -> Arc<dyn Broker> {
    let connected = runtime.block_on(RabbitMq::connect(rabbitmq::Options::new(url)));
    Arc::new(connected.expect("connected"))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives and acknowledges messages until those of this many jobs have come. Returns how often each
/// job came.
pub(crate) fn receive_all(
    setup: &TestSetup,
    queue: &str,
    jobs: usize,
    mut seen: impl FnMut(&Message),
) -> BTreeMap<String, usize> {
    let queue = setup.queue(queue);
    setup.runtime.block_on(async {
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        let mut consumer = queue.consume(100).await.expect("a consumer");
        while times.len() < jobs {
            let received = tokio::time::timeout(RECEIVE_MAX, consumer.receive(100)).await;
            let received = received.unwrap_or_else(|_| panic!("{} of {jobs} came", times.len()));
            for delivery in received.expect("received") {
                seen(delivery.message());
                *times.entry(delivery.message().meta.job.to_string()).or_default() += 1;
                delivery.ack().await.expect("acknowledged");
            }
        }
        times
    })
}

/// Returns a counter of the workers of a provider.
pub(crate) fn worked(running: &RunningService, provider: &str, what: &str) -> u64 {
    running.metric(&format!("sluicegate_worker_{what}_total{{provider=\"{provider}\"}}"))
}

/// Proves from the decision logs that the store admitted at most `amount` in any window, and from
/// the record of the provider that no more arrived there, in any window shortened by the longest
/// delay from the store to the provider.
pub(crate) fn prove(amount: usize, window: Span, logs: &[String], record: &Record) {
    let admits = proof::admits(logs, goes_to_the_provider);
    assert_limit(&format!("{amount}/{}us", window.as_micros()), &admits);
    let arrivals = arrivals(record);
    let delay = longest_delay(&admits, &arrivals);
    assert_arrivals(amount, window, delay, &arrivals);
}

/// Proves from the decision logs that booked calls started as a token bucket spaces them, and from the
/// record of the provider that no more arrived there, in any time that is longer by the longest delay from
/// the start to the provider.
pub(crate) fn prove_spread(bucket: &str, logs: &[String], record: &Record) {
    let starts = proof::booked_starts(logs, goes_to_the_provider);
    assert_limit(bucket, &starts);
    let arrivals = arrivals(record);
    assert_bucket_arrivals(bucket, longest_delay(&starts, &arrivals), &arrivals);
}

/// Returns the calls that arrived too early at the provider for a limit in its full window.
pub(crate) fn early_calls(amount: usize, window: Span, record: &Record) -> Early {
    early(&format!("{amount}/{}us", window.as_micros()), &arrivals(record))
}

/// Returns true if a decision is by a worker, not by a dispatcher.
pub(crate) fn goes_to_the_provider(line: &serde_json::Value) -> bool {
    line["dimensions"]["@tier"] != "dispatch"
}

/// Returns the arrival times of calls at a provider.
fn arrivals(record: &Record) -> Vec<Timestamp> {
    let arrivals = record.arrivals().into_iter();
    arrivals.map(|at| Timestamp::from_micros(at.as_micros() as u64)).collect()
}

/// Returns true if `SLUICEGATE_LONG` is set, which runs more rounds.
pub(crate) fn long() -> bool {
    sluicegate_testkit::long()
}

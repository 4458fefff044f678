//! What a scenario stands on.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use simulators::{GitHub, Provider, Record};
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{
    Broker, Depth, Embedded, Error, JobId, Message, Options, Queue, RabbitMq, When, rabbitmq,
};
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::rabbitmq::RabbitServer;
use sluicegate_testkit::redis::{RedisServer, Version};
use tokio::runtime::Runtime;

use crate::common::Running;

static RABBIT: LazyLock<RabbitServer> = LazyLock::new(RabbitServer::start);

/// Where queues and counters are.
pub(crate) enum Ground {
    /// A file, and the memory of the one process.
    Alone(tempfile::TempDir),
    /// RabbitMQ and Redis.
    Shared(Box<RedisServer>),
    /// The same, with a broker of its own that can be taken away.
    Own(Box<(Mutex<RabbitServer>, Mutex<RedisServer>)>),
}

/// A ground, a way to its queues, and a runtime for servers of the test.
pub(crate) struct Stand {
    pub(crate) ground: Ground,
    /// What queues are called here: tests share a broker.
    pub(crate) name: String,
    broker: Arc<dyn Broker>,
    pub(crate) runtime: Runtime,
}

impl Stand {
    pub(crate) fn alone(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Embedded::open(&folder.path().join("queue.db")).expect("a file");
        Self::on(name, Ground::Alone(folder), |_| Arc::new(broker))
    }

    pub(crate) fn shared(name: &str) -> Self {
        let redis = Box::new(RedisServer::start(Version::System, &[]));
        Self::on(name, Ground::Shared(redis), |runtime| connect(runtime, &RABBIT.url()))
    }

    pub(crate) fn own(name: &str) -> Self {
        let (rabbit, redis) = (RabbitServer::start(), RedisServer::start(Version::System, &[]));
        let url = rabbit.url();
        let ground = Ground::Own(Box::new((Mutex::new(rabbit), Mutex::new(redis))));
        Self::on(name, ground, |runtime| connect(runtime, &url))
    }

    fn on(name: &str, ground: Ground, broker: impl FnOnce(&Runtime) -> Arc<dyn Broker>) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let broker = broker(&runtime);
        Self { ground, name: name.to_owned(), broker, runtime }
    }

    /// The lines of a configuration that choose the ground.
    pub(crate) fn config(&self) -> String {
        let queue = match &self.ground {
            Ground::Alone(folder) => format!(
                "queue: {{kind: embedded, path: {}, job_id: AnalysisId, visibility: 2s}}\n",
                folder.path().join("queue.db").display()
            ),
            Ground::Shared(_) => rabbit(&RABBIT.url()),
            Ground::Own(servers) => rabbit(&lock(&servers.0).url()),
        };
        // Longer than production would wait: tests share their machine.
        let redis = |port: u16| {
            format!(
                "store: {{kind: redis, url: 'redis://127.0.0.1:{port}', timeout: 1s, deadline: 2500ms}}\n"
            )
        };
        let store = match &self.ground {
            Ground::Alone(_) => String::new(),
            Ground::Shared(server) => redis(server.port),
            Ground::Own(servers) => redis(lock(&servers.1).port),
        };
        format!("log: {{format: json}}\n{queue}{store}")
    }

    /// A process with this part of the configuration, after what chooses the ground.
    pub(crate) fn run(&self, only: &str, config: &str) -> Running {
        Running::start_only(&format!("{}{config}", self.config()), only)
    }

    /// A queue by its name here.
    pub(crate) fn queue(&self, name: &str) -> Queue {
        let options = Options { job_field: Some("AnalysisId".to_owned()), ..Options::default() };
        let queue = Queue::new(self.broker.clone(), &format!("{}-{name}", self.name), options);
        self.insist(async || queue.create().await);
        queue
    }

    /// Asks until there is an answer: on a busy machine a broker may take its time.
    fn insist<T>(&self, ask: impl AsyncFn() -> Result<T, Error>) -> T {
        self.runtime.block_on(async {
            for _ in 0..12 {
                match ask().await {
                    Err(error) if error.is_transient() => {}
                    answer => return answer.expect("an answer"),
                }
            }
            panic!("the broker does not answer");
        })
    }

    /// Sends so many analyses.
    pub(crate) fn produce(&self, queue: &str, count: usize) {
        let queue = self.queue(queue);
        let batch = (0..count).map(|number| {
            let id = format!("{}-{number}", self.name);
            let body = format!("{{\"AnalysisId\":\"{id}\",\"ImageUrls\":[\"http://x/{number}\"]}}");
            (Message::of_job(JobId::try_from(id).expect("a job id"), body), When::Now)
        });
        let batch: Vec<_> = batch.collect();
        for part in batch.chunks(500) {
            let sent = self.runtime.block_on(queue.send_batch(part.to_vec()));
            for (sent, (message, when)) in sent.into_iter().zip(part) {
                if sent.is_err() {
                    // Perhaps a second time, under the same name.
                    self.insist(async || queue.send_when(message.clone(), *when).await);
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

    /// A provider, and where it is.
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

/// A provider that refuses nobody, so that what comes too early is seen.
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

/// Waits until something is so; a test that waits too long says what it found instead.
pub(crate) fn eventually<T: std::fmt::Debug>(look: impl FnMut() -> (bool, T)) -> T {
    eventually_within(Duration::from_secs(150), look)
}

pub(crate) fn eventually_within<T: std::fmt::Debug>(
    patience: Duration,
    mut look: impl FnMut() -> (bool, T),
) -> T {
    // Nobody sends: what is received is that a moment has passed.
    let (_nobody, moment) = std::sync::mpsc::sync_channel::<()>(1);
    let (clock, patience) = (MonotonicClock::new(), Span::from(patience));
    let began = clock.now();
    loop {
        let (holds, found) = look();
        if holds {
            return found;
        }
        assert!(clock.now().since(began) < patience, "it never came to it: {found:?}");
        let _ = moment.recv_timeout(Duration::from_millis(50));
    }
}

/// The value of a metric of a process; nothing is 0.
pub(crate) fn metric(running: &Running, line: &str) -> u64 {
    let (_, text) = crate::common::get(&format!("{}/metrics", running.admin));
    let found = text.lines().find_map(|found| found.strip_prefix(line));
    found.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or_default() as u64
}

/// `SLUICEGATE_LONG`: more rounds.
pub(crate) fn long() -> bool {
    std::env::var_os("SLUICEGATE_LONG").is_some()
}

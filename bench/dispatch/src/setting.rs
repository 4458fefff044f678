//! The benchmarked dispatcher and worker, with their queues and limits.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::time::Clock;
use sluicegate_core::{Group, Limiter, Rule, Ruleset, Span};
use sluicegate_dispatch::{
    DelayMode, Dispatch, Dispatcher, Handler, JobTracker, Metrics, PROVIDER, Provider, Stop,
    Strategy, TIER, Worker, worker,
};
use sluicegate_queue::{
    Backoff, Broker, DeliveryTime, Message, Options, Queue, RabbitMq, WallClock, rabbitmq,
};
use sluicegate_service::Service;
use sluicegate_service::metrics::Registry;
use sluicegate_store::memory::Capacity;
use sluicegate_store::redis::{Options as RedisOptions, RedisEndpoint, RetryPolicy};
use sluicegate_store::{Memory, MonotonicClock, Redis};
use sluicegate_testkit::redis::RedisServer;
use tokio::task::JoinSet;

/// Bytes of a typical job.
const BODY_BYTES: usize = 2_000;

pub(crate) struct Setting {
    pub(crate) service: Arc<Service>,
    redis: Option<RedisServer>,
    pub(crate) metrics: Metrics,
    broker: Arc<dyn Broker>,
    name: String,
    stop: Stop,
    running: JoinSet<()>,
}

impl Setting {
    /// Creates queues with a unique name. Both tiers have the limit.
    pub(crate) async fn new(url: &str, name: &str, limit: &str) -> anyhow::Result<Self> {
        let redis = RedisServer::start(sluicegate_testkit::redis::Version::System, &[]);
        let rule = |tier: &str| {
            let tiers = vec![tier.to_owned(), "booked".to_owned()];
            let rule = Rule::new(tier, [limit.parse().expect("a limit")])
                .per(&[PROVIDER])
                .when(PROVIDER, Pattern::exactly("p"))
                .when(TIER, Pattern::OneOf(tiers))
                .gated();
            Group::new(tier, [rule])
        };
        let groups = vec![rule("dispatch"), rule("worker")];
        let rules = Ruleset::new(groups, Settings::default()).expect("the rules are sound");
        let server = RedisEndpoint::at("127.0.0.1", redis.port);
        // The timeouts of a configuration with workers.
        let retry = RetryPolicy {
            timeout: Duration::from_millis(500),
            deadline: Duration::from_millis(1_500),
            ..RetryPolicy::default()
        };
        let store = Redis::new(RedisOptions { retry, ..RedisOptions::new(server) });
        let service = Service::new(
            Limiter::new(rules, Arc::new(store).into()),
            MonotonicClock::new(),
            Vec::new(),
        );
        let broker = Arc::new(RabbitMq::connect(rabbitmq::Options::new(url)).await?);
        Ok(Self::on(Arc::new(service), Some(redis), broker, name))
    }

    pub(crate) fn on(
        service: Arc<Service>,
        redis: Option<RedisServer>,
        broker: Arc<dyn Broker>,
        name: &str,
    ) -> Self {
        Self {
            service,
            redis,
            metrics: Metrics::new(&Registry::default(), clock()),
            broker,
            name: name.to_owned(),
            stop: Stop::default(),
            running: JoinSet::new(),
        }
    }

    pub(crate) async fn queue(&self, name: &str) -> anyhow::Result<Queue> {
        let name = format!("{}-{name}", self.name);
        let queue = Queue::new(self.broker.clone(), &name, Options::default());
        queue.create().await?;
        Ok(queue)
    }

    pub(crate) async fn produce(&self, queue: &str, count: usize) -> anyhow::Result<()> {
        let queue = self.queue(queue).await?;
        let body = format!(r#"{{"image":"{}"}}"#, "x".repeat(BODY_BYTES - 12));
        for begin in (0..count).step_by(500) {
            let batch = (begin..count.min(begin + 500))
                .map(|_| (Message::new(body.clone()), DeliveryTime::Now));
            for sent in queue.send_batch(batch.collect()).await {
                sent?;
            }
        }
        Ok(())
    }

    pub(crate) async fn dispatch(&mut self, delay: DelayMode, enabled: bool) -> anyhow::Result<()> {
        self.dispatch_with(delay, enabled, 500).await
    }

    pub(crate) async fn dispatch_with(
        &mut self,
        delay: DelayMode,
        enabled: bool,
        prefetch: u16,
    ) -> anyhow::Result<()> {
        let provider = Provider {
            name: "p".to_owned(),
            queue: "p".to_owned(),
            limits: Vec::new(),
            estimate: Default::default(),
            cost: 1.0,
            quality: 1.0,
            weight: 1,
        };
        let options = Dispatch {
            id: "bench".to_owned(),
            enabled,
            source: "raw".to_owned(),
            dead_letter: None,
            strategy: Strategy::Fixed,
            fixed: None,
            priority: Vec::new(),
            delay,
            prefetch,
            providers: vec![provider],
        };
        let (source, target) = (self.queue("raw").await?, self.queue("p").await?);
        let (metrics, tracker) = (self.metrics.clone(), JobTracker::default());
        let dispatcher = Dispatcher::new(
            options,
            source,
            vec![target],
            &self.service,
            clock(),
            metrics,
            tracker,
        );
        self.running.spawn(dispatcher.run(self.stop.clone()));
        Ok(())
    }

    pub(crate) async fn work(
        &mut self,
        booked: bool,
        handler: Arc<dyn Handler>,
    ) -> anyhow::Result<()> {
        self.work_with((200, 300), true, booked, handler).await
    }

    pub(crate) async fn work_with(
        &mut self,
        (concurrency, prefetch): (u16, u16),
        enabled: bool,
        booked: bool,
        handler: Arc<dyn Handler>,
    ) -> anyhow::Result<()> {
        let options = worker::Options {
            provider: "p".to_owned(),
            estimate: Default::default(),
            concurrency,
            prefetch,
            attempts: 3,
            backoff: Backoff { from: Span::from_secs(1), to: Span::from_secs(60) },
            timeout: Span::from_secs(60),
            enabled,
            booked,
            learn: None,
        };
        let queues =
            worker::Queues { jobs: self.queue("p").await?, results: None, follow_ups: Vec::new() };
        let (metrics, tracker) = (self.metrics.clone(), JobTracker::default());
        let worker =
            Worker::new(options, queues, handler, &self.service, clock(), metrics, tracker);
        self.running.spawn(worker.run(self.stop.clone()));
        Ok(())
    }

    pub(crate) async fn finish(&mut self) {
        self.stop.drain.cancel();
        while self.running.join_next().await.is_some() {}
        self.stop = Stop::default();
    }

    /// Returns the number of scripts that Redis has run so far.
    pub(crate) fn scripts(&self) -> u64 {
        let Some(redis) = &self.redis else { return 0 };
        let stats = redis.command(&["INFO", "commandstats"]);
        let calls = |name: &str| -> u64 {
            let line = stats.lines().find(|line| line.contains(name));
            let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
            calls.and_then(|calls| calls.parse().ok()).unwrap_or_default()
        };
        calls("cmdstat_evalsha:") + calls("cmdstat_eval:")
    }
}

/// Creates a service without limits on the memory store.
pub(crate) fn memory_service() -> Arc<Service> {
    let rules = Ruleset::new(Vec::new(), Settings::default()).expect("no rules are sound");
    let limiter = Limiter::new(rules, Memory::new(Capacity::FALLBACK).into());
    Arc::new(Service::new(limiter, MonotonicClock::new(), Vec::new()))
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(WallClock)
}

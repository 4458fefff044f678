//! Builds a running node from a configuration: [`Node`] connects the store, the limiter service, the
//! listeners, gateways, jobs, metrics and the decision log, and reloads the configuration.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwapOption;
use axum::Router;
use sluicegate_config::{Config, Listener, LogFormat, SnapshotFile, StoreOptions};
use sluicegate_core::override_store::OverrideStore;
use sluicegate_core::reservation_store::ReservationStore;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Limiter, Span};
use sluicegate_dispatch::Stop;
use sluicegate_http::listener::{self, Stats};
use sluicegate_http::probe::{self, Probe, Readiness};
use sluicegate_http::tls::Tls;
use sluicegate_server::admin::{self, AdminOperations, ReloadFuture};
use sluicegate_server::auth::{self, Tokens};
use sluicegate_server::dashboard::{self, BrowserAccess, DashboardSources, NodeSummaries};
use sluicegate_server::decision_log::{self, DecisionLog, LineFormat};
use sluicegate_server::envoy::{self, EnvoyRls};
use sluicegate_server::metrics::statsd::{self, Statsd};
use sluicegate_server::metrics::{Metrics, Options as MetricsOptions};
use sluicegate_server::overrides::Overrides;
use sluicegate_server::recorder::{NodeName, Recorder, TICK};
use sluicegate_server::reservations::{ReservationTracker, Reservations};
use sluicegate_server::{grpc, rest, traced};
use sluicegate_service::trace::Tracer;
use sluicegate_service::{AuditEntry, Observer, Service};
use sluicegate_store::memory::{Capacity, MemorySnapshot};
use sluicegate_store::{
    AnyStore, FileOverrideStore, Memory, MemoryReservationStore, MonotonicClock,
};
use sluicegate_traces::TraceExporter;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::certificates;
use crate::changes;
use crate::configuration::ConfigSource;
use crate::console::Console;
use crate::gateways::{self, Gateways};
use crate::jobs::{self, ClientJobs, Jobs, dead_letters, progress, why};
use crate::metrics;
use crate::node_summaries::{self, RedisSummaries};
use crate::queue::{self, LazyQueues, MissingQueue};
use crate::restart;
use crate::store::{self, SHUTTING_DOWN};
use crate::store_full::StoreFullWarning;
use crate::writable;

/// Reason in probes of a process whose dispatcher or workers wait for a queue.
const QUEUE_FAILS: &str = "queue";
/// Interval of reading overrides, so that those set on other nodes apply within a second.
const OVERRIDES_EVERY: Duration = Duration::from_millis(500);
/// Interval of reporting reservations that are not settled.
const RESERVATIONS_EVERY: Duration = Duration::from_secs(2);
/// Maximum time that the end of the process waits for calls to the store. Each takes at most 1.5 s.
const FINISH_MAX: Duration = Duration::from_secs(2);

/// A node of the service: everything that lives as long as the process.
pub(crate) struct Node {
    source: ConfigSource,
    /// Configuration at the start of the process.
    started: Config,
    roles: Vec<Role>,
    service: Arc<Service>,
    overrides: Arc<Overrides>,
    reservations: Arc<Reservations>,
    snapshot: Option<SnapshotFile>,
    metrics: Metrics,
    recorder: Recorder,
    decisions: DecisionLog,
    tokens: Arc<ArcSwapOption<Tokens>>,
    tls: std::sync::Mutex<Vec<Arc<Tls>>>,
    gateways: Gateways,
    jobs: std::sync::Mutex<Option<Arc<Jobs>>>,
    /// Taken at the end, when the last spans are exported.
    traces: std::sync::Mutex<Option<TraceExporter>>,
    version: AtomicI64,
}

/// A listener and the router that serves its requests.
struct ListenerSetup<'c> {
    /// Name in logs and metrics.
    name: String,
    /// Name of the option with its address.
    option: String,
    listen: &'c Listener,
    app: Router,
    options: listener::Options,
}

/// A part of the service that a process can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// Answer rate limit requests over REST, gRPC and Envoy's protocol
    Limiter,
    /// Run the gateways, which limit requests to upstreams
    Gateway,
    /// Run the dispatcher, which distributes messages to provider queues
    Dispatch,
    /// Run the workers, which process messages
    Worker,
}

impl Role {
    /// All roles.
    pub(crate) const ALL: [Self; 4] = [Self::Limiter, Self::Gateway, Self::Dispatch, Self::Worker];
}

/// Options of [`Node::run`].
pub(crate) struct RunOptions<'a> {
    /// Roles to run.
    pub(crate) roles: &'a [Role],
    /// Policy for queues that do not exist.
    pub(crate) missing: MissingQueue,
    /// Console for the progress line of jobs, if it is shown.
    pub(crate) progress: Option<Console>,
    /// Signal to stop.
    pub(crate) stop: Stop,
}

impl Node {
    /// Builds a node from a configuration.
    pub(crate) fn new(
        source: ConfigSource,
        config: &Config,
        roles: &[Role],
    ) -> anyhow::Result<Arc<Self>> {
        let reservation_store: Arc<dyn ReservationStore>;
        let (store, snapshot, overrides_store) = match &config.store {
            StoreOptions::Memory { keys_max, records_max, snapshot, overrides } => {
                let capacity = Capacity { keys_max: *keys_max, records_max: *records_max };
                let memory = AnyStore::Memory(open_memory(capacity, snapshot.as_ref())?);
                reservation_store = Arc::new(MemoryReservationStore::new());
                (memory, snapshot.clone(), open_override_store(overrides.as_deref())?)
            }
            StoreOptions::Redis(redis) => {
                let redis = Arc::new(redis.open(store::workload(config, roles)));
                let overrides_store: Arc<dyn OverrideStore> = redis.clone();
                reservation_store = redis.clone();
                (AnyStore::Redis(redis), None, overrides_store)
            }
        };
        let metrics = Metrics::new(&MetricsOptions {
            values_max: config.metrics.label_values_max,
            secret: config.settings().secret.clone(),
            ..MetricsOptions::default()
        });
        let rules = config.active_ruleset();
        metrics.register_rules(&rules);
        metrics.config_loaded(&source.name(), 1);
        let decisions = decision_log(config)?;
        let keys_max = match &config.store {
            StoreOptions::Memory { keys_max, .. } => *keys_max,
            StoreOptions::Redis(_) => Capacity::FALLBACK.keys_max,
        };
        let full = StoreFullWarning::new(keys_max);
        let recorder = recorder(config, &metrics);
        let settings = config.settings();
        let tracker = ReservationTracker::new(
            MonotonicClock::new(),
            host(),
            settings.secret.clone(),
            settings.hash_key,
        );
        let observers: Vec<Box<dyn Observer>> = vec![
            Box::new(metrics.clone()),
            Box::new(decisions.clone()),
            Box::new(recorder.clone()),
            Box::new(tracker.clone()),
            Box::new(full),
        ];
        metrics::decision_log(metrics.registry(), decisions.clone());
        let redis = store.redis().cloned();
        let mut limiter = Limiter::new(rules, store);
        if let Some(redis) = redis {
            metrics::redis(metrics.registry(), redis);
            limiter = limiter
                .with_fallback(Memory::new(Capacity::FALLBACK).into(), MonotonicClock::new());
        }
        // One clock for both: a span must not begin before its parent.
        let clock = MonotonicClock::new();
        let (tracer, traces) = traces(config, &metrics, clock)?;
        let service = Service::new(limiter, clock, observers);
        let service = Arc::new(service.with_tracer(tracer));
        let overrides = Overrides::new(service.clone(), overrides_store);
        let reservations = Reservations::new(service.clone(), reservation_store, tracker);
        metrics::store(metrics.registry(), service.clone());
        let tokens = Arc::new(ArcSwapOption::empty());
        tokens.store(tokens_of(config)?);
        Ok(Arc::new(Self {
            source,
            started: config.clone(),
            roles: roles.to_vec(),
            service,
            overrides: Arc::new(overrides),
            reservations: Arc::new(reservations),
            snapshot,
            metrics,
            recorder,
            decisions,
            tokens,
            tls: std::sync::Mutex::default(),
            gateways: Gateways::default(),
            jobs: std::sync::Mutex::default(),
            traces: std::sync::Mutex::new(traces),
            version: AtomicI64::new(1),
        }))
    }

    /// Binds all listeners, serves until `stop`, and then shuts down cleanly.
    pub(crate) async fn run(
        self: &Arc<Self>,
        config: &Config,
        run: RunOptions<'_>,
    ) -> anyhow::Result<()> {
        let RunOptions { roles, missing, progress, stop } = run;
        let shutdown = stop.drain.clone();
        let registry = self.metrics.registry();
        let queues = Arc::new(LazyQueues::new(config.queue.clone().unwrap_or_default()));
        let jobs = Jobs::open(config, roles, &queues, missing, &self.service, registry).await?;
        let jobs = Arc::new(jobs);
        let has_clients = config.queue.is_some() && roles.contains(&Role::Limiter);
        let remote = has_clients.then(|| {
            let (depths, tracker) = (jobs.monitor.depths.clone(), jobs.monitor.tracker.clone());
            let clients = Arc::new(ClientJobs { depths, tracker });
            Arc::new(queue::for_clients(queues.clone(), config, missing, &host(), clients))
        });
        if let Some(remote) = &remote {
            metrics::queue_clients(registry, remote.clone());
            if jobs.is_empty() {
                // If there are jobs, they already report and poll the queues, including those of
                // clients.
                metrics::queues(registry, jobs.monitor.depths.clone());
                tokio::spawn(jobs.monitor.depths.clone().run(shutdown.clone()));
            }
        }
        let guard = auth::require(self.tokens.clone());
        let probed = self.service.clone();
        let stopping = shutdown.clone();
        let job_metrics = jobs.monitor.metrics.clone();
        let ready: Probe = Arc::new(move || {
            if stopping.is_cancelled() {
                return Readiness::Unhealthy(SHUTTING_DOWN);
            }
            let limiter = probed.limiter();
            match store::readiness(limiter.store(), &limiter.rules()) {
                Readiness::Ready if job_metrics.is_paused() => Readiness::Degraded(QUEUE_FAILS),
                readiness => readiness,
            }
        });
        let probes = || probe::router(ready.clone());
        let body_limit = config.server.body_limit.as_usize();
        let rls = || EnvoyRls::new(self.service.clone(), config.envoy);
        let rest = rest::router(self.service.clone(), body_limit);
        let overrides = || rest::overrides::router(self.overrides.clone(), body_limit);
        let tracer = self.service.tracer().clone();
        let for_queues = rest::queues::router(remote.clone(), queues.options().api.clone(), tracer);
        let rest = rest.merge(envoy::router(rls(), body_limit)).merge(overrides());
        let rest = traced::router(rest.merge(for_queues), &self.service).merge(probes());
        let streams = shutdown.clone();
        let grpc = grpc::router(self.service.clone(), rls(), body_limit, ready.clone(), streams);
        let operations: Arc<dyn AdminOperations> = Arc::new(NodeAdmin(self.clone()));
        // The admin listener shows the shutdown of the others, so it ends after them.
        let admin_shutdown = CancellationToken::new();
        let listen = &config.listen.admin;
        let browsers =
            BrowserAccess::new(MonotonicClock::new(), &listen.address.host, listen.tls.is_some());
        let browsers = Arc::new(browsers);
        let sources = Arc::new(self.dashboard(roles, &browsers));
        let admin = admin::router(operations)
            .merge(overrides())
            .merge(probes())
            .merge(rest::inspection(self.service.clone(), body_limit))
            .merge(rest::reservations::router(self.reservations.clone(), body_limit))
            .merge(why::router(jobs.monitor.tracker.clone(), jobs.monitor.depths.clone()))
            .merge(dead_letters::router(jobs.monitor.depths.clone(), self.service.clone()))
            .merge(dashboard::router(sources.clone(), admin_shutdown.clone()))
            .fallback(admin::unknown_path)
            .layer(guard.clone().with_browsers(browsers));

        // Loaded before the first request, so that bans and other overrides apply to it.
        self.overrides.refresh().await;
        let mut listeners = JoinSet::new();
        let setup = |name: &str, listen, app| ListenerSetup {
            name: name.to_owned(),
            option: format!("listen.{name}"),
            listen,
            app,
            options: (&config.server).into(),
        };
        let mut setups = vec![setup("admin", &config.listen.admin, admin)];
        if roles.contains(&Role::Limiter) {
            let grpc = traced::router(grpc, &self.service).merge(probes()).layer(guard.clone());
            let http = &config.listen.http;
            let web_pages =
                BrowserAccess::new(MonotonicClock::new(), &http.address.host, http.tls.is_some());
            let guard = guard.without_web_pages(Arc::new(web_pages));
            setups.push(setup("http", http, rest.layer(guard)));
            let mut grpc = setup("grpc", &config.listen.grpc, grpc);
            grpc.options.combine_writes = true;
            setups.push(grpc);
        }
        if roles.contains(&Role::Gateway) {
            setups.extend(self.gateways(config, &shutdown)?);
        }
        let mut connections = Vec::new();
        for ListenerSetup { name, option, listen, app, options } in setups {
            let socket = bind(&option, listen).await?;
            let tls = self.tls(&option, listen)?;
            let stats = Arc::new(Stats::default());
            info!(
                listener = name,
                address = %socket.local_addr()?,
                tls = tls.is_some(),
                "listening"
            );
            connections.push((name, stats.clone()));
            let is_admin = std::ptr::eq(listen, &config.listen.admin);
            let shutdown = if is_admin { &admin_shutdown } else { &shutdown }.clone();
            listeners.spawn(listener::serve(socket, app, options, tls, stats, shutdown));
        }
        metrics::connections(self.metrics.registry(), connections);
        let draining = {
            let (node, shutdown, now) = (self.clone(), shutdown.clone(), stop.now.clone());
            let grace = config.server.shutdown_grace.into();
            tokio::spawn(async move {
                shutdown.cancelled().await;
                node.gateways.drain(grace, now).await;
            })
        };
        if let Some(remote) = remote.clone() {
            let shutdown = shutdown.clone();
            // Waiting receives would keep the listener open.
            tokio::spawn(async move {
                shutdown.cancelled().await;
                remote.stop_receiving();
            });
        }
        let working = self.start_jobs(&jobs, &stop, progress);
        let bounding = tokio::spawn(jobs::bound_draining(stop.clone(), jobs.drain_timeout(config)));
        let housekeeping = tokio::spawn(self.clone().run_housekeeping(shutdown.clone()));
        let refreshing = tokio::spawn(self.clone().refresh_overrides(shutdown.clone()));
        let reporting = tokio::spawn(self.clone().report_reservations(admin_shutdown.clone()));
        let recording = tokio::spawn(record(self.recorder.clone(), admin_shutdown.clone()));
        if let Some(redis) = self.service.limiter().store().redis().cloned() {
            tokio::spawn(node_summaries::write(redis, sources, admin_shutdown.clone()));
        }
        let counted = CancellationToken::new();
        let pushing = config.metrics.statsd.as_ref().map(|to| {
            info!(address = %to, "sending metrics to StatsD");
            let statsd = Statsd::new(self.metrics.clone(), to.host.clone(), to.port);
            tokio::spawn(statsd.run(statsd::EVERY, counted.clone()))
        });
        while !listeners.is_empty() {
            let ended = tokio::select! {
                Some(ended) = listeners.join_next() => ended,
                () = shutdown.cancelled(), if listeners.len() == 1 && !admin_shutdown.is_cancelled() => {
                    admin_shutdown.cancel();
                    continue;
                }
            };
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(unfinished)) => warn!("{unfinished}"),
                Err(panicked) => error!(%panicked, "listener task panicked"),
            }
            // A listener that ends on its own stops the others.
            shutdown.cancel();
        }
        draining.abort();
        if let Some(remote) = remote {
            remote.close().await;
        }
        jobs::finish(working).await;
        bounding.abort();
        jobs::flush(&queues).await;
        // Requests give back what they have not used, and these calls are part of the decision log.
        self.gateways.cut_off();
        self.service.finish(FINISH_MAX).await;
        let _ = tokio::join!(housekeeping, refreshing, reporting, recording);
        // Only now, so that the last push includes the last decisions.
        counted.cancel();
        if let Some(pushing) = pushing {
            let _ = pushing.await;
        }
        self.save();
        self.close_traces().await;
        self.decisions.close();
        let dropped = self.decisions.dropped();
        if dropped > 0 {
            warn!(
                dropped,
                "decision log lines were dropped: standard output was blocked or closed"
            );
        }
        Ok(())
    }

    /// Exports the last spans.
    async fn close_traces(&self) {
        let lock = self.traces.lock();
        let traces = lock.unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(traces) = traces {
            traces.close().await;
        }
    }

    /// Returns the sources of the dashboard.
    fn dashboard(&self, roles: &[Role], browsers: &Arc<BrowserAccess>) -> DashboardSources {
        let name = |role: &Role| {
            clap::ValueEnum::to_possible_value(role).map(|role| role.get_name().to_owned())
        };
        DashboardSources {
            service: self.service.clone(),
            recorder: self.recorder.clone(),
            tokens: self.tokens.clone(),
            browsers: browsers.clone(),
            roles: roles.iter().filter_map(name).collect(),
            id: self.service.request_id().id.to_string(),
            nodes: self.service.limiter().store().redis().map(|redis| {
                let nodes: Arc<dyn NodeSummaries> = Arc::new(RedisSummaries(redis.clone()));
                nodes
            }),
            gateways: Arc::new(self.gateways.clone()),
        }
    }

    /// Starts the dispatcher, the workers and their progress line.
    fn start_jobs(&self, jobs: &Arc<Jobs>, stop: &Stop, progress: Option<Console>) -> JoinSet<()> {
        let mut working = jobs.start(stop);
        if let Some(console) = progress.filter(|_| !jobs.is_empty()) {
            working.spawn(progress::show(console, jobs.monitor.clone(), stop.drain.clone()));
        }
        let mut running = self.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *running = Some(jobs.clone());
        working
    }

    /// Builds the gateways, each with a listener of its own.
    fn gateways<'c>(
        &self,
        config: &'c Config,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Vec<ListenerSetup<'c>>> {
        let metrics = sluicegate_gateway::Metrics::new(self.metrics.registry());
        let gateway = |(number, gateway): (usize, &'c sluicegate_config::GatewayOptions)| {
            let made = self.gateways.add(config, gateway, &self.service, &metrics)?;
            let app = made.router(gateways::probe(gateway, &self.service, shutdown.clone()));
            // The route's own timeout applies to the body.
            let options = listener::Options {
                expose_peer: true,
                mark_ambiguous_length: true,
                body_timeout: None,
                parse_error_bodies: sluicegate_gateway::PARSE_ERROR_BODIES,
                answers_while_draining: true,
                ..(&config.server).into()
            };
            let name = format!("gateways.{}", gateway.name);
            let option = format!("gateways[{number}].listen");
            Ok(ListenerSetup { name, option, listen: &gateway.listen, app, options })
        };
        config.gateways.iter().enumerate().map(gateway).collect()
    }

    fn tls(&self, option: &str, listen: &Listener) -> anyhow::Result<Option<Arc<Tls>>> {
        let Some(tls) = certificates::load(option, listen)? else { return Ok(None) };
        let tls = Arc::new(tls);
        self.tls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(tls.clone());
        Ok(Some(tls))
    }

    /// Reloads the configuration. If it is invalid or changes an option that needs a restart, it is
    /// rejected as a whole, and the old configuration stays in effect.
    pub(crate) fn reload(&self) -> Result<String, String> {
        let refused = |error: anyhow::Error| {
            self.metrics.config_failed();
            warn!(source = %self.source.name(), "configuration rejected: {error:#}");
            let version = self.version.load(Ordering::SeqCst);
            self.recorder.reloaded(version, Err(format!("{error:#}")));
            format!("{error:#}")
        };
        let loaded = self.source.load().map_err(refused)?;
        let changed = restart::required_by(&self.started, &loaded.config, &self.roles);
        if !changed.is_empty() {
            return Err(refused(anyhow::anyhow!(
                "restart required: {} changed; the old configuration stays in effect: restart, or undo \
                 the change",
                changed.join(", ")
            )));
        }
        let tokens = tokens_of(&loaded.config).map_err(refused)?;
        let tls = self.tls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        for tls in &tls {
            tls.reload().map_err(|error| refused(error.into()))?;
        }
        let changed = self.gateways.prepare(&loaded.config).map_err(refused)?;
        for warning in &loaded.warnings {
            warn!("{warning}");
        }
        let rules = loaded.config.active_ruleset();
        self.metrics.register_rules(&rules);
        let before = self.service.limiter().replace(&rules, self.service.now());
        self.overrides.limits_changed();
        self.tokens.store(tokens);
        for (gateway, prepared) in changed {
            gateway.apply(prepared);
        }
        let jobs = self.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(jobs) = &*jobs {
            jobs.reload(&loaded.config);
        }
        drop(jobs);
        let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
        self.metrics.config_loaded(&self.source.name(), version);
        let changes = changes::between(&before, &self.service.limiter().rules());
        for change in &changes {
            info!(%change, "rules changed");
        }
        info!(version, source = %self.source.name(), changes = changes.len(), "configuration reloaded");
        let changes: Vec<_> = changes.iter().map(ToString::to_string).collect();
        let text = changes.join("\n");
        self.recorder.reloaded(version, Ok(changes));
        Ok(text)
    }

    /// Applies overrides that were set on other nodes, until shutdown.
    async fn refresh_overrides(self: Arc<Self>, shutdown: CancellationToken) {
        let mut look = tokio::time::interval(OVERRIDES_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(look.tick()).await.is_some() {
            self.overrides.refresh().await;
        }
    }

    /// Reports reservations that are not settled, until shutdown.
    async fn report_reservations(self: Arc<Self>, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(RESERVATIONS_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
            self.reservations.synchronise().await;
        }
    }

    /// Removes expired counters from memory and saves snapshots, until shutdown.
    async fn run_housekeeping(self: Arc<Self>, shutdown: CancellationToken) {
        let mut sweep = tokio::time::interval(std::time::Duration::from_secs(1));
        let every = self.snapshot.as_ref().map_or(Span::from_secs(3_600), |file| file.every);
        let mut save = tokio::time::interval(every.into());
        save.tick().await;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = sweep.tick() => {
                    if let Some(memory) = self.service.limiter().store().memory() {
                        memory.sweep(1_024);
                    }
                }
                _ = save.tick() => {
                    let node = self.clone();
                    let _ = tokio::task::spawn_blocking(move || node.save()).await;
                }
            }
        }
    }

    fn save(&self) {
        let Some(file) = &self.snapshot else { return };
        let Some(memory) = self.service.limiter().store().memory() else { return };
        if let Err(problem) = memory.snapshot().save(&file.path) {
            error!(path = %file.path.display(), %problem, "can't write the snapshot");
        }
    }
}

/// The operations of the admin listener.
struct NodeAdmin(Arc<Node>);

impl AdminOperations for NodeAdmin {
    fn metrics(&self) -> String {
        self.0.metrics.render()
    }

    fn reload<'a>(&'a self, by: &'a str, reason: &'a str) -> ReloadFuture<'a> {
        Box::pin(async move {
            let node = self.0.clone();
            let reloaded = tokio::task::spawn_blocking(move || node.reload()).await;
            let reloaded = reloaded.unwrap_or_else(|panicked| Err(panicked.to_string()));
            let detail = match &reloaded {
                Ok(changes) => format!("{} changes", changes.lines().count()),
                Err(_) => "rejected".to_owned(),
            };
            self.0.service.audit().record(AuditEntry {
                at: self.0.service.now(),
                by: by.to_owned(),
                action: "reload",
                target: self.0.source.name(),
                reason: reason.to_owned(),
                detail,
            });
            reloaded
        })
    }
}

/// Creates the recorder of the dashboard.
fn recorder(config: &Config, metrics: &Metrics) -> Recorder {
    let clock = MonotonicClock::new();
    let node = NodeName { host: host(), version: env!("CARGO_PKG_VERSION"), started: clock.now() };
    let settings = config.settings();
    Recorder::new(metrics.clone(), clock, node, settings.secret.clone(), settings.hash_key)
}

/// Records the data of the dashboard in the middle of each second, until shutdown.
async fn record(recorder: Recorder, shutdown: CancellationToken) {
    loop {
        let tick = TICK.as_micros();
        let into_tick = recorder.now().as_micros() % tick;
        let wait = Duration::from_micros(tick + tick / 2 - into_tick);
        if shutdown.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            return;
        }
        recorder.tick();
    }
}

/// Opens the overrides of a node with a memory store: a file, or memory if there is no path.
fn open_override_store(path: Option<&Path>) -> anyhow::Result<Arc<dyn OverrideStore>> {
    Ok(Arc::new(match path {
        None => FileOverrideStore::in_memory(),
        Some(path) => FileOverrideStore::open(path)
            .with_context(|| format!("store.overrides {}", path.display()))?,
    }))
}

fn open_memory(capacity: Capacity, snapshot: Option<&SnapshotFile>) -> anyhow::Result<Memory> {
    let Some(file) = snapshot else { return Ok(Memory::new(capacity)) };
    let path = file.path.display();
    // The first snapshot is written much later, maybe at shutdown.
    if let Err(error) = writable::check("store.snapshot.path", &file.path) {
        anyhow::bail!("{error}: {}", error.remedy());
    }
    let loaded =
        MemorySnapshot::load(&file.path).with_context(|| format!("store.snapshot {path}"))?;
    Ok(match loaded {
        None => Memory::new(capacity),
        Some(snapshot) => {
            info!(%path, keys = snapshot.keys(), "usage restored from snapshot");
            Memory::restore(snapshot, capacity, MonotonicClock::new())
        }
    })
}

/// Starts the export of traces, if it is configured.
fn traces(
    config: &Config,
    metrics: &Metrics,
    clock: MonotonicClock,
) -> anyhow::Result<(Tracer, Option<TraceExporter>)> {
    let Some(options) = &config.traces else { return Ok((Tracer::default(), None)) };
    let started = TraceExporter::start(options, &host(), clock);
    let (tracer, exporter) = started.context("traces")?;
    metrics::traces(metrics.registry(), exporter.stats().clone());
    info!(endpoint = %options.endpoint, "exporting traces");
    Ok((tracer, Some(exporter)))
}

/// Creates the decision log on standard output: text on a terminal, else JSON.
fn decision_log(config: &Config) -> anyhow::Result<DecisionLog> {
    let terminal = std::io::stdout().is_terminal();
    let options = decision_log::Options {
        format: match config.log.format {
            LogFormat::Json => LineFormat::Json,
            LogFormat::Text => LineFormat::Text,
            LogFormat::Auto if terminal => LineFormat::Text,
            LogFormat::Auto => LineFormat::Json,
        },
        allowed: config.log.decisions.allowed,
        denied: config.log.decisions.denied,
        secret: config.settings().secret.clone(),
        node: host(),
        ..decision_log::Options::new(config.settings().hash_key)
    };
    let out = Box::new(std::io::stdout());
    DecisionLog::new(out, MonotonicClock::new(), options).context("can't start the decision log")
}

/// Returns the name of this machine or container, which identifies the node in decision logs.
fn host() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let variable = || std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok();
    let name = kernel.or_else(variable).map(|name| name.trim().to_owned());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

fn tokens_of(config: &Config) -> anyhow::Result<Option<Arc<Tokens>>> {
    Tokens::of(&config.auth).context("auth.tokens")
}

async fn bind(option: &str, listen: &Listener) -> anyhow::Result<TcpListener> {
    let address = &listen.address;
    TcpListener::bind((address.host.as_str(), address.port))
        .await
        .with_context(|| format!("can't listen on {address}: choose another address with {option}"))
}

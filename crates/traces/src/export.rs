//! [`TraceExporter`]: the bounded queue of spans, and the task that exports them in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use sluicegate_config::TraceOptions;
use sluicegate_core::time::Clock;
use sluicegate_service::trace::{SpanRecord, SpanSink, Tracer};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::collector::{CollectorError, connect};
use crate::span_data::span_data;

/// Maximum number of spans that wait for an export: a few seconds of traffic, some MB.
const QUEUE_MAX: usize = 8192;
/// Maximum number of spans in one export.
const BATCH_MAX: usize = 512;
/// Maximum time that a span waits for others, so that they are exported together.
const BATCH_EVERY: Duration = Duration::from_secs(1);

/// Exports spans to a collector until it is closed.
pub struct TraceExporter {
    stats: Arc<ExportStats>,
    closing: CancellationToken,
    task: JoinHandle<()>,
    close_max: Duration,
}

/// Numbers of spans since the start of the process.
#[derive(Debug, Default)]
pub struct ExportStats {
    exported: AtomicU64,
    queue_full: AtomicU64,
    failed: AtomicU64,
}

impl ExportStats {
    /// Returns the number of spans that the collector took.
    pub fn exported(&self) -> u64 {
        self.exported.load(Relaxed)
    }

    /// Returns the number of spans that were dropped because the queue was full.
    pub fn queue_full(&self) -> u64 {
        self.queue_full.load(Relaxed)
    }

    /// Returns the number of spans that were dropped because the collector did not take them.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }
}

impl TraceExporter {
    /// Starts the export. `instance` names this process among others. Must be called in a runtime.
    pub fn start(
        options: &TraceOptions,
        instance: &str,
        clock: impl Clock + 'static,
    ) -> Result<(Tracer, Self), CollectorError> {
        let mut exporter = connect(options)?;
        let attributes = [
            KeyValue::new("service.name", options.service_name.clone()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance.to_owned()),
        ];
        exporter.set_resource(&Resource::builder_empty().with_attributes(attributes).build());
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let stats = Arc::new(ExportStats::default());
        let closing = CancellationToken::new();
        let worker = ExportWorker {
            exporter,
            scope: InstrumentationScope::builder("sluicegate")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
            endpoint: options.endpoint.to_string(),
            queue,
            stats: stats.clone(),
            closing: closing.clone(),
            wait_max: options.timeout.into(),
            failing_since: None,
        };
        let task = tokio::spawn(worker.run());
        let sink = SpanQueue { sender, stats: stats.clone() };
        let tracer = Tracer::new(options.sample_ratio.parts_per_million(), clock, sink);
        Ok((tracer, Self { stats, closing, task, close_max: options.timeout.into() }))
    }

    /// Returns the numbers of exported and dropped spans.
    pub const fn stats(&self) -> &Arc<ExportStats> {
        &self.stats
    }

    /// Exports the spans that are left, but waits at most as long as for one export.
    pub async fn close(self) {
        self.closing.cancel();
        let abort = self.task.abort_handle();
        if timeout(self.close_max, self.task).await.is_err() {
            abort.abort();
            warn!("shutdown: the last spans were not exported in time");
        }
    }
}

/// The sink of the tracer: passes spans on, or drops them if the queue is full.
struct SpanQueue {
    sender: mpsc::Sender<SpanRecord>,
    stats: Arc<ExportStats>,
}

impl SpanSink for SpanQueue {
    fn record(&self, span: SpanRecord) {
        if self.sender.try_send(span).is_err() {
            self.stats.queue_full.fetch_add(1, Relaxed);
        }
    }
}

/// The task that exports spans.
struct ExportWorker {
    exporter: OtlpExporter,
    scope: InstrumentationScope,
    /// Address of the collector, for log messages.
    endpoint: String,
    queue: mpsc::Receiver<SpanRecord>,
    stats: Arc<ExportStats>,
    closing: CancellationToken,
    wait_max: Duration,
    /// Number of spans that were dropped before the collector began to fail, while it fails.
    failing_since: Option<u64>,
}

impl ExportWorker {
    async fn run(mut self) {
        loop {
            let batch = self.batch().await;
            if batch.is_empty() {
                return;
            }
            self.export(batch).await;
        }
    }

    /// Waits for spans and collects them for a moment. Returns none when all are exported after the
    /// exporter was closed.
    async fn batch(&mut self) -> Vec<SpanRecord> {
        let mut batch = Vec::new();
        let closing = self.closing.clone();
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            _ = self.queue.recv_many(&mut batch, BATCH_MAX) => {
                let more = async {
                    while batch.len() < BATCH_MAX {
                        let room = BATCH_MAX - batch.len();
                        if self.queue.recv_many(&mut batch, room).await == 0 {
                            return;
                        }
                    }
                };
                tokio::select! {
                    biased;
                    () = closing.cancelled() => {}
                    () = sleep(BATCH_EVERY) => {}
                    () = more => {}
                }
            }
        }
        while batch.len() < BATCH_MAX
            && let Ok(span) = self.queue.try_recv()
        {
            batch.push(span);
        }
        batch
    }

    async fn export(&mut self, batch: Vec<SpanRecord>) {
        let count = batch.len() as u64;
        let batch = batch.into_iter().map(|span| span_data(span, &self.scope)).collect();
        let exported = timeout(self.wait_max, self.exporter.export(batch)).await;
        let failure = match exported {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {:?}", self.wait_max)),
        };
        let Self { endpoint, stats, .. } = self;
        let dropped = || stats.failed() + stats.queue_full();
        match (failure, self.failing_since) {
            (None, before) => {
                stats.exported.fetch_add(count, Relaxed);
                if let Some(before) = before {
                    let dropped = dropped() - before;
                    info!(%endpoint, dropped, "traces are exported again");
                    self.failing_since = None;
                }
            }
            (Some(error), before) => {
                self.failing_since = before.or(Some(dropped()));
                stats.failed.fetch_add(count, Relaxed);
                // One line for the whole outage.
                if before.is_none() {
                    warn!(%endpoint, error, "traces are not exported: spans are dropped");
                }
            }
        }
    }
}

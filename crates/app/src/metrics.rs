//! Metrics that are read from the components of a node at each scrape.
//!
//! | metric | meaning |
//! |---|---|
//! | `rate_limiter_redis_calls_total{operation}`, `…_redis_errors_total{type,operation}`, `…_redis_latency_seconds{operation}` | calls of the store to Redis |
//! | `sluicegate_redis_up`, `sluicegate_redis_evicts` | 1 if Redis is reachable; 1 if it may evict counters |
//! | `sluicegate_redis_refuses_writes{reason}` | 1 if Redis answers but refuses writes, so that every decision is refused |
//! | `sluicegate_redis_memory_bytes{server}`, `…_memory_max_bytes{server}`, `…_operations_per_second{server}`, `…_cpu_seconds_total{server}` | memory and load of each Redis server |
//! | `sluicegate_redis_memory_losses_total` | number of times that a Redis server lost its data |
//! | `sluicegate_queue_depth{queue,state}`, `…_queue_oldest_seconds{queue}` | messages in a queue, and the age of the oldest; dead letters by dead-letter queue, if queues may share it |
//! | `sluicegate_queue_messages_total{queue,event}`, `…_queue_processing_seconds{queue,type}` | handled messages, and their processing time |
//! | `sluicegate_queue_api_messages_total{event}`, `sluicegate_queue_api_leases` | messages of clients of the HTTP API, and their open leases |
//! | `sluicegate_connections{listener}` | open connections |
//! | `sluicegate_store_keys`, `…_overflow_keys`, `…_records` | contents of the store |
//! | `sluicegate_decision_log_dropped_total` | lines that the decision log dropped |
//! | `sluicegate_trace_spans_exported_total`, `…_trace_spans_dropped_total{reason}` | spans that the collector took, and those that were dropped |

use std::sync::Arc;

use sluicegate_core::{Span, Store as _};
use sluicegate_http::listener::Stats;
use sluicegate_queue::ProcessingHistogram;
use sluicegate_queue::remote::{LeaseActionKind, RemoteQueues};
use sluicegate_server::decision_log::DecisionLog;
use sluicegate_service::Service;
use sluicegate_service::metrics::{Family, Registry};
use sluicegate_store::redis::ConnectionState;
use sluicegate_store::{Memory, Redis};
use sluicegate_traces::ExportStats;

use crate::jobs::DepthPoller;

static CONNECTIONS: [Family; 1] =
    [Family::gauge("sluicegate_connections", "Open connections.", &["listener"])];

/// Shows the open connections of the listeners.
pub(crate) fn connections(registry: &Registry, listeners: Vec<(String, Arc<Stats>)>) {
    registry.on_scrape(&CONNECTIONS, move |[connections]| {
        for (name, stats) in &listeners {
            connections.add(&[name], stats.counts().active as f64);
        }
    });
}

static DECISION_LOG: [Family; 1] = [Family::counter(
    "sluicegate_decision_log_dropped_total",
    "Lines that the decision log could not write in time.",
    &[],
)];

/// Shows the lines that the decision log dropped.
pub(crate) fn decision_log(registry: &Registry, log: DecisionLog) {
    registry.on_scrape(&DECISION_LOG, move |[dropped]| dropped.add(&[], log.dropped() as f64));
}

static TRACES: [Family; 2] = [
    Family::counter("sluicegate_trace_spans_exported_total", "Spans that the collector took.", &[]),
    Family::counter(
        "sluicegate_trace_spans_dropped_total",
        "Spans that were dropped: the queue was full, or the export failed.",
        &["reason"],
    ),
];

/// Shows the exported and the dropped spans.
pub(crate) fn traces(registry: &Registry, stats: Arc<ExportStats>) {
    registry.on_scrape(&TRACES, move |[exported, dropped]| {
        exported.add(&[], stats.exported() as f64);
        dropped.add(&["queue_full"], stats.queue_full() as f64);
        dropped.add(&["export_failed"], stats.failed() as f64);
    });
}

static STORE: [Family; 3] = [
    Family::gauge("sluicegate_store_keys", "Counters in the store.", &[]),
    Family::gauge(
        "sluicegate_store_overflow_keys",
        "Counters shared by keys that had no room for one each.",
        &[],
    ),
    Family::gauge(
        "sluicegate_store_records",
        "Open reservations and remembered ids in the store.",
        &[],
    ),
];

/// Shows the size of the memory store; all sizes are 0 for Redis.
pub(crate) fn store(registry: &Registry, service: Arc<Service>) {
    registry.on_scrape(&STORE, move |[keys, overflow, records]| {
        let size = service.limiter().store().memory().map(Memory::size).unwrap_or_default();
        keys.add(&[], size.keys as f64);
        overflow.add(&[], size.overflow as f64);
        records.add(&[], size.records as f64);
    });
}

static REDIS: [Family; 15] = [
    Family::gauge("sluicegate_redis_up", "1 if Redis is reachable.", &[]),
    Family::gauge(
        "sluicegate_redis_evicts",
        "1 if Redis may evict counters when its memory is full.",
        &[],
    ),
    Family::gauge(
        "sluicegate_redis_refuses_writes",
        "1 if Redis answers but refuses writes, by reason; every decision is refused then.",
        &["reason"],
    ),
    Family::counter(
        "sluicegate_redis_memory_losses_total",
        "Times that a Redis server lost its data, so that limits started again at zero.",
        &[],
    ),
    Family::gauge(
        "sluicegate_redis_nodes",
        "Limiter nodes seen recently, including this one.",
        &[],
    ),
    Family::gauge(
        "sluicegate_redis_taking_back",
        "Timed-out attempts that are being rolled back.",
        &[],
    ),
    Family::counter(
        "sluicegate_redis_not_taken_back_total",
        "Timed-out attempts that stay charged because too many were being rolled back.",
        &[],
    ),
    Family::counter(
        "sluicegate_redis_deny_cache_hits_total",
        "Denials from the cache, without a call to Redis.",
        &[],
    ),
    Family::counter(
        "rate_limiter_redis_calls_total",
        "Calls to Redis, without retries.",
        &["operation"],
    ),
    Family::counter(
        "rate_limiter_redis_errors_total",
        "Failed attempts to call Redis, by error type.",
        &["type", "operation"],
    ),
    Family::histogram(
        "rate_limiter_redis_latency_seconds",
        "Time until Redis answered, including retries.",
        &["operation"],
    ),
    Family::gauge(
        "sluicegate_redis_memory_bytes",
        "Memory that a Redis server uses, as it reports it.",
        &["server"],
    ),
    Family::gauge(
        "sluicegate_redis_memory_max_bytes",
        "Value of maxmemory of a Redis server; 0 is no maximum.",
        &["server"],
    ),
    Family::gauge(
        "sluicegate_redis_operations_per_second",
        "Commands per second of all clients of a Redis server, as it reports them.",
        &["server"],
    ),
    Family::counter(
        "sluicegate_redis_cpu_seconds_total",
        "Processor time of a Redis server, as it reports it.",
        &["server"],
    ),
];

/// Shows the state of the Redis store and its calls.
pub(crate) fn redis(registry: &Registry, redis: Arc<Redis>) {
    registry.on_scrape(&REDIS, move |families| {
        let [
            up,
            evicts,
            refuses,
            losses,
            nodes,
            pending,
            skipped,
            cached,
            calls,
            errors,
            took,
            memory,
            memory_max,
            operations,
            cpu,
        ] = families;
        for usage in redis.server_usage() {
            let server: &[&str] = &[&usage.server];
            memory.add(server, usage.memory_used as f64);
            memory_max.add(server, usage.memory_max as f64);
            operations.add(server, usage.operations_per_second as f64);
            cpu.add(server, usage.cpu_micros as f64 / 1e6);
        }
        up.add(&[], f64::from(redis.state() == ConnectionState::Up));
        evicts.add(&[], f64::from(redis.evicts()));
        let refusal = redis.refusal().map(|refusal| refusal.name());
        refuses.add(&[refusal.unwrap_or("none")], f64::from(refusal.is_some()));
        losses.add(&[], redis.losses() as f64);
        nodes.add(&[], f64::from(redis.nodes()));
        pending.add(&[], redis.pending_rollbacks() as f64);
        skipped.add(&[], redis.skipped_rollbacks() as f64);
        cached.add(&[], redis.denials_from_cache() as f64);
        for stats in redis.operation_stats() {
            let operation = stats.operation;
            let count = stats.took.iter().map(|&(_, calls)| calls).sum();
            if count == 0 {
                continue;
            }
            calls.add(&[operation], count as f64);
            for (kind, errors_of_kind) in stats.errors {
                errors.add(&[kind, operation], errors_of_kind as f64);
            }
            let finite = stats.took.into_iter().filter(|&(bound, _)| bound < u64::MAX);
            let buckets = finite.map(|(bound, calls)| (bound as f64 / 1e6, calls));
            took.add_histogram(&[operation], buckets, count, stats.micros as f64 / 1e6);
        }
    });
}

static QUEUES: [Family; 4] = [
    Family::gauge(
        "sluicegate_queue_depth",
        "Messages in a queue: ready, delayed, in flight, or dead letters. Dead letters in a queue \
         that several queues may share are counted once, under its own name.",
        &["queue", "state"],
    ),
    Family::gauge(
        "sluicegate_queue_oldest_seconds",
        "Age of the oldest message that is ready.",
        &["queue"],
    ),
    Family::counter(
        "sluicegate_queue_messages_total",
        "Messages that this process handled, by event.",
        &["queue", "event"],
    ),
    Family::histogram(
        "sluicegate_queue_processing_seconds",
        "Time until a message was acknowledged, by message type.",
        &["queue", "type"],
    ),
];

/// Shows the queues. Values that a broker does not report are absent.
pub(crate) fn queues(registry: &Registry, poller: DepthPoller) {
    let seconds = |span: Span| span.as_micros() as f64 / 1e6;
    registry.on_scrape(&QUEUES, move |[depths, oldest, messages, processing]| {
        let polled_queues = poller.lock();
        for (queue, count) in polled_queues.dead_counts() {
            depths.add(&[queue, "dead"], count as f64);
        }
        for polled in &polled_queues.queues {
            let (queue, depth) = (polled.queue.name(), polled.depth.unwrap_or_default());
            for (state, count) in [
                ("ready", polled.depth.map(|depth| depth.ready)),
                ("delayed", depth.delayed),
                ("in_flight", depth.in_flight),
            ] {
                if let Some(count) = count {
                    depths.add(&[queue, state], count as f64);
                }
            }
            if let Some(age) = depth.oldest {
                oldest.add(&[queue], seconds(age));
            }
            let stats = polled.queue.stats();
            for (event, count) in [
                ("sent", stats.sent),
                ("received", stats.received),
                ("acked", stats.acked),
                ("deferred", stats.deferred),
                ("retried", stats.retried),
                ("dead_lettered", stats.dead_lettered),
            ] {
                messages.add(&[queue, event], count as f64);
            }
            for (kind, took) in &stats.processing {
                let buckets =
                    ProcessingHistogram::BOUNDS.map(seconds).into_iter().zip(took.buckets);
                processing.add_histogram(&[queue, kind], buckets, took.count, seconds(took.sum));
            }
        }
    });
}

static QUEUE_CLIENTS: [Family; 2] = [
    Family::counter(
        "sluicegate_queue_api_messages_total",
        "Messages that clients of the queue API sent, received or settled, by event.",
        &["event"],
    ),
    Family::gauge(
        "sluicegate_queue_api_leases",
        "Messages that clients of the queue API have leased from this node.",
        &[],
    ),
];

/// Shows the clients of the queue API.
pub(crate) fn queue_clients(registry: &Registry, remote: Arc<RemoteQueues>) {
    registry.on_scrape(&QUEUE_CLIENTS, move |[messages, leases]| {
        let counts = remote.counts();
        let settled = LeaseActionKind::ALL.map(LeaseActionKind::name).into_iter();
        let others = [
            ("sent", counts.sent),
            ("received", counts.received),
            ("extended", counts.extended),
            ("lost", counts.lost),
        ];
        for (event, count) in others.into_iter().chain(settled.zip(counts.settled)) {
            messages.add(&[event], count as f64);
        }
        leases.add(&[], remote.open_leases() as f64);
    });
}

#[cfg(test)]
mod tests {
    use sluicegate_queue::{DeliveryTime, Embedded, Message, Options, Queue};

    use super::*;

    #[tokio::test]
    async fn queues_are_shown_by_state_event_and_type_of_work() {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Embedded::open(&folder.path().join("queue.db")).expect("a file");
        let queue = Queue::new(Arc::new(broker), "jobs", Options::default());
        queue.create().await.expect("created");
        for when in [DeliveryTime::Now, DeliveryTime::After(Span::from_secs(3_600))] {
            queue.send_at(Message::new("x").of_kind("crawl"), when).await.expect("sent");
        }
        let mut consumer = queue.consume(1).await.expect("a consumer");
        consumer.receive_one().await.expect("a job").ack().await.expect("acknowledged");
        let (registry, poller) = (Registry::default(), DepthPoller::default());
        poller.add([queue].into_iter());
        poller.poll().await;
        queues(&registry, poller);
        let shown = registry.render();
        for expected in [
            r#"sluicegate_queue_depth{queue="jobs",state="ready"} 0"#,
            r#"sluicegate_queue_depth{queue="jobs",state="delayed"} 1"#,
            r#"sluicegate_queue_depth{queue="jobs",state="dead"} 0"#,
            r#"sluicegate_queue_messages_total{queue="jobs",event="sent"} 2"#,
            r#"sluicegate_queue_messages_total{queue="jobs",event="acked"} 1"#,
            r#"sluicegate_queue_processing_seconds_bucket{queue="jobs",type="crawl",le="1800"} 1"#,
            r#"sluicegate_queue_processing_seconds_count{queue="jobs",type="crawl"} 1"#,
        ] {
            assert!(shown.lines().any(|line| line == expected), "{expected} in\n{shown}");
        }
    }
}

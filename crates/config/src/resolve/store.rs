//! Reads `store`: the store of the counters, in memory or in Redis.

use std::ops::RangeInclusive;

use sluicegate_core::Span;

use super::item::{Fields, Item};
use super::{redis, scalar};
use crate::config::{
    DataLossPolicy, RedisEndpoint, RedisStore, RedisTimeouts, RedisTopology, RedisWorkload,
    Sentinels, SnapshotFile, StoreOptions,
};
use crate::raw::Value;
use crate::report::Report;

const MEMORY: [&str; 4] = ["keys_max", "records_max", "snapshot", "overrides"];
const REDIS: [&str; 13] = [
    "url",
    "cluster",
    "sentinel",
    "timeout",
    "retries",
    "deadline",
    "nodes_max",
    "connections_max",
    "partition",
    "deny_cache",
    "key_prefix",
    "on_loss",
    "ttl_min",
];
/// Minimum and maximum time between two attempts.
const BACKOFF_MIN: Span = Span::from_millis(5);
pub(super) const BACKOFF_MAX: Span = Span::from_millis(10);

/// A store and the reason why it is used, for the log.
#[derive(Default)]
pub(crate) struct SelectedStore {
    pub(crate) options: StoreOptions,
    pub(crate) reason: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreKind {
    Memory,
    Redis,
    /// Redis if the section names a server, memory otherwise.
    Auto,
}

/// Reads the section `store`. `jobs` is true if the file has a dispatcher or workers.
pub(super) fn store(item: Item<'_>, jobs: bool, report: &mut Report) -> SelectedStore {
    let known: Vec<_> = ["kind"].into_iter().chain(MEMORY).chain(REDIS).collect();
    let Some(fields) = Fields::open(item, &known, report) else { return SelectedStore::default() };
    let kinds =
        [("memory", StoreKind::Memory), ("redis", StoreKind::Redis), ("auto", StoreKind::Auto)];
    let given = fields.get("kind");
    let kind = match &given {
        None => Some(StoreKind::Memory),
        Some(item) => scalar::word(item, report, &kinds),
    };
    // If a variable or `auto` chooses the kind, the file may contain the options of both kinds.
    let fixed = kind != Some(StoreKind::Auto)
        && given.is_none_or(|item| match &item.node.value {
            Value::Scalar(scalar) => scalar.is_literal(),
            _ => false,
        });
    let (kind, reason) = match kind {
        Some(StoreKind::Auto) if names_servers(&fields, report) => {
            (Some(StoreKind::Redis), "store.kind is auto and the section names a server")
        }
        Some(StoreKind::Auto) => {
            (Some(StoreKind::Memory), "store.kind is auto and the section names no server")
        }
        kind if fields.get("kind").is_some() => (kind, "store.kind"),
        kind => (kind, "the section store has no kind"),
    };
    let options = match kind {
        None => StoreOptions::default(),
        Some(StoreKind::Memory | StoreKind::Auto) => {
            if fixed {
                refuse(&fields, &REDIS, ("redis", "memory"), report);
            }
            memory(&fields, report)
        }
        Some(StoreKind::Redis) => {
            if fixed {
                refuse(&fields, &MEMORY, ("memory", "redis"), report);
            }
            StoreOptions::Redis(redis_store(&fields, jobs, report))
        }
    };
    SelectedStore { options, reason }
}

/// Reports options of the other kind, which would have no effect.
fn refuse(fields: &Fields<'_>, keys: &[&str], (other, this): (&str, &str), report: &mut Report) {
    for item in keys.iter().filter_map(|key| fields.get(key)) {
        let message = format!(
            "only stores of kind: {other} have this option, and this store is kind: {this}"
        );
        item.fail(report, message, "remove it, or change kind");
    }
}

fn memory(fields: &Fields<'_>, report: &mut Report) -> StoreOptions {
    let count =
        |item: &Item<'_>, report: &mut Report| scalar::count(item, report, 1..=1_000_000_000);
    StoreOptions::Memory {
        keys_max: fields.read("keys_max", StoreOptions::KEYS_MAX, report, count),
        records_max: fields.read("records_max", StoreOptions::RECORDS_MAX, report, count),
        snapshot: fields.read_some("snapshot", report, snapshot),
        overrides: fields.read_some("overrides", report, scalar::path),
    }
}

fn snapshot(item: &Item<'_>, report: &mut Report) -> Option<SnapshotFile> {
    let fields = Fields::open(item.clone(), &["path", "every"], report)?;
    let path = fields.require("path", "write the path of the snapshot file", report);
    let path = path.and_then(|path| scalar::path(&path, report));
    let every = fields.read("every", Span::from_secs(10), report, |item, report| {
        let remedy = "write at least 1s";
        scalar::span_from(item, report, Span::from_secs(1), remedy)
    });
    Some(SnapshotFile { path: path?, every })
}

fn redis_store(fields: &Fields<'_>, jobs: bool, report: &mut Report) -> RedisStore {
    let default = RedisStore::default();
    let span = |item: &Item<'_>, report: &mut Report| {
        let remedy = "write at least 1ms";
        scalar::span_from(item, report, Span::from_millis(1), remedy)
    };
    let number = |range: RangeInclusive<u64>| {
        |item: &Item<'_>, report: &mut Report| {
            scalar::whole(item, report, range).and_then(|n| u32::try_from(n).ok())
        }
    };
    let store = RedisStore {
        topology: topology(fields, report).unwrap_or(default.topology),
        timeout: fields.read_some("timeout", report, span),
        retries: fields.read("retries", default.retries, report, number(0..=5)),
        deadline: fields.read_some("deadline", report, span),
        nodes_max: fields.read("nodes_max", default.nodes_max, report, number(1..=10_000)),
        connections_max: fields.read_some("connections_max", report, number(1..=10_000)),
        partition: fields.read_some("partition", report, super::dimensions::name),
        deny_cache: fields.read("deny_cache", default.deny_cache, report, deny_cache),
        key_prefix: fields.read("key_prefix", default.key_prefix, report, key_prefix),
        on_loss: fields.read("on_loss", default.on_loss, report, |item, report| {
            scalar::word(item, report, &DataLossPolicy::ALL)
        }),
        ttl_min: fields.read("ttl_min", default.ttl_min, report, scalar::span),
    };
    check_deadline(fields, &store, jobs, report);
    check_connections(fields, &store, report);
    store
}

/// Reports a maximum below the number of listed servers: a node needs one connection to each
/// server.
fn check_connections(fields: &Fields<'_>, store: &RedisStore, report: &mut Report) {
    let RedisTopology::Cluster(servers) = &store.topology else { return };
    let Some(item) = fields.get("connections_max") else { return };
    if store.connections_max.is_some_and(|most| servers.len() > most as usize) {
        let message = format!("fewer connections than the {} listed servers", servers.len());
        item.fail(
            report,
            message,
            "write at least the number of servers, a node needs one connection to each",
        );
    }
}

fn topology(fields: &Fields<'_>, report: &mut Report) -> Option<RedisTopology> {
    let [url, cluster, sentinel] = ["url", "cluster", "sentinel"].map(|key| fields.get(key));
    let is_list = |item: &Item<'_>| matches!(item.node.value, Value::List(_));
    let in_cluster = match cluster.as_ref().filter(|item| !is_list(item)) {
        // After a mistake, url may name several servers.
        Some(item) => is_in_cluster(item, report).unwrap_or(sentinel.is_none()),
        None => false,
    };
    let cluster = cluster.filter(|item| is_list(item) || in_cluster && sentinel.is_some());
    let given: Vec<_> = [("url", &url), ("cluster", &cluster), ("sentinel", &sentinel)]
        .into_iter()
        .filter_map(|(key, item)| Some((key, item.as_ref()?)))
        .collect();
    if let [(first, _), (_, item), ..] = &given[..] {
        let message = format!("both {first} and this option name the Redis servers");
        item.fail(report, message, "remove one of them");
    }
    if let Some(item) = sentinel {
        return self::sentinel(&item, report);
    }
    if let Some(item) = cluster {
        return Some(RedisTopology::Cluster(servers(&item, report)?));
    }
    match (url, in_cluster) {
        (Some(item), true) => Some(RedisTopology::Cluster(redis::addresses(&item, report)?)),
        (None, true) => Some(RedisTopology::Cluster(vec![RedisStore::default_server()])),
        (Some(item), false) => Some(RedisTopology::Single(redis::address(&item, report)?)),
        (None, false) => Some(RedisTopology::Single(RedisStore::default_server())),
    }
}

/// Returns true if the section names a Redis server. Reports `cluster: true` without one.
fn names_servers(fields: &Fields<'_>, report: &mut Report) -> bool {
    let named = |key: &str| fields.get(key).is_some();
    if named("url") || named("sentinel") {
        return true;
    }
    let Some(item) = fields.get("cluster") else { return false };
    let Value::Scalar(scalar) = &item.node.value else { return true };
    if redis::cluster_mode(scalar.text()) == Some(true) {
        let remedy = "write url with one or more of its servers, separated by commas";
        item.fail(report, "a cluster without a server", remedy);
    }
    // A text other than true and false is reported where the servers are read.
    redis::cluster_mode(scalar.text()).is_none()
}

/// Reads `cluster: true`, which means that the servers of `url` belong to a cluster.
fn is_in_cluster(item: &Item<'_>, report: &mut Report) -> Option<bool> {
    let form = "write a list of servers, or true if the server of url belongs to a cluster";
    let mode = redis::cluster_mode(item.scalar(report, form)?.text());
    if mode.is_none() {
        item.fail(report, "neither a list nor a boolean", form);
    }
    mode
}

fn sentinel(item: &Item<'_>, report: &mut Report) -> Option<RedisTopology> {
    let fields = Fields::open(item.clone(), &["master", "nodes", "username", "password"], report)?;
    let master = fields.require(
        "master",
        "write the name of the master that the sentinels monitor, such as mymaster",
        report,
    );
    let nodes = fields.require("nodes", "write a list of sentinels, such as [host:26379]", report);
    let master = master.and_then(|master| scalar::text(&master, report));
    let nodes = nodes.and_then(|nodes| servers(&nodes, report));
    let username = fields.read_some("username", report, scalar::text);
    let password = fields.read_some("password", report, scalar::text);
    let (master, nodes) = (master?, nodes?);
    // Encryption and database of the first sentinel apply to the master, too.
    let first = nodes.first().cloned().unwrap_or_else(RedisStore::default_server);
    let login = RedisEndpoint { username, password, ..first };
    Some(RedisTopology::Sentinel(Sentinels { master, nodes, login }))
}

fn servers(item: &Item<'_>, report: &mut Report) -> Option<Vec<RedisEndpoint>> {
    let items = item.list(report, "write a list of servers, such as [redis://10.0.0.1:6379]")?;
    if items.is_empty() {
        item.fail(report, "empty list of servers", "write at least one server");
    }
    Some(items.iter().filter_map(|item| redis::address(item, report)).collect())
}

fn deny_cache(item: &Item<'_>, report: &mut Report) -> Option<Span> {
    let form = "write a time span of at most 1s, or 0 for no cache";
    if item.scalar(report, form)?.text().trim() == "0" {
        return Some(Span::ZERO);
    }
    let span = scalar::span(item, report)?;
    if span > RedisStore::DENY_CACHE_MAX {
        item.fail(report, "longer than 1s", form);
        return None;
    }
    Some(span)
}

fn key_prefix(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let scalar = item.scalar(report, "write a text, such as \"sg:\"")?;
    let allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}');
    if scalar.text().len() > 64 || !scalar.text().chars().all(allowed) {
        // In a cluster, braces in the prefix would put all keys into one slot.
        let remedy = "write at most 64 ASCII letters, digits and signs other than { and }";
        item.fail(report, format!("{} is not a valid key prefix", scalar.describe()), remedy);
        return None;
    }
    Some(scalar.text().to_owned())
}

/// Warns if the attempts don't fit into the deadline, because the last ones would never be made. A
/// file with jobs may also be used by processes without jobs, so both workloads are checked.
fn check_deadline(fields: &Fields<'_>, store: &RedisStore, jobs: bool, report: &mut Report) {
    let item = ["deadline", "timeout", "retries"].into_iter().find_map(|key| fields.get(key));
    let location = item.map_or_else(|| fields.location(), |item| item.location());
    let exceeds = |workload| {
        let RedisTimeouts { timeout, deadline } = store.timeouts(workload);
        let waits = u64::from(store.retries) * BACKOFF_MIN.as_micros();
        let attempts = (u64::from(store.retries) + 1).saturating_mul(timeout.as_micros());
        Span::from_micros(attempts.saturating_add(waits)) > deadline
    };
    let cut_off =
        "all attempts together take longer than the deadline, so the last ones are cut off";
    let message = match (exceeds(RedisWorkload::Requests), jobs && exceeds(RedisWorkload::Jobs)) {
        (false, false) => return,
        (true, false) if jobs => format!("in a process without jobs, {cut_off}"),
        (false, true) => format!("in a process with a dispatcher or workers, {cut_off}"),
        _ => cut_off.to_owned(),
    };
    let remedy = "raise deadline, or lower timeout or retries; attempts are at least 5 ms apart";
    report.warning(&location, &message, remedy);
}

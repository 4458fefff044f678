//! [`StoreOptions`]: options of the store that keeps the counters, in memory or in Redis.

use std::fmt;
use std::path::PathBuf;

use sluicegate_core::Span;
use sluicegate_core::outage::DataLossPolicy;
use sluicegate_store::{RedisEndpoint, RedisTopology};

/// Options of the store that keeps the counters. Default: in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOptions {
    /// Memory of this process.
    Memory {
        /// Maximum number of counters; beyond it, new keys share one counter. Default: 2,000,000,
        /// about 200 MB.
        keys_max: usize,
        /// Maximum number of open reservations and remembered request ids. Default: 200,000.
        records_max: usize,
        /// File that counters are written to, so that they survive a restart. Default: none.
        snapshot: Option<SnapshotFile>,
        /// File that overrides are written to, so that they survive a restart. Default: none.
        overrides: Option<PathBuf>,
    },
    /// Redis, shared by all nodes.
    Redis(RedisStore),
}

impl StoreOptions {
    pub(crate) const KEYS_MAX: usize = 2_000_000;
    pub(crate) const RECORDS_MAX: usize = 200_000;
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::Memory {
            keys_max: Self::KEYS_MAX,
            records_max: Self::RECORDS_MAX,
            snapshot: None,
            overrides: None,
        }
    }
}

/// A file that holds a snapshot of all counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Interval between two snapshots; one is also written on shutdown. Default: 10s; requests
    /// admitted after the last snapshot may be admitted again after a crash.
    pub every: Span,
}

/// Options of the Redis store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisStore {
    /// Servers. Default: redis://127.0.0.1:6379.
    pub topology: RedisTopology,
    /// Timeout of one attempt. Default: depends on the workload, see [`RedisStore::timeouts`].
    pub timeout: Option<Span>,
    /// Number of retries, 5 to 10 ms apart. Default: 1.
    pub retries: u32,
    /// Maximum time of a whole decision; the last attempt gets the remaining time. Default: depends
    /// on the workload.
    pub deadline: Option<Span>,
    /// Maximum number of limiter nodes that run at the same time. The share of each node while
    /// Redis is unavailable depends on it. Default: 4.
    pub nodes_max: u32,
    /// Maximum number of servers that a node keeps a connection to, one each; further servers are
    /// not used. Default: no maximum.
    pub connections_max: Option<u32>,
    /// Dimension that decides the cluster slot of a key: rules that count by it are decided in one
    /// round trip. Default: none.
    pub partition: Option<String>,
    /// Time for which a node repeats a denial without asking Redis. Default: 1s, which is also
    /// the maximum; 0 turns it off.
    pub deny_cache: Span,
    /// Prefix of every key. Default: `sg:`, so that other programs can use the same server.
    pub key_prefix: String,
    /// Reaction to a server that has lost its data. Default: continue.
    pub on_loss: DataLossPolicy,
    /// Minimum lifetime of a counter in Redis after its last use. Default: 0; every counter lives for
    /// two of its windows.
    pub ttl_min: Span,
}

impl RedisStore {
    /// A longer cache would deny requests after capacity was released.
    pub(crate) const DENY_CACHE_MAX: Span = Span::from_secs(1);

    /// Returns the server that is used if the file names none.
    pub(crate) fn default_server() -> RedisEndpoint {
        RedisEndpoint::at("127.0.0.1", 6_379)
    }

    /// Creates the store. It connects in the background, on the current Tokio runtime, and
    /// reconnects when needed.
    #[cfg(feature = "redis")]
    pub fn open(&self, workload: RedisWorkload) -> sluicegate_store::Redis {
        use sluicegate_store::redis::{Options, Redis, RetryPolicy};
        let timeouts = self.timeouts(workload);
        Redis::new(Options {
            topology: self.topology.clone(),
            key_prefix: self.key_prefix.clone(),
            retry: RetryPolicy {
                timeout: timeouts.timeout.into(),
                retries: self.retries,
                deadline: timeouts.deadline.into(),
            },
            deny_cache: self.deny_cache.into(),
            connections_max: self.connections_max.map(|most| most as usize),
            on_loss: self.on_loss,
            ttl_min: self.ttl_min.into(),
        })
    }

    /// Returns the timeouts for a process with this workload.
    pub fn timeouts(&self, workload: RedisWorkload) -> RedisTimeouts {
        let default = match workload {
            RedisWorkload::Requests => (Span::from_millis(20), Span::from_millis(45)),
            RedisWorkload::Jobs => (Span::from_millis(500), Span::from_millis(1_500)),
        };
        RedisTimeouts {
            timeout: self.timeout.unwrap_or(default.0),
            deadline: self.deadline.unwrap_or(default.1),
        }
    }
}

/// The kind of work for which a process uses Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisWorkload {
    /// Requests whose clients wait for the decision: 20 and 45 ms, well above what a healthy server
    /// needs.
    Requests,
    /// Messages that are dispatched or processed: 500 and 1500 ms. Hundreds of them ask Redis at
    /// the same time and can wait for each other, and giving up too early costs them more.
    Jobs,
}

/// Timeouts of Redis calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisTimeouts {
    /// Timeout of one attempt.
    pub timeout: Span,
    /// Maximum time of a whole decision.
    pub deadline: Span,
}

impl Default for RedisStore {
    fn default() -> Self {
        Self {
            topology: RedisTopology::Single(Self::default_server()),
            timeout: None,
            retries: 1,
            deadline: None,
            nodes_max: 4,
            connections_max: None,
            partition: None,
            deny_cache: Self::DENY_CACHE_MAX,
            key_prefix: "sg:".to_owned(),
            on_loss: DataLossPolicy::default(),
            ttl_min: Span::ZERO,
        }
    }
}

/// A text that is not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text, for code that has to send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

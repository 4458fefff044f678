//! Where usage is kept.

use std::fmt;
use std::path::PathBuf;

use sluicegate_core::Span;

/// Where usage is kept. Default: in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In the memory of this process.
    Memory {
        /// The most counters; new names share one when it is reached. Default: 2,000,000, about
        /// 200 MB.
        keys_max: usize,
        /// The most open reservations and remembered ids. Default: 200,000.
        records_max: usize,
        /// Where usage is written so that it survives a restart. Default: nowhere.
        snapshot: Option<SnapshotFile>,
        /// Where overrides are written so that they survive a restart. Default: nowhere.
        overrides: Option<PathBuf>,
    },
    /// In Redis, shared by all nodes.
    Redis(RedisStore),
}

impl Store {
    pub(crate) const KEYS_MAX: usize = 2_000_000;
    pub(crate) const RECORDS_MAX: usize = 200_000;
}

impl Default for Store {
    fn default() -> Self {
        Self::Memory {
            keys_max: Self::KEYS_MAX,
            records_max: Self::RECORDS_MAX,
            snapshot: None,
            overrides: None,
        }
    }
}

/// A file of usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// The file.
    pub path: PathBuf,
    /// How often it is written, besides on shutdown. Default: 10s; what was admitted since may be
    /// admitted again after a crash.
    pub every: Span,
}

/// How Redis is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisStore {
    /// Which servers. Default: redis://127.0.0.1:6379.
    pub topology: RedisTopology,
    /// How long one attempt may take. Default: by what the process does.
    pub timeout: Option<Span>,
    /// How often a failed attempt is repeated, after 5 to 10 ms. Default: 1.
    pub retries: u32,
    /// How long a whole decision may take; the last attempt gets what is left. Default: by what the
    /// process does.
    pub deadline: Option<Span>,
    /// The most limiter nodes that are ever up at the same time: the share of each while Redis
    /// does not answer depends on it. Default: 4.
    pub nodes_max: u32,
    /// The most servers that a node keeps a connection to, one each; a server beyond that is not
    /// asked. Default: as many as there are.
    pub connections_max: Option<u32>,
    /// The dimension by which keys are spread over a cluster: the rules that count by it are
    /// decided in one round trip. Default: none.
    pub partition: Option<String>,
    /// How long a denial is repeated without asking Redis. Default: 1s, which is also the most; 0 for
    /// never.
    pub deny_cache: Span,
    /// What every key begins with. Default: `sg:`, so that one server can serve others, too.
    pub key_prefix: String,
    /// What happens when a server has lost its memory. Default: continue.
    pub on_loss: OnLoss,
}

/// What happens when a Redis server has lost its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Limits begin anew.
    #[default]
    Continue,
    /// Each rule is closed for its own window.
    Closed,
}

impl RedisStore {
    /// Longer than that, capacity that was given back would be missed.
    pub(crate) const DENY_CACHE_MAX: Span = Span::from_secs(1);

    /// How long Redis is waited for in a process that does this.
    pub fn waits(&self, asking: Asking) -> Waits {
        let default = match asking {
            Asking::Requests => (Span::from_millis(20), Span::from_millis(45)),
            Asking::Jobs => (Span::from_millis(500), Span::from_millis(1_500)),
        };
        Waits {
            timeout: self.timeout.unwrap_or(default.0),
            deadline: self.deadline.unwrap_or(default.1),
        }
    }
}

/// On whose behalf a process asks Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Somebody waits for the answer: 20 and 45 ms, well above what a healthy server needs.
    Requests,
    /// Messages are dispatched or worked on: hundreds of them ask in the same moment, and can wait
    /// for each other. What is given up too early costs them more: 500 and 1500 ms.
    Jobs,
}

/// How long Redis is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// For one attempt.
    pub timeout: Span,
    /// For a whole decision.
    pub deadline: Span,
}

impl Default for RedisStore {
    fn default() -> Self {
        Self {
            topology: RedisTopology::Single(RedisAddress::default()),
            timeout: None,
            retries: 1,
            deadline: None,
            nodes_max: 4,
            connections_max: None,
            partition: None,
            deny_cache: Self::DENY_CACHE_MAX,
            key_prefix: "sg:".to_owned(),
            on_loss: OnLoss::default(),
        }
    }
}

/// Which servers make up a Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisTopology {
    /// One.
    Single(RedisAddress),
    /// A cluster, found through any of these.
    Cluster(Vec<RedisAddress>),
    /// The current master, asked of these sentinels.
    Sentinel {
        /// What the sentinels call the master.
        master: String,
        /// The sentinels, each with its own login. Encryption and database of the first are those
        /// of the master, too.
        nodes: Vec<RedisAddress>,
        /// Who logs in to the master. Default: its default user.
        username: Option<String>,
        /// The password of the master. Default: none.
        password: Option<Secret>,
    },
}

/// A Redis server and how to log in to it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The port. Default: 6379.
    pub port: u16,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Who logs in. Default: the server's default user.
    pub username: Option<String>,
    /// The password. Default: none.
    pub password: Option<Secret>,
    /// The number of the database. Default: 0.
    pub db: u32,
}

impl Default for RedisAddress {
    fn default() -> Self {
        let host = "127.0.0.1".to_owned();
        Self { host, port: 6_379, tls: false, username: None, password: None, db: 0 }
    }
}

/// The address may come from a variable as a whole, and then any part of it may be where somebody
/// put a password by mistake.
impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisAddress(…)")
    }
}

/// A text that does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text from being printed.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever has to send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

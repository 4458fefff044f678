//! [`RedisCluster`]: a private Redis Cluster for tests.

use super::{RedisServer, RedisTls, Version};
use crate::ports::free_port;
use crate::wait::eventually;

const SLOTS: usize = 16_384;

/// A cluster of primaries that share the slots, and optional replicas.
#[derive(Debug)]
pub struct RedisCluster {
    /// Primaries, in the order of their slots.
    pub primaries: Vec<RedisServer>,
    /// One replica per primary, or none.
    pub replicas: Vec<RedisServer>,
    /// Folder of the servers' cluster configuration files.
    _folder: tempfile::TempDir,
}

/// The setup of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions<'a> {
    /// Version of the server program.
    pub version: Version,
    /// Number of primaries.
    pub primaries: usize,
    /// True if each primary has a replica, which takes over after one second without an answer.
    pub replicated: bool,
    /// Certificate for TLS between the servers; `None` uses plain TCP.
    pub tls: Option<RedisTls<'a>>,
    /// Additional options of each server.
    pub more: &'a [&'a str],
}

impl Default for ClusterOptions<'_> {
    fn default() -> Self {
        Self { version: Version::System, primaries: 3, replicated: false, tls: None, more: &[] }
    }
}

impl RedisCluster {
    /// Starts a cluster without replicas.
    pub fn start(primaries: usize) -> Self {
        Self::start_with(ClusterOptions { primaries, ..ClusterOptions::default() })
    }

    /// Starts a cluster with one replica per primary.
    pub fn start_replicated(primaries: usize) -> Self {
        let replicated = true;
        Self::start_with(ClusterOptions { primaries, replicated, ..ClusterOptions::default() })
    }

    /// Starts a cluster with these options.
    pub fn start_with(options: ClusterOptions<'_>) -> Self {
        let ClusterOptions { version, primaries, replicated, tls, more } = options;
        let folder = tempfile::tempdir().expect("a folder");
        let start = || {
            let (port, bus) = ports(version);
            let (known, bus_text) = (format!("nodes-{port}.conf"), bus.to_string());
            let dir = folder.path().to_str().expect("a path that is text");
            let mut options = vec![
                ("--cluster-enabled", "yes"),
                ("--cluster-config-file", &known),
                ("--cluster-node-timeout", "1000"),
                ("--cluster-replica-validity-factor", "0"),
                ("--repl-diskless-sync-delay", "0"),
                ("--dir", dir),
            ];
            if version != Version::V6_2 {
                options.push(("--cluster-port", &bus_text));
            }
            if tls.is_some() {
                options.push(("--tls-cluster", "yes"));
            }
            let options = options.into_iter().flat_map(|(name, value)| [name, value]);
            let options: Vec<_> = options.chain(more.iter().copied()).collect();
            (RedisServer::start_on(port, version, tls, &options), bus)
        };
        let all: Vec<_> = (0..primaries * (1 + usize::from(replicated))).map(|_| start()).collect();
        let first = &all[0].0;
        for (number, (server, bus)) in all.iter().enumerate() {
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            let port = server.tls_port.unwrap_or(server.port).to_string();
            first.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus.to_string()]);
        }
        let mut servers: Vec<_> = all.into_iter().map(|(server, _)| server).collect();
        let replicas = servers.split_off(primaries);
        for (number, server) in servers.iter().enumerate() {
            let [from, to] = [number, number + 1].map(|n| n * SLOTS / primaries);
            // One by one: 6.2 does not support ranges.
            let slots: Vec<_> = (from..to).map(|slot| slot.to_string()).collect();
            let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
            server.command(&words.collect::<Vec<_>>());
        }
        let cluster = Self { primaries: servers, replicas, _folder: folder };
        for (primary, replica) in cluster.primaries.iter().zip(&cluster.replicas) {
            let id = id(primary);
            eventually(|| replica.command(&["CLUSTER", "REPLICATE", &id]).starts_with("+OK"));
        }
        cluster.wait_until_whole();
        cluster
    }

    fn wait_until_whole(&self) {
        for server in self.primaries.iter().chain(&self.replicas) {
            eventually(|| {
                let info = server.command(&["CLUSTER", "INFO"]);
                let known =
                    format!("cluster_known_nodes:{}", self.primaries.len() + self.replicas.len());
                info.contains("cluster_state:ok") && info.contains(&known)
            });
        }
        for replica in &self.replicas {
            eventually(|| {
                replica.command(&["INFO", "replication"]).contains("master_link_status:up")
            });
        }
    }

    /// Moves a slot from one primary to another, key by key, as an operator would.
    pub fn migrate(&self, slot: u16, from: usize, to: usize) {
        let (from, to) = (&self.primaries[from], &self.primaries[to]);
        let (slot, port) = (slot.to_string(), to.port.to_string());
        let ok = |answer: String| assert!(answer.starts_with("+OK"), "{answer}");
        ok(to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]));
        ok(from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]));
        loop {
            let listed = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
            // The reply is an array of strings, each after a line with its length.
            let keys: Vec<_> = listed.split("\r\n").skip(2).step_by(2).collect();
            if keys.is_empty() {
                break;
            }
            let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            let answer = from.command(&head.into_iter().chain(keys).collect::<Vec<_>>());
            assert!(answer.starts_with('+'), "{answer}");
        }
        let owner = id(to);
        for server in [to, from].into_iter().chain(&self.primaries) {
            ok(server.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &owner]));
        }
    }
}

/// Returns a client port and a cluster bus port. Before version 7 the bus port is fixed.
fn ports(version: Version) -> (u16, u16) {
    if version != Version::V6_2 {
        return (free_port(), free_port());
    }
    loop {
        let port = free_port();
        if let Some(bus) = port.checked_add(10_000)
            && std::net::TcpListener::bind(("127.0.0.1", bus)).is_ok()
        {
            return (port, bus);
        }
    }
}

/// Returns the node id of a server.
fn id(server: &RedisServer) -> String {
    let answer = server.command(&["CLUSTER", "MYID"]);
    answer.split("\r\n").nth(1).expect("an id").to_owned()
}

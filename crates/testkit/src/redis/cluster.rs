//! A private Redis Cluster.

use std::time::Duration;

use super::{RedisServer, Version, free_port};

const SLOTS: usize = 16_384;

/// A cluster: primaries that share the slots, and replicas of each.
#[derive(Debug)]
pub struct RedisCluster {
    /// The primaries, in the order of their slots.
    pub primaries: Vec<RedisServer>,
    /// A replica of each, or none.
    pub replicas: Vec<RedisServer>,
    /// Where the servers keep what they know of each other.
    _folder: tempfile::TempDir,
}

impl RedisCluster {
    /// Primaries without replicas.
    pub fn start(primaries: usize) -> Self {
        Self::with_replicas(primaries, false)
    }

    /// Every primary with a replica, which takes over when it does not answer for a second.
    pub fn start_replicated(primaries: usize) -> Self {
        Self::with_replicas(primaries, true)
    }

    fn with_replicas(primaries: usize, replicated: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let start = || {
            let (port, bus) = (free_port(), free_port().to_string());
            let known = format!("nodes-{port}.conf");
            let dir = folder.path().to_str().expect("a path that is text");
            let options = [
                ("--cluster-enabled", "yes"),
                ("--cluster-config-file", &known),
                ("--cluster-port", &bus),
                ("--cluster-node-timeout", "1000"),
                ("--cluster-replica-validity-factor", "0"),
                ("--repl-diskless-sync-delay", "0"),
                ("--dir", dir),
            ];
            let options: Vec<_> =
                options.into_iter().flat_map(|(name, value)| [name, value]).collect();
            let server = RedisServer::start_on(port, Version::System, &options);
            (server, bus)
        };
        let all: Vec<_> = (0..primaries * (1 + usize::from(replicated))).map(|_| start()).collect();
        let first = &all[0].0;
        for (number, (server, bus)) in all.iter().enumerate() {
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            first.command(&["CLUSTER", "MEET", "127.0.0.1", &server.port.to_string(), bus]);
        }
        let mut servers: Vec<_> = all.into_iter().map(|(server, _)| server).collect();
        let replicas = servers.split_off(primaries);
        for (number, server) in servers.iter().enumerate() {
            let [from, to] = [number, number + 1].map(|n| n * SLOTS / primaries);
            let range = [from.to_string(), (to - 1).to_string()];
            server.command(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
        }
        let cluster = Self { primaries: servers, replicas, _folder: folder };
        for (primary, replica) in cluster.primaries.iter().zip(&cluster.replicas) {
            let id = id(primary);
            until("the servers have met", || {
                replica.command(&["CLUSTER", "REPLICATE", &id]).starts_with("+OK")
            });
        }
        cluster.wait_until_whole();
        cluster
    }

    fn wait_until_whole(&self) {
        for server in self.primaries.iter().chain(&self.replicas) {
            until("the cluster is whole", || {
                let info = server.command(&["CLUSTER", "INFO"]);
                let known =
                    format!("cluster_known_nodes:{}", self.primaries.len() + self.replicas.len());
                info.contains("cluster_state:ok") && info.contains(&known)
            });
        }
        for replica in &self.replicas {
            until("the replicas follow", || {
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
            // An array of texts, each behind a line with its length.
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

/// What a server is called by the others.
fn id(server: &RedisServer) -> String {
    let answer = server.command(&["CLUSTER", "MYID"]);
    answer.split("\r\n").nth(1).expect("an id").to_owned()
}

/// Nothing tells when servers have agreed but the servers.
pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("waited too long until {what}");
}

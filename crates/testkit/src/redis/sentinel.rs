//! [`RedisSentinel`]: a private primary and replica with sentinels, for tests.

use super::{RedisServer, RedisTls, Version};
use crate::ports::free_port;
use crate::wait::eventually;

/// Name of the master in the sentinels.
pub const MASTER: &str = "limits";

/// A primary, its replica, and three sentinels that fail over between them.
#[derive(Debug)]
pub struct RedisSentinel {
    /// Server that is the primary at the start.
    pub primary: RedisServer,
    /// Server that is the replica at the start.
    pub replica: RedisServer,
    /// Sentinels.
    pub sentinels: Vec<RedisServer>,
    _folder: tempfile::TempDir,
}

impl RedisSentinel {
    /// Starts all servers and waits until they know each other.
    pub fn start() -> Self {
        Self::start_with(None, &[], "")
    }

    /// Starts all servers, with TLS if `tls` is given, with `more` options of the servers and
    /// `rules` in the configuration of the sentinels.
    pub fn start_with(tls: Option<RedisTls<'_>>, more: &[&str], rules: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // A replica writes the initial copy to a file.
        let dir = folder.path().to_str().expect("a path that is text");
        let options = [&["--repl-diskless-sync-delay", "0", "--dir", dir], more].concat();
        let start =
            |options: &[&str]| RedisServer::start_on(free_port(), Version::System, tls, options);
        let primary = start(&options);
        let port = primary.tls_port.unwrap_or(primary.port).to_string();
        let replica = start(&[&options[..], &["--replicaof", "127.0.0.1", &port]].concat());
        eventually(|| replica.command(&["INFO", "replication"]).contains("master_link_status:up"));
        let sentinels: Vec<_> = (0..3)
            .map(|number| {
                let file = folder.path().join(format!("sentinel-{number}.conf"));
                let text = format!(
                    "sentinel monitor {MASTER} 127.0.0.1 {port} 2\n\
                     sentinel down-after-milliseconds {MASTER} 500\n\
                     sentinel failover-timeout {MASTER} 2000\n{rules}"
                );
                std::fs::write(&file, text).expect("a file");
                RedisServer::start_sentinel(free_port(), &file, tls)
            })
            .collect();
        for sentinel in &sentinels {
            eventually(|| {
                let known = sentinel.command(&["SENTINEL", "MASTER", MASTER]);
                let field = |name: &str, value: &str| {
                    let mut words = known.split("\r\n").skip_while(|word| *word != name);
                    words.nth(2) == Some(value)
                };
                field("num-other-sentinels", "2") && field("num-slaves", "1")
            });
        }
        Self { primary, replica, sentinels, _folder: folder }
    }
}

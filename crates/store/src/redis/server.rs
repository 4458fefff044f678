//! Connects to one Redis server. [`ServerInfo`] is what the store reads from it then.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, FromRedisValue, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisError,
};
use tokio::time::timeout;

use super::failure::WriteRefusal;
use super::script::{ScriptHead, ScriptKind, Scripts};
pub(super) use crate::redis_servers::RedisEndpoint;

/// Address of a server in a cluster or behind sentinels: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ServerAddress {
    pub(super) host: String,
    pub(super) port: u16,
}

impl ServerAddress {
    /// Parses an address that a server reported. A server that does not know its own host leaves
    /// the host out; `queried_host` is used instead.
    pub(super) fn read(text: &str, queried_host: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self::new(host, port.parse().ok()?, queried_host))
    }

    pub(super) fn new(host: &str, port: u16, queried_host: &str) -> Self {
        let host = if matches!(host, "" | "?") { queried_host } else { host };
        Self { host: host.to_owned(), port }
    }
}

/// Timeout for reading the eviction policy, which no request waits for.
const POLICY_TIMEOUT: Duration = Duration::from_secs(1);

/// Properties of a server that the store needs before its first call.
#[derive(Debug)]
pub(super) struct ServerInfo {
    pub(super) version: String,
    /// The major version.
    pub(super) major: u64,
    /// Id of the server process; a restart changes it.
    pub(super) run_id: String,
    /// Set if the server keeps an append-only file, so that a restart loses nothing.
    pub(super) appends: bool,
    /// The eviction policy (`maxmemory-policy`).
    pub(super) eviction_policy: String,
    pub(super) scripts: Scripts,
}

/// A reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("no reply in time")]
    NoReply,
    #[error("{0}")]
    Unsuitable(String),
    #[error("the server refuses writes: {1}")]
    RefusesWrites(WriteRefusal, String),
}

impl ConnectError {
    /// Converts an error of Redis into a refusal of writes, if it is one.
    pub(super) fn or_refusal(self) -> Self {
        match &self {
            Self::Redis(error) => match WriteRefusal::of(error) {
                Some(refusal) => Self::RefusesWrites(refusal, error.to_string()),
                None => self,
            },
            _ => self,
        }
    }
}

impl RedisEndpoint {
    /// Returns another server with the same login.
    pub(super) fn with_address(&self, address: &ServerAddress) -> Self {
        Self { host: address.host.clone(), port: address.port, ..self.clone() }
    }

    /// Connects and reads the properties of the server. `reply_timeout` is the timeout of each reply.
    ///
    /// A server that accepts connections but does not answer counts as unreachable.
    pub(super) async fn connect(
        &self,
        script_head: &ScriptHead,
        reply_timeout: Duration,
    ) -> Result<(MultiplexedConnection, ServerInfo), ConnectError> {
        let mut connection = self.dial().await?;
        // Longer than the timeout of a decision, because the server has to load the scripts once
        // per connection.
        let reply_timeout = reply_timeout * 5;
        let info: String = query(&mut connection, &redis::cmd("INFO"), reply_timeout).await?;
        let info = ServerInfo::read(&info, script_head);
        for which in [ScriptKind::Fast, ScriptKind::Full] {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&info.scripts.get(which).text);
            let _: String = query(&mut connection, &load, reply_timeout).await?;
        }
        Ok((connection, info))
    }

    /// Connects and logs in.
    pub(super) async fn dial(&self) -> Result<MultiplexedConnection, ConnectError> {
        let client =
            Client::open(self.address().into_connection_info()?.set_redis_settings(self.login()))?;
        // The store has its own timeouts and retries, because a retry has to be marked as one.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    fn address(&self) -> ConnectionAddr {
        let (host, port) = (self.host.clone(), self.port);
        if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    fn login(&self) -> RedisConnectionInfo {
        let mut login =
            RedisConnectionInfo::default().set_db(self.db.into()).set_skip_set_lib_name();
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        login
    }
}

/// Sends one command and waits for its reply, with a timeout.
pub(super) async fn query<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    reply_timeout: Duration,
) -> Result<T, ConnectError> {
    let reply = timeout(reply_timeout, command.query_async(connection)).await;
    Ok(reply.map_err(|_| ConnectError::NoReply)??)
}

impl ServerInfo {
    fn read(info: &str, script_head: &ScriptHead) -> Self {
        let version = field(info, "redis_version").unwrap_or("0").to_owned();
        let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        Self {
            scripts: Scripts::new(script_head, major),
            version,
            major,
            run_id: field(info, "run_id").unwrap_or("unknown").to_owned(),
            // A server that does not report it causes no warning.
            appends: field(info, "aof_enabled") != Some("0"),
            eviction_policy: policy_in(info),
        }
    }
}

/// Memory and load of a Redis server, as it reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUsage {
    /// Host and port.
    pub server: String,
    /// Memory in use, in bytes.
    pub memory_used: u64,
    /// Value of `maxmemory` in bytes; 0 is no maximum.
    pub memory_max: u64,
    /// Commands per second of all clients.
    pub operations_per_second: u64,
    /// Processor time since the start of the server, in microseconds.
    pub cpu_micros: u64,
}

/// Returns the present eviction policy of a server, its memory and its load.
pub(super) async fn read_usage(
    connection: &mut MultiplexedConnection,
    server: &RedisEndpoint,
) -> Result<(String, ServerUsage), ConnectError> {
    let mut info = String::new();
    // Redis before 7 answers for one section at a time.
    for section in ["memory", "stats", "cpu"] {
        let mut command = redis::cmd("INFO");
        command.arg(section);
        let read: String = query(connection, &command, POLICY_TIMEOUT).await?;
        info.push_str(&read);
    }
    let number = |name| field(&info, name).and_then(|value| value.parse().ok()).unwrap_or(0);
    let usage = ServerUsage {
        server: format!("{}:{}", server.host, server.port),
        memory_used: number("used_memory"),
        memory_max: number("maxmemory"),
        operations_per_second: number("instantaneous_ops_per_sec"),
        cpu_micros: cpu_micros(&info),
    };
    Ok((policy_in(&info), usage))
}

/// Returns the processor time of the server itself, without that of its children.
fn cpu_micros(info: &str) -> u64 {
    let seconds =
        |name| field(info, name).and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0);
    ((seconds("used_cpu_sys") + seconds("used_cpu_user")) * 1e6) as u64
}

fn policy_in(info: &str) -> String {
    field(info, "maxmemory_policy").unwrap_or("unknown").to_owned()
}

/// Returns the value of a line `name:value`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::super::script::ScriptClock;
    use super::*;

    #[test]
    fn info_is_read() {
        let info = "# Server\r\nredis_version:6.2.14\r\n\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(field(info, "redis_version"), Some("6.2.14"));
        assert_eq!(field(info, "version"), None);
        let cpu = "# CPU\r\nused_cpu_sys:1.250000\r\nused_cpu_user:0.500000\r\nused_cpu_sys_children:9.0\r\n";
        assert_eq!((cpu_micros(cpu), cpu_micros(info)), (1_750_000, 0));
        let script = |info| {
            let head = ScriptHead::of(ScriptClock::Server);
            ServerInfo::read(info, &head).scripts.get(ScriptKind::Fast).text.clone()
        };
        assert!(!script(info).starts_with("#!lua"), "a syntax error before 7");
        assert!(script("redis_version:7.0.15").starts_with("#!lua\n"));
    }
}

//! [`ServerInspection`]: the properties of a Redis server that decide whether it can keep counters,
//! for `sluicegate doctor`.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Span, Timestamp};
use tokio::time::timeout;

use super::sentinel::LinkTarget;
use super::server::{ConnectError, field, query};
use crate::clock::MonotonicClock;
use crate::redis_servers::{RedisEndpoint, RedisTopology};

/// Timeout for connecting and for each reply. It is short because a person waits for the result.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of round trips that are measured.
const PINGS: usize = 11;

/// Properties of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInspection {
    /// Version, such as `7.0.15`.
    pub version: String,
    /// True if the server keeps an append-only file, so that a restart loses nothing.
    pub appends: bool,
    /// Value of `maxmemory-policy`.
    pub eviction_policy: String,
    /// Value of `maxmemory` in bytes; 0 is no maximum.
    pub memory_max: u64,
    /// Memory in use, in bytes.
    pub memory_used: u64,
    /// Median time of a call and its reply.
    pub round_trip: Span,
    /// Clock of the server minus the clock of this machine, in milliseconds.
    pub clock_offset_ms: i64,
    /// Commands, as ACL entries, that the user may not run on keys with the prefix.
    pub forbidden: Vec<String>,
}

impl ServerInspection {
    /// Returns true if the version is at least 6.2.
    pub fn is_supported(&self) -> bool {
        let mut parts = self.version.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
        (parts.next(), parts.next()) >= (Some(6), Some(2))
    }
}

/// Inspects the servers of a topology: the one server, the master of the sentinels, or each server
/// of a cluster that the configuration names. Returns address and result of each.
pub async fn inspect(
    topology: &RedisTopology,
    key_prefix: &str,
) -> Vec<(String, Result<ServerInspection, String>)> {
    let (servers, is_cluster) = match topology {
        RedisTopology::Single(server) => (vec![server.clone()], false),
        RedisTopology::Cluster(servers) => (servers.clone(), true),
        RedisTopology::Sentinel(sentinels) => {
            let target = LinkTarget::Master(sentinels.clone());
            match target.find(REPLY_TIMEOUT).await {
                Ok(master) => (vec![master], false),
                Err(error) => {
                    let name = format!("master {} of the sentinels", sentinels.master);
                    return vec![(name, Err(error.to_string()))];
                }
            }
        }
    };
    let mut inspected = Vec::new();
    for server in servers {
        let address = format!("{}:{}", server.host, server.port);
        let result = inspect_server(&server, key_prefix, is_cluster).await;
        inspected.push((address, result.map_err(|error| error.to_string())));
    }
    inspected
}

async fn inspect_server(
    server: &RedisEndpoint,
    key_prefix: &str,
    is_cluster: bool,
) -> Result<ServerInspection, ConnectError> {
    let dialed = timeout(REPLY_TIMEOUT, server.dial()).await;
    let mut connection = dialed.map_err(|_| ConnectError::NoReply)??;
    let connection = &mut connection;
    let info: String = query(connection, &redis::cmd("INFO"), REPLY_TIMEOUT).await?;
    let text = |name| field(&info, name).unwrap_or("unknown").to_owned();
    let number = |name| field(&info, name).and_then(|value| value.parse().ok()).unwrap_or(0);
    let clock = MonotonicClock::new();
    let mut forbidden = forbidden_directly(connection, is_cluster).await?;
    forbidden.extend(forbidden_in_scripts(connection, key_prefix, is_cluster).await?);
    let round_trip = round_trip(connection, clock).await?;
    let time = query::<(u64, u64)>(connection, &redis::cmd("TIME"), REPLY_TIMEOUT).await;
    let clock_offset_ms = time.map_or(0, |(seconds, micros)| {
        // The reply is half a round trip old.
        let half = round_trip.as_micros() / 2;
        offset_ms(Timestamp::from_micros(seconds * 1_000_000 + micros + half), clock.now())
    });
    Ok(ServerInspection {
        version: text("redis_version"),
        appends: field(&info, "aof_enabled") != Some("0"),
        eviction_policy: text("maxmemory_policy"),
        memory_max: number("maxmemory"),
        memory_used: number("used_memory"),
        round_trip,
        clock_offset_ms,
        forbidden,
    })
}

fn offset_ms(theirs: Timestamp, ours: Timestamp) -> i64 {
    let millis = |span: Span| i64::try_from(span.as_micros() / 1_000).unwrap_or(i64::MAX);
    if theirs >= ours { millis(theirs.since(ours)) } else { -millis(ours.since(theirs)) }
}

/// Returns the median time of a call and its reply.
async fn round_trip(
    connection: &mut MultiplexedConnection,
    clock: MonotonicClock,
) -> Result<Span, ConnectError> {
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent = clock.now();
        let _: Value = query(connection, &redis::cmd("PING"), REPLY_TIMEOUT).await?;
        times.push(clock.now().since(sent));
    }
    times.sort_unstable();
    Ok(times[PINGS / 2])
}

/// Returns the commands of nodes that the user may not run.
async fn forbidden_directly(
    connection: &mut MultiplexedConnection,
    is_cluster: bool,
) -> Result<Vec<String>, ConnectError> {
    let with = |mut command: Cmd, argument: &str| {
        command.arg(argument);
        command
    };
    let mut commands = vec![
        ("ping", redis::cmd("PING")),
        ("role", redis::cmd("ROLE")),
        ("script|load", with(with(redis::cmd("SCRIPT"), "LOAD"), "return 1")),
        ("evalsha", with(with(redis::cmd("EVALSHA"), "0"), "0")),
        ("eval", with(with(redis::cmd("EVAL"), "return 1"), "0")),
    ];
    if is_cluster {
        commands.push(("cluster|slots", with(redis::cmd("CLUSTER"), "SLOTS")));
        commands.push(("asking", redis::cmd("ASKING")));
    }
    let mut forbidden = Vec::new();
    for (name, command) in commands {
        match query::<Value>(connection, &command, REPLY_TIMEOUT).await {
            Err(ConnectError::Redis(error)) if is_permission_error(&error.to_string()) => {
                forbidden.push(format!("+{name}"));
            }
            Err(error @ (ConnectError::NoReply | ConnectError::Unsuitable(_))) => {
                return Err(error);
            }
            // Other errors, such as an unknown script, prove that the command may run.
            _ => {}
        }
    }
    Ok(forbidden)
}

/// Commands that scripts use, with arguments after the key.
const SCRIPT_COMMANDS: [&str; 23] = [
    "hset field 1",
    "hget field",
    "hmget field",
    "hgetall",
    "hexists field",
    "hincrby field 1",
    "hlen",
    "hdel field",
    "zadd 1 member",
    "zcard",
    "zcount 0 1",
    "zrange 0 1",
    "zrangebyscore 0 1",
    "zscore member",
    "zrem member",
    "zremrangebyrank 0 0",
    "zremrangebyscore 0 0",
    "set 1",
    "get",
    "pexpire 1000",
    "pttl",
    "time",
    "del",
];

/// Runs each command of `ARGV` on the key and returns the commands that fail because of permissions.
const PROBE: &str = "
local denied = {}
for _, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  if words[1] ~= 'time' then table.insert(words, 2, KEYS[1]) end
  local reply = redis.pcall(unpack(words))
  local error = type(reply) == 'table' and reply.err or ''
  if string.find(error, 'NOPERM') or string.find(error, 'permission') or string.find(error, \"can't run this command\") then
    denied[#denied + 1] = '+' .. words[1]
  end
end
return denied";

/// Returns the commands of scripts that the user may not run, on a key that the last command deletes.
async fn forbidden_in_scripts(
    connection: &mut MultiplexedConnection,
    key_prefix: &str,
    is_cluster: bool,
) -> Result<Vec<String>, ConnectError> {
    let key = format!("{key_prefix}{{doctor}}");
    let mut command = redis::cmd("EVAL");
    command.arg(PROBE).arg(1).arg(&key).arg(&SCRIPT_COMMANDS);
    match query::<Vec<String>>(connection, &command, REPLY_TIMEOUT).await {
        Ok(forbidden) => Ok(forbidden),
        Err(ConnectError::Redis(error)) if is_permission_error(&error.to_string()) => {
            let keys = format!("~{key_prefix}*");
            let is_key = error.to_string().contains("key");
            Ok(if is_key { vec![keys] } else { Vec::new() })
        }
        // The slot of the key is on another server of the cluster.
        Err(ConnectError::Redis(_)) if is_cluster => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn is_permission_error(error: &str) -> bool {
    error.contains("NOPERM") || error.contains("permission") || error.contains("can't run this")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_command_of_scripts_is_tried() {
        let tried = SCRIPT_COMMANDS.iter().filter_map(|line| line.split(' ').next());
        let tried: BTreeSet<_> = tried.map(|word| format!("+{word}")).collect();
        let nodes = ["asking", "cluster|slots", "eval", "evalsha", "info", "ping", "role"];
        let nodes = nodes.into_iter().chain(["script|load", "select"]);
        let all: BTreeSet<_> = nodes.map(|word| format!("+{word}")).chain(tried).collect();
        let documented: BTreeSet<_> =
            sluicegate_testkit::redis::documented_commands().into_iter().collect();
        assert_eq!(all, documented);
    }

    #[test]
    fn versions_from_6_2_are_supported() {
        let version = |version: &str| ServerInspection {
            version: version.to_owned(),
            appends: true,
            eviction_policy: "noeviction".to_owned(),
            memory_max: 0,
            memory_used: 0,
            round_trip: Span::from_micros(100),
            clock_offset_ms: 0,
            forbidden: Vec::new(),
        };
        for (text, expected) in
            [("6.2.14", true), ("7.0.15", true), ("10.0", true), ("6.0.16", false), ("x", false)]
        {
            assert_eq!(version(text).is_supported(), expected, "{text}");
        }
    }
}

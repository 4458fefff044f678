//! One Redis server: where it is, how to log in, and what it says of itself.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, FromRedisValue, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisError,
};
use tokio::time::timeout;

use super::failure::Refusal;
use super::script::{Clock, Scripts, Which};

/// Where a server is, and how to log in to it.
#[derive(Clone)]
pub struct Server {
    /// A name or an IP address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the connection is encrypted. The certificate must be good for the host.
    pub tls: bool,
    /// Who logs in, if not the server's default user.
    pub username: Option<String>,
    /// The password, if there is one.
    pub password: Option<String>,
    /// The number of the database.
    pub db: u32,
}

impl Server {
    /// A server that wants neither encryption nor password.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, tls: false, username: None, password: None, db: 0 }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, tls, username: _, password: _, db } = self;
        write!(f, "Server({host}:{port}/{db}, tls: {tls})")
    }
}

/// Where a server of a cluster or behind sentinels is: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Reads what servers call each other. One that does not know its own name leaves it out: then
    /// it is the one that was `asked`.
    pub(super) fn read(text: &str, asked: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self::new(host, port.parse().ok()?, asked))
    }

    pub(super) fn new(host: &str, port: u16, asked: &str) -> Self {
        let host = if matches!(host, "" | "?") { asked } else { host };
        Self { host: host.to_owned(), port }
    }
}

/// How long to wait for an answer that nobody waits for.
const POLICY_PATIENCE: Duration = Duration::from_secs(1);

/// What has to be known of a server before it is asked anything.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) version: String,
    /// The major version.
    pub(super) major: u64,
    /// What names the process, until it ends.
    pub(super) run_id: String,
    /// Whether it writes down what it is told, so that a restart forgets nothing.
    pub(super) appends: bool,
    /// What it does when its memory is full.
    pub(super) policy: String,
    pub(super) scripts: Scripts,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("it does not answer")]
    Silent,
    #[error("{0}")]
    Unfit(String),
    #[error("it refuses writes: {1}")]
    Refuses(Refusal, String),
}

impl ConnectError {
    /// The same, as a refusal of writes if it is one.
    pub(super) fn or_refusal(self) -> Self {
        match &self {
            Self::Redis(error) => match Refusal::of(error) {
                Some(refusal) => Self::Refuses(refusal, error.to_string()),
                None => self,
            },
            _ => self,
        }
    }
}

impl Server {
    /// Another one that takes the same login.
    pub(super) fn moved_to(&self, address: &Address) -> Self {
        Self { host: address.host.clone(), port: address.port, ..self.clone() }
    }

    /// Connects and learns what there is to know; `patience` is for each answer.
    ///
    /// A server that takes connections but does not answer is as good as none.
    pub(super) async fn connect(
        &self,
        clock: &Clock,
        patience: Duration,
    ) -> Result<(MultiplexedConnection, Greeting), ConnectError> {
        let mut connection = self.dial().await?;
        // Not as strict as a decision: it has to load the scripts, and it is asked once.
        let patience = patience * 5;
        let info: String = ask(&mut connection, &redis::cmd("INFO"), patience).await?;
        let greeting = Greeting::read(&info, clock);
        for which in [Which::Fast, Which::Full] {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&greeting.scripts.get(which).text);
            let _: String = ask(&mut connection, &load, patience).await?;
        }
        Ok((connection, greeting))
    }

    /// Connects and logs in.
    pub(super) async fn dial(&self) -> Result<MultiplexedConnection, ConnectError> {
        let client =
            Client::open(self.address().into_connection_info()?.set_redis_settings(self.login()))?;
        // Time-outs and retries are ours: whoever repeats a call has to know that it does.
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

/// Asks one thing, and does not wait for longer than that.
pub(super) async fn ask<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    question: &Cmd,
    patience: Duration,
) -> Result<T, ConnectError> {
    let answer = timeout(patience, question.query_async(connection)).await;
    Ok(answer.map_err(|_| ConnectError::Silent)??)
}

impl Greeting {
    fn read(info: &str, clock: &Clock) -> Self {
        let version = field(info, "redis_version").unwrap_or("0").to_owned();
        let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        Self {
            scripts: Scripts::new(clock, major),
            version,
            major,
            run_id: field(info, "run_id").unwrap_or("unknown").to_owned(),
            // A server that does not tell is not blamed.
            appends: field(info, "aof_enabled") != Some("0"),
            policy: policy_in(info),
        }
    }
}

/// What a server that is connected does when its memory is full.
pub(super) async fn policy(connection: &mut MultiplexedConnection) -> Result<String, ConnectError> {
    let mut question = redis::cmd("INFO");
    question.arg("memory");
    let info: String = ask(connection, &question, POLICY_PATIENCE).await?;
    Ok(policy_in(&info))
}

fn policy_in(info: &str) -> String {
    field(info, "maxmemory_policy").unwrap_or("unknown").to_owned()
}

/// The value of a line `name:value`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read() {
        let info = "# Server\r\nredis_version:6.2.14\r\n\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(field(info, "redis_version"), Some("6.2.14"));
        assert_eq!(field(info, "version"), None);
        let script =
            |info| Greeting::read(info, &Clock::Server).scripts.get(Which::Fast).text.clone();
        assert!(!script(info).starts_with("#!lua"), "a syntax error before 7");
        assert!(script("redis_version:7.0.15").starts_with("#!lua\n"));
    }

    #[test]
    fn a_server_does_not_print_its_password() {
        let server = Server { password: Some("hush".to_owned()), ..Server::at("host", 6_379) };
        assert_eq!(format!("{server:?}"), "Server(host:6379/0, tls: false)");
    }
}

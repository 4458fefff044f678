//! [`RedisTopology`]: the Redis servers of a store and the logins for them. These are plain values
//! that also exist without the feature `redis`.

use std::fmt;

/// The servers that make up a Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisTopology {
    /// One server.
    Single(RedisEndpoint),
    /// A cluster, discovered through any of these servers. All its servers use the login of the
    /// first.
    Cluster(Vec<RedisEndpoint>),
    /// The current master of a set of sentinels.
    Sentinel(Sentinels),
}

/// The sentinels that monitor a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinels {
    /// Name under which they monitor it.
    pub master: String,
    /// The sentinels, each with its own login.
    pub nodes: Vec<RedisEndpoint>,
    /// Login for the master; its host and port are ignored.
    pub login: RedisEndpoint,
}

/// Address and login of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisEndpoint {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Turns on TLS. The certificate must be valid for the host.
    pub tls: bool,
    /// User name, if not the server's default user.
    pub username: Option<String>,
    /// Password, if there is one.
    pub password: Option<String>,
    /// Number of the database.
    pub db: u32,
}

impl RedisEndpoint {
    /// Returns a server without TLS and password.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, tls: false, username: None, password: None, db: 0 }
    }
}

impl fmt::Debug for RedisEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, tls, username: _, password: _, db } = self;
        write!(f, "Server({host}:{port}/{db}, tls: {tls})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_does_not_print_its_password() {
        let server =
            RedisEndpoint { password: Some("hush".to_owned()), ..RedisEndpoint::at("host", 6_379) };
        assert_eq!(format!("{server:?}"), "Server(host:6379/0, tls: false)");
    }
}

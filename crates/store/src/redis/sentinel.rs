//! [`LinkTarget`]: the server that a link connects to, either a configured one or the current
//! master of a set of sentinels.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use super::server::{ConnectError, ServerAddress, query};
use crate::redis_servers::{RedisEndpoint, Sentinels};

/// The server that a link connects to.
#[derive(Clone)]
pub(super) enum LinkTarget {
    Server(RedisEndpoint),
    Master(Sentinels),
}

impl LinkTarget {
    /// Returns the server to connect to now. `reply_timeout` is the timeout of each reply.
    pub(super) async fn find(
        &self,
        reply_timeout: Duration,
    ) -> Result<RedisEndpoint, ConnectError> {
        match self {
            Self::Server(server) => Ok(server.clone()),
            Self::Master(sentinels) => sentinels.find(reply_timeout).await,
        }
    }

    /// Returns an error if the server is not a master: the sentinels may not have noticed yet, or
    /// it was just demoted.
    pub(super) async fn verify(
        &self,
        connection: &mut MultiplexedConnection,
        reply_timeout: Duration,
    ) -> Result<(), ConnectError> {
        if matches!(self, Self::Server(_)) {
            return Ok(());
        }
        let role: Vec<Value> = query(connection, &redis::cmd("ROLE"), reply_timeout).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(ConnectError::Unsuitable("it is not the master".to_owned())),
        }
    }
}

impl Sentinels {
    /// Asks all sentinels at once, so that one that does not answer does not delay the others.
    async fn find(&self, reply_timeout: Duration) -> Result<RedisEndpoint, ConnectError> {
        let query_one =
            async |node| match timeout(reply_timeout, self.query_node(node, reply_timeout)).await {
                Ok(reply) => reply,
                Err(_) => Err(ConnectError::NoReply),
            };
        let mut replies: FuturesUnordered<_> = self.nodes.iter().map(query_one).collect();
        let mut problem = ConnectError::Unsuitable("no sentinel is configured".to_owned());
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(server) => return Ok(server),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    async fn query_node(
        &self,
        node: &RedisEndpoint,
        reply_timeout: Duration,
    ) -> Result<RedisEndpoint, ConnectError> {
        // Sentinels have no databases to select.
        let mut connection = RedisEndpoint { db: 0, ..node.clone() }.dial().await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(&self.master);
        let known: Option<(String, u16)> = query(&mut connection, &command, reply_timeout).await?;
        let Some((host, port)) = known else {
            let why = format!("the sentinels monitor no master named {}", self.master);
            return Err(ConnectError::Unsuitable(why));
        };
        Ok(self.login.with_address(&ServerAddress::new(&host, port, &node.host)))
    }
}

impl fmt::Debug for LinkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(server) => server.fmt(f),
            Self::Master(sentinels) => write!(f, "Master({})", sentinels.master),
        }
    }
}

//! Which server a link is to: one that is named, or the master that sentinels know.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use super::server::{Address, ConnectError, Server, ask};

/// What a link connects to.
#[derive(Clone)]
pub(super) enum Target {
    Server(Server),
    Master(Sentinels),
}

/// Those who know which server is the master.
#[derive(Clone, Debug)]
pub struct Sentinels {
    /// What they call it.
    pub master: String,
    /// They themselves, each with its own login.
    pub nodes: Vec<Server>,
    /// How to log in to the master; host and port don't matter.
    pub login: Server,
}

impl Target {
    /// The server of this moment; `patience` is for each answer.
    pub(super) async fn find(&self, patience: Duration) -> Result<Server, ConnectError> {
        match self {
            Self::Server(server) => Ok(server.clone()),
            Self::Master(sentinels) => sentinels.find(patience).await,
        }
    }

    /// Whether a server is what the sentinels say that it is: they may not have noticed, or it may
    /// have been demoted a moment ago.
    pub(super) async fn verify(
        &self,
        connection: &mut MultiplexedConnection,
        patience: Duration,
    ) -> Result<(), ConnectError> {
        if matches!(self, Self::Server(_)) {
            return Ok(());
        }
        let role: Vec<Value> = ask(connection, &redis::cmd("ROLE"), patience).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(ConnectError::Unfit("it is not the master".to_owned())),
        }
    }
}

impl Sentinels {
    /// Asks all of them: one that does not answer must not hold up the others.
    async fn find(&self, patience: Duration) -> Result<Server, ConnectError> {
        let ask = async |node| match timeout(patience, self.ask(node, patience)).await {
            Ok(answer) => answer,
            Err(_) => Err(ConnectError::Silent),
        };
        let mut asked: FuturesUnordered<_> = self.nodes.iter().map(ask).collect();
        let mut problem = ConnectError::Unfit("no sentinel is named".to_owned());
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(server) => return Ok(server),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    async fn ask(&self, node: &Server, patience: Duration) -> Result<Server, ConnectError> {
        // Sentinels have no databases to choose from.
        let mut connection = Server { db: 0, ..node.clone() }.dial().await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master);
        let known: Option<(String, u16)> = ask(&mut connection, &question, patience).await?;
        let Some((host, port)) = known else {
            let why = format!("the sentinels know no master called {}", self.master);
            return Err(ConnectError::Unfit(why));
        };
        Ok(self.login.moved_to(&Address::new(&host, port, &node.host)))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(server) => server.fmt(f),
            Self::Master(sentinels) => write!(f, "Master({})", sentinels.master),
        }
    }
}

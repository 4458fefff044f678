//! [`RabbitConnection`]: the connection to RabbitMQ, which is opened when it is needed and reopened
//! when it is lost.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use lapin::options::ConfirmSelectOptions;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties};
use sluicegate_core::time::{Clock as _, Span, Timestamp};
use tokio::sync::Mutex;

use super::failure::{self, Failure};
use crate::shared_connection::SharedConnection;
use crate::{Error, WallClock};

/// Timeout of an operation.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of retries for opening a channel.
const CHANNEL_TRIES: u32 = 5;
/// Time for which a queue that was found is assumed to exist: checking costs as much as sending.
const FOUND_VALIDITY: Span = Span::from_secs(1);
/// Interval of searching delay queues that other processes have declared. RabbitMQ logs a line for
/// each name that does not exist.
const SEARCH_INTERVAL: Span = Span::from_secs(60);
/// Virtual host of an address without one.
const DEFAULT_VHOST: &str = "/";
/// Heartbeat interval of the connection, in seconds.
const HEARTBEAT: u16 = 10;

pub(super) struct RabbitConnection {
    uri: AMQPUri,
    /// Time until a queue that was just declared survives a crash of RabbitMQ.
    pub(super) creation_flush: Span,
    current: SharedConnection<OpenConnection>,
    /// Delay queues that this process has used or found, by their target.
    delays: Lock<HashMap<String, BTreeSet<String>>>,
    /// Fixed delays that other processes may use.
    expected_delays: Lock<BTreeSet<Span>>,
    /// Times at which delay queues were last searched, by their target.
    searched: Lock<HashMap<String, Timestamp>>,
}

/// An open connection, with a channel for each queue that messages are published to: a queue that
/// does not answer blocks its channel, and must not block messages for other queues.
pub(super) struct OpenConnection {
    connection: Connection,
    publishing: Lock<HashMap<String, Channel>>,
    opening: Mutex<()>,
    /// Delay queues that were declared on this connection, and when.
    declared: Lock<HashMap<String, Timestamp>>,
    /// Times at which queues were last found.
    seen: Lock<HashMap<String, Timestamp>>,
}

impl RabbitConnection {
    pub(super) fn new(url: &str, creation_flush: Span) -> Result<Self, Error> {
        let mut uri: AMQPUri = url.parse().map_err(|_| {
            let form = "queue.url is not a RabbitMQ address: write amqp://user:password@host:5672/ \
                        or amqps://, with / in names as %2f";
            Error::Invalid(form.to_owned())
        })?;
        // The library reads a trailing slash as a virtual host with an empty name; all other clients
        // read it as the default one.
        if uri.vhost.is_empty() {
            DEFAULT_VHOST.clone_into(&mut uri.vhost);
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        Ok(Self {
            uri,
            creation_flush,
            current: SharedConnection::new(),
            delays: Lock::default(),
            expected_delays: Lock::default(),
            searched: Lock::default(),
        })
    }

    /// Returns the open connection, or connects.
    pub(super) async fn open(&self) -> Result<Arc<OpenConnection>, Error> {
        self.current.open(OpenConnection::is_up, self.connect()).await
    }

    /// Opens a channel for one operation, whose failure may close it.
    ///
    /// Channel numbers are reused: a new channel may receive the error that closed its predecessor.
    /// In that case another channel is opened.
    pub(super) async fn new_channel(&self) -> Result<Channel, Error> {
        let mut tries = CHANNEL_TRIES;
        loop {
            let live = self.open().await?;
            match with_timeout(live.connection.create_channel()).await {
                Err(failure) if tries > 0 && failure.concerns_queue() => tries -= 1,
                channel => return Ok(channel?),
            }
        }
    }

    /// Adds fixed delays that other processes may use.
    pub(super) fn expect_delays(&self, fixed: &[Span]) {
        self.expected_delays.lock().unwrap_or_else(PoisonError::into_inner).extend(fixed);
    }

    /// Returns the fixed delays that other processes may use.
    pub(super) fn expected_delays(&self) -> BTreeSet<Span> {
        self.expected_delays.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the delay queues of a target should be searched again.
    pub(super) fn is_search_due(&self, target: &str) -> bool {
        let searched = self.searched.lock().unwrap_or_else(PoisonError::into_inner);
        searched.get(target).is_none_or(|at| WallClock.now().since(*at) >= SEARCH_INTERVAL)
    }

    /// Records that the delay queues of a target were searched.
    pub(super) fn mark_searched(&self, target: &str) {
        let mut searched = self.searched.lock().unwrap_or_else(PoisonError::into_inner);
        searched.insert(target.to_owned(), WallClock.now());
    }

    /// Returns the delay queues of a target that this process has used or found.
    pub(super) fn delay_queues(&self, target: &str) -> BTreeSet<String> {
        let delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.get(target).cloned().unwrap_or_default()
    }

    /// Records a delay queue. Returns true if it is new.
    pub(super) fn record_delay_queue(&self, target: &str, queue: String) -> bool {
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.entry(target.to_owned()).or_default().insert(queue)
    }

    async fn connect(&self) -> Result<OpenConnection, Error> {
        let host = format!("{}:{}", self.uri.authority.host, self.uri.authority.port);
        let name = concat!("sluicegate ", env!("CARGO_PKG_VERSION"));
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connection = with_timeout(Connection::connect_uri(self.uri.clone(), properties)).await;
        let connection = connection.map_err(|error| failure::of_connecting(&host, error))?;
        Ok(OpenConnection {
            connection,
            publishing: Lock::default(),
            opening: Mutex::default(),
            declared: Lock::default(),
            seen: Lock::default(),
        })
    }
}

impl std::fmt::Debug for RabbitConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitConnection")
            .field("host", &self.uri.authority.host)
            .finish_non_exhaustive()
    }
}

impl OpenConnection {
    /// Returns true if the connection was not lost.
    pub(super) fn is_up(&self) -> bool {
        self.connection.status().connected()
    }

    /// Returns the channel on which messages for a queue are published, or opens it.
    pub(super) async fn publishing(&self, queue: &str) -> Result<Channel, Error> {
        let known = || self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || known().get(queue).filter(|channel| channel.status().connected()).cloned();
        if let Some(channel) = open() {
            return Ok(channel);
        }
        // One at a time: otherwise many messages would open a channel each.
        let _opening = self.opening.lock().await;
        if let Some(channel) = open() {
            return Ok(channel);
        }
        let channel = with_timeout(self.connection.create_channel()).await?;
        with_timeout(channel.confirm_select(ConfirmSelectOptions::default())).await?;
        known().insert(queue.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Stops publishing on a channel that failed or did not answer: the next message for the queue
    /// opens another one.
    pub(super) fn discard(&self, queue: &str, channel: &Channel) {
        let mut known = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        if known.get(queue).is_some_and(|other| other.id() == channel.id()) {
            known.remove(queue);
        }
    }

    /// Returns true if the queue was found a moment ago.
    pub(super) fn was_found_recently(&self, queue: &str) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(queue).is_some_and(|at| WallClock.now().since(*at) < FOUND_VALIDITY)
    }

    /// Records that the queue was found.
    pub(super) fn mark_found(&self, queue: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(queue.to_owned(), WallClock.now());
    }

    /// Returns true if the delay queue is not declared yet.
    pub(super) fn is_undeclared(&self, queue: &str) -> bool {
        !self.declared.lock().unwrap_or_else(PoisonError::into_inner).contains_key(queue)
    }

    /// Returns the time since a delay queue was declared on this connection. RabbitMQ does not
    /// report whether the declaration created the queue, so it may be this young.
    pub(super) fn declared_for(&self, queue: &str) -> Option<Span> {
        let declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        declared.get(queue).map(|at| WallClock.now().since(*at))
    }

    pub(super) fn mark_declared(&self, queue: String) {
        let mut declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        declared.insert(queue, WallClock.now());
    }

    pub(super) fn mark_undeclared(&self, queue: &str) {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
    }
}

/// Runs an operation with a timeout.
pub(super) async fn with_timeout<T>(
    operation: impl Future<Output = lapin::Result<T>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(REPLY_TIMEOUT, operation).await {
        Ok(outcome) => outcome.map_err(Failure::Client),
        Err(_) => Err(Failure::Timeout),
    }
}

//! [`Cluster`]: routes calls to the servers of a Redis Cluster.
//!
//! There is one link to every primary, and a map of the slots. A server redirects a call that it
//! can't serve:
//!
//! | reply | meaning | reaction |
//! |---|---|---|
//! | MOVED | another server owns the slot | update the map, send the call there at once, read the map again |
//! | ASK | the slot is migrating, and its keys may have moved | send this one call there |
//! | TRYAGAIN, CLUSTERDOWN, LOADING | not now | retry after a delay |
//! | READONLY | a primary was demoted | reconnect, read the map again, retry |
//! | none | the server may be dead | return the failure to the caller, read the map again |
//!
//! In all cases but the last, the call was not executed. All retries end at the deadline of the
//! call.

mod slot_map;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock as _;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::call::Call;
use super::failure::{CallFailure, WriteRefusal};
use super::heartbeat::DataLoss;
use super::link::{ConnectionState, Link, LinkOptions};
use super::reply::Reply;
use super::server::{ConnectError, RedisEndpoint, ServerAddress, ServerUsage, query};
use super::slot::ClusterSlot;
use slot_map::{SlotMap, SlotRange};

/// Maximum number of redirections and retries of one call.
const REDIRECTIONS_MAX: u32 = 16;
/// First delay before a retry; it doubles up to the maximum.
const DELAY_MIN: Duration = Duration::from_millis(2);
const DELAY_MAX: Duration = Duration::from_millis(16);
/// Interval between readings of the map while all servers answer.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between readings of the map while a server does not answer.
const REFRESH_INTERVAL_DEGRADED: Duration = Duration::from_millis(200);
/// Minimum time between two readings of the map, however many redirections arrive.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Timeout of one server when the map is read.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection to a cluster. Its tasks end when the last handle is dropped.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    shared: Arc<ClusterState>,
    /// Ends the task when it is dropped.
    _alive: Arc<oneshot::Sender<()>>,
}

/// State that the handles share with the task.
#[derive(Debug)]
struct ClusterState {
    /// Servers of the configuration, and the login for all servers of the cluster.
    seeds: Vec<RedisEndpoint>,
    map: RwLock<SlotMap>,
    /// Set if no server returned the map.
    undiscovered: AtomicBool,
    /// Wakes the task when the map may be out of date.
    stale: Notify,
    options: LinkOptions,
}

impl Cluster {
    /// Starts to discover the servers.
    pub(super) fn open(seeds: Vec<RedisEndpoint>, options: LinkOptions) -> Self {
        let shared = Arc::new(ClusterState {
            seeds,
            map: RwLock::new(SlotMap::empty()),
            undiscovered: AtomicBool::new(false),
            stale: Notify::new(),
            options,
        });
        let (alive, dropped) = oneshot::channel::<()>();
        let reader = shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = reader.refresh_map() => {}
                _ = dropped => {}
            }
        });
        Self { shared, _alive: Arc::new(alive) }
    }

    pub(super) fn state(&self) -> ConnectionState {
        let map = self.shared.read();
        match map.is_empty() {
            true if self.shared.undiscovered.load(Ordering::Relaxed) => ConnectionState::Down,
            true => ConnectionState::Connecting,
            false => map.state(),
        }
    }

    /// Returns true if a server may evict counters when its memory is full.
    pub(super) fn evicts(&self) -> bool {
        self.shared.read().evicts()
    }

    /// Returns memory and load of each connected server.
    pub(super) fn usage(&self) -> Vec<ServerUsage> {
        self.shared.read().usage()
    }

    /// Returns the reason why a server rejects writes, if one does.
    pub(super) fn refusal(&self) -> Option<WriteRefusal> {
        self.shared.read().refusal()
    }

    /// Returns the last data loss of a slot's server, if there was one.
    pub(super) fn loss(&self, slot: ClusterSlot) -> Option<DataLoss> {
        self.shared.read().owner(slot)?.loss()
    }

    /// Returns true if the server of a slot is down.
    pub(super) fn is_down(&self, slot: ClusterSlot) -> bool {
        match self.shared.read().owner(slot) {
            Some(link) => link.state() == ConnectionState::Down,
            None => self.shared.undiscovered.load(Ordering::Relaxed),
        }
    }

    /// Sends a call to the server that owns its slot, and follows redirections.
    pub(super) async fn execute(
        &self,
        mut call: Call,
        deadline: Timestamp,
    ) -> Result<Reply, CallFailure> {
        let shared = &*self.shared;
        let slot = call.slot.expect("every call in a cluster has a slot: see PlanSplit::of");
        let (mut delay, mut redirected_to) = (DELAY_MIN, None);
        for _ in 0..REDIRECTIONS_MAX {
            let link = redirected_to.take().or_else(|| shared.read().owner(slot).cloned());
            let answer = match link {
                Some(link) => link.execute(call.clone(), deadline).await,
                None if shared.undiscovered.load(Ordering::Relaxed) => {
                    return Err(CallFailure::Down);
                }
                None => Err(CallFailure::NotReady("no known server owns the slot".to_owned())),
            };
            // A process that was suspended meanwhile must not continue with an old call.
            let late = shared.options.time.now() >= deadline;
            call.asking = false;
            match answer {
                Err(failure) if late && failure.was_not_executed() => {
                    return Err(CallFailure::Timeout);
                }
                Err(CallFailure::Moved(to)) => {
                    shared.set_owner(slot, &to);
                    shared.stale.notify_one();
                }
                Err(CallFailure::Ask(to)) => {
                    redirected_to = Some(shared.link_to(&to));
                    call.asking = true;
                }
                Err(CallFailure::NotReady(_)) => {
                    shared.stale.notify_one();
                    sleep(delay).await;
                    delay = (delay * 2).min(DELAY_MAX);
                }
                Err(failure) => {
                    shared.stale.notify_one();
                    return Err(failure);
                }
                Ok(reply) => return Ok(reply),
            }
        }
        Err(CallFailure::NotReady("the slot keeps moving between servers".to_owned()))
    }
}

impl ClusterState {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, SlotMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, SlotMap> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self, address: &ServerAddress) -> RedisEndpoint {
        self.seeds[0].with_address(address)
    }

    fn open(&self, address: &ServerAddress) -> Link {
        Link::open_in_cluster(self.server(address), self.options.clone())
    }

    fn set_owner(&self, slot: ClusterSlot, to: &ServerAddress) {
        self.write().set_owner(slot, to, || self.open(to));
    }

    fn link_to(&self, address: &ServerAddress) -> Link {
        if let Some(link) = self.read().link_to(address) {
            return link.clone();
        }
        self.write().link_or_insert(address, || self.open(address))
    }

    /// Keeps the map up to date: reads it when a reply shows that it is stale, more often while a
    /// server does not answer, and at a slow interval otherwise.
    async fn refresh_map(&self) {
        for round in 0.. {
            match self.fetch_map(round).await {
                Ok(ranges) => {
                    self.write().replace(&ranges, |address| self.open(address));
                    self.undiscovered.store(false, Ordering::Relaxed);
                }
                Err(problem) => {
                    if !self.undiscovered.swap(true, Ordering::Relaxed) {
                        warn!(reason = %problem, "no server of the Redis Cluster returned its slots");
                    }
                }
            }
            sleep(REFRESH_INTERVAL_MIN).await;
            let healthy = self.read().state() == ConnectionState::Up;
            let interval = if healthy { REFRESH_INTERVAL } else { REFRESH_INTERVAL_DEGRADED };
            let _ = timeout(interval, self.stale.notified()).await;
        }
    }

    /// Asks the known servers for the map, starting with another one each round: a server that is
    /// cut off from the cluster returns an outdated map, which must not be used forever.
    async fn fetch_map(&self, round: usize) -> Result<Vec<SlotRange>, ConnectError> {
        let mut known: Vec<_> = self.read().addresses().map(|known| self.server(known)).collect();
        if !known.is_empty() {
            let first = round % known.len();
            known.rotate_left(first);
        }
        let mut problem = ConnectError::NoReply;
        for server in known.iter().chain(&self.seeds) {
            match timeout(REFRESH_TIMEOUT, fetch_slots(server)).await {
                Ok(Ok(ranges)) => return Ok(ranges),
                Ok(Err(error)) => problem = error,
                Err(_) => problem = ConnectError::NoReply,
            }
        }
        Err(problem)
    }
}

/// Returns the slot ranges that a server reports, over a new connection.
async fn fetch_slots(server: &RedisEndpoint) -> Result<Vec<SlotRange>, ConnectError> {
    let mut connection = server.dial().await?;
    query_slots(&mut connection, server, REFRESH_TIMEOUT).await
}

/// Returns the first and last slot of each range that a server owns itself.
pub(super) async fn owned_slots(
    connection: &mut MultiplexedConnection,
    server: &RedisEndpoint,
    reply_timeout: Duration,
) -> Result<Vec<(ClusterSlot, ClusterSlot)>, ConnectError> {
    let ranges = query_slots(connection, server, reply_timeout).await?;
    Ok(ranges.iter().filter_map(|range| range.of(server)).collect())
}

async fn query_slots(
    connection: &mut MultiplexedConnection,
    server: &RedisEndpoint,
    reply_timeout: Duration,
) -> Result<Vec<SlotRange>, ConnectError> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let answer: Value = query(connection, &command, reply_timeout).await?;
    match SlotRange::read_all(&answer, &server.host) {
        Some(ranges) if !ranges.is_empty() => Ok(ranges),
        _ => Err(ConnectError::Unsuitable("it reports no server with slots".to_owned())),
    }
}

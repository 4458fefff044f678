//! The way to the servers of a Redis Cluster.
//!
//! There is a link to every primary, and a map that says which of them has a slot. Servers say
//! where a slot is when we ask the wrong one:
//!
//! | answer | means | then |
//! |---|---|---|
//! | MOVED | the slot is elsewhere | noted in the map, and asked there at once; the map is read anew |
//! | ASK | the slot is on its way elsewhere, and so may the keys be | asked there, this once |
//! | TRYAGAIN, CLUSTERDOWN, LOADING | not now | asked again after a pause |
//! | READONLY | a primary was demoted | its link is made anew, the map is read anew, and it is asked again |
//! | none | it may be dead | the caller decides; the map is read anew |
//!
//! Everything but the last was certainly not executed. All of it ends when the caller's time does.

mod map;

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
use super::failure::{Failure, Refusal};
use super::heartbeat::Loss;
use super::link::{Link, State, Terms};
use super::reply::Reply;
use super::server::{Address, ConnectError, Server, ask};
use super::slot::Slot;
use map::{Map, Range};

/// The most times that one call is sent on or asked again.
const HOPS_MAX: u32 = 16;
/// How long to wait before something is asked again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// How often the map is read when nothing happens, and when a server does not answer.
const READ_CALM: Duration = Duration::from_secs(5);
const READ_TROUBLED: Duration = Duration::from_millis(200);
/// The least time between two readings, however many servers send us elsewhere.
const READ_REST: Duration = Duration::from_millis(50);
/// How long one server is waited for when the map is read.
const READ_PATIENCE: Duration = Duration::from_millis(500);

/// The way to a cluster. Its tasks end when the last handle is dropped.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    /// Ends the task when it is dropped.
    _alive: Arc<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Shared {
    /// How the cluster was found at first, and how to log in to any of its servers.
    seeds: Vec<Server>,
    map: RwLock<Map>,
    /// Nobody could be found who knows the map.
    lost: AtomicBool,
    /// The map may no longer be true.
    stale: Notify,
    terms: Terms,
}

impl Cluster {
    /// Starts to look for the servers.
    pub(super) fn open(seeds: Vec<Server>, terms: Terms) -> Self {
        let shared = Arc::new(Shared {
            seeds,
            map: RwLock::new(Map::unknown()),
            lost: AtomicBool::new(false),
            stale: Notify::new(),
            terms,
        });
        let (alive, dropped) = oneshot::channel::<()>();
        let reader = shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = reader.keep_map() => {}
                _ = dropped => {}
            }
        });
        Self { shared, _alive: Arc::new(alive) }
    }

    pub(super) fn state(&self) -> State {
        let map = self.shared.read();
        match map.is_unknown() {
            true if self.shared.lost.load(Ordering::Relaxed) => State::Down,
            true => State::Unsure,
            false => map.state(),
        }
    }

    /// Whether a server may throw counters away when its memory is full.
    pub(super) fn evicts(&self) -> bool {
        self.shared.read().evicts()
    }

    /// Why a server writes nothing, if one answers but doesn't.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.shared.read().refusal()
    }

    /// When the server of a slot last lost its memory, if it ever did.
    pub(super) fn loss(&self, slot: Slot) -> Option<Loss> {
        self.shared.read().owner(slot)?.loss()
    }

    /// Whether the server of a slot is known not to answer.
    pub(super) fn is_down(&self, slot: Slot) -> bool {
        match self.shared.read().owner(slot) {
            Some(link) => link.state() == State::Down,
            None => self.shared.lost.load(Ordering::Relaxed),
        }
    }

    /// Sends a call to the server of its slot, wherever that is by now.
    pub(super) async fn ask(&self, mut call: Call, not_after: Timestamp) -> Result<Reply, Failure> {
        let shared = &*self.shared;
        let slot = call.slot.expect("every call in a cluster has a slot: see Redis::spread");
        let (mut pause, mut sent_to) = (PAUSE_MIN, None);
        for _ in 0..HOPS_MAX {
            let link = sent_to.take().or_else(|| shared.read().owner(slot).cloned());
            let answer = match link {
                Some(link) => link.ask(call.clone(), not_after).await,
                None if shared.lost.load(Ordering::Relaxed) => return Err(Failure::Down),
                None => Err(Failure::NotReady("no server is known to have the slot".to_owned())),
            };
            // Whoever was stopped in between must not go on as if nothing had happened.
            let late = shared.terms.time.now() >= not_after;
            call.asking = false;
            match answer {
                Err(failure) if late && failure.was_not_executed() => return Err(Failure::Late),
                Err(Failure::Moved(to)) => {
                    shared.moved(slot, &to);
                    shared.stale.notify_one();
                }
                Err(Failure::Ask(to)) => {
                    sent_to = Some(shared.link_to(&to));
                    call.asking = true;
                }
                Err(Failure::NotReady(_)) => {
                    shared.stale.notify_one();
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(failure) => {
                    shared.stale.notify_one();
                    return Err(failure);
                }
                Ok(reply) => return Ok(reply),
            }
        }
        Err(Failure::NotReady("the slot is at no server for long".to_owned()))
    }
}

impl Shared {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self, address: &Address) -> Server {
        self.seeds[0].moved_to(address)
    }

    fn open(&self, address: &Address) -> Link {
        Link::open_in_cluster(self.server(address), self.terms.clone())
    }

    fn moved(&self, slot: Slot, to: &Address) {
        self.write().moved(slot, to, || self.open(to));
    }

    fn link_to(&self, address: &Address) -> Link {
        if let Some(link) = self.read().at(address) {
            return link.clone();
        }
        self.write().at_or(address, || self.open(address))
    }

    /// Reads the map again and again: when something says that it is not true, when a server does
    /// not answer, and now and then.
    async fn keep_map(&self) {
        for round in 0.. {
            match self.find_map(round).await {
                Ok(ranges) => {
                    self.write().adopt(&ranges, |address| self.open(address));
                    self.lost.store(false, Ordering::Relaxed);
                }
                Err(problem) => {
                    if !self.lost.swap(true, Ordering::Relaxed) {
                        warn!(reason = %problem, "no server of the Redis Cluster tells its slots");
                    }
                }
            }
            sleep(READ_REST).await;
            let calm = self.read().state() == State::Up;
            let rest = if calm { READ_CALM } else { READ_TROUBLED };
            let _ = timeout(rest, self.stale.notified()).await;
        }
    }

    /// Asks all servers that are known, beginning with another one each round: the answer of one
    /// that was cut off from the others is not true, and must not be believed for ever.
    async fn find_map(&self, round: usize) -> Result<Vec<Range>, ConnectError> {
        let mut known: Vec<_> = self.read().addresses().map(|known| self.server(known)).collect();
        if !known.is_empty() {
            let first = round % known.len();
            known.rotate_left(first);
        }
        let mut problem = ConnectError::Silent;
        for server in known.iter().chain(&self.seeds) {
            match timeout(READ_PATIENCE, slots_of(server)).await {
                Ok(Ok(ranges)) => return Ok(ranges),
                Ok(Err(error)) => problem = error,
                Err(_) => problem = ConnectError::Silent,
            }
        }
        Err(problem)
    }
}

/// What a server says about who has which slot.
async fn slots_of(server: &Server) -> Result<Vec<Range>, ConnectError> {
    let mut connection = server.dial().await?;
    ask_slots(&mut connection, server, READ_PATIENCE).await
}

/// The slots that a server says it has itself, the first and last of each range.
pub(super) async fn owned(
    connection: &mut MultiplexedConnection,
    server: &Server,
    patience: Duration,
) -> Result<Vec<(Slot, Slot)>, ConnectError> {
    let ranges = ask_slots(connection, server, patience).await?;
    Ok(ranges.iter().filter_map(|range| range.of(server)).collect())
}

async fn ask_slots(
    connection: &mut MultiplexedConnection,
    server: &Server,
    patience: Duration,
) -> Result<Vec<Range>, ConnectError> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let answer: Value = ask(connection, &question, patience).await?;
    match Range::read_all(&answer, &server.host) {
        Some(ranges) if !ranges.is_empty() => Ok(ranges),
        _ => Err(ConnectError::Unfit("it knows no server that has slots".to_owned())),
    }
}

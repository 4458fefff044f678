//! The connection to Redis, and the batches that travel over it.
//!
//! Whoever wants something puts a [`Call`] into a queue. One task owns the connection: it takes
//! all that is queued, up to a bound, sends it as one script call, and may do so again while
//! earlier ones are on their way. There is no timer: when nothing is on its way, a call goes at
//! once, and the busier Redis is the more calls share one. In a cluster there is a link to every
//! server, and a script call is about one slot.
//!
//! | state | means | a new call |
//! |---|---|---|
//! | up | the server has answered on this connection | is queued |
//! | unsure | the connection was lost, or is the first; it is being made | is queued, and waits |
//! | down | it could not be made | is refused at once |
//!
//! While it is down, the task goes on trying; that is the probe.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use sluicegate_core::time::Clock as _;
use sluicegate_core::{Id, Timestamp};

use super::call::Call;
use super::cluster;
use super::failure::{FENCED, Failure, Refusal};
use super::heartbeat::{Heartbeats, Loss};
use super::keys::Names;
use super::reply::Reply;
use super::script::{Clock, Script, VERSION, Which};
use super::sentinel::Target;
use super::server::{ConnectError, Greeting, Server, policy};
use crate::clock::MonotonicClock;

/// The most calls that one script call decides: Redis serves nobody else meanwhile.
const BATCH_MAX: usize = 128;
/// The most calls that others may overtake, because they share a batch with one before them.
const OVERTAKEN_MAX: usize = 256;
/// How many batches may be on their way: Redis works on one while we read and write others.
const DEPTH: usize = 2;
/// The same in a cluster, where calls on different slots can't share one.
const DEPTH_IN_CLUSTER: usize = 32;
/// The most calls that wait; more than Redis can answer within any time-out.
const QUEUE_MAX: usize = 16_384;
/// How long making a connection may take, encryption and login included.
const CONNECT: Duration = Duration::from_secs(1);
/// How long to wait after a failure to connect, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// How often a connection is looked at on which nothing happens.
const LOOK: Duration = Duration::from_millis(250);
/// How often a server gets a heartbeat and is asked what it does when its memory is full.
const BEAT: Duration = Duration::from_secs(1);
/// How long these are waited for.
const BEAT_PATIENCE: Duration = Duration::from_millis(500);
/// No refusal, where an atomic keeps its number.
const NO_REFUSAL: u8 = u8::MAX;

/// Whether Redis can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has answered on this connection.
    Up,
    /// The connection is being made.
    Unsure,
    /// The connection could not be made; it is tried again and again.
    Down,
}

/// What has been sent, for metrics.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Calls that were asked for.
    pub(super) calls: AtomicU64,
    /// Script calls that carried them.
    pub(super) batches: AtomicU64,
}

/// The way to Redis. Its task ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    /// Ends the task when it is dropped.
    _alive: Arc<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<VecDeque<Job>>,
    /// Something was queued.
    queued: Notify,
    state: AtomicU8,
    /// The server may throw counters away when its memory is full.
    evicts: AtomicBool,
    /// A restart forgets what it was told.
    forgets: AtomicBool,
    /// The number of the [`Refusal`] for which it writes nothing.
    refusal: AtomicU8,
    /// When it last lost its memory.
    loss: Mutex<Option<Loss>>,
    time: MonotonicClock,
}

#[derive(Debug)]
struct Job {
    call: Call,
    not_after: Timestamp,
    answer: oneshot::Sender<Result<Reply, Failure>>,
}

impl Job {
    /// Marks it as sent, unless nobody waits for it any more.
    fn goes(&self) -> bool {
        let Some(sent) = &self.call.sent else { return true };
        let before = sent.swap(true, Ordering::Relaxed);
        // Whoever stops waiting looks at the mark afterwards: one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.answer.is_closed() {
            sent.store(before, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// How a link goes about it.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) clock: Clock,
    /// An answer that takes longer ends the connection.
    pub(super) patience: Duration,
    pub(super) sent: Arc<Sent>,
    /// What [`Link::ask`] counts by.
    pub(super) time: MonotonicClock,
    pub(super) names: Arc<Names>,
    pub(super) node: Arc<Node>,
    pub(super) heartbeats: Arc<Heartbeats>,
    /// A permit for every connection, if they are bounded.
    pub(super) room: Option<Arc<Semaphore>>,
}

/// How a node is told from others, and its connections from each other: see `lua/fence.lua`.
#[derive(Debug)]
pub(super) struct Node {
    id: Id,
    connections: AtomicU64,
}

impl Node {
    pub(super) fn new() -> Self {
        let random = || u128::from(RandomState::new().hash_one(std::process::id()));
        Self { id: Id::from_bits(random() << 64 | random()), connections: AtomicU64::new(0) }
    }

    fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// One connection: what each call begins with that is sent on it.
#[derive(Clone, Copy)]
struct Head<'a> {
    terms: &'a Terms,
    number: u64,
}

impl Link {
    /// Starts to connect to the only server.
    pub(super) fn open(target: Target, terms: Terms) -> Self {
        Self::with_depth(target, terms, DEPTH)
    }

    /// Starts to connect to one of a cluster.
    pub(super) fn open_in_cluster(server: Server, terms: Terms) -> Self {
        Self::with_depth(Target::Server(server), terms, DEPTH_IN_CLUSTER)
    }

    fn with_depth(target: Target, terms: Terms, depth: usize) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            queued: Notify::new(),
            state: AtomicU8::new(State::Unsure as u8),
            evicts: AtomicBool::new(false),
            forgets: AtomicBool::new(false),
            refusal: AtomicU8::new(NO_REFUSAL),
            loss: Mutex::default(),
            time: terms.time,
        });
        let (alive, dropped) = oneshot::channel::<()>();
        let keeper = Keeper { shared: shared.clone(), target, terms, depth };
        tokio::spawn(async move {
            tokio::select! {
                () = keeper.run() => {}
                _ = dropped => {}
            }
        });
        Self { shared, _alive: Arc::new(alive) }
    }

    pub(super) fn state(&self) -> State {
        self.shared.state()
    }

    pub(super) fn evicts(&self) -> bool {
        self.shared.evicts.load(Ordering::Relaxed)
    }

    /// Why the server writes nothing, if it answers but doesn't.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        Refusal::from_number(self.shared.refusal.load(Ordering::Relaxed))
    }

    /// When the server last lost its memory, if it ever did.
    pub(super) fn loss(&self) -> Option<Loss> {
        *self.shared.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a call and waits for its answer. Who stops waiting takes back what was not yet sent,
    /// and nothing is sent late: a process that was stopped must not send what it should have sent
    /// long ago.
    pub(super) async fn ask(&self, call: Call, not_after: Timestamp) -> Result<Reply, Failure> {
        if self.state() == State::Down {
            return Err(Failure::Down);
        }
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.shared.lock();
            if queue.len() >= QUEUE_MAX {
                return Err(Failure::NotReady("too many calls wait for it".to_owned()));
            }
            queue.push_back(Job { call, not_after, answer });
        }
        self.shared.queued.notify_one();
        answered.await.unwrap_or(Err(Failure::Cut))
    }
}

impl Shared {
    fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Up,
            1 => State::Unsure,
            _ => State::Down,
        }
    }

    fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Takes note of what the server does when its memory is full.
    fn note_policy(&self, policy: &str) {
        let evicts = policy != "noeviction";
        if !self.evicts.swap(evicts, Ordering::Relaxed) && evicts {
            warn!(
                policy,
                "Redis may throw counters away when its memory is full, and then limits are \
                 exceeded: set maxmemory-policy to noeviction"
            );
        }
    }

    /// Takes note of whether a restart forgets what the server was told.
    fn note_persistence(&self, appends: bool) {
        if !self.forgets.swap(!appends, Ordering::Relaxed) && !appends {
            warn!(
                "Redis keeps no append-only file: a restart loses the usage since its last dump, and \
                 limits begin anew: set appendonly to yes, or store.on_loss to closed"
            );
        }
    }

    /// Takes note of whether the server writes; tells once when that changes.
    fn note_refusal(&self, refusal: Option<Refusal>, server: &Server, error: &str) {
        let number = refusal.map_or(NO_REFUSAL, |refusal| refusal as u8);
        if self.refusal.swap(number, Ordering::Relaxed) == number {
            return;
        }
        match refusal {
            Some(refusal) => {
                let reason = refusal.word();
                warn!(?server, reason, %error, "Redis refuses writes: the outage policies decide");
            }
            None => info!(?server, "Redis takes writes again"),
        }
    }

    fn note_loss(&self, loss: Option<Loss>) {
        *self.loss.lock().unwrap_or_else(PoisonError::into_inner) = loss;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Job>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next calls that somebody still waits for, such as one script call can carry.
    fn next_batch(&self) -> Option<(Which, Vec<Job>)> {
        let mut queue = self.lock();
        let (mut batch, mut overtaken): (Vec<Job>, Vec<Job>) = (Vec::new(), Vec::new());
        let now = if queue.is_empty() { return None } else { self.time.now() };
        while batch.len() < BATCH_MAX && overtaken.len() < OVERTAKEN_MAX {
            let Some(next) = queue.pop_front() else { break };
            if next.answer.is_closed() || next.not_after <= now {
                continue;
            }
            match batch.first() {
                Some(first) if !first.call.goes_with(&next.call) => overtaken.push(next),
                _ if next.goes() => batch.push(next),
                _ => {}
            }
        }
        overtaken.into_iter().rev().for_each(|job| queue.push_front(job));
        Some((batch.first()?.call.script, batch))
    }
}

/// The task that owns the connection.
struct Keeper {
    shared: Arc<Shared>,
    target: Target,
    terms: Terms,
    depth: usize,
}

impl Keeper {
    async fn run(self) {
        let _permit = self.permit().await;
        let mut pause = PAUSE_MIN;
        loop {
            match timeout(CONNECT, self.connect()).await {
                Ok(Ok((server, connection, greeting))) => {
                    pause = PAUSE_MIN;
                    self.shared.note_policy(&greeting.policy);
                    self.shared.note_persistence(greeting.appends);
                    self.shared.set_state(State::Up);
                    info!(?server, version = %greeting.version, "connected to Redis");
                    let lost = self.serve(&server, connection, &greeting).await;
                    warn!(?server, reason = %lost, "the connection to Redis is given up");
                    self.shared.set_state(State::Unsure);
                    continue;
                }
                // A connection that is cut while it is made says little of the server: once more.
                Ok(Err(_)) if self.shared.state() == State::Unsure && pause == PAUSE_MIN => {}
                Ok(Err(ConnectError::Refuses(..))) => self.down(None),
                Ok(Err(problem)) => self.down(Some(&problem.to_string())),
                Err(_) => self.down(Some("it took too long")),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Waits until a connection more may be made. Nobody waits for the server meanwhile.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let room = self.terms.room.clone()?;
        if let Ok(permit) = room.clone().try_acquire_owned() {
            return Some(permit);
        }
        self.down(Some("as many connections are open as store.connections_max allows"));
        room.acquire_owned().await.ok()
    }

    /// Finds the server, which may be another than before, and connects.
    async fn connect(&self) -> Result<(Server, MultiplexedConnection, Greeting), ConnectError> {
        let Terms { clock, patience, .. } = &self.terms;
        let server = self.target.find(*patience * 5).await?;
        let (mut connection, greeting) = server.connect(clock, *patience).await?;
        self.target.verify(&mut connection, *patience * 5).await?;
        // Before any decision: a server that was started anew may have lost its memory.
        self.beat(&server, &mut connection, &greeting, *patience * 5).await?;
        Ok((server, connection, greeting))
    }

    /// Sends a heartbeat to a server, unless it has no slot of a cluster and so decides nothing.
    async fn beat(
        &self,
        server: &Server,
        connection: &mut MultiplexedConnection,
        greeting: &Greeting,
        patience: Duration,
    ) -> Result<(), ConnectError> {
        let heartbeats = &self.terms.heartbeats;
        let owned = match heartbeats.by_slot() {
            true => Some(cluster::owned(connection, server, patience).await?),
            false => None,
        };
        let Some(slot) = heartbeats.place(owned.as_deref()) else { return Ok(()) };
        let sent = heartbeats.send(connection, (server, greeting), slot, patience).await;
        match sent.map_err(ConnectError::or_refusal) {
            Ok(loss) => {
                self.shared.note_loss(loss);
                self.shared.note_refusal(None, server, "");
                Ok(())
            }
            // The slot has just been moved: the next one goes to another.
            Err(ConnectError::Redis(error)) if is_moving(&error) => Ok(()),
            Err(error) => {
                if let ConnectError::Refuses(refusal, error) = &error {
                    self.shared.note_refusal(Some(*refusal), server, error);
                }
                Err(error)
            }
        }
    }

    /// Nobody waits for a server that can't be reached. A reason that was not told yet is logged.
    fn down(&self, reason: Option<&str>) {
        if let Some(reason) = reason
            && self.shared.state() != State::Down
        {
            warn!(target = ?self.target, %reason, "can't connect to Redis");
        }
        self.shared.set_state(State::Down);
        for job in self.shared.lock().drain(..) {
            let _ = job.answer.send(Err(Failure::Down));
        }
    }

    /// Sends what is queued until the connection is lost; returns why. What was on its way then is
    /// answered by nobody, which tells those who wait.
    async fn serve(
        &self,
        server: &Server,
        connection: MultiplexedConnection,
        greeting: &Greeting,
    ) -> Failure {
        let head = Head { terms: &self.terms, number: self.terms.node.next_connection() };
        let mut in_flight = FuturesUnordered::new();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beats.tick().await;
        let mut beating = FuturesUnordered::new();
        loop {
            while in_flight.len() < self.depth
                && let Some((which, batch)) = self.shared.next_batch()
            {
                let asked = batch.iter().filter(|job| !job.call.housekeeping).count();
                self.terms.sent.calls.fetch_add(asked as u64, Ordering::Relaxed);
                self.terms.sent.batches.fetch_add(u64::from(asked > 0), Ordering::Relaxed);
                let script = greeting.scripts.get(which);
                in_flight.push(self.send(server, connection.clone(), head, script, which, batch));
            }
            tokio::select! {
                Some(sent) = in_flight.next() => {
                    if let Err(lost) = sent {
                        return lost;
                    }
                }
                () = self.shared.queued.notified(), if in_flight.len() < self.depth => {}
                _ = beats.tick(), if beating.is_empty() => {
                    beating.push(self.look(server, connection.clone(), greeting));
                }
                Some(looked) = beating.next() => {
                    if let Err(lost) = looked {
                        return lost;
                    }
                }
                _ = look.tick(), if in_flight.is_empty() => {
                    let mut connection = connection.clone();
                    let ping = redis::cmd("PING");
                    match timeout(self.terms.patience, connection.send_packed_command(&ping)).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(_)) => return Failure::Cut,
                        Err(_) => return Failure::Late,
                    }
                }
            }
        }
    }

    /// Sends a heartbeat, and looks at what somebody may have changed since the server was met. An
    /// error means that the connection is of no use; no answer means nothing yet.
    async fn look(
        &self,
        server: &Server,
        mut connection: MultiplexedConnection,
        greeting: &Greeting,
    ) -> Result<(), Failure> {
        let beat = self.beat(server, &mut connection, greeting, BEAT_PATIENCE).await;
        if let Err(ConnectError::Refuses(Refusal::ReadOnly, error)) = beat {
            return Err(Failure::NotReady(error));
        }
        if let Ok(policy) = policy(&mut connection).await {
            self.shared.note_policy(&policy);
        }
        Ok(())
    }

    /// Sends one batch and hands out its answers. An error means that the connection is of no use.
    async fn send(
        &self,
        server: &Server,
        mut connection: MultiplexedConnection,
        head: Head<'_>,
        script: &Script,
        which: Which,
        mut batch: Vec<Job>,
    ) -> Result<(), Failure> {
        let send = async {
            let known = head.command("EVALSHA", &script.hash, &batch);
            match run(&mut connection, known, &batch).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    // What was given up meanwhile may have been taken back meanwhile.
                    batch.retain(|job| !job.answer.is_closed());
                    if batch.is_empty() {
                        return Ok(Value::Array(Vec::new()));
                    }
                    let whole = head.command("EVAL", &script.text, &batch);
                    run(&mut connection, whole, &batch).await
                }
                result => result,
            }
        };
        let error = match timeout(self.terms.patience, send).await {
            Ok(Ok(value)) => {
                let rows: Vec<usize> = batch.iter().map(|job| job.call.rows).collect();
                for (job, reply) in batch.into_iter().zip(Reply::split(which, value, rows)) {
                    let _ = job.answer.send(reply);
                }
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(_) => {
                tell(batch, &Failure::Late);
                return Err(Failure::Late);
            }
        };
        let failure = Failure::of(&error, &server.host);
        // What this user may not do is one operation's own matter.
        let refusal = Refusal::of(&error).filter(|refusal| *refusal != Refusal::NotPermitted);
        if refusal.is_some() {
            self.shared.note_refusal(refusal, server, &error.to_string());
        }
        let lost = match (&failure, error.kind()) {
            (Failure::Cut, _) => true,
            // Pooled connections to a primary that was demoted would say so for ever.
            _ if refusal == Some(Refusal::ReadOnly) => true,
            // A slot that came back from a server to which the connection is newer.
            _ if error.code() == Some(FENCED) => true,
            _ => false,
        };
        tell(batch, &failure);
        if lost { Err(failure) } else { Ok(()) }
    }
}

/// Whether a server says that a slot is not, or not yet, for it to serve.
fn is_moving(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Ask | ClusterDown | Moved | TryAgain))
}

fn tell(batch: Vec<Job>, failure: &Failure) {
    for job in batch {
        let _ = job.answer.send(Err(failure.clone()));
    }
}

/// Runs the script call of a batch. One that only asks says so right before it.
async fn run(
    connection: &mut MultiplexedConnection,
    command: Cmd,
    batch: &[Job],
) -> Result<Value, RedisError> {
    if !batch.iter().any(|job| job.call.asking) {
        return connection.send_packed_command(&command).await.and_then(Value::extract_error);
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command);
    let mut answers = connection.send_packed_commands(&both, 0, 2).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

impl Head<'_> {
    /// A script call for all of a batch: the head, and then each call.
    fn command(self, name: &str, script: &str, batch: &[Job]) -> Cmd {
        let slot = batch.first().and_then(|job| job.call.slot);
        let fence = self.terms.names.fence(slot, self.terms.node.id);
        let keys: usize = batch.iter().map(|job| job.call.keys.len()).sum();
        let arguments: usize = batch.iter().map(|job| job.call.arguments.len()).sum();
        let mut command = Cmd::with_capacity(6 + keys + arguments, 64 * (1 + batch.len()));
        command.arg(name).arg(script).arg(1 + keys).arg(fence);
        for text in batch.iter().flat_map(|job| job.call.keys.iter()) {
            command.arg(text);
        }
        command.arg(VERSION).arg(self.number);
        for text in batch.iter().flat_map(|job| job.call.arguments.iter()) {
            command.arg(text);
        }
        command
    }
}

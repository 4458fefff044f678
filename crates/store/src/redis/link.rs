//! [`Link`]: the connection to one Redis server, and the batches of calls that it sends.
//!
//! Callers put a [`Call`] into a queue. One task owns the connection. It takes the queued calls, up
//! to a limit, and sends them as one script call; a few batches can be in flight at a time. There
//! is no timer: on an idle connection a call is sent at once, and the busier Redis is, the more
//! calls share a batch. In a cluster there is one link per server, and a batch covers one slot.
//!
//! | state | meaning | a new call |
//! |---|---|---|
//! | up | the server has answered on this connection | is queued |
//! | connecting | the first connection, or one after a loss, is being made | is queued and waits |
//! | down | the connection could not be made | fails at once |
//!
//! While the link is down, the task keeps connecting; that is the health probe.
//!
//! A batch without a reply closes the connection, because it may be dead. A decision has a shorter
//! timeout than a call of paced work, though. While paced work uses the connection, a decision that
//! times out fails alone: its reply may still come, and is ignored. The connection is closed when the
//! longer timeout is over, too.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{MissedTickBehavior, Sleep, interval, sleep, timeout};
use tracing::{info, warn};

use sluicegate_core::time::Clock as _;
use sluicegate_core::{Id, Span, Timestamp};

use super::call::Call;
use super::cluster;
use super::failure::{CallFailure, FENCED, WriteRefusal};
use super::heartbeat::{DataLoss, Heartbeats};
use super::keys::KeyNames;
use super::reply::Reply;
use super::script::{Script, ScriptHead, ScriptKind, VERSION};
use super::sentinel::LinkTarget;
use super::server::{ConnectError, RedisEndpoint, ServerInfo, ServerUsage, read_usage};
use crate::clock::MonotonicClock;

/// Maximum number of calls in one batch: Redis serves no other client while a script runs.
const BATCH_MAX: usize = 128;
/// Maximum number of queued calls that a later call may overtake to join a batch.
const OVERTAKEN_MAX: usize = 256;
/// Maximum number of batches in flight: Redis works on one while this node reads and writes
/// another.
const IN_FLIGHT_MAX: usize = 2;
/// Time since the last batch after which another one is sent, although [`IN_FLIGHT_MAX`] are in
/// flight.
const BATCH_INTERVAL: Span = Span::from_millis(1);
/// Maximum number of batches in flight in a cluster, where calls on different slots can't share a
/// batch, and to a distant server.
const IN_FLIGHT_MAX_IN_CLUSTER: usize = 32;
/// Maximum number of queued calls: more than Redis can answer within any timeout.
const QUEUE_MAX: usize = 16_384;
/// Time after the last call of paced work for which the connection is kept although decisions time
/// out. Paced work calls more often than that as long as any of it waits.
const PACED_RECENTLY: Span = Span::from_secs(2);
/// Timeout for making a connection, including TLS and login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// First delay after a failed connection attempt; it doubles up to the maximum.
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_millis(400);
/// Interval between pings on an idle connection.
const PING_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of heartbeats and of reading the server's eviction policy, memory and load.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(500);
/// Value of the atomic `refusal` that stands for none.
const NO_REFUSAL: u8 = u8::MAX;

/// State of the connection to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Redis has answered on this connection.
    Up,
    /// The connection is being made.
    Connecting,
    /// The connection could not be made; the store keeps trying.
    Down,
}

/// Counters of the traffic to Redis, for metrics.
#[derive(Debug, Default)]
pub(super) struct TrafficCounters {
    /// Operations that requests asked for.
    pub(super) calls: AtomicU64,
    /// Script calls that carried them.
    pub(super) batches: AtomicU64,
}

/// A connection to one Redis server. Its task ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(super) struct Link {
    shared: Arc<LinkState>,
    /// Ends the task when it is dropped.
    _alive: Arc<oneshot::Sender<()>>,
}

/// State that the handles share with the task.
#[derive(Debug)]
struct LinkState {
    queue: Mutex<VecDeque<QueuedCall>>,
    /// Wakes the task when a call is queued.
    wakeup: Notify,
    state: AtomicU8,
    /// Set if the server may evict counters when its memory is full.
    evicts: AtomicBool,
    /// Set if the server keeps no append-only file, so a restart loses recent usage.
    volatile: AtomicBool,
    /// Discriminant of the [`WriteRefusal`], or [`NO_REFUSAL`] if the server accepts writes.
    refusal: AtomicU8,
    /// The server's last loss of data.
    loss: Mutex<Option<DataLoss>>,
    /// Memory and load of the server when it was last asked.
    usage: Mutex<Option<ServerUsage>>,
    /// Time of the last call of paced work, in microseconds.
    paced_at: AtomicU64,
    time: MonotonicClock,
}

/// A call that waits in the queue or for its reply.
#[derive(Debug)]
struct QueuedCall {
    call: Call,
    deadline: Timestamp,
    reply: oneshot::Sender<Result<Reply, CallFailure>>,
}

impl QueuedCall {
    /// Marks the call as sent. Returns false if its caller has stopped waiting.
    fn mark_sent(&self) -> bool {
        let Some(sent) = &self.call.sent else { return true };
        let before = sent.swap(true, Ordering::Relaxed);
        // A caller that stops waiting reads the flag afterwards. The fence makes sure that one of
        // the two sees the other's write.
        fence(Ordering::SeqCst);
        if self.reply.is_closed() {
            sent.store(before, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// Settings of a link.
#[derive(Clone, Debug)]
pub(super) struct LinkOptions {
    pub(super) script_head: ScriptHead,
    /// Timeout of a batch of decisions.
    pub(super) reply_timeout: Duration,
    /// Timeout of a batch of patient calls, and of pings. A reply that takes longer closes the
    /// connection.
    pub(super) patient_timeout: Duration,
    pub(super) sent: Arc<TrafficCounters>,
    /// Clock of the deadlines that [`Link::execute`] gets.
    pub(super) time: MonotonicClock,
    pub(super) names: Arc<KeyNames>,
    pub(super) node: Arc<NodeIdentity>,
    pub(super) heartbeats: Arc<Heartbeats>,
    /// One permit per connection, if the number of connections is limited.
    pub(super) permits: Option<Arc<Semaphore>>,
}

/// Identity of this node and numbers of its connections: see `lua/fence.lua`.
#[derive(Debug)]
pub(super) struct NodeIdentity {
    id: Id,
    connections: AtomicU64,
}

impl NodeIdentity {
    pub(super) fn new() -> Self {
        let random = || u128::from(RandomState::new().hash_one(std::process::id()));
        Self { id: Id::from_bits(random() << 64 | random()), connections: AtomicU64::new(0) }
    }

    fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The part that every script call on one connection begins with.
#[derive(Clone, Copy)]
struct CallHeader<'a> {
    options: &'a LinkOptions,
    number: u64,
}

impl Link {
    /// Starts to connect to a server outside of a cluster.
    pub(super) fn open(target: LinkTarget, options: LinkOptions) -> Self {
        Self::with_in_flight_max(target, options, IN_FLIGHT_MAX)
    }

    /// Starts to connect to a server of a cluster.
    pub(super) fn open_in_cluster(server: RedisEndpoint, options: LinkOptions) -> Self {
        Self::with_in_flight_max(LinkTarget::Server(server), options, IN_FLIGHT_MAX_IN_CLUSTER)
    }

    fn with_in_flight_max(target: LinkTarget, options: LinkOptions, in_flight_max: usize) -> Self {
        let shared = Arc::new(LinkState {
            queue: Mutex::default(),
            wakeup: Notify::new(),
            state: AtomicU8::new(ConnectionState::Connecting as u8),
            evicts: AtomicBool::new(false),
            volatile: AtomicBool::new(false),
            refusal: AtomicU8::new(NO_REFUSAL),
            loss: Mutex::default(),
            usage: Mutex::default(),
            paced_at: AtomicU64::new(0),
            time: options.time,
        });
        let (alive, dropped) = oneshot::channel::<()>();
        let task = LinkTask { shared: shared.clone(), target, options, in_flight_max };
        tokio::spawn(async move {
            tokio::select! {
                () = task.run() => {}
                _ = dropped => {}
            }
        });
        Self { shared, _alive: Arc::new(alive) }
    }

    pub(super) fn state(&self) -> ConnectionState {
        self.shared.state()
    }

    pub(super) fn evicts(&self) -> bool {
        self.shared.evicts.load(Ordering::Relaxed)
    }

    /// Returns the reason why the server rejects writes, if it does.
    pub(super) fn refusal(&self) -> Option<WriteRefusal> {
        WriteRefusal::from_number(self.shared.refusal.load(Ordering::Relaxed))
    }

    /// Returns the server's last loss of data, if there was one.
    pub(super) fn loss(&self) -> Option<DataLoss> {
        *self.shared.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns memory and load of the server, while it is connected.
    pub(super) fn usage(&self) -> Option<ServerUsage> {
        let usage = self.shared.usage.lock().unwrap_or_else(PoisonError::into_inner);
        usage.clone().filter(|_| self.state() == ConnectionState::Up)
    }

    /// Sends a call and waits for its reply. Dropping the future removes a call that was not sent
    /// yet, and no call is sent after its deadline: a process that was suspended must not send old
    /// calls when it continues.
    pub(super) async fn execute(
        &self,
        call: Call,
        deadline: Timestamp,
    ) -> Result<Reply, CallFailure> {
        if self.state() == ConnectionState::Down {
            return Err(CallFailure::Down);
        }
        let (reply, received) = oneshot::channel();
        {
            let mut queue = self.shared.lock();
            if queue.len() >= QUEUE_MAX {
                return Err(CallFailure::NotReady("the queue of calls is full".to_owned()));
            }
            queue.push_back(QueuedCall { call, deadline, reply });
        }
        self.shared.wakeup.notify_one();
        received.await.unwrap_or(Err(CallFailure::ConnectionLost))
    }
}

impl LinkState {
    fn state(&self) -> ConnectionState {
        match self.state.load(Ordering::Relaxed) {
            0 => ConnectionState::Up,
            1 => ConnectionState::Connecting,
            _ => ConnectionState::Down,
        }
    }

    fn set_state(&self, state: ConnectionState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Returns true if paced work has used the connection a short time ago.
    fn is_paced(&self) -> bool {
        let paced_at = Timestamp::from_micros(self.paced_at.load(Ordering::Relaxed));
        self.time.now().since(paced_at) < PACED_RECENTLY
    }

    /// Stores the server's eviction policy.
    fn record_policy(&self, policy: &str) {
        let evicts = policy != "noeviction";
        if !self.evicts.swap(evicts, Ordering::Relaxed) && evicts {
            warn!(
                policy,
                "Redis may evict counters when its memory is full, and then limits are exceeded: \
                set maxmemory-policy to noeviction"
            );
        }
    }

    /// Stores whether the server keeps an append-only file.
    fn record_persistence(&self, appends: bool) {
        if !self.volatile.swap(!appends, Ordering::Relaxed) && !appends {
            warn!(
                "Redis keeps no append-only file, so a restart loses the usage since its last dump: \
                set appendonly to yes, or store.on_loss to closed"
            );
        }
    }

    /// Stores whether the server accepts writes, and logs every change.
    fn record_refusal(&self, refusal: Option<WriteRefusal>, server: &RedisEndpoint, error: &str) {
        let number = refusal.map_or(NO_REFUSAL, |refusal| refusal as u8);
        if self.refusal.swap(number, Ordering::Relaxed) == number {
            return;
        }
        match refusal {
            Some(refusal) => {
                let reason = refusal.name();
                warn!(?server, reason, %error, "Redis refuses writes: outage policies decide");
            }
            None => info!(?server, "Redis accepts writes again"),
        }
    }

    fn record_loss(&self, loss: Option<DataLoss>) {
        *self.loss.lock().unwrap_or_else(PoisonError::into_inner) = loss;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<QueuedCall>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next calls that one script call can carry. Drops calls whose caller has stopped
    /// waiting or whose deadline has passed.
    fn next_batch(&self) -> Option<(ScriptKind, Vec<QueuedCall>)> {
        let mut queue = self.lock();
        let (mut batch, mut overtaken): (Vec<QueuedCall>, Vec<QueuedCall>) =
            (Vec::new(), Vec::new());
        let now = if queue.is_empty() { return None } else { self.time.now() };
        while batch.len() < BATCH_MAX && overtaken.len() < OVERTAKEN_MAX {
            let Some(next) = queue.pop_front() else { break };
            if next.reply.is_closed() || next.deadline <= now {
                continue;
            }
            match batch.first() {
                Some(first) if !first.call.can_share_batch(&next.call) => overtaken.push(next),
                _ if next.mark_sent() => batch.push(next),
                _ => {}
            }
        }
        overtaken.into_iter().rev().for_each(|queued| queue.push_front(queued));
        Some((batch.first()?.call.script, batch))
    }
}

/// The task that owns the connection.
struct LinkTask {
    shared: Arc<LinkState>,
    target: LinkTarget,
    options: LinkOptions,
    in_flight_max: usize,
}

impl LinkTask {
    async fn run(self) {
        let _permit = self.permit().await;
        let mut delay = DELAY_MIN;
        loop {
            match timeout(CONNECT_TIMEOUT, self.connect()).await {
                Ok(Ok((server, connection, info))) => {
                    delay = DELAY_MIN;
                    self.shared.record_policy(&info.eviction_policy);
                    self.shared.record_persistence(info.appends);
                    self.shared.set_state(ConnectionState::Up);
                    info!(?server, version = %info.version, "connected to Redis");
                    let lost = self.serve(&server, connection, &info).await;
                    warn!(?server, reason = %lost, "connection to Redis lost");
                    self.shared.set_state(ConnectionState::Connecting);
                    continue;
                }
                // A connection that breaks while it is made says little about the server: try once
                // more.
                Ok(Err(_))
                    if self.shared.state() == ConnectionState::Connecting && delay == DELAY_MIN => {
                }
                Ok(Err(ConnectError::RefusesWrites(..))) => self.set_down(None),
                Ok(Err(problem)) => self.set_down(Some(&problem.to_string())),
                Err(_) => self.set_down(Some("timeout")),
            }
            sleep(delay).await;
            delay = (delay * 2).min(DELAY_MAX);
        }
    }

    /// Waits for a connection permit. Until then, calls fail at once.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let permits = self.options.permits.clone()?;
        if let Ok(permit) = permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        self.set_down(Some("the limit of store.connections_max connections is reached"));
        permits.acquire_owned().await.ok()
    }

    /// Finds the server, which may have changed since the last connection, and connects.
    async fn connect(
        &self,
    ) -> Result<(RedisEndpoint, MultiplexedConnection, ServerInfo), ConnectError> {
        let LinkOptions { script_head, reply_timeout, .. } = &self.options;
        let server = self.target.find(*reply_timeout * 5).await?;
        let (mut connection, info) = server.connect(script_head, *reply_timeout).await?;
        self.target.verify(&mut connection, *reply_timeout * 5).await?;
        // The heartbeat comes before any decision: a restarted server may have lost its data.
        self.send_heartbeat(&server, &mut connection, &info, *reply_timeout * 5).await?;
        Ok((server, connection, info))
    }

    /// Sends a heartbeat. Skips a cluster server without slots, because it makes no decisions.
    async fn send_heartbeat(
        &self,
        server: &RedisEndpoint,
        connection: &mut MultiplexedConnection,
        info: &ServerInfo,
        reply_timeout: Duration,
    ) -> Result<(), ConnectError> {
        let heartbeats = &self.options.heartbeats;
        let owned = match heartbeats.by_slot() {
            true => Some(cluster::owned_slots(connection, server, reply_timeout).await?),
            false => None,
        };
        let Some(slot) = heartbeats.slot_for(owned.as_deref()) else { return Ok(()) };
        let sent = heartbeats.send(connection, (server, info), slot, reply_timeout).await;
        match sent.map_err(ConnectError::or_refusal) {
            Ok(loss) => {
                self.shared.record_loss(loss);
                self.shared.record_refusal(None, server, "");
                Ok(())
            }
            // The slot has just moved; the next heartbeat uses another one.
            Err(ConnectError::Redis(error)) if is_slot_migration(&error) => Ok(()),
            Err(error) => {
                if let ConnectError::RefusesWrites(refusal, error) = &error {
                    self.shared.record_refusal(Some(*refusal), server, error);
                }
                Err(error)
            }
        }
    }

    /// Fails all queued calls and marks the link as down. Logs `reason`, unless the link was down
    /// already.
    fn set_down(&self, reason: Option<&str>) {
        if let Some(reason) = reason
            && self.shared.state() != ConnectionState::Down
        {
            warn!(target = ?self.target, %reason, "can't connect to Redis");
        }
        self.shared.set_state(ConnectionState::Down);
        for queued in self.shared.lock().drain(..) {
            let _ = queued.reply.send(Err(CallFailure::Down));
        }
    }

    /// Sends queued calls until the connection is lost, and returns the reason. Dropping the calls
    /// in flight reports the loss to their callers.
    async fn serve(
        &self,
        server: &RedisEndpoint,
        connection: MultiplexedConnection,
        info: &ServerInfo,
    ) -> CallFailure {
        let header =
            CallHeader { options: &self.options, number: self.options.node.next_connection() };
        let mut in_flight = FuturesUnordered::new();
        let mut pings = interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heartbeats_due = interval(HEARTBEAT_INTERVAL);
        heartbeats_due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeats_due.tick().await;
        let mut heartbeat_in_flight = FuturesUnordered::new();
        let mut ping_in_flight = FuturesUnordered::new();
        let mut last_sent = self.options.time.now();
        loop {
            while in_flight.len() < self.in_flight_max(last_sent)
                && let Some((which, batch)) = self.shared.next_batch()
            {
                let requested = batch.iter().filter(|queued| !queued.call.housekeeping).count();
                self.options.sent.calls.fetch_add(requested as u64, Ordering::Relaxed);
                self.options.sent.batches.fetch_add(u64::from(requested > 0), Ordering::Relaxed);
                let script = info.scripts.get(which);
                last_sent = self.options.time.now();
                if batch.iter().any(|queued| queued.call.paced) {
                    self.shared.paced_at.store(last_sent.as_micros(), Ordering::Relaxed);
                }
                let script = (script, which);
                in_flight.push(self.send(server, connection.clone(), header, script, batch));
            }
            let may_send = in_flight.len() < self.in_flight_max(last_sent);
            tokio::select! {
                Some(sent) = in_flight.next() => {
                    if let Err(lost) = sent {
                        return lost;
                    }
                }
                () = self.shared.wakeup.notified(), if may_send => {}
                // Another batch may be sent by then.
                () = sleep((last_sent + BATCH_INTERVAL).since(self.options.time.now()).into()),
                    if !may_send && in_flight.len() < IN_FLIGHT_MAX_IN_CLUSTER => {}
                _ = heartbeats_due.tick(), if heartbeat_in_flight.is_empty() => {
                    heartbeat_in_flight.push(self.check_server(server, connection.clone(), info));
                }
                Some(checked) = heartbeat_in_flight.next() => {
                    if let Err(lost) = checked {
                        return lost;
                    }
                }
                _ = pings.tick(), if in_flight.is_empty() && ping_in_flight.is_empty() => {
                    ping_in_flight.push(self.ping(connection.clone()));
                }
                Some(answered) = ping_in_flight.next() => {
                    if let Err(lost) = answered {
                        return lost;
                    }
                }
            }
        }
    }

    /// Sends a ping and waits for its reply. Other calls are sent meanwhile.
    async fn ping(&self, mut connection: MultiplexedConnection) -> Result<(), CallFailure> {
        let ping = redis::cmd("PING");
        let sent = connection.send_packed_command(&ping);
        match timeout(self.options.patient_timeout, sent).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(CallFailure::ConnectionLost),
            Err(_) => Err(CallFailure::Timeout),
        }
    }

    /// Waits for the reply to a batch. When `waits` ends, its callers get a timeout, and the batch is
    /// empty. If paced work uses the connection, the reply is still awaited then, because it shows
    /// that the connection works.
    async fn reply(
        &self,
        reply: impl Future<Output = Result<Value, RedisError>>,
        mut waits: Pin<&mut Sleep>,
        batch: &mut Vec<QueuedCall>,
    ) -> Result<Result<Value, RedisError>, Elapsed> {
        let mut reply = pin!(reply);
        let is_patient = batch.iter().any(|queued| queued.call.patient);
        tokio::select! {
            biased;
            reply = reply.as_mut() => return Ok(reply),
            () = waits.as_mut() => fail_all(std::mem::take(batch), &CallFailure::Timeout),
        }
        let LinkOptions { reply_timeout, patient_timeout, .. } = self.options;
        let more = match !is_patient && self.shared.is_paced() {
            true => patient_timeout.saturating_sub(reply_timeout),
            false => Duration::ZERO,
        };
        timeout(more, reply).await
    }

    /// Returns the maximum number of batches in flight. It is larger if the last batch was sent a
    /// while ago: then the server is distant, and waiting for its answer would cost a round trip.
    fn in_flight_max(&self, last_sent: Timestamp) -> usize {
        match self.options.time.now().since(last_sent) >= BATCH_INTERVAL {
            true => self.in_flight_max.max(IN_FLIGHT_MAX_IN_CLUSTER),
            false => self.in_flight_max,
        }
    }

    /// Sends a heartbeat and reads the server's eviction policy, memory and load. Returns an error
    /// only if the server has become read-only; a missing reply is ignored.
    async fn check_server(
        &self,
        server: &RedisEndpoint,
        mut connection: MultiplexedConnection,
        info: &ServerInfo,
    ) -> Result<(), CallFailure> {
        let heartbeat = self.send_heartbeat(server, &mut connection, info, HEARTBEAT_TIMEOUT).await;
        if let Err(ConnectError::RefusesWrites(WriteRefusal::ReadOnly, error)) = heartbeat {
            return Err(CallFailure::NotReady(error));
        }
        if let Ok((policy, usage)) = read_usage(&mut connection, server).await {
            self.shared.record_policy(&policy);
            *self.shared.usage.lock().unwrap_or_else(PoisonError::into_inner) = Some(usage);
        }
        Ok(())
    }

    /// Sends one batch and distributes the replies. An error means that the connection is unusable.
    async fn send(
        &self,
        server: &RedisEndpoint,
        mut connection: MultiplexedConnection,
        header: CallHeader<'_>,
        (script, which): (&Script, ScriptKind),
        mut batch: Vec<QueuedCall>,
    ) -> Result<(), CallFailure> {
        let is_patient = batch.iter().any(|queued| queued.call.patient);
        let mut waits = pin!(sleep(match is_patient {
            true => self.options.patient_timeout,
            false => self.options.reply_timeout,
        }));
        let known = header.command("EVALSHA", &script.hash, &batch);
        let asking = batch.iter().any(|queued| queued.call.asking);
        let known = run_script(&mut connection, known, asking);
        let mut answer = self.reply(known, waits.as_mut(), &mut batch).await;
        if let Ok(Err(error)) = &answer
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            // A call whose caller has stopped waiting may have been rolled back already.
            batch.retain(|queued| !queued.reply.is_closed());
            if batch.is_empty() {
                return Ok(());
            }
            let whole = header.command("EVAL", &script.text, &batch);
            let whole = run_script(&mut connection, whole, asking);
            answer = self.reply(whole, waits, &mut batch).await;
        }
        let error = match answer {
            Ok(Ok(value)) => {
                let rows: Vec<usize> = batch.iter().map(|queued| queued.call.rows).collect();
                for (queued, reply) in batch.into_iter().zip(Reply::split(which, value, rows)) {
                    let _ = queued.reply.send(reply);
                }
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(_) => {
                fail_all(batch, &CallFailure::Timeout);
                return Err(CallFailure::Timeout);
            }
        };
        let failure = CallFailure::of(&error, &server.host);
        // A missing permission concerns one operation, not all writes.
        let refusal =
            WriteRefusal::of(&error).filter(|refusal| *refusal != WriteRefusal::NotPermitted);
        if refusal.is_some() {
            self.shared.record_refusal(refusal, server, &error.to_string());
        }
        let lost = match (&failure, error.kind()) {
            (CallFailure::ConnectionLost, _) => true,
            // A connection to a demoted primary would report this forever.
            _ if refusal == Some(WriteRefusal::ReadOnly) => true,
            // The slot came back from a server to which the connection is newer.
            _ if error.code() == Some(FENCED) => true,
            _ => false,
        };
        fail_all(batch, &failure);
        if lost { Err(failure) } else { Ok(()) }
    }
}

/// Returns true if the error says that the server does not serve the slot, or not yet.
fn is_slot_migration(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Ask | ClusterDown | Moved | TryAgain))
}

fn fail_all(batch: Vec<QueuedCall>, failure: &CallFailure) {
    for queued in batch {
        let _ = queued.reply.send(Err(failure.clone()));
    }
}

/// Runs the script call of a batch. A call to an importing server is sent right after `ASKING`.
async fn run_script(
    connection: &mut MultiplexedConnection,
    command: Cmd,
    asking: bool,
) -> Result<Value, RedisError> {
    if !asking {
        return connection.send_packed_command(&command).await.and_then(Value::extract_error);
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command);
    let mut answers = connection.send_packed_commands(&both, 0, 2).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

impl CallHeader<'_> {
    /// Builds the script call of a batch: the header, then each call.
    fn command(self, name: &str, script: &str, batch: &[QueuedCall]) -> Cmd {
        let slot = batch.first().and_then(|queued| queued.call.slot);
        let fence = self.options.names.fence(slot, self.options.node.id);
        let keys: usize = batch.iter().map(|queued| queued.call.keys.len()).sum();
        let arguments: usize = batch.iter().map(|queued| queued.call.arguments.len()).sum();
        let mut command = Cmd::with_capacity(6 + keys + arguments, 64 * (1 + batch.len()));
        command.arg(name).arg(script).arg(1 + keys).arg(fence);
        for text in batch.iter().flat_map(|queued| queued.call.keys.iter()) {
            command.arg(text);
        }
        command.arg(VERSION).arg(self.number);
        for text in batch.iter().flat_map(|queued| queued.call.arguments.iter()) {
            command.arg(text);
        }
        command
    }
}

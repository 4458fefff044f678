//! The connection to Redis, and the batches that travel over it.
//!
//! Whoever wants something puts a [`Call`] into a queue. One task owns the connection: it takes
//! all that is queued, up to a bound, sends it as one script call, and may do so again while
//! earlier ones are on their way. There is no timer: when nothing is on its way, a call goes at
//! once, and the busier Redis is the more calls share one.
//!
//! | state | means | a new call |
//! |---|---|---|
//! | up | the server has answered on this connection | is queued |
//! | unsure | the connection was lost, or is the first; it is being made | is queued, and waits |
//! | down | it could not be made | is refused at once |
//!
//! While it is down, the task goes on trying; that is the probe.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Notify, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use super::call::Call;
use super::reply::Reply;
use super::script::{Clock, Scripts, Which};
use super::server::{Greeting, Server};

/// The most calls that one script call decides: Redis serves nobody else meanwhile.
const BATCH_MAX: usize = 64;
/// How many batches may be on their way: Redis works on one while we read and write others.
const DEPTH: usize = 2;
/// The most calls that wait; more than Redis can answer within any time-out.
const QUEUE_MAX: usize = 16_384;
/// How long making a connection may take, encryption and login included.
const CONNECT: Duration = Duration::from_secs(1);
/// How long to wait after a failure to connect, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// How often a connection is looked at on which nothing happens.
const LOOK: Duration = Duration::from_millis(250);

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

/// Why a call was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// Redis is known not to answer.
    #[error("Redis is down")]
    Down,
    /// It was certainly not executed, and may be soon.
    #[error("Redis is not ready: {0}")]
    NotReady(String),
    /// It may or may not have been executed.
    #[error("the connection to Redis was lost")]
    Cut,
    /// It may or may not have been executed.
    #[error("Redis did not answer in time")]
    Late,
    /// It was refused, and would be again.
    #[error("Redis refuses: {0}")]
    Refused(String),
}

impl Failure {
    /// Whether another attempt may succeed.
    pub(super) const fn retryable(&self) -> bool {
        !matches!(self, Self::Down | Self::Refused(_))
    }
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
    sent: Sent,
}

#[derive(Debug)]
struct Job {
    call: Call,
    answer: oneshot::Sender<Result<Reply, Failure>>,
}

impl Link {
    /// Starts to connect. An answer that takes longer than `patience` ends the connection.
    pub(super) fn open(server: Server, clock: Clock, patience: Duration) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            queued: Notify::new(),
            state: AtomicU8::new(State::Unsure as u8),
            sent: Sent::default(),
        });
        let (alive, dropped) = oneshot::channel::<()>();
        let keeper = Keeper { shared: shared.clone(), server, clock, patience };
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

    pub(super) fn sent(&self) -> &Sent {
        &self.shared.sent
    }

    /// Sends a call and waits for its answer. Who stops waiting takes back what was not yet sent.
    pub(super) async fn ask(&self, call: Call) -> Result<Reply, Failure> {
        if self.state() == State::Down {
            return Err(Failure::Down);
        }
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.shared.lock();
            if queue.len() >= QUEUE_MAX {
                return Err(Failure::NotReady("too many calls wait for it".to_owned()));
            }
            queue.push_back(Job { call, answer });
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

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Job>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next calls that somebody still waits for, all for the same script.
    fn next_batch(&self) -> Option<(Which, Vec<Job>)> {
        let mut queue = self.lock();
        let mut batch: Vec<Job> = Vec::new();
        while batch.len() < BATCH_MAX {
            let Some(next) = queue.front() else { break };
            if next.answer.is_closed() {
                queue.pop_front();
                continue;
            }
            if batch.first().is_some_and(|first| first.call.script != next.call.script) {
                break;
            }
            batch.extend(queue.pop_front());
        }
        Some((batch.first()?.call.script, batch))
    }
}

/// The task that owns the connection.
struct Keeper {
    shared: Arc<Shared>,
    server: Server,
    clock: Clock,
    patience: Duration,
}

impl Keeper {
    async fn run(self) {
        let mut pause = PAUSE_MIN;
        loop {
            match timeout(CONNECT, self.server.connect(self.clock, self.patience)).await {
                Ok(Ok((connection, greeting))) => {
                    pause = PAUSE_MIN;
                    self.shared.set_state(State::Up);
                    info!(version = %greeting.version, "connected to Redis");
                    let lost = self.serve(connection, &greeting).await;
                    warn!(reason = %lost, "the connection to Redis is given up");
                    self.shared.set_state(State::Unsure);
                    continue;
                }
                Ok(Err(problem)) => self.down(&problem.to_string()),
                Err(_) => self.down("it took too long"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Nobody waits for a server that can't be reached.
    fn down(&self, reason: &str) {
        if self.shared.state() != State::Down {
            warn!(%reason, "can't connect to Redis");
        }
        self.shared.set_state(State::Down);
        for job in self.shared.lock().drain(..) {
            let _ = job.answer.send(Err(Failure::Down));
        }
    }

    /// Sends what is queued until the connection is lost; returns why. What was on its way then is
    /// answered by nobody, which tells those who wait.
    async fn serve(&self, connection: MultiplexedConnection, greeting: &Greeting) -> Failure {
        let mut in_flight = FuturesUnordered::new();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while in_flight.len() < DEPTH
                && let Some((which, batch)) = self.shared.next_batch()
            {
                self.shared.sent.calls.fetch_add(batch.len() as u64, Ordering::Relaxed);
                self.shared.sent.batches.fetch_add(1, Ordering::Relaxed);
                in_flight.push(self.send(connection.clone(), &greeting.scripts, which, batch));
            }
            tokio::select! {
                Some(sent) = in_flight.next() => {
                    if let Err(lost) = sent {
                        return lost;
                    }
                }
                () = self.shared.queued.notified(), if in_flight.len() < DEPTH => {}
                _ = look.tick(), if in_flight.is_empty() => {
                    let mut connection = connection.clone();
                    let ping = redis::cmd("PING");
                    match timeout(self.patience, connection.send_packed_command(&ping)).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(_)) => return Failure::Cut,
                        Err(_) => return Failure::Late,
                    }
                }
            }
        }
    }

    /// Sends one batch and hands out its answers. An error means that the connection is of no use.
    async fn send(
        &self,
        mut connection: MultiplexedConnection,
        scripts: &Scripts,
        which: Which,
        batch: Vec<Job>,
    ) -> Result<(), Failure> {
        let script = scripts.get(which);
        let send = async {
            let known = command("EVALSHA", &script.hash, &batch);
            match connection.send_packed_command(&known).await.and_then(Value::extract_error) {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    let whole = command("EVAL", &script.text, &batch);
                    connection.send_packed_command(&whole).await.and_then(Value::extract_error)
                }
                result => result,
            }
        };
        let error = match timeout(self.patience, send).await {
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
        let failure = failure_of(&error);
        let lost = match (&failure, error.kind()) {
            (Failure::Cut, _) => true,
            // Pooled connections to a primary that was demoted would say so for ever.
            (_, ErrorKind::Server(ServerErrorKind::ReadOnly)) => true,
            _ => false,
        };
        tell(batch, &failure);
        if lost { Err(failure) } else { Ok(()) }
    }
}

fn tell(batch: Vec<Job>, failure: &Failure) {
    for job in batch {
        let _ = job.answer.send(Err(failure.clone()));
    }
}

fn command(name: &str, script: &str, batch: &[Job]) -> Cmd {
    let keys: usize = batch.iter().map(|job| job.call.keys.len()).sum();
    let arguments: usize = batch.iter().map(|job| job.call.arguments.len()).sum();
    let mut command = Cmd::with_capacity(3 + keys + arguments, 64 * batch.len());
    command.arg(name).arg(script).arg(keys);
    for text in batch.iter().flat_map(|job| job.call.keys.iter()) {
        command.arg(text);
    }
    for text in batch.iter().flat_map(|job| job.call.arguments.iter()) {
        command.arg(text);
    }
    command
}

/// What an error says about what was asked.
pub(super) fn failure_of(error: &RedisError) -> Failure {
    use ServerErrorKind as Kind;
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Server(
            Kind::NoScript
            | Kind::BusyLoading
            | Kind::Moved
            | Kind::Ask
            | Kind::TryAgain
            | Kind::ClusterDown
            | Kind::MasterDown
            | Kind::ReadOnly,
        ) => Failure::NotReady(text),
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
            Failure::Refused(text)
        }
        _ => Failure::Cut,
    }
}

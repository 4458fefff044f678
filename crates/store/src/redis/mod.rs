//! Usage in Redis, shared by all nodes.
//!
//! A plan is decided by a script, which Redis runs alone: checked whole, then written whole, by
//! the clock of the server, in one round trip. What the scripts keep is described where they keep
//! it, in `lua/`; what it is called, in [`keys`].
//!
//! ```text
//! Plan ─call→ keys and arguments ─link→ batch ─script→ numbers ─reply→ Decision
//! ```
//!
//! In a cluster, keys that lie in one slot are decided like that. A plan that lies in several takes
//! a protocol above it: [`reserve`].

mod attempts;
mod call;
mod cluster;
#[cfg(test)]
mod commands;
mod denied;
mod failure;
mod heartbeat;
mod keys;
mod link;
mod memo;
mod nodes;
mod parts;
mod reply;
mod reserve;
mod script;
mod sentinel;
mod server;
mod shelf;
mod slot;
mod take_back;
mod tally;
mod way;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::algorithm::log::ENTRIES_PER_CHARGE_MAX;
use sluicegate_core::decision::{Closed, Readings};
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Attempt, Claim, Ended, Error, Renewed, Shut, Usage};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Key, Plan, Span, Store, Timestamp};
use smallvec::SmallVec;
use tokio::sync::Semaphore;

pub use attempts::Patience;
pub use failure::Refusal;
pub use heartbeat::OnLoss;
pub use link::State;
pub use sentinel::Sentinels;
pub use server::Server;
pub use tally::{Asked, Counted};
pub use way::Topology;

use crate::clock::MonotonicClock;
use attempts::{Attempts, Doubt};
use call::{Call, Later, Planned};
use denied::Denied;
use heartbeat::Heartbeats;
use keys::Names;
use link::{Node, Sent, Terms};
use memo::Memo;
use nodes::Nodes;
use parts::{Part, Spread, slots_of};
use reply::Reply;
use script::Clock;
use slot::Slot;
use take_back::{GivenUp, TakeBacks};
use way::Way;

/// How Redis is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is.
    pub topology: Topology,
    /// What every key begins with, those of literal templates excepted.
    pub key_prefix: String,
    /// How long an answer is waited for.
    pub patience: Patience,
    /// How long a denial is repeated without asking; zero for never.
    pub deny_cache: Duration,
    /// What to do about a server that has lost its memory.
    pub on_loss: OnLoss,
    /// The most servers that a connection is kept to, one each.
    pub connections_max: Option<usize>,
}

impl Options {
    /// The defaults, on this server.
    pub fn new(server: Server) -> Self {
        Self::on(Topology::Single(server))
    }

    /// The defaults, on these servers.
    pub fn on(topology: Topology) -> Self {
        Self {
            topology,
            key_prefix: "sg:".to_owned(),
            patience: Patience::default(),
            deny_cache: Duration::from_secs(1),
            on_loss: OnLoss::default(),
            connections_max: None,
        }
    }
}

/// How often Redis was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Operations that were sent, retries included.
    pub calls: u64,
    /// Round trips that carried them.
    pub round_trips: u64,
    /// Attempts that were repeated.
    pub retries: u64,
}

/// The shared store.
#[derive(Debug)]
pub struct Redis {
    way: Way,
    names: Arc<Names>,
    memo: Memo,
    denied: Denied,
    attempts: Attempts,
    take_backs: TakeBacks,
    nodes: Nodes,
    sent: Arc<Sent>,
    heartbeats: Arc<Heartbeats>,
    on_loss: OnLoss,
    time: MonotonicClock,
}

impl Redis {
    /// A store that connects by itself, now and whenever the connection is lost. Must be called
    /// inside a Tokio runtime, which goes on to run it.
    pub fn new(options: Options) -> Self {
        Self::with_clock(options, Clock::Server)
    }

    /// A store that goes by the time in the key `clock`, behind the prefix of all keys.
    #[cfg(feature = "test-clock")]
    pub fn with_clock_in_key(options: Options) -> Self {
        let name = format!("{}clock", options.key_prefix);
        Self::with_clock(options, Clock::Key(name))
    }

    /// The scripts of such a store, the fast one first, for a server of version 7.
    #[cfg(feature = "test-clock")]
    pub fn scripts_with_clock_in_key(key_prefix: &str) -> [String; 2] {
        let scripts = script::Scripts::new(&Clock::Key(format!("{key_prefix}clock")), 7);
        [script::Which::Fast, script::Which::Full].map(|which| scripts.get(which).text.clone())
    }

    fn with_clock(options: Options, clock: Clock) -> Self {
        let Options { topology, key_prefix, patience, deny_cache, on_loss, connections_max } =
            options;
        let (time, sent) = (MonotonicClock::new(), Arc::new(Sent::default()));
        let names = Arc::new(Names::new(key_prefix, topology.layout()));
        let heartbeats = Arc::new(Heartbeats::new(names.clone(), on_loss, time));
        let terms = Terms {
            clock,
            patience: patience.timeout,
            sent: sent.clone(),
            time,
            names: names.clone(),
            node: Arc::new(Node::new()),
            heartbeats: heartbeats.clone(),
            room: connections_max.map(|most| Arc::new(Semaphore::new(most))),
        };
        let way = Way::open(topology, terms);
        Self {
            nodes: Nodes::announce(way.clone(), names.clone(), time),
            way,
            names,
            memo: Memo::new(),
            denied: Denied::new(deny_cache.into(), time),
            attempts: Attempts::new(patience, time),
            take_backs: TakeBacks::new(time),
            sent,
            heartbeats,
            on_loss,
            time,
        }
    }

    /// Whether Redis can be asked.
    pub fn state(&self) -> State {
        self.way.state()
    }

    /// How often it was asked.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            calls: self.sent.calls.load(Ordering::Relaxed),
            round_trips: self.sent.batches.load(Ordering::Relaxed),
            retries: self.attempts.retries(),
        }
    }

    /// What was counted of each operation.
    pub fn counted(&self) -> Vec<Counted> {
        self.attempts.tally().read()
    }

    /// Whether a server may throw counters away when its memory is full.
    pub fn evicts(&self) -> bool {
        self.way.evicts()
    }

    /// How often a server has lost its memory since this node was started.
    pub fn losses(&self) -> u64 {
        self.heartbeats.losses()
    }

    /// Why a server writes nothing, if one answers but doesn't: it refuses every decision then.
    pub fn refusal(&self) -> Option<Refusal> {
        self.way.refusal()
    }

    /// The refusal of a plan of which a counter may have been lost less than its window ago, if that
    /// is what [`OnLoss::Closed`] asks for. Rules that never deny are not closed either.
    fn closed_by_loss(&self, plan: &Plan<'_>) -> Option<Closed> {
        if self.on_loss == OnLoss::Continue {
            return None;
        }
        let now = self.time.now();
        let closed = plan.charges().iter().filter(|charge| !charge.shadow() && !charge.is_gate());
        let closed = closed.filter_map(|charge| {
            let loss = self.way.loss(|| self.names.slot(&charge.key))?;
            let (at, until) = (loss.server_time(now), loss.is_over_for(charge));
            (until > at).then_some((at, until))
        });
        let (at, until) = closed.max_by_key(|(at, until)| until.since(*at))?;
        Some(Closed { at, until: Some(until), readings: Readings::new() })
    }

    /// A decision, unless a loss was noticed while it was made: what was asked while the connection
    /// was made anew is decided by counters that are empty. What it charged leaves when the rule is
    /// open again.
    fn unless_lost(&self, plan: &Plan<'_>, decision: Decision) -> Decision {
        match decision {
            Decision::Allow(_) => match self.closed_by_loss(plan) {
                Some(closed) => Decision::Closed(closed),
                None => decision,
            },
            other => other,
        }
    }

    /// How many denials were repeated without asking.
    pub fn denied_without_asking(&self) -> u64 {
        self.denied.answered()
    }

    /// How many attempts are being taken back.
    pub fn taking_back(&self) -> usize {
        self.take_backs.running()
    }

    /// How many attempts stay charged because too many were being taken back.
    pub fn not_taken_back(&self) -> u64 {
        self.take_backs.overflowed()
    }

    /// Waits until Redis has answered for the first time, but not longer than that.
    pub async fn wait_until_up(&self, at_most: Duration) -> bool {
        let up = async {
            while self.state() != State::Up {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(at_most, up).await.is_ok()
    }

    /// Remembers what an answer tells of its logs, unless it was told that itself.
    fn learn(&self, plan: &Plan<'_>, hinted: &[bool], decision: &Decision) {
        let mut readings = decision.readings().iter();
        for (charge, hinted) in plan.charges().iter().zip(hinted) {
            let (window, limits) = (charge.meter.window(), charge.limits());
            for (limit, reading) in limits.iter().zip(readings.by_ref()) {
                let oldest = reading.reset - limit.window();
                // A log of bookings only may still get an older entry.
                let past = oldest <= decision.at() && reading.used > 0;
                if limit.window() == window && past && !hinted {
                    self.memo.learn(&self.names.counter(charge), window, oldest);
                }
            }
        }
    }

    async fn ask_planned(
        &self,
        operation: Planned,
        plan: &Plan<'_>,
        slot: Option<Slot>,
    ) -> Result<Reply, Error> {
        let reply = self.ask_known(operation, plan, slot, None).await;
        if matches!(operation, Planned::Claim(_) | Planned::Refund | Planned::Reset) {
            self.forget(plan.charges().iter().map(|charge| &charge.key));
        }
        reply
    }

    async fn ask_known(
        &self,
        operation: Planned,
        plan: &Plan<'_>,
        slot: Option<Slot>,
        doubt: Option<&Doubt>,
    ) -> Result<Reply, Error> {
        let call = |_| Call::planned(operation, plan, slot, &self.names);
        let named = (operation.asked(), plan.id.id);
        self.attempts.make_known(&self.way, named, doubt, call).await
    }

    /// Asks every part of a plan.
    async fn ask_parts<T>(
        &self,
        operation: Planned,
        parts: &[Part<'_>],
        read: impl Fn(Reply, &Plan<'_>) -> Result<T, Error>,
    ) -> Vec<Result<T, Error>> {
        let ask = async |part: &Part<'_>| {
            let reply = self.ask_planned(operation, &part.plan, Some(part.slot)).await?;
            read(reply, &part.plan)
        };
        join_all(parts.iter().map(ask)).await
    }

    /// Asks what the limits show, before or after something is done about it in each slot.
    async fn ask_usage(&self, operation: Planned, plan: &Plan<'_>) -> Result<Usage, Error> {
        match Spread::of(plan, &self.names) {
            Spread::Whole(slot) => self.ask_planned(operation, plan, slot).await?.usage(plan),
            Spread::Parts(parts) => {
                let answers = self.ask_parts(operation, &parts, Reply::usage).await;
                parts::usage(plan, &parts, answers)
            }
        }
    }

    /// Asks every slot that has a record of a handle.
    async fn ask_later<T>(
        &self,
        operation: Later<'_>,
        handle: &Handle,
        read: impl Fn(Reply) -> Result<T, Error>,
    ) -> Vec<Result<T, Error>> {
        let ask = async |slot| {
            let call = |_| Call::later(operation, handle, slot, &self.names);
            read(self.attempts.make(&self.way, (operation.asked(), handle.id), call).await?)
        };
        let answers = join_all(slots_of(handle, &self.names).into_iter().map(ask)).await;
        self.forget(handle.keys.iter());
        answers
    }

    /// The only slot of a plan that can't be in several.
    fn whole(&self, plan: &Plan<'_>) -> Result<Option<Slot>, Error> {
        match Spread::of(plan, &self.names) {
            Spread::Whole(slot) => Ok(slot),
            Spread::Parts(_) => Err(Error::Spread),
        }
    }

    /// Forgets what was read of counters of which something may have been given back.
    fn forget<'k>(&self, keys: impl Iterator<Item = &'k Key>) {
        for key in keys {
            let log = self.names.log(key);
            self.memo.forget(&log);
            self.denied.forget(&log);
        }
    }
}

impl Store for Redis {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        if let Some(closed) = self.closed_by_loss(plan) {
            return Ok(Decision::Closed(closed));
        }
        let slot = match Spread::of(plan, &self.names) {
            Spread::Whole(slot) => slot,
            Spread::Parts(parts) => {
                let decision = self.reserve(plan, &parts).await?;
                return Ok(self.unless_lost(plan, decision));
            }
        };
        let asked = self.denied.now();
        if let Some(deny) = self.denied.of(plan, &self.names, asked) {
            return Ok(Decision::Deny(deny));
        }
        let number = if plan.recorded() { self.take_backs.number() } else { plan.id.id };
        let given_up = GivenUp::if_in_doubt(self, plan, Attempt::Acquire(number));
        let mut hinted = SmallVec::new();
        let call = |retry| match Call::fast(plan, slot, retry, &self.names, &self.memo) {
            Some(call) => {
                hinted.clone_from(&call.hinted);
                call
            }
            None => Call::planned(Planned::Acquire(number), plan, slot, &self.names),
        };
        let named = (Asked::Acquire, plan.id.id);
        let reply = match self.attempts.make_known(&self.way, named, given_up.doubt(), call).await {
            Ok(reply) => reply,
            Err(error) => return Err(given_up.handed_on(error)),
        };
        let clean = reply.is_clean();
        let decision = reply.decision(plan)?;
        if clean && hinted.contains(&false) {
            self.learn(plan, &hinted, &decision);
        }
        if let Decision::Deny(deny) = &decision {
            self.denied.learn(plan, &self.names, (asked, self.denied.now()), deny);
        }
        given_up.decided(&decision);
        Ok(self.unless_lost(plan, decision))
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        if let Some(closed) = self.closed_by_loss(plan) {
            return Ok(Decision::Closed(closed));
        }
        match Spread::of(plan, &self.names) {
            Spread::Whole(slot) => {
                self.ask_planned(Planned::Peek, plan, slot).await?.decision(plan)
            }
            Spread::Parts(parts) => {
                let answers = self.ask_parts(Planned::Peek, &parts, Reply::decision).await;
                parts::decide(plan, &parts, answers)
            }
        }
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        if let Some(closed) = self.closed_by_loss(plan) {
            return Ok(Decision::Closed(closed));
        }
        let slot = self.whole(plan)?;
        let number = self.take_backs.number();
        let given_up = GivenUp::if_in_doubt(self, plan, Attempt::Book(number));
        let decision =
            match self.ask_known(Planned::Book(number), plan, slot, given_up.doubt()).await {
                Ok(reply) => reply.decision(plan)?,
                Err(error) => return Err(given_up.handed_on(error)),
            };
        given_up.decided(&decision);
        Ok(self.unless_lost(plan, decision))
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        // A booking that was restored from a dump may stand beside work that the dump knows nothing of.
        if self.closed_by_loss(plan).is_some() {
            let why = "Redis lost its memory, and store.on_loss keeps the rule closed";
            return Err(Error::Unavailable(why.into()));
        }
        let slot = self.whole(plan)?;
        self.ask_planned(Planned::Claim(claimant), plan, slot).await?.claim(plan)
    }

    async fn cancel(&self, handle: &Handle) -> Result<Ended, Error> {
        parts::ended(self.ask_later(Later::Cancel, handle, Reply::ended).await)
    }

    async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<Ended, Error> {
        // Across slots all or none: what one of them would refuse, none is asked to do.
        let too_many = actual.requests.is_some_and(|requests| requests > ENTRIES_PER_CHARGE_MAX);
        if too_many && slots_of(handle, &self.names).len() > 1 {
            let answers = self.ask_later(Later::CouldSettle(actual), handle, Reply::ended).await;
            if answers.contains(&Err(Error::TooMany)) {
                return Err(Error::TooMany);
            }
        }
        parts::ended(self.ask_later(Later::Settle(actual), handle, Reply::ended).await)
    }

    async fn release(&self, handle: &Handle) -> Result<Ended, Error> {
        parts::ended(self.ask_later(Later::Release, handle, Reply::ended).await)
    }

    async fn renew(&self, handle: &Handle) -> Result<Renewed, Error> {
        parts::renewed(self.ask_later(Later::Renew, handle, Reply::renewed).await)
    }

    async fn close(&self, plan: &Plan<'_>, wait: Span) -> Result<Shut, Error> {
        let operation = Planned::Close(wait);
        match Spread::of(plan, &self.names) {
            Spread::Whole(slot) => self.ask_planned(operation, plan, slot).await?.shut(),
            Spread::Parts(parts) => {
                let read = |reply: Reply, _: &Plan<'_>| reply.shut();
                parts::shut(self.ask_parts(operation, &parts, read).await)
            }
        }
    }

    async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        match Spread::of(plan, &self.names) {
            Spread::Whole(slot) => self.ask_planned(Planned::Reset, plan, slot).await?.reset(),
            Spread::Parts(parts) => {
                let read = |reply: Reply, _: &Plan<'_>| reply.reset();
                let answers = self.ask_parts(Planned::Reset, &parts, read).await;
                let times: Vec<_> = answers.into_iter().collect::<Result<_, _>>()?;
                Ok(times.into_iter().max().unwrap_or_default())
            }
        }
    }

    async fn refund(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.ask_usage(Planned::Refund, plan).await
    }

    async fn usage(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.ask_usage(Planned::Usage, plan).await
    }

    fn give_up(&self, plan: &Plan<'_>, attempt: Attempt) {
        self.take_back(plan, attempt);
    }

    fn nodes(&self) -> u32 {
        self.nodes.seen()
    }
}

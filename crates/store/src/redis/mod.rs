//! The Redis store: [`Redis`] keeps the usage that all nodes share.
//!
//! A Lua script decides a plan. Redis runs it atomically: all charges are checked, then all are
//! written, by the clock of the server, in one round trip. The files in `lua/` describe the stored
//! data, and [`keys`] the names of the keys.
//!
//! ```text
//! Plan ─call→ keys and arguments ─link→ batch ─script→ numbers ─reply→ Decision
//! ```
//!
//! In a cluster, a plan whose keys lie in one slot is decided the same way. A plan that spans
//! several slots needs the protocol in [`reserve`].

mod backlogs;
mod call;
mod cluster;
#[cfg(test)]
mod commands;
mod connection;
mod denial_cache;
mod failure;
mod heartbeat;
mod inspection;
mod keys;
mod link;
mod log_cache;
mod nodes;
mod operation_stats;
mod override_store;
mod plan_parts;
mod reply;
mod reservation_store;
mod reserve;
mod retry;
mod rollback;
mod script;
mod sentinel;
mod server;
mod slot;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::algorithm::log::ENTRIES_PER_CHARGE_MAX;
use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::decision::{Closed, Readings};
pub use sluicegate_core::outage::DataLossPolicy;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Attempt, Claim, EndResult, Error, GateClosure, Renewal, Usage};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Key, Plan, Span, Store, Timestamp};
use smallvec::SmallVec;
use tokio::sync::Semaphore;

pub use failure::WriteRefusal;
pub use inspection::{ServerInspection, inspect};
pub use link::ConnectionState;
pub use operation_stats::{OperationStats, RedisOperation};
pub use retry::RetryPolicy;
pub use server::ServerUsage;

use crate::clock::MonotonicClock;
pub use crate::redis_servers::{RedisEndpoint, RedisTopology, Sentinels};
use call::{Call, PlanOperation, RecordOperation};
use connection::RedisConnection;
use denial_cache::DenialCache;
use heartbeat::Heartbeats;
use keys::KeyNames;
use link::{LinkOptions, NodeIdentity, TrafficCounters};
use log_cache::LogCache;
use nodes::NodeCount;
use plan_parts::{PlanPart, PlanSplit, slots_of};
use reply::Reply;
use retry::{ExecutionTracker, Retrier};
use rollback::{RollbackGuard, Rollbacks};
use script::{ScriptClock, ScriptHead};
use slot::ClusterSlot;

/// Settings of the Redis store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The servers to use.
    pub topology: RedisTopology,
    /// Prefix of every key, except literal keys of the configuration.
    pub key_prefix: String,
    /// Timeouts and retries of a call.
    pub retry: RetryPolicy,
    /// Time for which a denial is repeated without asking Redis; zero turns that off.
    pub deny_cache: Duration,
    /// Behaviour after a server has lost its data.
    pub on_loss: DataLossPolicy,
    /// Maximum number of connections, one to each server.
    pub connections_max: Option<usize>,
    /// Minimum lifetime of a counter after its last use. Counters live for two of their windows
    /// anyway.
    pub ttl_min: Duration,
}

impl Options {
    /// Returns the default settings for one server.
    pub fn new(server: RedisEndpoint) -> Self {
        Self::on(RedisTopology::Single(server))
    }

    /// Returns the default settings for a topology.
    pub fn on(topology: RedisTopology) -> Self {
        Self {
            topology,
            key_prefix: "sg:".to_owned(),
            retry: RetryPolicy::default(),
            deny_cache: Duration::from_secs(1),
            on_loss: DataLossPolicy::default(),
            connections_max: None,
            ttl_min: Duration::ZERO,
        }
    }
}

/// Numbers of calls to Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Operations that were sent, including retries.
    pub calls: u64,
    /// Round trips that carried them.
    pub round_trips: u64,
    /// Calls that were retried.
    pub retries: u64,
}

/// The Redis store.
#[derive(Debug)]
pub struct Redis {
    connection: RedisConnection,
    names: Arc<KeyNames>,
    log_cache: LogCache,
    denial_cache: DenialCache,
    retrier: Retrier,
    rollbacks: Rollbacks,
    nodes: NodeCount,
    sent: Arc<TrafficCounters>,
    heartbeats: Arc<Heartbeats>,
    on_loss: DataLossPolicy,
    time: MonotonicClock,
}

impl Redis {
    /// Returns a store that connects in the background and reconnects after a loss. Must be called
    /// inside a Tokio runtime, which runs the background tasks.
    pub fn new(options: Options) -> Self {
        Self::with_clock(options, ScriptClock::Server)
    }

    /// Returns a store that reads the time from the key `clock`, behind the key prefix.
    #[cfg(feature = "test-clock")]
    pub fn with_clock_in_key(options: Options) -> Self {
        let name = format!("{}clock", options.key_prefix);
        Self::with_clock(options, ScriptClock::Key(name))
    }

    /// Returns the scripts of such a store for Redis 7, the fast one first.
    #[cfg(feature = "test-clock")]
    pub fn scripts_with_clock_in_key(key_prefix: &str) -> [String; 2] {
        let scripts = {
            let clock = ScriptClock::Key(format!("{key_prefix}clock"));
            script::Scripts::new(&ScriptHead::of(clock), 7)
        };
        [script::ScriptKind::Fast, script::ScriptKind::Full]
            .map(|which| scripts.get(which).text.clone())
    }

    fn with_clock(options: Options, clock: ScriptClock) -> Self {
        let Options { topology, key_prefix, retry, deny_cache, on_loss, connections_max, ttl_min } =
            options;
        let (time, sent) = (MonotonicClock::new(), Arc::new(TrafficCounters::default()));
        let names = Arc::new(KeyNames::new(key_prefix, topology.layout()));
        let heartbeats = Arc::new(Heartbeats::new(names.clone(), on_loss, time));
        let link_options = LinkOptions {
            script_head: ScriptHead { clock, ttl_min },
            reply_timeout: retry.timeout,
            patient_timeout: retry.patient().timeout,
            sent: sent.clone(),
            time,
            names: names.clone(),
            node: Arc::new(NodeIdentity::new()),
            heartbeats: heartbeats.clone(),
            permits: connections_max.map(|most| Arc::new(Semaphore::new(most))),
        };
        let connection = RedisConnection::open(topology, link_options);
        Self {
            nodes: NodeCount::announce(connection.clone(), names.clone(), time),
            connection,
            names,
            log_cache: LogCache::new(),
            denial_cache: DenialCache::new(deny_cache.into(), time),
            retrier: Retrier::new(retry, time),
            rollbacks: Rollbacks::new(time),
            sent,
            heartbeats,
            on_loss,
            time,
        }
    }

    /// Returns the state of the connection to Redis.
    pub fn state(&self) -> ConnectionState {
        self.connection.state()
    }

    /// Returns the numbers of calls so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            calls: self.sent.calls.load(Ordering::Relaxed),
            round_trips: self.sent.batches.load(Ordering::Relaxed),
            retries: self.retrier.retries(),
        }
    }

    /// Returns latencies and errors of each operation.
    pub fn operation_stats(&self) -> Vec<OperationStats> {
        self.retrier.counters().read()
    }

    /// Returns true if a server may evict counters when its memory is full.
    pub fn evicts(&self) -> bool {
        self.connection.evicts()
    }

    /// Returns memory and load of each connected server, read once a second.
    pub fn server_usage(&self) -> Vec<ServerUsage> {
        self.connection.usage()
    }

    /// Returns the number of times a server has lost data since this node was started.
    pub fn losses(&self) -> u64 {
        self.heartbeats.losses()
    }

    /// Returns the reason why a server rejects writes, if one does. It rejects every decision then.
    pub fn refusal(&self) -> Option<WriteRefusal> {
        self.connection.refusal()
    }

    /// Returns the closed decision of a plan if a counter of it may have lost data less than a
    /// window ago and [`DataLossPolicy::Closed`] is configured. Shadow rules are never closed.
    fn closed_by_data_loss(&self, plan: &Plan<'_>) -> Option<Closed> {
        if self.on_loss == DataLossPolicy::Continue {
            return None;
        }
        let now = self.time.now();
        let closed = plan.charges().iter().filter(|charge| !charge.shadow() && !charge.is_gate());
        let closed = closed.filter_map(|charge| {
            let loss = self.connection.loss(|| self.names.slot(&charge.key))?;
            let (at, until) = (loss.server_time(now), loss.end_for(charge));
            (until > at).then_some((at, until))
        });
        let (at, until) = closed.max_by_key(|(at, until)| until.since(*at))?;
        Some(Closed { at, until: Some(until), readings: Readings::new() })
    }

    /// Replaces an admission by a closed decision if a data loss was noticed meanwhile: a call that
    /// was queued during the reconnect was decided by empty counters. Its charge has left
    /// the window when the rule opens again.
    fn recheck_data_loss(&self, plan: &Plan<'_>, decision: Decision) -> Decision {
        match decision {
            Decision::Allow(_) => match self.closed_by_data_loss(plan) {
                Some(closed) => Decision::Closed(closed),
                None => decision,
            },
            other => other,
        }
    }

    /// Returns the number of denials that were answered from the cache.
    pub fn denials_from_cache(&self) -> u64 {
        self.denial_cache.hits()
    }

    /// Returns the number of attempts that are being rolled back.
    pub fn pending_rollbacks(&self) -> usize {
        self.rollbacks.running()
    }

    /// Returns the number of attempts that stay charged because too many rollbacks were running.
    pub fn skipped_rollbacks(&self) -> u64 {
        self.rollbacks.overflowed()
    }

    /// Waits until Redis has answered for the first time, for `at_most` at most. Returns true if it
    /// has.
    pub async fn wait_until_up(&self, at_most: Duration) -> bool {
        let up = async {
            while self.state() != ConnectionState::Up {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(at_most, up).await.is_ok()
    }

    /// Updates the log cache from a decision, for the charges whose facts did not come from the
    /// cache.
    fn update_log_cache(&self, plan: &Plan<'_>, hinted: &[bool], decision: &Decision) {
        let mut readings = decision.readings().iter();
        for (charge, hinted) in plan.charges().iter().zip(hinted) {
            let (window, limits) = (charge.meter.window(), charge.limits());
            for (limit, reading) in limits.iter().zip(readings.by_ref()) {
                let oldest = reading.reset - limit.window();
                // A log that contains only bookings may still get an older entry.
                let past = oldest <= decision.at() && reading.used > 0;
                if limit.window() == window && past && !hinted {
                    self.log_cache.set_oldest(&self.names.counter(charge), window, oldest);
                }
            }
        }
    }

    async fn run_on_plan(
        &self,
        operation: PlanOperation,
        plan: &Plan<'_>,
        slot: Option<ClusterSlot>,
    ) -> Result<Reply, Error> {
        let reply = self.run_on_plan_tracked(operation, plan, slot, None).await;
        if matches!(
            operation,
            PlanOperation::Claim(_) | PlanOperation::Refund | PlanOperation::Reset
        ) {
            self.invalidate_caches(plan.charges().iter().map(|charge| &charge.key));
        }
        reply
    }

    async fn run_on_plan_tracked(
        &self,
        operation: PlanOperation,
        plan: &Plan<'_>,
        slot: Option<ClusterSlot>,
        tracker: Option<&ExecutionTracker>,
    ) -> Result<Reply, Error> {
        let call = |_| Call::on_plan(operation, plan, slot, &self.names);
        let labels = (operation.operation(), plan.id.id);
        self.retrier.run_tracked(&self.connection, labels, tracker, call).await
    }

    /// Runs an operation on every part of a plan.
    async fn run_on_parts<T>(
        &self,
        operation: PlanOperation,
        parts: &[PlanPart<'_>],
        read: impl Fn(Reply, &Plan<'_>) -> Result<T, Error>,
    ) -> Vec<Result<T, Error>> {
        let run = async |part: &PlanPart<'_>| {
            let reply = self.run_on_plan(operation, &part.plan, Some(part.slot)).await?;
            read(reply, &part.plan)
        };
        join_all(parts.iter().map(run)).await
    }

    /// Runs an operation that returns usage, in each slot of the plan.
    async fn run_for_usage(
        &self,
        operation: PlanOperation,
        plan: &Plan<'_>,
    ) -> Result<Usage, Error> {
        match PlanSplit::of(plan, &self.names) {
            PlanSplit::Whole(slot) => self.run_on_plan(operation, plan, slot).await?.usage(plan),
            PlanSplit::Parts(parts) => {
                let answers = self.run_on_parts(operation, &parts, Reply::usage).await;
                plan_parts::merge_usage(plan, &parts, answers)
            }
        }
    }

    /// Runs an operation in every slot that has a record of the handle.
    async fn run_on_record<T>(
        &self,
        operation: RecordOperation<'_>,
        handle: &Handle,
        read: impl Fn(Reply) -> Result<T, Error>,
    ) -> Vec<Result<T, Error>> {
        let run = async |slot| {
            let call = |_| Call::on_record(operation, handle, slot, &self.names);
            read(
                self.retrier
                    .run(&self.connection, (operation.operation(), handle.id), call)
                    .await?,
            )
        };
        let answers = join_all(slots_of(handle, &self.names).into_iter().map(run)).await;
        self.invalidate_caches(handle.keys.iter());
        answers
    }

    /// Returns the slot of a plan, or an error if the plan spans several.
    fn single_slot(&self, plan: &Plan<'_>) -> Result<Option<ClusterSlot>, Error> {
        match PlanSplit::of(plan, &self.names) {
            PlanSplit::Whole(slot) => Ok(slot),
            PlanSplit::Parts(_) => Err(Error::CrossSlot),
        }
    }

    /// Removes counters from both caches, because usage of them may have been returned.
    fn invalidate_caches<'k>(&self, keys: impl Iterator<Item = &'k Key>) {
        for key in keys {
            let log = self.names.log(key);
            self.log_cache.forget_oldest(&log);
            self.denial_cache.invalidate(&log);
        }
    }
}

impl Store for Redis {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        if let Some(closed) = self.closed_by_data_loss(plan) {
            return Ok(Decision::Closed(closed));
        }
        let slot = match PlanSplit::of(plan, &self.names) {
            PlanSplit::Whole(slot) => slot,
            // A start that is ahead can't be agreed on by several servers.
            PlanSplit::Parts(_) if plan.lead.is_some() => return Err(Error::CrossSlot),
            PlanSplit::Parts(parts) => {
                let decision = self.reserve(plan, &parts).await?;
                return Ok(self.recheck_data_loss(plan, decision));
            }
        };
        let sent_at = self.denial_cache.now();
        if plan.lead.is_none()
            && let Some(deny) = self.denial_cache.get(plan, &self.names, sent_at)
        {
            return Ok(Decision::Deny(deny));
        }
        let number = if plan.needs_record() { self.rollbacks.number() } else { plan.id.id };
        let guard = RollbackGuard::if_unconfirmed(self, plan, Attempt::Acquire(number));
        let mut hinted = SmallVec::new();
        let call = |retry| match Call::fast_acquire(plan, slot, retry, &self.names, &self.log_cache)
        {
            Some(call) => {
                hinted.clone_from(&call.hinted);
                call
            }
            None => Call::on_plan(PlanOperation::Acquire(number), plan, slot, &self.names),
        };
        let labels = (RedisOperation::Acquire, plan.id.id);
        let reply =
            match self.retrier.run_tracked(&self.connection, labels, guard.tracker(), call).await {
                Ok(reply) => reply,
                Err(error) => return Err(guard.hand_over(error)),
            };
        let complete = reply.has_oldest_entries();
        let decision = reply.decision(plan)?;
        if complete && hinted.contains(&false) {
            self.update_log_cache(plan, &hinted, &decision);
        }
        if let Decision::Deny(deny) = &decision
            && plan.lead.is_none()
        {
            self.denial_cache.insert(plan, &self.names, (sent_at, self.denial_cache.now()), deny);
        }
        guard.finish(&decision);
        Ok(self.recheck_data_loss(plan, decision))
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        if let Some(closed) = self.closed_by_data_loss(plan) {
            return Ok(Decision::Closed(closed));
        }
        match PlanSplit::of(plan, &self.names) {
            PlanSplit::Whole(slot) => {
                self.run_on_plan(PlanOperation::Peek, plan, slot).await?.decision(plan)
            }
            PlanSplit::Parts(parts) => {
                let answers = self.run_on_parts(PlanOperation::Peek, &parts, Reply::decision).await;
                plan_parts::merge_decisions(plan, &parts, answers)
            }
        }
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        if let Some(closed) = self.closed_by_data_loss(plan) {
            return Ok(Decision::Closed(closed));
        }
        let slot = self.single_slot(plan)?;
        let number = self.rollbacks.number();
        let guard = RollbackGuard::if_unconfirmed(self, plan, Attempt::Book(number));
        let decision = match self
            .run_on_plan_tracked(PlanOperation::Book(number), plan, slot, guard.tracker())
            .await
        {
            Ok(reply) => reply.decision(plan)?,
            Err(error) => return Err(guard.hand_over(error)),
        };
        guard.finish(&decision);
        Ok(self.recheck_data_loss(plan, decision))
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        // A booking that was restored from a dump may coexist with later work that the dump lacks.
        if self.closed_by_data_loss(plan).is_some() {
            let why = "Redis lost data, and store.on_loss keeps the rule closed";
            return Err(Error::Unavailable(why.into()));
        }
        let slot = self.single_slot(plan)?;
        self.run_on_plan(PlanOperation::Claim(claimant), plan, slot).await?.claim(plan)
    }

    async fn cancel(&self, handle: &Handle) -> Result<EndResult, Error> {
        plan_parts::merge_ended(
            self.run_on_record(RecordOperation::Cancel, handle, Reply::ended).await,
        )
    }

    async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<EndResult, Error> {
        // Across slots a settlement is all or nothing: if one slot would refuse it, none gets it.
        let too_many = actual.requests.is_some_and(|requests| requests > ENTRIES_PER_CHARGE_MAX);
        if too_many && slots_of(handle, &self.names).len() > 1 {
            let answers = self
                .run_on_record(RecordOperation::CheckSettle(actual), handle, Reply::ended)
                .await;
            if answers.contains(&Err(Error::TooMany)) {
                return Err(Error::TooMany);
            }
        }
        plan_parts::merge_ended(
            self.run_on_record(RecordOperation::Settle(actual), handle, Reply::ended).await,
        )
    }

    async fn release(&self, handle: &Handle) -> Result<EndResult, Error> {
        plan_parts::merge_ended(
            self.run_on_record(RecordOperation::Release, handle, Reply::ended).await,
        )
    }

    async fn renew(&self, handle: &Handle) -> Result<Renewal, Error> {
        plan_parts::merge_renewed(
            self.run_on_record(RecordOperation::Renew, handle, Reply::renewed).await,
        )
    }

    async fn close(&self, plan: &Plan<'_>, wait: Span) -> Result<GateClosure, Error> {
        let operation = PlanOperation::Close(wait);
        match PlanSplit::of(plan, &self.names) {
            PlanSplit::Whole(slot) => self.run_on_plan(operation, plan, slot).await?.closed_gates(),
            PlanSplit::Parts(parts) => {
                let read = |reply: Reply, _: &Plan<'_>| reply.closed_gates();
                plan_parts::merge_closed_gates(self.run_on_parts(operation, &parts, read).await)
            }
        }
    }

    async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        match PlanSplit::of(plan, &self.names) {
            PlanSplit::Whole(slot) => {
                self.run_on_plan(PlanOperation::Reset, plan, slot).await?.reset()
            }
            PlanSplit::Parts(parts) => {
                let read = |reply: Reply, _: &Plan<'_>| reply.reset();
                let answers = self.run_on_parts(PlanOperation::Reset, &parts, read).await;
                let times: Vec<_> = answers.into_iter().collect::<Result<_, _>>()?;
                Ok(times.into_iter().max().unwrap_or_default())
            }
        }
    }

    async fn refund(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.run_for_usage(PlanOperation::Refund, plan).await
    }

    async fn usage(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.run_for_usage(PlanOperation::Usage, plan).await
    }

    async fn exchange_backlogs(
        &self,
        plan: &Plan<'_>,
        report: &BacklogReport,
    ) -> Result<Vec<Backlog>, Error> {
        self.run_on_backlogs(plan, report).await
    }

    fn give_up(&self, plan: &Plan<'_>, attempt: Attempt) {
        self.roll_back(plan, attempt);
    }

    fn nodes(&self) -> u32 {
        self.nodes.get()
    }
}

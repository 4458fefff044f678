//! [`Heartbeats`] detects that a Redis server has lost data.
//!
//! Each node sends heartbeats to each server: one on every new connection before any decision, then
//! one per second. The server counts the heartbeats of all nodes under one key (see
//! `lua/heartbeat.lua`). A node compares the counter with the last value that it got:
//!
//! | the server's counter | meaning |
//! |---|---|
//! | is missing, and the node knows no earlier value | first start |
//! | has increased; the run id may differ | no loss: also after a restart with its data, or a failover to a complete replica |
//! | is missing, or belongs to another data set | all data was lost: a restart without persistence, `FLUSHALL`, another server |
//! | has decreased | the latest writes were lost: an older dump was restored, or a replica took over that lacked them |
//! | counts more losses than the node knows | another node noticed the loss first |
//!
//! In a cluster each server has its own counter, in a slot that it owns. A node stores the last
//! values by slot, so a replica that takes over is compared with its former primary.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use sluicegate_core::algorithm::Meter;
use sluicegate_core::outage::DataLossPolicy;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Charge, Timestamp};
use tracing::warn;

use super::keys::{KeyNames, Layout};
use super::nodes::random_id;
use super::script;
use super::server::{ConnectError, RedisEndpoint, ServerInfo, query};
use super::slot::ClusterSlot;
use crate::clock::MonotonicClock;

/// The last data loss of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataLoss {
    /// Time of the loss by the clock of the server.
    at: Timestamp,
    /// Time at which the server reported it, by its clock and by that of this node.
    reported_at: Timestamp,
    received_at: Timestamp,
}

impl DataLoss {
    /// Returns the server's time at the local time `now`. It is never ahead of the server's real
    /// time.
    pub(super) fn server_time(self, now: Timestamp) -> Timestamp {
        self.reported_at + now.since(self.received_at)
    }

    /// Returns the time at which all usage that may have been lost has left the window of a charge.
    pub(super) fn end_for(self, charge: &Charge<'_>) -> Timestamp {
        match &charge.meter {
            Meter::Calendar(quota) if self.at < quota.boundaries.0[0] => self.at,
            Meter::Calendar(quota) => {
                let period = quota.boundaries.period(self.at);
                period.map_or(self.at + charge.meter.window(), |(_, end)| end)
            }
            meter => self.at + meter.window(),
        }
    }
}

/// The last heartbeats of this node to all servers.
#[derive(Debug)]
pub(super) struct Heartbeats {
    names: Arc<KeyNames>,
    known: Mutex<HashMap<Option<ClusterSlot>, HeartbeatState>>,
    losses: AtomicU64,
    on_loss: DataLossPolicy,
    time: MonotonicClock,
}

/// The last heartbeat counter that a server returned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeartbeatState {
    memory: Vec<u8>,
    count: u64,
    losses: u64,
    run_id: String,
}

/// The reply to a heartbeat.
#[derive(Debug, PartialEq, Eq)]
struct HeartbeatReply {
    now: Timestamp,
    memory: Vec<u8>,
    count: u64,
    losses: u64,
    lost_at: Option<Timestamp>,
}

impl Heartbeats {
    pub(super) fn new(names: Arc<KeyNames>, on_loss: DataLossPolicy, time: MonotonicClock) -> Self {
        Self { names, known: Mutex::default(), losses: AtomicU64::new(0), on_loss, time }
    }

    /// Returns the number of data losses since this node was started.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Returns the slot for the heartbeats of a server that owns `owned`: preferably one that was
    /// used before. Returns `None` if the server owns no slot and so makes no decisions.
    pub(super) fn slot_for(
        &self,
        owned: Option<&[(ClusterSlot, ClusterSlot)]>,
    ) -> Option<Option<ClusterSlot>> {
        let Some(owned) = owned else { return Some(None) };
        let owns =
            |slot: &ClusterSlot| owned.iter().any(|(first, last)| first <= slot && slot <= last);
        let known = self.lock().keys().copied().flatten().filter(owns).min();
        known.or(owned.first().map(|(first, _)| *first)).map(Some)
    }

    /// Returns true if the keys are spread over the slots of a cluster.
    pub(super) fn by_slot(&self) -> bool {
        self.names.layout() == Layout::BySlot
    }

    /// Sends a heartbeat. Returns the last data loss of the server, if there was one.
    pub(super) async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        (server, info): (&RedisEndpoint, &ServerInfo),
        slot: Option<ClusterSlot>,
        reply_timeout: Duration,
    ) -> Result<Option<DataLoss>, ConnectError> {
        let known = self.lock().get(&slot).cloned();
        let mut beat = redis::cmd("EVAL");
        beat.arg(script::heartbeat(info.major)).arg(1).arg(self.names.heartbeat(slot));
        beat.arg(random_id().to_string());
        match &known {
            None => beat.arg("").arg("").arg(""),
            Some(known) => beat.arg(&known.memory).arg(known.count).arg(known.losses),
        };
        let reply: Value = query(connection, &beat, reply_timeout).await?;
        let received_at = self.time.now();
        let Some(reply) = HeartbeatReply::read(reply) else {
            return Err(ConnectError::Unsuitable("unexpected reply to a heartbeat".to_owned()));
        };
        if let Some(known) = &known
            && reply.losses > known.losses
        {
            self.log_loss(server, info, known, &reply);
        }
        let HeartbeatReply { now: reported_at, memory, count, losses, lost_at } = reply;
        let now = HeartbeatState { memory, count, losses, run_id: info.run_id.clone() };
        self.store(slot, now);
        Ok(lost_at.map(|at| DataLoss { at, reported_at, received_at }))
    }

    /// Stores a heartbeat, unless a newer one is stored: replies can arrive out of order when a
    /// connection is replaced.
    fn store(&self, slot: Option<ClusterSlot>, now: HeartbeatState) {
        let mut known = self.lock();
        match known.get_mut(&slot) {
            Some(before) if (now.losses, now.count) < (before.losses, before.count) => {}
            Some(before) => *before = now,
            None => {
                known.insert(slot, now);
            }
        }
    }

    fn log_loss(
        &self,
        server: &RedisEndpoint,
        info: &ServerInfo,
        known: &HeartbeatState,
        reply: &HeartbeatReply,
    ) {
        let lost = reply.losses - known.losses;
        self.losses.fetch_add(lost, Ordering::Relaxed);
        let cause = match (reply.memory == known.memory, info.run_id == known.run_id) {
            (true, _) => "restored an older state",
            (false, true) => "emptied while running",
            (false, false) => "restarted empty",
        };
        warn!(
            ?server,
            cause,
            losses = lost,
            run_id = %info.run_id,
            run_id_before = %known.run_id,
            on_loss = self.on_loss.word(),
            "Redis lost data"
        );
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Option<ClusterSlot>, HeartbeatState>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeartbeatReply {
    fn read(value: Value) -> Option<Self> {
        let Value::Array(parts) = value else { return None };
        let [
            Value::Int(now),
            Value::BulkString(memory),
            Value::Int(count),
            Value::Int(losses),
            Value::Int(lost_at),
        ] = &parts[..]
        else {
            return None;
        };
        let number = |number: &i64| u64::try_from(*number).ok();
        let lost_at = number(lost_at)?;
        Some(Self {
            now: Timestamp::from_micros(number(now)?),
            memory: memory.clone(),
            count: number(count)?,
            losses: number(losses)?,
            lost_at: (lost_at > 0).then(|| Timestamp::from_micros(lost_at)),
        })
    }
}

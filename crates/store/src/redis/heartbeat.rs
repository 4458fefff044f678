//! Notices when a Redis server has lost its memory.
//!
//! Each node sends each server a heartbeat: on every new connection before any decision, and once a
//! second after that. The server counts the heartbeats of all nodes under one key, see
//! `lua/heartbeat.lua`, and a node remembers the count that it was told last:
//!
//! | the server shows | that means |
//! |---|---|
//! | no count, and the node remembers none | a first start |
//! | the count went on; the run id is the same or another | nothing is lost: a restart with its data, or a fail-over to a replica that has it |
//! | no count, or that of another memory | everything was lost: a restart without persistence, `FLUSHALL`, another server |
//! | the count went back | what was written since then was lost: an older dump was restored, or a replica took over that had not heard of it |
//! | more losses than the node remembers | another node noticed it first |
//!
//! In a cluster each server has a count of its own, in a slot that it owns. What a node remembers
//! goes by the slot, so a replica that takes over is compared with the primary before it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use sluicegate_core::algorithm::Meter;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Charge, Timestamp};
use tracing::warn;

use super::keys::{Layout, Names};
use super::nodes::fresh_id;
use super::script;
use super::server::{ConnectError, Greeting, Server, ask};
use super::slot::Slot;
use crate::clock::MonotonicClock;

/// What a node does about a server that has lost its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Goes on with empty counters: after n losses in a window, (1 + n) times the limit may have
    /// been admitted in it.
    #[default]
    Continue,
    /// Keeps every rule closed for its own window, counted from the loss.
    Closed,
}

impl OnLoss {
    /// Every choice with the word for it.
    pub const ALL: [(&'static str, Self); 2] =
        [("continue", Self::Continue), ("closed", Self::Closed)];

    const fn word(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Closed => "closed",
        }
    }
}

/// The last loss of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// When, by the clock of the server.
    at: Timestamp,
    /// When the server told of it, by its clock and by that of this node.
    told: Timestamp,
    heard: Timestamp,
}

impl Loss {
    /// What the clock of the server shows when that of this node shows `now`; never ahead of it.
    pub(super) fn server_time(self, now: Timestamp) -> Timestamp {
        self.told + now.since(self.heard)
    }

    /// When everything has left the window of a charge that may have been lost.
    pub(super) fn is_over_for(self, charge: &Charge<'_>) -> Timestamp {
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

/// What this node remembers of its heartbeats to all servers.
#[derive(Debug)]
pub(super) struct Heartbeats {
    names: Arc<Names>,
    known: Mutex<HashMap<Option<Slot>, Known>>,
    losses: AtomicU64,
    on_loss: OnLoss,
    time: MonotonicClock,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    memory: Vec<u8>,
    count: u64,
    losses: u64,
    run_id: String,
}

/// The answer to a heartbeat.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    now: Timestamp,
    memory: Vec<u8>,
    count: u64,
    losses: u64,
    lost_at: Option<Timestamp>,
}

impl Heartbeats {
    pub(super) fn new(names: Arc<Names>, on_loss: OnLoss, time: MonotonicClock) -> Self {
        Self { names, known: Mutex::default(), losses: AtomicU64::new(0), on_loss, time }
    }

    /// How often a server has lost its memory since this node was started.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Where the heartbeats of a server go that owns these slots: a slot that is known from before,
    /// if there is one. `None` if it owns none, and so decides nothing.
    pub(super) fn place(&self, owned: Option<&[(Slot, Slot)]>) -> Option<Option<Slot>> {
        let Some(owned) = owned else { return Some(None) };
        let owns = |slot: &Slot| owned.iter().any(|(first, last)| first <= slot && slot <= last);
        let known = self.lock().keys().copied().flatten().filter(owns).min();
        known.or(owned.first().map(|(first, _)| *first)).map(Some)
    }

    /// Whether the servers share their keys out by slots.
    pub(super) fn by_slot(&self) -> bool {
        self.names.layout() == Layout::Slots
    }

    /// Sends a heartbeat. Returns the last loss of the server, if it ever had one.
    pub(super) async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        (server, greeting): (&Server, &Greeting),
        slot: Option<Slot>,
        patience: Duration,
    ) -> Result<Option<Loss>, ConnectError> {
        let known = self.lock().get(&slot).cloned();
        let mut beat = redis::cmd("EVAL");
        beat.arg(script::heartbeat(greeting.major)).arg(1).arg(self.names.heartbeat(slot));
        beat.arg(fresh_id().to_string());
        match &known {
            None => beat.arg("").arg("").arg(""),
            Some(known) => beat.arg(&known.memory).arg(known.count).arg(known.losses),
        };
        let answer: Value = ask(connection, &beat, patience).await?;
        let heard = self.time.now();
        let Some(answer) = Answer::read(answer) else {
            return Err(ConnectError::Unfit("it does not understand a heartbeat".to_owned()));
        };
        if let Some(known) = &known
            && answer.losses > known.losses
        {
            self.tell(server, greeting, known, &answer);
        }
        let Answer { now: told, memory, count, losses, lost_at } = answer;
        let now = Known { memory, count, losses, run_id: greeting.run_id.clone() };
        self.remember(slot, now);
        Ok(lost_at.map(|at| Loss { at, told, heard }))
    }

    /// Answers can overtake each other when a connection is replaced: the newest stays.
    fn remember(&self, slot: Option<Slot>, now: Known) {
        let mut known = self.lock();
        match known.get_mut(&slot) {
            Some(before) if (now.losses, now.count) < (before.losses, before.count) => {}
            Some(before) => *before = now,
            None => {
                known.insert(slot, now);
            }
        }
    }

    fn tell(&self, server: &Server, greeting: &Greeting, known: &Known, answer: &Answer) {
        let lost = answer.losses - known.losses;
        self.losses.fetch_add(lost, Ordering::Relaxed);
        let cause = match (answer.memory == known.memory, greeting.run_id == known.run_id) {
            (true, _) => "went back to an earlier state",
            (false, true) => "was emptied while it ran",
            (false, false) => "came back empty",
        };
        warn!(
            ?server,
            cause,
            losses = lost,
            run_id = %greeting.run_id,
            run_id_before = %known.run_id,
            on_loss = self.on_loss.word(),
            "Redis lost its memory"
        );
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Option<Slot>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer {
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

//! [`Scheduler`]: the event queue of a simulation in virtual time, without threads, sockets or real
//! clocks.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Debug;

use sluicegate_core::{Span, Timestamp};

use super::explore::{Run, Tracing};
use super::network::Network;
use super::rng::Rng;

/// Start of virtual time, so that a clock which is behind still shows a valid time.
const EPOCH_US: u64 = 10_000_000;

/// Maximum number of events; a run that needs more never ends.
const EVENTS_MAX: u64 = 10_000;

/// The events of one run, ordered by (time, sequence): the same seed gives the same run.
pub(crate) struct Scheduler<E> {
    now_us: u64,
    sequence: u64,
    handled: u64,
    due: BinaryHeap<ScheduledEvent<E>>,
    pub(crate) rng: Rng,
    network: Network,
    trace: Option<Vec<String>>,
    seen: BTreeMap<&'static str, u64>,
    broken: Option<String>,
}

impl<E: Clone + Debug> Scheduler<E> {
    /// Creates the simulation of `seed`, with faults for `stormy` from the start.
    pub(crate) fn new(seed: u64, tracing: Tracing, delay_max: Span, stormy: Span) -> Self {
        let mut rng = Rng::new(seed);
        let calm_from_us = EPOCH_US + stormy.as_micros();
        let network = Network::random(&mut rng, delay_max.as_micros(), calm_from_us);
        Self {
            now_us: EPOCH_US,
            sequence: 0,
            handled: 0,
            due: BinaryHeap::new(),
            rng,
            network,
            trace: (tracing == Tracing::On).then(Vec::new),
            seen: BTreeMap::new(),
            broken: None,
        }
    }

    /// Returns the true time, which no process sees: each reads its own clock, or measures from an
    /// event.
    pub(crate) const fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Returns the time of a clock that is `ahead_us` ahead of the true time.
    pub(crate) const fn clock(&self, ahead_us: u64) -> Timestamp {
        Timestamp::from_micros(self.now_us + ahead_us)
    }

    /// Returns true while faults happen.
    pub(crate) const fn stormy(&self) -> bool {
        self.now_us < self.network.calm_from_us
    }

    /// Returns a unique number.
    pub(crate) const fn fresh(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Schedules an event in `delay_us`.
    pub(crate) fn after(&mut self, delay_us: u64, event: E) {
        let at_us = self.now_us + delay_us;
        let sequence = self.fresh();
        self.due.push(ScheduledEvent { at_us, sequence, event });
    }

    /// Sends a message over the network, which may lose, delay or repeat it.
    pub(crate) fn send(&mut self, message: E) {
        let delays = self.network.delays(self.now_us, &mut self.rng);
        if delays == [None, None] {
            self.note(|| format!("    lost      {message:?}"));
        }
        if let [Some(_), Some(_)] = delays {
            self.note(|| format!("    repeated  {message:?}"));
        }
        for delay in delays.into_iter().flatten() {
            self.after(delay, message.clone());
        }
    }

    /// Returns the next event, or `None` if there are no more or an invariant is broken.
    pub(crate) fn next(&mut self) -> Option<E> {
        if self.broken.is_some() {
            return None;
        }
        let due = self.due.pop()?;
        self.now_us = due.at_us;
        self.handled += 1;
        if self.handled > EVENTS_MAX {
            self.broken = Some(format!("liveness: no rest after {EVENTS_MAX} events"));
            return None;
        }
        Some(due.event)
    }

    /// Advances the time to the end of the faults, and then by this span.
    pub(crate) fn pass(&mut self, span: Span) {
        self.now_us = self.now_us.max(self.network.calm_from_us) + span.as_micros();
    }

    /// Adds a line to the trace. The text is built only if the trace is on.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let us = self.now_us - EPOCH_US;
            trace.push(format!("{:>8}.{:03} ms  {}", us / 1_000, us % 1_000, line()));
        }
    }

    /// Counts an occurrence of an event, so that a test can prove that it was explored.
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Records a broken invariant, which ends the run. Only the first one is kept.
    pub(crate) fn report(&mut self, finding: Option<String>) {
        if self.broken.is_none() {
            if let Some(finding) = &finding {
                self.note(|| format!("BROKEN    {finding}"));
            }
            self.broken = finding;
        }
    }

    /// Returns the result of the run.
    pub(crate) fn finish(mut self) -> Run {
        self.seen.insert("events", self.handled);
        Run { broken: self.broken, trace: self.trace.unwrap_or_default(), seen: self.seen }
    }
}

/// An event and its time. The sequence decides between events at the same time.
struct ScheduledEvent<E> {
    at_us: u64,
    sequence: u64,
    event: E,
}

impl<E> Ord for ScheduledEvent<E> {
    /// Reversed: the heap returns its greatest first, and the earliest event has to come first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_us, other.sequence).cmp(&(self.at_us, self.sequence))
    }
}

impl<E> PartialOrd for ScheduledEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for ScheduledEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for ScheduledEvent<E> {}

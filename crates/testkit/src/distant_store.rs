//! [`DistantStore`]: a store at the other end of a simulated network. It runs in the virtual time of
//! a paused tokio runtime, so that seconds of traffic take milliseconds. Events at the same time may come in another order in the
//! next run.

use std::sync::{Arc, Mutex, PoisonError};

use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, EndResult, Error, GateClosure, Renewal, Usage};
use sluicegate_core::{Decision, Id, Plan, Span, Store, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::clock::runtime_now;
use crate::sim::Rng;

/// Time that a lost packet costs: TCP sends it again.
const RETRANSMISSION: Span = Span::from_millis(200);

/// The network between a node and a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    /// Shortest round trip.
    pub round_trip: Span,
    /// Largest time by which each direction is slower than that.
    pub jitter: Span,
    /// Packets in a thousand that take longer by `delay`.
    pub delayed_per_mille: u64,
    /// Additional delay of these packets.
    pub delay: Span,
    /// Lost packets in a thousand.
    pub lost_per_mille: u64,
}

/// A store behind a [`Network`]. Clones share the connection.
#[derive(Clone)]
pub struct DistantStore<S> {
    store: S,
    network: Network,
    link: Arc<Mutex<Link>>,
    process: Option<SimulatedProcess>,
}

/// The state of a process that uses a [`DistantStore`]: it can be suspended, and it can die.
#[derive(Clone)]
pub struct SimulatedProcess(watch::Sender<ProcessState>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProcessState {
    Running,
    Suspended,
    Dead,
}

impl Default for SimulatedProcess {
    fn default() -> Self {
        Self(watch::Sender::new(ProcessState::Running))
    }
}

impl SimulatedProcess {
    /// Suspends the process, as SIGSTOP does.
    pub fn suspend(&self) {
        self.0.send_replace(ProcessState::Suspended);
    }

    /// Continues a suspended process, as SIGCONT does.
    pub fn resume(&self) {
        self.0.send_if_modified(|state| {
            let is_suspended = *state == ProcessState::Suspended;
            if is_suspended {
                *state = ProcessState::Running;
            }
            is_suspended
        });
    }

    /// Ends the process, as SIGKILL does.
    pub fn kill(&self) {
        self.0.send_replace(ProcessState::Dead);
    }

    /// Returns true if the process is neither suspended nor dead.
    pub fn is_running(&self) -> bool {
        *self.0.borrow() == ProcessState::Running
    }

    /// Waits until the process runs: not at all if it runs now, and for ever if it is dead.
    pub async fn running(&self) {
        let mut states = self.0.subscribe();
        // The sender is part of `self`, so this waits for the state alone.
        let _ = states.wait_for(|state| *state == ProcessState::Running).await;
    }
}

/// The connection to a store.
struct Link {
    rng: Rng,
    /// The last packet in each direction: when it was sent, and its delay.
    packets: [Option<(Instant, Span)>; 2],
}

impl<S> DistantStore<S> {
    /// Puts a network before a store. Its delays follow the seed.
    pub fn new(store: S, network: Network, seed: u64) -> Self {
        let link = Link { rng: Rng::new(seed), packets: [None; 2] };
        Self { store, network, link: Arc::new(Mutex::new(link)), process: None }
    }

    /// Sets the process that uses the store. While it does not run, it sends no calls and receives no
    /// answers.
    #[must_use]
    pub fn used_by(self, process: SimulatedProcess) -> Self {
        Self { process: Some(process), ..self }
    }

    async fn running(&self) {
        if let Some(process) = &self.process {
            process.running().await;
        }
    }

    /// Waits for as long as a message takes in one direction. Messages that are sent at the same
    /// instant share a packet, like the calls of a batch.
    async fn travel(&self, direction: usize) {
        let delay = {
            let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
            let now = runtime_now();
            match link.packets[direction] {
                Some((sent, delay)) if sent == now => delay,
                _ => {
                    let jitter = link.rng.between(0, self.network.jitter.as_micros());
                    let lost = link.rng.chance(self.network.lost_per_mille);
                    let lost = if lost { RETRANSMISSION } else { Span::ZERO };
                    let delayed = link.rng.chance(self.network.delayed_per_mille);
                    let delayed = if delayed { self.network.delay } else { Span::ZERO };
                    let half = self.network.round_trip.as_micros() / 2;
                    let delay = Span::from_micros(half + jitter) + lost + delayed;
                    link.packets[direction] = Some((now, delay));
                    delay
                }
            }
        };
        if delay > Span::ZERO {
            sleep(delay.into()).await;
        }
    }

    async fn call<T>(&self, operation: impl AsyncFnOnce(&S) -> T) -> T {
        self.running().await;
        self.travel(0).await;
        let answer = operation(&self.store).await;
        self.travel(1).await;
        self.running().await;
        answer
    }
}

impl<S: Store> Store for DistantStore<S> {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.call(async |store| store.acquire(plan).await).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.call(async |store| store.peek(plan).await).await
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.call(async |store| store.book(plan).await).await
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        self.call(async |store| store.claim(plan, claimant).await).await
    }

    async fn cancel(&self, handle: &Handle) -> Result<EndResult, Error> {
        self.call(async |store| store.cancel(handle).await).await
    }

    async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<EndResult, Error> {
        self.call(async |store| store.settle(handle, actual).await).await
    }

    async fn release(&self, handle: &Handle) -> Result<EndResult, Error> {
        self.call(async |store| store.release(handle).await).await
    }

    async fn renew(&self, handle: &Handle) -> Result<Renewal, Error> {
        self.call(async |store| store.renew(handle).await).await
    }

    async fn refund(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.call(async |store| store.refund(plan).await).await
    }

    async fn close(&self, plan: &Plan<'_>, wait: Span) -> Result<GateClosure, Error> {
        self.call(async |store| store.close(plan, wait).await).await
    }

    async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        self.call(async |store| store.reset(plan).await).await
    }

    async fn usage(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.call(async |store| store.usage(plan).await).await
    }

    async fn exchange_backlogs(
        &self,
        plan: &Plan<'_>,
        report: &BacklogReport,
    ) -> Result<Vec<Backlog>, Error> {
        self.call(async |store| store.exchange_backlogs(plan, report).await).await
    }

    fn nodes(&self) -> u32 {
        self.store.nodes()
    }
}

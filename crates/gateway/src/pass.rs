//! [`Pass`]: the permission to send one request now. Dropping it refunds the charge unless the
//! request was sent.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::plan::Handle;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_http::upstream::LatestStart;
use sluicegate_pace::{LeaseTimes, StartAttempt, StartWindow};
use sluicegate_service::Service;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::debug;

/// A permission to send one request.
pub(crate) struct Pass {
    service: Arc<Service>,
    /// Handles of the charges that can be refunded.
    handles: Vec<Handle>,
    /// Turn under the limits of the route, if it has one.
    turn: Option<Handle>,
    /// Interval in which the request may be sent.
    window: Option<StartWindow>,
    /// Time from which the request has waited for its turn, however many turns it has missed.
    waits_since: Timestamp,
    /// Remaining amount of the tightest limit.
    pub(crate) remaining: Option<u64>,
    /// Outage policy that decided, if the store was unavailable.
    pub(crate) outage: Option<OutagePolicy>,
    /// Time until its leases expire without renewal.
    pub(crate) lease: Option<Span>,
    /// Time at which the request was sent.
    left: Option<Timestamp>,
    /// Times of the leases that the turn holds.
    lease_times: Option<Arc<LeaseTimes>>,
    /// Times of its other leases, and the time since which it holds them.
    other_leases: Option<(Arc<LeaseTimes>, Timestamp)>,
    renewal: Option<AbortHandle>,
}

impl Pass {
    pub(crate) fn new(service: &Arc<Service>) -> Self {
        Self {
            service: service.clone(),
            handles: Vec::new(),
            turn: None,
            window: None,
            waits_since: service.now(),
            remaining: None,
            outage: None,
            lease: None,
            left: None,
            lease_times: None,
            other_leases: None,
            renewal: None,
        }
    }

    /// Adds a charge that is refunded if the request is never sent.
    #[must_use]
    pub(crate) fn with(mut self, handle: Option<Handle>) -> Self {
        self.handles.extend(handle);
        self
    }

    /// Sets the turn under the limits of the route.
    pub(crate) fn set_turn(&mut self, handle: Option<Handle>, lease_times: &Arc<LeaseTimes>) {
        self.turn = handle;
        self.lease_times = self.lease.map(|_| lease_times.clone());
    }

    /// Records in `times` how long the pass holds its leases, which are not those of a turn.
    pub(crate) fn time_leases(&mut self, times: &Arc<LeaseTimes>) {
        self.other_leases = self.lease.map(|_| (times.clone(), self.service.now()));
    }

    /// Sets the interval in which the request may be sent.
    #[must_use]
    pub(crate) fn within(mut self, window: StartWindow) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets the time from which the request has waited for its turn.
    #[must_use]
    pub(crate) const fn waiting_since(mut self, since: Timestamp) -> Self {
        self.waits_since = since;
        self
    }

    /// Returns the time from which the request has waited for its turn.
    pub(crate) const fn waits_since(&self) -> Timestamp {
        self.waits_since
    }

    /// Returns true if there is an interval in which the request may be sent.
    pub(crate) const fn is_paced(&self) -> bool {
        self.window.is_some()
    }

    /// Waits until the request may be sent, and counts it as sent. Returns the time since its
    /// interval opened, or `None` if the interval is over.
    pub(crate) async fn opened(&self) -> Option<Span> {
        let Some(window) = &self.window else { return Some(Span::ZERO) };
        window.start(|| self.service.now()).await
    }

    /// Counts the request as sent if it may be sent now. Returns the time since its interval opened, or
    /// `None` if the interval has not opened yet or is over.
    pub(crate) fn try_start(&self) -> Option<Span> {
        match self.window.as_ref()?.try_start(self.service.now()) {
            StartAttempt::Started(late) => Some(late),
            StartAttempt::Wait(_) | StartAttempt::Over => None,
        }
    }

    /// Returns the end of the interval in which the request may be sent, if it has one.
    pub(crate) fn latest_start(&self) -> Option<LatestStart> {
        let window = self.window.as_ref().filter(|window| window.has_end())?.clone();
        let service = self.service.clone();
        Some(LatestStart::new(move || window.is_over(service.now())))
    }

    /// Returns the time since its interval has opened.
    pub(crate) fn late(&self) -> Span {
        self.window.as_ref().map_or(Span::ZERO, |window| window.late(self.service.now()))
    }

    /// Gives back the turn and keeps all other charges.
    pub(crate) async fn cancel_turn(&mut self) {
        self.window = None;
        if let Some(handle) = self.turn.take() {
            cancel(&self.service, &handle).await;
        }
        if let Some(times) = self.lease_times.take() {
            times.ended(None);
        }
    }

    /// Takes over the charges of another pass, which has no turn.
    #[must_use]
    pub(crate) fn joined(mut self, mut other: Self) -> Self {
        debug_assert!(other.turn.is_none());
        self.handles.append(&mut other.handles);
        self.lease = self.lease.into_iter().chain(other.lease).min();
        self.other_leases = other.other_leases.take();
        debug_assert!(self.renewal.is_none());
        self.renewal = other.renewal.take();
        self
    }

    /// Marks the request as sent: from now on it counts, whatever its result. Renews its leases
    /// until the pass is dropped.
    pub(crate) fn left(&mut self) {
        if self.left.is_some() {
            return;
        }
        self.left = Some(self.service.now());
        self.renew_leases();
    }

    /// Marks the request as not sent after all: nothing of it has reached the upstream.
    pub(crate) fn not_sent(&mut self) {
        self.left = None;
        if let Some(window) = &self.window {
            window.take_back_start();
        }
    }

    /// Renews its leases until the pass is dropped.
    pub(crate) fn renew_leases(&mut self) {
        if let Some(lease) = self.lease {
            let handles: Vec<_> = self.turn.iter().chain(&self.handles).cloned().collect();
            let service = self.service.clone();
            let renewing = async move {
                loop {
                    sleep(Duration::from(lease) / 3).await;
                    for handle in &handles {
                        if let Err(error) = service.renew(handle).await {
                            debug!(%error, "lease renewal failed");
                        }
                    }
                }
            };
            let renewal = self.service.tasks().spawn(renewing).abort_handle();
            if let Some(before) = self.renewal.replace(renewal) {
                before.abort();
            }
        }
    }

    /// Refunds all charges.
    pub(crate) async fn give_back(mut self) {
        let handles = self.end();
        for handle in handles {
            cancel(&self.service, &handle).await;
        }
        if let Some(times) = self.lease_times.take() {
            times.ended(None);
        }
    }

    /// Stops the renewal and takes the handles, so that dropping the pass does nothing more.
    fn end(&mut self) -> Vec<Handle> {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        self.turn.take().into_iter().chain(std::mem::take(&mut self.handles)).collect()
    }
}

async fn cancel(service: &Service, handle: &Handle) {
    if let Err(error) = service.cancel(handle).await {
        debug!(%error, "cancel failed: the charges stay until they expire");
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let (handles, service) = (self.end(), self.service.clone());
        let tasks = service.tasks().clone();
        let leased = self.lease.is_some();
        let (left, lease_times) = (self.left, self.lease_times.take());
        let other_leases = self.other_leases.take();
        if handles.is_empty() || left.is_some() && !leased {
            return;
        }
        let ending = async move {
            let ending = handles.iter().map(async |handle| {
                let ended = match left {
                    Some(_) => service.release(handle).await,
                    None => service.cancel(handle).await,
                };
                if let Err(error) = ended {
                    debug!(%error, "release or cancel failed: the reservation expires by itself");
                }
            });
            join_all(ending).await;
            if let Some(times) = lease_times {
                times.ended(left.map(|left| service.now().since(left)));
            }
            if let Some((times, since)) = other_leases {
                times.ended(left.map(|_| service.now().since(since)));
            }
        };
        // Outside of a runtime the process is ending; what is not refunded expires.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            tasks.spawn_on(ending, &runtime);
        }
    }
}

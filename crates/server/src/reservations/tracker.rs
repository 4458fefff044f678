//! [`ReservationTracker`]: observes the reservations of this node until they are reported.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluicegate_core::limit::Unit;
use sluicegate_core::reservation_store::{CHANGES_MAX, OpenReservation, ReservationChanges};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_core::{Charge, Decision, Id, Limit, Money};

use super::{ReservationDocument, ReservedAmount};
use crate::decision_log::SecretDimensions;
use crate::service::{ChangeEvent, DecisionEvent, DecisionMode, Effect, Observer, Operation};
use crate::ticket::Ticket;

/// Age from which on a reservation is reported. Most end before.
const REPORTED_AFTER: Span = Span::from_secs(2);
/// Maximum number of reservations that wait to be reported.
const OPEN_MAX: usize = 20_000;
/// Maximum number of ends that wait to be reported.
const ENDED_MAX: usize = 10_000;

/// Observes reservations. Clones share the same data.
#[derive(Clone)]
pub struct ReservationTracker(Arc<TrackerState>);

struct TrackerState {
    clock: Arc<dyn Clock>,
    secrets: SecretDimensions,
    host: String,
    pending: Mutex<PendingChanges>,
}

/// Changes that are not reported yet.
#[derive(Default)]
struct PendingChanges {
    /// Open reservations that are too young to be reported.
    young: HashMap<Id, YoungReservation>,
    /// Ids by age, including those of reservations that have ended.
    order: VecDeque<(Timestamp, Id)>,
    /// Reservations whose report failed.
    opened: Vec<OpenReservation>,
    renewed: Vec<(Id, Timestamp)>,
    ended: VecDeque<Id>,
    /// Number of reservations left out because the list was full.
    unlisted: u64,
}

/// An open reservation.
struct YoungReservation {
    ticket: Ticket,
    caller: Vec<(String, String)>,
    /// Rule, unit and amount of each estimate.
    charges: Vec<(String, Unit, u64)>,
    at: Timestamp,
    due: Timestamp,
    ends: Timestamp,
}

impl ReservationTracker {
    /// Creates a tracker. Values of `secret` dimensions are reported as hashes with `hash_key`.
    pub fn new(
        clock: impl Clock + 'static,
        host: impl Into<String>,
        secret: Vec<String>,
        hash_key: [u8; 32],
    ) -> Self {
        Self(Arc::new(TrackerState {
            clock: Arc::new(clock),
            secrets: SecretDimensions::new(secret, hash_key),
            host: host.into(),
            pending: Mutex::default(),
        }))
    }

    /// Takes the changes to report. Skips reservations that are too young, and returns at most as
    /// many changes as one call may carry.
    pub(super) fn take(&self, now: Timestamp) -> ReservationChanges {
        let mut pending = self.lock();
        let mut changes = ReservationChanges::default();
        let ended = pending.ended.len().min(CHANGES_MAX);
        changes.ended.extend(pending.ended.drain(..ended));
        let renewed = pending.renewed.len().min(CHANGES_MAX - changes.len());
        changes.renewed.extend(pending.renewed.drain(..renewed));
        let opened = pending.opened.len().min(CHANGES_MAX - changes.len());
        changes.opened.extend(pending.opened.drain(..opened));
        while changes.len() < CHANGES_MAX
            && let Some(&(since, id)) = pending.order.front()
            && now.since(since) >= REPORTED_AFTER
        {
            pending.order.pop_front();
            if let Some(young) = pending.young.remove(&id) {
                changes.opened.extend(young.report(id, &self.0.host));
            }
        }
        changes
    }

    /// Takes back changes that could not be reported.
    pub(super) fn put_back(&self, changes: ReservationChanges) {
        let mut pending = self.lock();
        let room = OPEN_MAX.saturating_sub(pending.young.len() + pending.opened.len());
        let lost = changes.opened.len().saturating_sub(room);
        pending.unlisted += lost as u64;
        pending.opened.extend(changes.opened.into_iter().take(room));
        pending.renewed.extend(changes.renewed);
        pending.renewed.truncate(OPEN_MAX);
        pending.ended.extend(changes.ended);
        pending.ended.truncate(ENDED_MAX);
    }

    pub(super) fn add_unlisted(&self, count: u64) {
        self.lock().unlisted += count;
    }

    /// Returns the number of reservations of this node that were left out because the list was full.
    pub(super) fn unlisted(&self) -> u64 {
        self.lock().unlisted
    }

    fn lock(&self) -> MutexGuard<'_, PendingChanges> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl YoungReservation {
    /// Returns the reservation as it is reported.
    fn report(self, id: Id, host: &str) -> Option<OpenReservation> {
        let amount = |(rule, unit, amount): (String, Unit, u64)| ReservedAmount {
            rule,
            unit: unit.name().to_owned(),
            amount: match Money::from_nanos(amount) {
                Some(money) if unit == Unit::Usd => money.to_string(),
                _ => amount.to_string(),
            },
        };
        let document = ReservationDocument {
            id: id.to_string(),
            handle: self.ticket.text(),
            caller: self.caller,
            charges: self.charges.into_iter().map(amount).collect(),
            node: host.to_owned(),
            at: self.at.to_string(),
            due: self.due.to_string(),
            ends: self.ends.to_string(),
        };
        let text = serde_json::to_string(&document).ok()?;
        Some(OpenReservation { id, due: self.due, ends: self.ends, text })
    }
}

/// Returns true for an estimate that stays charged until somebody settles or cancels it: it is not
/// refunded when its hold expires.
fn is_estimate(charge: &Charge<'_>) -> bool {
    let settles =
        matches!(charge.unit(), Unit::Tokens | Unit::InputTokens | Unit::OutputTokens | Unit::Usd);
    settles && charge.take > 0 && !charge.is_gate() && !charge.shadow() && !charge.refunds()
}

impl Observer for ReservationTracker {
    fn on_decision(&self, event: &DecisionEvent<'_, '_, '_>) {
        let plan = event.answer.plan();
        let Some(hold) = plan.hold else { return };
        let Decision::Allow(allow) = event.answer.decision() else { return };
        if allow.replayed
            || event.answer.outage().is_some()
            || !plan.charges().iter().any(is_estimate)
        {
            return;
        }
        let ticket = match (event.operation, event.claimant) {
            (Operation::Acquire, _) => Ticket::of(&event.answer, DecisionMode::Acquire),
            (Operation::Claim, Some(claimant)) => Some(Ticket::claimed(&event.answer, claimant)),
            _ => None,
        };
        let Some(ticket) = ticket else { return };
        let caller = event
            .query
            .dimensions()
            .map(|(name, value)| (name.to_owned(), self.0.secrets.shown(name, value).into_owned()));
        let charges = plan.charges().iter().filter(|charge| is_estimate(charge));
        let windows = charges.clone().flat_map(|charge| charge.limits().iter().map(Limit::window));
        let window = windows.max().unwrap_or_default();
        let due = allow.at + hold;
        let young = YoungReservation {
            ticket,
            caller: caller.collect(),
            charges: charges
                .map(|charge| (charge.rule().name.clone(), charge.unit(), charge.take))
                .collect(),
            at: allow.at,
            due,
            ends: due + window,
        };
        let now = self.0.clock.now();
        let mut pending = self.lock();
        if pending.order.len() >= OPEN_MAX {
            pending.unlisted += 1;
            return;
        }
        if pending.young.insert(plan.id.id, young).is_none() {
            pending.order.push_back((now, plan.id.id));
        }
    }

    fn on_change(&self, event: &ChangeEvent<'_, '_>) {
        match event.effect {
            Effect::Ended { .. } => {
                let mut pending = self.lock();
                // A reservation of another node, or one that was reported.
                if pending.young.remove(&event.id).is_none() && pending.ended.len() < ENDED_MAX {
                    pending.ended.push_back(event.id);
                }
            }
            Effect::Renewed { until } => {
                let mut pending = self.lock();
                if let Some(young) = pending.young.get_mut(&event.id) {
                    young.due = young.due.max(until);
                } else if pending.renewed.len() < OPEN_MAX {
                    pending.renewed.push((event.id, until));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::plan::Handle;

    fn young(due: u64) -> YoungReservation {
        let handle = Handle { id: Id::from_bits(1), claimant: None, keys: Vec::new() };
        YoungReservation {
            ticket: Ticket { handle, origin: None },
            caller: vec![("userId".to_owned(), "ann".to_owned())],
            charges: vec![("BUDGET".to_owned(), Unit::Usd, 1_500_000_000)],
            at: Timestamp::from_secs(1),
            due: Timestamp::from_secs(due),
            ends: Timestamp::from_secs(due + 60),
        }
    }

    #[test]
    fn only_reservations_of_a_certain_age_are_reported_and_failures_are_repeated() {
        let tracker =
            ReservationTracker::new(Timestamp::from_secs(10), "host", Vec::new(), [0; 32]);
        for (number, since) in [(1, 10), (2, 11), (3, 12)] {
            let id = Id::from_bits(number);
            tracker.lock().young.insert(id, young(since + 30));
            tracker.lock().order.push_back((Timestamp::from_secs(since), id));
        }
        // It ends before it is reported.
        tracker.lock().young.remove(&Id::from_bits(2));
        let changes = tracker.take(Timestamp::from_secs(13));
        let ids: Vec<_> = changes.opened.iter().map(|one| one.id).collect();
        assert_eq!(ids, [Id::from_bits(1)]);
        assert!(changes.opened[0].text.contains(r#""amount":"1.50""#), "{:?}", changes.opened);
        tracker.put_back(changes);
        let again = tracker.take(Timestamp::from_secs(14));
        let ids: Vec<_> = again.opened.iter().map(|one| one.id).collect();
        assert_eq!(ids, [Id::from_bits(1), Id::from_bits(3)]);
        assert!(tracker.take(Timestamp::from_secs(99)).is_empty());
    }
}

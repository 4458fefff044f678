//! [`Reservations`]: reservations that nobody settled, for the dashboard and the command line.
//!
//! A caller that crashes leaves its estimate charged until the window is over: on a monthly budget
//! for a month. The [`ReservationTracker`] of each node reports the reservations that are open for
//! more than two seconds to a list that all nodes share, and removes those that end. Those whose hold
//! is over are shown, and can be settled or cancelled by hand.

mod tracker;

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluicegate_core::Id;
use sluicegate_core::reservation_store::{ReservationChanges, ReservationStore};
use tracing::debug;

pub use tracker::ReservationTracker;

use crate::cost::{CostBody, StatedCost};
use crate::overrides::REASON_BYTES_MAX;
use crate::refusal::{Refusal, RefusalKind};
use crate::service::{AuditEntry, Service};
use crate::settlement;
use crate::ticket::Ticket;

/// Maximum number of reservations in an answer.
const LISTED_MAX: usize = 500;
/// Maximum number of calls that one synchronisation makes; the rest waits for the next one.
const CALLS_MAX: usize = 20;

/// The reservations that are not settled, of all nodes that share the store.
pub struct Reservations {
    service: Arc<Service>,
    store: Arc<dyn ReservationStore>,
    tracker: ReservationTracker,
}

/// A reservation as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReservationDocument {
    id: String,
    handle: String,
    /// Dimensions of the caller; secret ones as hashes.
    caller: Vec<(String, String)>,
    charges: Vec<ReservedAmount>,
    /// Host name of the node that admitted it.
    node: String,
    at: String,
    due: String,
    ends: String,
}

/// An estimate that a rule has charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ReservedAmount {
    rule: String,
    unit: String,
    /// The amount; dollars as a decimal number.
    amount: String,
}

/// The request to settle a reservation by hand.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ManualSettlement {
    /// The actual cost; omitted fields stay as estimated.
    #[serde(default)]
    cost: CostBody,
    reason: String,
}

/// The request to cancel a reservation by hand.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ManualCancellation {
    reason: String,
}

impl Reservations {
    /// Creates the list on a store. `tracker` is an observer of the service.
    pub fn new(
        service: Arc<Service>,
        store: Arc<dyn ReservationStore>,
        tracker: ReservationTracker,
    ) -> Self {
        Self { service, store, tracker }
    }

    /// Reports the changes that this node has observed since the last call. Changes that could not
    /// be reported are repeated by the next call.
    pub async fn synchronise(&self) {
        for _ in 0..CALLS_MAX {
            let changes = self.tracker.take(self.service.now());
            if changes.is_empty() {
                return;
            }
            match self.store.apply(&changes).await {
                Ok(rejected) => self.tracker.add_unlisted(rejected),
                Err(problem) => {
                    debug!(%problem, "reservations not reported: retrying");
                    self.tracker.put_back(changes);
                    return;
                }
            }
        }
    }

    /// Returns the reservations whose hold is over, as JSON.
    pub(crate) async fn list(&self) -> Result<Value, Refusal> {
        self.synchronise().await;
        let read = self.store.unsettled(LISTED_MAX).await?;
        let shown = read.texts.iter().filter_map(|text| {
            let mut shown = serde_json::from_str::<Value>(text).ok()?;
            // The handle is for settling only.
            shown.as_object_mut()?.remove("handle");
            Some(shown)
        });
        Ok(json!({
            "now": read.at.to_string(),
            "count": read.count,
            "open": read.open,
            "unlisted": self.tracker.unlisted(),
            "reservations": shown.collect::<Vec<_>>(),
        }))
    }

    /// Settles a reservation with its actual cost.
    pub(crate) async fn settle(
        &self,
        id: &str,
        body: ManualSettlement,
        by: &str,
    ) -> Result<Value, Refusal> {
        let reason = checked_reason(&body.reason)?;
        let stated = body.cost.read_actual()?;
        let (id, document) = self.find(id).await?;
        let ticket = Ticket::read(&document.handle)?;
        let settled = settlement::settle(&self.service, &ticket, &stated).await;
        let settled = self.ended(id, settled).await?;
        let cost = settled.cost.map(|money| money.to_string());
        let detail = format!("estimated {}; {}", document.estimate(), words_of(&stated));
        self.audit("reservation settled", &document, by, reason, detail);
        Ok(json!({ "settled": document.id, "usd": cost }))
    }

    /// Cancels a reservation: gives back all that it has charged.
    pub(crate) async fn cancel(
        &self,
        id: &str,
        body: &ManualCancellation,
        by: &str,
    ) -> Result<Value, Refusal> {
        let reason = checked_reason(&body.reason)?;
        let (id, document) = self.find(id).await?;
        let ticket = Ticket::read(&document.handle)?;
        let cancelled = self.service.cancel(&ticket.handle).await.map_err(Refusal::from);
        self.ended(id, cancelled).await?;
        let detail = format!("given back {}", document.estimate());
        self.audit("reservation cancelled", &document, by, reason, detail);
        Ok(json!({ "cancelled": document.id }))
    }

    async fn find(&self, id: &str) -> Result<(Id, ReservationDocument), Refusal> {
        let unknown = || {
            let detail =
                "unknown reservation: it was settled, or nothing of it is charged any more";
            Refusal::new(RefusalKind::Unknown, detail)
        };
        let id: Id = id.parse().map_err(|_| unknown())?;
        self.synchronise().await;
        let text = self.store.find(id).await?.ok_or_else(unknown)?;
        let document = serde_json::from_str(&text).map_err(|_| {
            let detail =
                "this reservation was recorded by another version: use a node of that version";
            Refusal::new(RefusalKind::Internal, detail)
        })?;
        Ok((id, document))
    }

    /// Removes a reservation from the list after it was settled or cancelled, or turned out to have
    /// ended before. In the latter case, returns an error that says so.
    async fn ended<T>(&self, id: Id, outcome: Result<T, Refusal>) -> Result<T, Refusal> {
        let refusal = match outcome {
            Ok(value) => {
                self.remove(id).await;
                return Ok(value);
            }
            Err(refusal) => refusal,
        };
        match refusal.kind {
            RefusalKind::Conflict | RefusalKind::Unknown | RefusalKind::Gone => {
                self.remove(id).await;
                let detail = "the reservation has ended meanwhile: it was settled or cancelled, or \
                              nothing of it is charged any more";
                Err(Refusal::new(refusal.kind, detail))
            }
            _ => Err(refusal),
        }
    }

    async fn remove(&self, id: Id) {
        let changes = ReservationChanges { ended: vec![id], ..ReservationChanges::default() };
        if self.store.apply(&changes).await.is_err() {
            self.tracker.put_back(changes);
        }
    }

    fn audit(
        &self,
        action: &'static str,
        document: &ReservationDocument,
        by: &str,
        reason: &str,
        detail: String,
    ) {
        self.service.audit().record(AuditEntry {
            at: self.service.now(),
            by: by.to_owned(),
            action,
            target: document.target(),
            reason: reason.to_owned(),
            detail,
        });
    }
}

impl ReservationDocument {
    /// Returns the caller and the id in words.
    fn target(&self) -> String {
        let caller: Vec<_> =
            self.caller.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} ({})", caller.join(" "), self.id)
    }

    /// Returns the charged estimates in words.
    fn estimate(&self) -> String {
        let charge = |one: &ReservedAmount| format!("{} {} ({})", one.amount, one.unit, one.rule);
        self.charges.iter().map(charge).collect::<Vec<_>>().join(", ")
    }
}

fn words_of(stated: &StatedCost) -> String {
    let cost = &stated.cost;
    let mut words = String::from("actual:");
    for (name, amount) in [
        ("requests", cost.requests.map(|amount| amount.to_string())),
        ("input tokens", cost.input_tokens.map(|amount| amount.to_string())),
        ("output tokens", cost.output_tokens.map(|amount| amount.to_string())),
        ("USD", cost.money.map(|money| money.to_string())),
    ] {
        if let Some(amount) = amount {
            let _ = write!(words, " {amount} {name}");
        }
    }
    if words.ends_with(':') {
        words.push_str(" as estimated");
    }
    words
}

fn checked_reason(reason: &str) -> Result<&str, Refusal> {
    let reason = reason.trim();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
        let right = format!("must have 1 to {REASON_BYTES_MAX} bytes: say why");
        return Err(Refusal::field("reason", right));
    }
    Ok(reason)
}

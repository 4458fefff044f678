//! [`Call`]: one operation as the keys and arguments that the Lua scripts read.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sluicegate_core::algorithm::Meter;
use sluicegate_core::algorithm::log::{ENTRIES_PER_CHARGE_MAX, LogQuota};
use sluicegate_core::backlog::BacklogReport;
use sluicegate_core::limit::Unit;
use sluicegate_core::override_store::OverridesVersion;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::reservation_store::{END_REMEMBERED, RESERVATIONS_MAX, ReservationChanges};
use sluicegate_core::time::Span;
use sluicegate_core::{Charge, Id, Plan};
use smallvec::SmallVec;

use super::keys::{KeyNames, Layout};
use super::log_cache::LogCache;
use super::operation_stats::RedisOperation;
use super::script::ScriptKind;
use super::slot::ClusterSlot;

/// One operation that is sent to Redis.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) script: ScriptKind,
    /// Slot of all its keys, in a cluster.
    pub(super) slot: Option<ClusterSlot>,
    /// Set if the call is sent after `ASKING`, to a server that is importing the slot.
    pub(super) asking: bool,
    pub(super) keys: ByteStrings,
    pub(super) arguments: ByteStrings,
    /// Number of limits whose readings the fast script returns.
    pub(super) rows: usize,
    /// Set for each charge whose oldest entry the call supplies from the cache, so that the script
    /// need not read it.
    pub(super) hinted: SmallVec<[bool; 4]>,
    /// Set for calls of paced work, for calls about work that was decided before, and for calls that
    /// no request waits for: they may take longer than a decision.
    pub(super) patient: bool,
    /// Set for calls of paced work: it needs the connection although decisions time out.
    pub(super) paced: bool,
    /// Set for background calls that no request waits for. They are not counted as traffic.
    pub(super) housekeeping: bool,
    /// Flag that is set when the call is sent, so that a rollback knows whether it may have run.
    pub(super) sent: Option<Arc<AtomicBool>>,
}

/// A list of byte strings in one allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct ByteStrings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ByteStrings {
    fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    fn number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Appends a number, or an empty string for `None`.
    fn optional(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.push(b""),
        }
    }

    fn flag(&mut self, flag: bool) {
        self.push(if flag { b"1" } else { b"0" });
    }

    fn span(&mut self, span: Span) {
        self.number(span.as_micros());
    }

    fn id(&mut self, id: Id) {
        // As raw bytes: short members keep small logs in the compact encoding of Redis.
        self.push(&id.to_bits().to_be_bytes());
    }

    pub(super) const fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

/// Numbers separated by spaces, the form in which `lua/fast.lua` reads the limits of a plan.
#[derive(Default)]
struct NumberList(Vec<u8>);

impl NumberList {
    fn number(&mut self, number: u64) {
        self.0.push(b' ');
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}

/// An operation that carries a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanOperation {
    /// An acquire by the attempt with this number.
    Acquire(Id),
    Peek,
    /// A booking by the attempt with this number.
    Book(Id),
    Claim(Id),
    Refund,
    Close(Span),
    Reset,
    Usage,
    Reserve(ReserveAttempt),
}

impl PlanOperation {
    pub(super) const fn operation(self) -> RedisOperation {
        match self {
            Self::Acquire(_) | Self::Reserve(_) => RedisOperation::Acquire,
            Self::Peek => RedisOperation::Peek,
            Self::Book(_) => RedisOperation::Book,
            Self::Claim(_) => RedisOperation::Claim,
            Self::Refund => RedisOperation::Refund,
            Self::Close(_) => RedisOperation::Close,
            Self::Reset => RedisOperation::Reset,
            Self::Usage => RedisOperation::Usage,
        }
    }
}

/// One attempt to admit a plan whose keys lie in several slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReserveAttempt {
    pub(super) number: Id,
    /// Fingerprint of the whole plan, compared when the request id is replayed.
    pub(super) fingerprint: u64,
}

/// An operation on a record of an earlier admission.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordOperation<'a> {
    Cancel,
    Settle(&'a Cost),
    /// Checks that a settlement would succeed, and changes nothing.
    CheckSettle(&'a Cost),
    Release,
    Renew,
    /// A rollback of the attempt with this number, which has a record.
    RollBack(Id),
}

impl RecordOperation<'_> {
    pub(super) const fn operation(self) -> RedisOperation {
        match self {
            Self::Cancel | Self::RollBack(_) => RedisOperation::Cancel,
            Self::Settle(_) | Self::CheckSettle(_) => RedisOperation::Settle,
            Self::Release => RedisOperation::Release,
            Self::Renew => RedisOperation::Renew,
        }
    }
}

/// An operation on the overrides that all nodes share.
#[derive(Clone, Copy, Debug)]
pub(super) enum OverrideOperation<'a> {
    Read(Option<OverridesVersion>),
    Put { name: Id, text: &'a str, lasts: Option<Span>, texts_max: usize },
    Remove(Id),
}

impl OverrideOperation<'_> {
    /// Returns the id that spreads the retry delays of this operation.
    pub(super) const fn id(self) -> Id {
        match self {
            Self::Read(_) => Id::from_bits(0),
            Self::Put { name, .. } | Self::Remove(name) => name,
        }
    }
}

/// An operation on the list of reservations that are not settled.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReservationOperation<'a> {
    Apply(&'a ReservationChanges),
    Read { max: usize },
    Find(Id),
}

impl Call {
    /// Returns true if one script call can carry both calls. A call after `ASKING` is sent alone,
    /// because a server that is importing a slot rejects a script that also names keys it has not
    /// received yet. Calls with long timeouts get their own batch, because a batch has one timeout.
    pub(super) fn can_share_batch(&self, other: &Self) -> bool {
        self.script == other.script
            && self.slot == other.slot
            && self.patient == other.patient
            && !self.asking
            && !other.asking
    }

    /// Returns the acquire of a plan for the fast script, or `None` if that script can't decide the
    /// plan.
    pub(super) fn fast_acquire(
        plan: &Plan<'_>,
        slot: Option<ClusterSlot>,
        retry: bool,
        names: &KeyNames,
        log_cache: &LogCache,
    ) -> Option<Self> {
        if plan.needs_record() || plan.charges().is_empty() {
            return None;
        }
        let quotas: Option<Vec<&[LogQuota]>> = plan.charges().iter().map(fast_quotas).collect();
        let quotas = quotas?;
        let windows = plan.charges().iter().map(|charge| charge.meter.window());
        // The entry that is kept longest shows whether the plan was admitted before.
        let longest = windows.zip(0_u64..).max_by_key(|(window, _)| *window);
        let (mut keys, mut shape) = (ByteStrings::default(), NumberList::default());
        let (mut hints, mut hinted) = (Vec::new(), SmallVec::new());
        match longest {
            Some((_, index)) if retry => shape.number(index),
            _ => shape.0.extend_from_slice(b"-"),
        }
        shape.number(quotas.len() as u64);
        let rows = quotas.iter().map(|quotas| quotas.len()).sum();
        for (charge, quotas) in plan.charges().iter().zip(quotas) {
            let (name, window) = (names.counter(charge), charge.meter.window());
            // Resend the expiry on a retry: the first call may not have run.
            let facts = log_cache.facts(&name, window);
            let sets_expiry = retry || facts.expiry_due;
            hinted.push(facts.oldest.is_some());
            let oldest = facts.oldest.unwrap_or_default().as_micros();
            hints.extend_from_slice(&oldest.to_be_bytes());
            let numbers =
                [charge.take, sets_expiry.into(), window.as_micros(), quotas.len() as u64];
            numbers.into_iter().for_each(|number| shape.number(number));
            for quota in quotas {
                shape.number(quota.limit);
                shape.number(quota.window.as_micros());
            }
            keys.push(&name);
        }
        let mut arguments = ByteStrings::default();
        arguments.id(plan.id.id);
        arguments.push(&shape.0);
        arguments.push(if hinted.contains(&true) { &hints } else { b"" });
        Some(Self {
            script: ScriptKind::Fast,
            slot,
            asking: false,
            keys,
            arguments,
            rows,
            hinted,
            patient: plan.patient,
            paced: plan.patient,
            housekeeping: false,
            sent: None,
        })
    }

    /// Returns an operation on a plan whose keys all lie in one slot.
    pub(super) fn on_plan(
        operation: PlanOperation,
        plan: &Plan<'_>,
        slot: Option<ClusterSlot>,
        names: &KeyNames,
    ) -> Self {
        let name = match operation {
            PlanOperation::Acquire(_) => "acquire",
            PlanOperation::Peek => "peek",
            PlanOperation::Book(_) => "book",
            PlanOperation::Claim(_) => "claim",
            PlanOperation::Refund => "refund",
            PlanOperation::Close(_) => "close",
            PlanOperation::Reset => "reset",
            PlanOperation::Usage => "usage",
            PlanOperation::Reserve(_) => "reserve",
        };
        let fingerprint = match operation {
            PlanOperation::Reserve(attempt) => attempt.fingerprint,
            _ => plan.fingerprint(),
        };
        let (mut keys, mut body) = (ByteStrings::default(), ByteStrings::default());
        body.id(plan.id.id);
        body.push(&fingerprint.to_be_bytes());
        body.flag(plan.needs_record());
        body.optional(plan.id.keep.map(Span::as_micros));
        body.optional(plan.hold.map(Span::as_micros));
        body.span(plan.slack);
        body.span(plan.horizon);
        body.span(plan.window());
        body.number(plan.charges().len() as u64);
        keys.push(&match operation {
            PlanOperation::Acquire(_) if !plan.needs_record() => names.once(slot, plan.id.id),
            PlanOperation::Refund => names.refund(slot, plan.id.id),
            _ => names.record(slot, plan.id.id),
        });
        for charge in plan.charges() {
            push_charge(charge, names, &mut keys, &mut body);
        }
        match operation {
            PlanOperation::Acquire(attempt) if plan.needs_record() => body.id(attempt),
            PlanOperation::Book(attempt) => {
                body.push(&plan.statement_fingerprint().to_be_bytes());
                body.id(attempt);
            }
            PlanOperation::Claim(claimant) => {
                body.id(claimant);
                body.push(&plan.statement_fingerprint().to_be_bytes());
            }
            PlanOperation::Reserve(attempt) => body.id(attempt.number),
            PlanOperation::Close(wait) => body.span(wait),
            _ => {}
        }
        push_pacing(operation, plan, &mut body);
        let (patient, paced) = (plan.patient, plan.patient);
        Self { patient, paced, ..Self::full(name, slot, keys, &body) }
    }

    /// Returns an operation on the record of an earlier admission. The record lists its counters,
    /// which lie in the same slot.
    pub(super) fn on_record(
        operation: RecordOperation<'_>,
        handle: &Handle,
        slot: Option<ClusterSlot>,
        names: &KeyNames,
    ) -> Self {
        let (mut keys, mut body) = (ByteStrings::default(), ByteStrings::default());
        keys.push(&names.record(slot, handle.id));
        if let Some(slot) = slot {
            // The keys are declared, so that a server rejects the whole call while it migrates a
            // part of the slot, instead of failing in the middle of the script.
            for key in handle.keys.iter().filter(|key| names.slot(key) == slot) {
                names.keys_of_charge(key).iter().for_each(|name| keys.push(name));
            }
        }
        let name = match operation {
            RecordOperation::Cancel => {
                match handle.claimant {
                    Some(claimant) => body.id(claimant),
                    None => body.push(b""),
                }
                "cancel"
            }
            RecordOperation::Settle(actual) => {
                push_cost(actual, &mut body);
                "settle"
            }
            RecordOperation::CheckSettle(actual) => {
                push_cost(actual, &mut body);
                "could_settle"
            }
            RecordOperation::Release => "release",
            RecordOperation::Renew => "renew",
            RecordOperation::RollBack(attempt) => {
                body.id(attempt);
                "take_back"
            }
        };
        let housekeeping = matches!(operation, RecordOperation::RollBack(_));
        let patient = housekeeping
            || matches!(
                operation,
                RecordOperation::Cancel | RecordOperation::Release | RecordOperation::Renew
            );
        Self { patient, housekeeping, ..Self::full(name, slot, keys, &body) }
    }

    /// Returns the rollback of an attempt whose id this node made and which has no record.
    pub(super) fn roll_back_unrecorded(
        plan: &Plan<'_>,
        slot: Option<ClusterSlot>,
        names: &KeyNames,
    ) -> Self {
        let (mut keys, mut body) = (ByteStrings::default(), ByteStrings::default());
        keys.push(&names.once(slot, plan.id.id));
        body.id(plan.id.id);
        let (logs, others): (Vec<_>, Vec<_>) =
            plan.charges().iter().partition(|charge| matches!(charge.meter, Meter::Log(_)));
        body.number(logs.len() as u64);
        for charge in logs {
            keys.push(&names.counter(charge));
            body.number(charge.take);
        }
        // Their marker stores what was charged. The keys are declared because a cluster has to know
        // all keys of a call.
        others.into_iter().for_each(|charge| keys.push(&names.counter(charge)));
        Self {
            patient: true,
            housekeeping: true,
            ..Self::full("take_back_once", slot, keys, &body)
        }
    }

    /// Returns an operation on texts that all nodes share, such as the overrides, in the hash `key`.
    pub(super) fn on_shared_texts(
        operation: OverrideOperation<'_>,
        (key, slot): (Vec<u8>, Option<ClusterSlot>),
    ) -> Self {
        let (mut keys, mut body) = (ByteStrings::default(), ByteStrings::default());
        keys.push(&key);
        let name = match operation {
            OverrideOperation::Read(known) => {
                body.optional(known.map(|OverridesVersion(version)| version));
                "shelf_read"
            }
            OverrideOperation::Put { name, text, lasts, texts_max } => {
                body.push(name.to_string().as_bytes());
                body.optional(lasts.map(Span::as_micros));
                body.number(texts_max as u64);
                body.push(text.as_bytes());
                "shelf_put"
            }
            OverrideOperation::Remove(name) => {
                body.push(name.to_string().as_bytes());
                "shelf_remove"
            }
        };
        let housekeeping = matches!(operation, OverrideOperation::Read(_));
        Self { patient: true, housekeeping, ..Self::full(name, slot, keys, &body) }
    }

    /// Returns an operation on the list of reservations that are not settled.
    pub(super) fn on_reservations(operation: ReservationOperation<'_>, names: &KeyNames) -> Self {
        let (list, slot) = names.reservations();
        let (mut keys, mut body) = (ByteStrings::default(), ByteStrings::default());
        list.iter().for_each(|key| keys.push(key));
        let name = match operation {
            ReservationOperation::Apply(changes) => {
                let ReservationChanges { opened, renewed, ended } = changes;
                body.number(RESERVATIONS_MAX as u64);
                body.span(END_REMEMBERED);
                for count in [ended.len(), renewed.len(), opened.len()] {
                    body.number(count as u64);
                }
                ended.iter().for_each(|id| body.push(id.to_string().as_bytes()));
                for (id, due) in renewed {
                    body.push(id.to_string().as_bytes());
                    body.number(due.as_micros());
                }
                for reservation in opened {
                    body.push(reservation.id.to_string().as_bytes());
                    body.number(reservation.due.as_micros());
                    body.number(reservation.ends.as_micros());
                    body.push(reservation.text.as_bytes());
                }
                "reservations_apply"
            }
            ReservationOperation::Read { max } => {
                body.number(max as u64);
                "reservations_read"
            }
            ReservationOperation::Find(id) => {
                body.push(id.to_string().as_bytes());
                "reservations_find"
            }
        };
        Self { patient: true, housekeeping: true, ..Self::full(name, slot, keys, &body) }
    }

    /// Returns the call that exchanges the backlogs under a key. It can share a batch with bookings.
    pub(super) fn on_backlogs(
        report: &BacklogReport,
        key: &[u8],
        slot: Option<ClusterSlot>,
    ) -> Self {
        let (mut keys, mut body) = (ByteStrings::default(), ByteStrings::default());
        keys.push(key);
        body.id(report.queue);
        body.span(report.expires_after);
        match report.backlog.is_empty() {
            true => body.push(b""),
            false => body.push(report.backlog.to_string().as_bytes()),
        }
        Self { patient: true, housekeeping: true, ..Self::full("backlogs", slot, keys, &body) }
    }

    /// Returns the call by which this node announces itself.
    pub(super) fn announce(node: Id, names: &KeyNames) -> Self {
        let (mut keys, mut body) = (ByteStrings::default(), ByteStrings::default());
        let name = names.nodes();
        keys.push(&name);
        body.id(node);
        let slot = (names.layout() == Layout::BySlot).then(|| ClusterSlot::of(&name));
        Self { patient: true, housekeeping: true, ..Self::full("announce", slot, keys, &body) }
    }

    fn full(name: &str, slot: Option<ClusterSlot>, keys: ByteStrings, body: &ByteStrings) -> Self {
        let mut arguments = ByteStrings::default();
        arguments.number(2 + body.len() as u64);
        arguments.number(keys.len() as u64);
        arguments.push(name.as_bytes());
        for text in body.iter() {
            arguments.push(text);
        }
        Self {
            script: ScriptKind::Full,
            slot,
            asking: false,
            keys,
            arguments,
            rows: 0,
            hinted: SmallVec::new(),
            patient: false,
            paced: false,
            housekeeping: false,
            sent: None,
        }
    }
}

/// Returns the quotas of a charge that the fast script can decide: an exact log that needs nothing
/// read besides its entries.
fn fast_quotas<'a>(charge: &'a Charge<'_>) -> Option<&'a [LogQuota]> {
    let Meter::Log(quotas) = &charge.meter else { return None };
    let fits = quotas.iter().all(|quota| charge.need <= quota.limit);
    let plain = charge.need == charge.take && !charge.shadow() && !charge.refunds();
    (fits && plain).then_some(quotas)
}

fn push_charge(
    charge: &Charge<'_>,
    names: &KeyNames,
    keys: &mut ByteStrings,
    body: &mut ByteStrings,
) {
    let counter = names.counter(charge);
    keys.push(&counter);
    body.push(match charge.meter {
        Meter::Log(_) => b"log",
        Meter::Windowed(_) => b"windowed",
        Meter::Calendar(_) => b"calendar",
        Meter::Bucket(_) => b"bucket",
        Meter::Leases(_) => b"slots",
    });
    body.flag(charge.shadow());
    body.flag(charge.refunds());
    body.flag(charge.is_gate());
    if charge.refunds() {
        keys.push(&KeyNames::holds(&counter));
    }
    body.push(charge.unit().name().as_bytes());
    body.number(charge.need);
    body.number(charge.take);
    body.span(charge.meter.window());
    match &charge.meter {
        Meter::Log(quotas) => {
            body.number(quotas.len() as u64);
            for quota in quotas.iter() {
                body.number(quota.limit);
                body.span(quota.window);
            }
        }
        Meter::Windowed(quota) => body.number(quota.limit),
        Meter::Calendar(quota) => {
            body.number(quota.limit);
            for boundary in quota.boundaries.0 {
                body.number(boundary.as_micros());
            }
        }
        Meter::Bucket(quota) => {
            body.number(quota.capacity());
            body.number(quota.drain_ns() / 1_000);
            body.number(quota.drain_ns() % 1_000);
            body.number(quota.grain());
        }
        Meter::Leases(quota) => body.number(quota.limit),
    }
}

/// Appends the lead of a plan, the charges that only spread starts, and the owner, if there are any.
fn push_pacing(operation: PlanOperation, plan: &Plan<'_>, body: &mut ByteStrings) {
    let is_read = match operation {
        PlanOperation::Acquire(_) => plan.needs_record(),
        PlanOperation::Peek | PlanOperation::Book(_) | PlanOperation::Claim(_) => true,
        _ => false,
    };
    let spreads = || (0_u64..).zip(plan.charges()).filter(|(_, charge)| charge.rule().spreads);
    if !is_read || (plan.lead.is_none() && spreads().next().is_none()) {
        return;
    }
    body.optional(plan.lead.map(Span::as_micros));
    body.number(spreads().count() as u64);
    spreads().for_each(|(index, _)| body.number(index));
    if let Some(owner) = plan.owner {
        body.id(owner);
    }
}

/// Appends a cost: as one string, by which a second settlement is compared with the first, and then
/// unit by unit.
fn push_cost(actual: &Cost, body: &mut ByteStrings) {
    let parts = [
        actual.requests,
        actual.input_tokens,
        actual.output_tokens,
        actual.money.map(|money| money.as_nanos()),
    ];
    let joined: Vec<_> =
        parts.iter().map(|part| part.map_or(String::new(), |n| n.to_string())).collect();
    body.push(joined.join(",").as_bytes());
    body.number(ENTRIES_PER_CHARGE_MAX);
    body.number(Unit::RATED.len() as u64);
    for unit in Unit::RATED {
        body.push(unit.name().as_bytes());
        body.optional(actual.of(unit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each node writes a summary every 2 s. If that counted as paced work, a dead connection would
    /// be noticed only after the long timeout.
    #[test]
    fn shared_texts_are_not_paced_work() {
        let name = Id::from_bits(1);
        let put = OverrideOperation::Put { name, text: "{}", lasts: None, texts_max: 1 };
        let call = Call::on_shared_texts(put, (b"summaries".to_vec(), None));
        assert!(call.patient && !call.paced);
    }
}

//! One operation as the scripts read it: keys and arguments, flat.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sluicegate_core::algorithm::Meter;
use sluicegate_core::algorithm::log::{ENTRIES_PER_CHARGE_MAX, Quota};
use sluicegate_core::limit::Unit;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::shelf::Version;
use sluicegate_core::time::Span;
use sluicegate_core::{Charge, Id, Plan};
use smallvec::SmallVec;

use super::keys::{Layout, Names};
use super::memo::Memo;
use super::script::Which;
use super::slot::Slot;
use super::tally::Asked;

/// One operation, on its way.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) script: Which,
    /// Where all its keys lie, in a cluster.
    pub(super) slot: Option<Slot>,
    /// It was sent to a server that is about to get the slot.
    pub(super) asking: bool,
    pub(super) keys: Texts,
    pub(super) arguments: Texts,
    /// How many limits the answer of the fast script has to show.
    pub(super) rows: usize,
    /// For which charges it was told the oldest entry, instead of asking.
    pub(super) hinted: SmallVec<[bool; 4]>,
    /// Nobody asked for it.
    pub(super) housekeeping: bool,
    /// Set when it is sent, for those who have to know.
    pub(super) sent: Option<Arc<AtomicBool>>,
}

/// Texts one behind the other, in one allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    fn number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number).as_bytes());
    }

    /// A number, or nothing.
    fn perhaps(&mut self, number: Option<u64>) {
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
        // As bytes: members that are short keep small logs in the compact encoding of Redis.
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

/// Numbers with a space before each: see `lua/fast.lua`.
#[derive(Default)]
struct Shape(Vec<u8>);

impl Shape {
    fn number(&mut self, number: u64) {
        self.0.push(b' ');
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}

/// The operations that come with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// By the attempt with this number.
    Acquire(Id),
    Peek,
    /// By the attempt with this number.
    Book(Id),
    Claim(Id),
    Refund,
    Close(Span),
    Reset,
    Usage,
    Reserve(Attempt),
}

impl Planned {
    pub(super) const fn asked(self) -> Asked {
        match self {
            Self::Acquire(_) | Self::Reserve(_) => Asked::Acquire,
            Self::Peek => Asked::Peek,
            Self::Book(_) => Asked::Book,
            Self::Claim(_) => Asked::Claim,
            Self::Refund => Asked::Refund,
            Self::Close(_) => Asked::Close,
            Self::Reset => Asked::Reset,
            Self::Usage => Asked::Usage,
        }
    }
}

/// One try to have a plan admitted that lies in several slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) number: Id,
    /// What makes the whole plan the same when it comes again.
    pub(super) fingerprint: u64,
}

/// The operations on what was admitted before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Later<'a> {
    Cancel,
    Settle(&'a Cost),
    /// Whether it could be settled; changes nothing.
    CouldSettle(&'a Cost),
    Release,
    Renew,
    /// The attempt with this number, which has a record.
    TakeBack(Id),
}

impl Later<'_> {
    pub(super) const fn asked(self) -> Asked {
        match self {
            Self::Cancel | Self::TakeBack(_) => Asked::Cancel,
            Self::Settle(_) | Self::CouldSettle(_) => Asked::Settle,
            Self::Release => Asked::Release,
            Self::Renew => Asked::Renew,
        }
    }
}

/// The operations on the texts that all nodes share.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept<'a> {
    Read(Option<Version>),
    Put { name: Id, text: &'a str, lasts: Option<Span>, texts_max: usize },
    Remove(Id),
}

impl Kept<'_> {
    /// What tells its retries from those of others.
    pub(super) const fn id(self) -> Id {
        match self {
            Self::Read(_) => Id::from_bits(0),
            Self::Put { name, .. } | Self::Remove(name) => name,
        }
    }
}

impl Call {
    /// Whether one script call can carry both. One that only asks may touch nothing else, because
    /// a server that has not got everything of a slot refuses what it has not got.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        self.script == other.script && self.slot == other.slot && !self.asking && !other.asking
    }

    /// An acquire by the fast script, if the plan is one that it can decide.
    pub(super) fn fast(
        plan: &Plan<'_>,
        slot: Option<Slot>,
        retry: bool,
        names: &Names,
        memo: &Memo,
    ) -> Option<Self> {
        if plan.recorded() || plan.charges().is_empty() {
            return None;
        }
        let quotas: Option<Vec<&[Quota]>> = plan.charges().iter().map(plain_log).collect();
        let quotas = quotas?;
        let windows = plan.charges().iter().map(|charge| charge.meter.window());
        // The entry that stays longest tells whether the plan was admitted before.
        let longest = windows.zip(0_u64..).max_by_key(|(window, _)| *window);
        let (mut keys, mut shape) = (Texts::default(), Shape::default());
        let (mut hints, mut hinted) = (Vec::new(), SmallVec::new());
        match longest {
            Some((_, index)) if retry => shape.number(index),
            _ => shape.0.extend_from_slice(b"-"),
        }
        shape.number(quotas.len() as u64);
        let rows = quotas.iter().map(|quotas| quotas.len()).sum();
        for (charge, quotas) in plan.charges().iter().zip(quotas) {
            let (name, window) = (names.counter(charge), charge.meter.window());
            // Whoever told it before may not have been heard.
            let question = memo.question(&name, window);
            let moves = retry || question.expiry_due;
            hinted.push(question.oldest.is_some());
            let oldest = question.oldest.unwrap_or_default().as_micros();
            hints.extend_from_slice(&oldest.to_be_bytes());
            let numbers = [charge.take, moves.into(), window.as_micros(), quotas.len() as u64];
            numbers.into_iter().for_each(|number| shape.number(number));
            for quota in quotas {
                shape.number(quota.limit);
                shape.number(quota.window.as_micros());
            }
            keys.push(&name);
        }
        let mut arguments = Texts::default();
        arguments.id(plan.id.id);
        arguments.push(&shape.0);
        arguments.push(if hinted.contains(&true) { &hints } else { b"" });
        let (script, asking, housekeeping, sent) = (Which::Fast, false, false, None);
        Some(Self { script, slot, asking, keys, arguments, rows, hinted, housekeeping, sent })
    }

    /// An operation that comes with a plan, all of which lies in one slot.
    pub(super) fn planned(
        operation: Planned,
        plan: &Plan<'_>,
        slot: Option<Slot>,
        names: &Names,
    ) -> Self {
        let name = match operation {
            Planned::Acquire(_) => "acquire",
            Planned::Peek => "peek",
            Planned::Book(_) => "book",
            Planned::Claim(_) => "claim",
            Planned::Refund => "refund",
            Planned::Close(_) => "close",
            Planned::Reset => "reset",
            Planned::Usage => "usage",
            Planned::Reserve(_) => "reserve",
        };
        let fingerprint = match operation {
            Planned::Reserve(attempt) => attempt.fingerprint,
            _ => plan.fingerprint(),
        };
        let (mut keys, mut body) = (Texts::default(), Texts::default());
        body.id(plan.id.id);
        body.push(&fingerprint.to_be_bytes());
        body.flag(plan.recorded());
        body.perhaps(plan.id.keep.map(Span::as_micros));
        body.perhaps(plan.hold.map(Span::as_micros));
        body.span(plan.slack);
        body.span(plan.horizon);
        body.span(plan.window());
        body.number(plan.charges().len() as u64);
        keys.push(&match operation {
            Planned::Acquire(_) if !plan.recorded() => names.once(slot, plan.id.id),
            Planned::Refund => names.refund(slot, plan.id.id),
            _ => names.record(slot, plan.id.id),
        });
        for charge in plan.charges() {
            push_charge(charge, names, &mut keys, &mut body);
        }
        match operation {
            Planned::Acquire(attempt) if plan.recorded() => body.id(attempt),
            Planned::Book(attempt) => {
                body.push(&plan.stated().to_be_bytes());
                body.id(attempt);
            }
            Planned::Claim(claimant) => {
                body.id(claimant);
                body.push(&plan.stated().to_be_bytes());
            }
            Planned::Reserve(attempt) => body.id(attempt.number),
            Planned::Close(wait) => body.span(wait),
            _ => {}
        }
        Self::full(name, slot, keys, &body)
    }

    /// An operation on what was admitted before. The record knows its counters, which lie where it
    /// lies itself.
    pub(super) fn later(
        operation: Later<'_>,
        handle: &Handle,
        slot: Option<Slot>,
        names: &Names,
    ) -> Self {
        let (mut keys, mut body) = (Texts::default(), Texts::default());
        keys.push(&names.record(slot, handle.id));
        if let Some(slot) = slot {
            // Named, so that a server refuses it as a whole while a part of it is being moved to
            // another, and not in the middle.
            for key in handle.keys.iter().filter(|key| names.slot(key) == slot) {
                names.touched(key).iter().for_each(|name| keys.push(name));
            }
        }
        let name = match operation {
            Later::Cancel => {
                match handle.claimant {
                    Some(claimant) => body.id(claimant),
                    None => body.push(b""),
                }
                "cancel"
            }
            Later::Settle(actual) => {
                push_cost(actual, &mut body);
                "settle"
            }
            Later::CouldSettle(actual) => {
                push_cost(actual, &mut body);
                "could_settle"
            }
            Later::Release => "release",
            Later::Renew => "renew",
            Later::TakeBack(attempt) => {
                body.id(attempt);
                "take_back"
            }
        };
        let housekeeping = matches!(operation, Later::TakeBack(_));
        Self { housekeeping, ..Self::full(name, slot, keys, &body) }
    }

    /// Takes back an id that we made and that has no record.
    pub(super) fn take_back_once(plan: &Plan<'_>, slot: Option<Slot>, names: &Names) -> Self {
        let (mut keys, mut body) = (Texts::default(), Texts::default());
        keys.push(&names.once(slot, plan.id.id));
        body.id(plan.id.id);
        let (logs, others): (Vec<_>, Vec<_>) =
            plan.charges().iter().partition(|charge| matches!(charge.meter, Meter::Log(_)));
        body.number(logs.len() as u64);
        for charge in logs {
            keys.push(&names.counter(charge));
            body.number(charge.take);
        }
        // Their mark knows what was charged; named, so that a cluster knows all keys of a call.
        others.into_iter().for_each(|charge| keys.push(&names.counter(charge)));
        Self { housekeeping: true, ..Self::full("take_back_once", slot, keys, &body) }
    }

    /// An operation on the texts that all nodes share.
    pub(super) fn shelf(operation: Kept<'_>, names: &Names) -> Self {
        let (mut keys, mut body) = (Texts::default(), Texts::default());
        let (key, slot) = names.shelf();
        keys.push(&key);
        let name = match operation {
            Kept::Read(known) => {
                body.perhaps(known.map(|Version(version)| version));
                "shelf_read"
            }
            Kept::Put { name, text, lasts, texts_max } => {
                body.push(name.to_string().as_bytes());
                body.perhaps(lasts.map(Span::as_micros));
                body.number(texts_max as u64);
                body.push(text.as_bytes());
                "shelf_put"
            }
            Kept::Remove(name) => {
                body.push(name.to_string().as_bytes());
                "shelf_remove"
            }
        };
        let housekeeping = matches!(operation, Kept::Read(_));
        Self { housekeeping, ..Self::full(name, slot, keys, &body) }
    }

    /// This node says that it is there.
    pub(super) fn announce(node: Id, names: &Names) -> Self {
        let (mut keys, mut body) = (Texts::default(), Texts::default());
        let name = names.nodes();
        keys.push(&name);
        body.id(node);
        let slot = (names.layout() == Layout::Slots).then(|| Slot::of(&name));
        Self { housekeeping: true, ..Self::full("announce", slot, keys, &body) }
    }

    fn full(name: &str, slot: Option<Slot>, keys: Texts, body: &Texts) -> Self {
        let mut arguments = Texts::default();
        arguments.number(2 + body.len() as u64);
        arguments.number(keys.len() as u64);
        arguments.push(name.as_bytes());
        for text in body.iter() {
            arguments.push(text);
        }
        Self {
            script: Which::Full,
            slot,
            asking: false,
            keys,
            arguments,
            rows: 0,
            hinted: SmallVec::new(),
            housekeeping: false,
            sent: None,
        }
    }
}

/// The quotas of a charge that the fast script can decide: an exact log, and nothing about it that
/// would have to be looked at beside the entries.
fn plain_log<'a>(charge: &'a Charge<'_>) -> Option<&'a [Quota]> {
    let Meter::Log(quotas) = &charge.meter else { return None };
    let fits = quotas.iter().all(|quota| charge.need <= quota.limit);
    let plain = charge.need == charge.take && !charge.shadow() && !charge.refunds();
    (fits && plain).then_some(quotas)
}

fn push_charge(charge: &Charge<'_>, names: &Names, keys: &mut Texts, body: &mut Texts) {
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
        keys.push(&Names::holds(&counter));
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

/// A cost: as one text, by which a second settlement is compared with the first, and by unit.
fn push_cost(actual: &Cost, body: &mut Texts) {
    let parts = [
        actual.requests,
        actual.input_tokens,
        actual.output_tokens,
        actual.money.map(|money| money.as_nanos()),
    ];
    let whole: Vec<_> =
        parts.iter().map(|part| part.map_or(String::new(), |n| n.to_string())).collect();
    body.push(whole.join(",").as_bytes());
    body.number(ENTRIES_PER_CHARGE_MAX);
    body.number(Unit::RATED.len() as u64);
    for unit in Unit::RATED {
        body.push(unit.name().as_bytes());
        body.perhaps(actual.of(unit));
    }
}

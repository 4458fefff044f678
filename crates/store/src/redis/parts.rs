//! A plan in several slots: its parts, and their answers put together.
//!
//! The clocks of servers differ, so instants of different answers are never compared, only how
//! long something takes from when it was answered. The one whose wait is longest gives the time.

use sluicegate_core::algorithm::Reading;
use sluicegate_core::decision::{Allow, Deny, Hit, Never, Readings};
use sluicegate_core::plan::Handle;
use sluicegate_core::store::{Ended, Error, Renewed, Shut, Usage};
use sluicegate_core::{Decision, Plan, Timestamp};

use super::keys::{Layout, Names};
use super::slot::Slot;

/// Where the counters of a plan lie.
pub(super) enum Spread<'a> {
    /// All in one place, which has a number in a cluster.
    Whole(Option<Slot>),
    /// In several slots.
    Parts(Vec<Part<'a>>),
}

/// The charges of a plan that lie in one slot.
pub(super) struct Part<'a> {
    pub(super) slot: Slot,
    pub(super) plan: Plan<'a>,
    /// The place of each of its charges in the whole plan.
    places: Vec<usize>,
}

impl<'a> Spread<'a> {
    pub(super) fn of(plan: &Plan<'a>, names: &Names) -> Self {
        if names.layout() == Layout::Together {
            return Self::Whole(None);
        }
        let mut slots: Vec<(Slot, Vec<usize>)> = Vec::new();
        for (place, charge) in plan.charges().iter().enumerate() {
            let slot = names.slot(&charge.key);
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, places)) => places.push(place),
                None => slots.push((slot, vec![place])),
            }
        }
        match &slots[..] {
            [] => Self::Whole(Some(names.slot_of_id(plan.id.id))),
            [(slot, _)] => Self::Whole(Some(*slot)),
            _ => {
                let part = |(slot, places): (Slot, Vec<usize>)| Part {
                    slot,
                    plan: plan.only(&places),
                    places,
                };
                Self::Parts(slots.into_iter().map(part).collect())
            }
        }
    }
}

/// The slots in which a handle has a record; one that has no number where there are none.
pub(super) fn slots_of(handle: &Handle, names: &Names) -> Vec<Option<Slot>> {
    if names.layout() == Layout::Together {
        return vec![None];
    }
    let mut slots: Vec<_> = handle.keys.iter().map(|key| Some(names.slot(key))).collect();
    slots.sort_unstable();
    slots.dedup();
    if slots.is_empty() {
        slots.push(Some(names.slot_of_id(handle.id)));
    }
    slots
}

impl Part<'_> {
    fn hit(&self, hit: Hit) -> Hit {
        Hit { charge: self.places[hit.charge], ..hit }
    }
}

/// The answers to the parts of a plan as one.
///
/// What is wrong with the request comes first, then what denies it, and only then what was not
/// answered: an outage policy must not admit what a limit is known to deny.
pub(super) fn decide(
    plan: &Plan<'_>,
    parts: &[Part<'_>],
    answers: Vec<Result<Decision, Error>>,
) -> Result<Decision, Error> {
    let (mut allows, mut unavailable) = (Vec::new(), None);
    let (mut deny, mut never): (Option<Deny>, Option<Never>) = (None, None);
    let mut read = Vec::new();
    for (part, answer) in parts.iter().zip(answers) {
        let decision = match answer {
            Ok(decision) => decision,
            Err(error @ Error::Unavailable(_)) => {
                unavailable = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        match decision {
            Decision::Allow(mut allow) => {
                read.push((part, allow.at, std::mem::take(&mut allow.readings)));
                allows.push((part, allow));
            }
            Decision::Deny(mut one) => {
                read.push((part, one.at, std::mem::take(&mut one.readings)));
                one.hit = part.hit(one.hit);
                let wait = |deny: &Deny| deny.start.since(deny.at);
                if deny.as_ref().is_none_or(|other| wait(other) < wait(&one)) {
                    deny = Some(one);
                }
            }
            Decision::Never(mut one) => {
                read.push((part, one.at, std::mem::take(&mut one.readings)));
                one.hit = part.hit(one.hit);
                never = Some(one);
            }
            Decision::Closed(closed) => return Ok(Decision::Closed(closed)),
        }
    }
    Ok(match (never, deny, unavailable) {
        (Some(never), _, _) => {
            let readings = readings(plan, &read, never.at);
            Decision::Never(Never { readings, ..never })
        }
        (None, Some(deny), _) => {
            let readings = readings(plan, &read, deny.at);
            Decision::Deny(Deny { readings, ..deny })
        }
        (None, None, Some(error)) => return Err(error),
        (None, None, None) => {
            let at = allows.iter().map(|(_, allow)| allow.at).max().unwrap_or_default();
            let charged_at = charged_at(plan, &allows);
            let readings = readings(plan, &read, at);
            Decision::Allow(Allow { readings, charged_at, ..admit(&allows, at) })
        }
    })
}

/// What all parts admit, as of `at`. It was admitted before only if every part says so.
fn admit(allows: &[(&Part<'_>, Allow)], at: Timestamp) -> Allow {
    let ends = allows.iter().filter_map(|(_, allow)| Some(at + allow.until?.since(allow.at)));
    let shadowed = allows.iter().flat_map(|(part, allow)| {
        allow.shadowed.iter().map(|&place| part.places[usize::from(place)] as u16)
    });
    Allow {
        at,
        start: at,
        until: ends.min(),
        replayed: allows.iter().all(|(_, allow)| allow.replayed),
        shadowed: shadowed.collect(),
        readings: Readings::new(),
        charged_at: Vec::new(),
    }
}

/// When each charge of the whole plan was written, by the clock of the server of its slot. A part
/// that was reserved before, by an attempt whose reply was lost, was written then.
fn charged_at(plan: &Plan<'_>, allows: &[(&Part<'_>, Allow)]) -> Vec<Timestamp> {
    let mut all = vec![Timestamp::ZERO; plan.charges().len()];
    for (part, allow) in allows {
        part.places.iter().for_each(|&place| all[place] = allow.start);
    }
    all
}

/// What every limit of the whole plan shows, as of `at`. Of a part that did not answer nothing is
/// known: its limits show that nothing is used.
fn readings(plan: &Plan<'_>, read: &[(&Part<'_>, Timestamp, Readings)], at: Timestamp) -> Readings {
    let mut firsts = Vec::with_capacity(plan.charges().len());
    let mut rows = 0;
    for charge in plan.charges() {
        firsts.push(rows);
        rows += charge.meter.len();
    }
    let mut all: Readings = std::iter::repeat_n(Reading::new(0, at), rows).collect();
    for (part, read_at, readings) in read {
        let mut readings = readings.iter();
        for &place in &part.places {
            let rows = plan.charges()[place].meter.len();
            for (row, reading) in (firsts[place]..firsts[place] + rows).zip(&mut readings) {
                let reset = at + reading.reset.since(*read_at);
                all[row] = Reading::new(reading.used, reset);
            }
        }
    }
    all
}

/// What the limits of all parts show.
pub(super) fn usage(
    plan: &Plan<'_>,
    parts: &[Part<'_>],
    answers: Vec<Result<Usage, Error>>,
) -> Result<Usage, Error> {
    let usages: Vec<Usage> = answers.into_iter().collect::<Result<_, _>>()?;
    let at = usages.iter().map(|usage| usage.at).max().unwrap_or_default();
    let read: Vec<_> =
        parts.iter().zip(usages).map(|(part, usage)| (part, usage.at, usage.readings)).collect();
    Ok(Usage { at, readings: readings(plan, &read, at) })
}

/// Until when gates are closed that lie in several slots, by the clock of the one that takes
/// longest.
pub(super) fn shut(answers: Vec<Result<Shut, Error>>) -> Result<Shut, Error> {
    let answers: Vec<Shut> = answers.into_iter().collect::<Result<_, _>>()?;
    let last = answers.into_iter().max_by_key(|one| one.until.since(one.at));
    Ok(last.unwrap_or(Shut { at: Timestamp::ZERO, until: Timestamp::ZERO }))
}

/// What all slots of a handle say about its end: it had come before only if in every one of them.
/// A slot that knows nothing has nothing to end, unless no other does either.
pub(super) fn ended(answers: Vec<Result<Ended, Error>>) -> Result<Ended, Error> {
    let mut all: Option<Ended> = None;
    for answer in answers {
        match answer {
            Ok(one) => {
                all = Some(all.map_or(one, |all| Ended {
                    at: all.at.max(one.at),
                    replayed: all.replayed && one.replayed,
                }));
            }
            Err(Error::Unknown) => {}
            Err(error) => return Err(error),
        }
    }
    all.ok_or(Error::Unknown)
}

/// What all slots of a handle say about its renewal: whoever lost a part of it has lost it.
pub(super) fn renewed(answers: Vec<Result<Option<Renewed>, Error>>) -> Result<Renewed, Error> {
    let answers: Vec<Option<Renewed>> = answers.into_iter().collect::<Result<_, _>>()?;
    let first = answers.into_iter().flatten().min_by_key(|one| one.until.since(one.at));
    first.ok_or(Error::Unknown)
}

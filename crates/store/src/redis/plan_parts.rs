//! Plans whose keys lie in several slots of a cluster: [`PlanPart`] is the part in one slot, and
//! the functions here merge the replies of all parts.
//!
//! The clocks of the servers differ, so times of different replies are never compared, only
//! durations since each reply. The reply with the longest wait sets the time of the result.

use sluicegate_core::algorithm::Reading;
use sluicegate_core::decision::{Allow, Deny, Hit, Never, Readings};
use sluicegate_core::plan::Handle;
use sluicegate_core::store::{EndResult, Error, GateClosure, Renewal, Usage};
use sluicegate_core::{Decision, Plan, Timestamp};

use super::keys::{KeyNames, Layout};
use super::slot::ClusterSlot;

/// Distribution of a plan's counters over slots.
pub(super) enum PlanSplit<'a> {
    /// All counters in one slot, or on the only server (`None`).
    Whole(Option<ClusterSlot>),
    /// Counters in several slots.
    Parts(Vec<PlanPart<'a>>),
}

/// The charges of a plan that lie in one slot.
pub(super) struct PlanPart<'a> {
    pub(super) slot: ClusterSlot,
    pub(super) plan: Plan<'a>,
    /// Index of each of these charges in the whole plan.
    indices: Vec<usize>,
}

impl<'a> PlanSplit<'a> {
    pub(super) fn of(plan: &Plan<'a>, names: &KeyNames) -> Self {
        if names.layout() == Layout::SingleServer {
            return Self::Whole(None);
        }
        let mut slots: Vec<(ClusterSlot, Vec<usize>)> = Vec::new();
        for (index, charge) in plan.charges().iter().enumerate() {
            let slot = names.slot(&charge.key);
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, indices)) => indices.push(index),
                None => slots.push((slot, vec![index])),
            }
        }
        match &slots[..] {
            [] => Self::Whole(Some(names.slot_of_id(plan.id.id))),
            [(slot, _)] => Self::Whole(Some(*slot)),
            _ => {
                let part = |(slot, indices): (ClusterSlot, Vec<usize>)| PlanPart {
                    slot,
                    plan: plan.with_only(&indices),
                    indices,
                };
                Self::Parts(slots.into_iter().map(part).collect())
            }
        }
    }
}

/// Returns the slots that have a record of a handle; `None` stands for the only server.
pub(super) fn slots_of(handle: &Handle, names: &KeyNames) -> Vec<Option<ClusterSlot>> {
    if names.layout() == Layout::SingleServer {
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

impl PlanPart<'_> {
    fn hit_in_plan(&self, hit: Hit) -> Hit {
        Hit { charge: self.indices[hit.charge], ..hit }
    }
}

/// Merges the decisions on all parts of a plan.
///
/// Errors of the request come first, then denials, and only then missing replies: an outage policy
/// must not admit a plan that a limit is known to deny.
pub(super) fn merge_decisions(
    plan: &Plan<'_>,
    parts: &[PlanPart<'_>],
    replies: Vec<Result<Decision, Error>>,
) -> Result<Decision, Error> {
    let (mut allows, mut unavailable) = (Vec::new(), None);
    let (mut deny, mut never): (Option<Deny>, Option<Never>) = (None, None);
    let mut read = Vec::new();
    for (part, reply) in parts.iter().zip(replies) {
        let decision = match reply {
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
                one.hit = part.hit_in_plan(one.hit);
                let wait = |deny: &Deny| deny.start.since(deny.at);
                if deny.as_ref().is_none_or(|other| wait(other) < wait(&one)) {
                    deny = Some(one);
                }
            }
            Decision::Never(mut one) => {
                read.push((part, one.at, std::mem::take(&mut one.readings)));
                one.hit = part.hit_in_plan(one.hit);
                never = Some(one);
            }
            Decision::Closed(closed) => return Ok(Decision::Closed(closed)),
        }
    }
    Ok(match (never, deny, unavailable) {
        (Some(never), _, _) => {
            let readings = merge_readings(plan, &read, never.at);
            Decision::Never(Never { readings, ..never })
        }
        (None, Some(deny), _) => {
            let readings = merge_readings(plan, &read, deny.at);
            Decision::Deny(Deny { readings, ..deny })
        }
        (None, None, Some(error)) => return Err(error),
        (None, None, None) => {
            let at = allows.iter().map(|(_, allow)| allow.at).max().unwrap_or_default();
            let charged_at = charged_at(plan, &allows);
            let readings = merge_readings(plan, &read, at);
            Decision::Allow(Allow { readings, charged_at, ..merge_allows(&allows, at) })
        }
    })
}

/// Merges the admissions of all parts, as of `at`. The result is a replay only if every part is
/// one.
fn merge_allows(allows: &[(&PlanPart<'_>, Allow)], at: Timestamp) -> Allow {
    let ends = allows.iter().filter_map(|(_, allow)| Some(at + allow.until?.since(allow.at)));
    let shadowed = allows.iter().flat_map(|(part, allow)| {
        allow.shadowed.iter().map(|&index| part.indices[usize::from(index)] as u16)
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

/// Returns the time at which each charge of the whole plan was written, by the clock of its server.
/// This time may be in the past: an earlier attempt, whose reply was lost, may have reserved a part.
fn charged_at(plan: &Plan<'_>, allows: &[(&PlanPart<'_>, Allow)]) -> Vec<Timestamp> {
    let mut all = vec![Timestamp::ZERO; plan.charges().len()];
    for (part, allow) in allows {
        part.indices.iter().for_each(|&index| all[index] = allow.start);
    }
    all
}

/// Merges the readings of all limits of the whole plan, as of `at`. The limits of a part that did
/// not answer are shown as unused.
fn merge_readings(
    plan: &Plan<'_>,
    read: &[(&PlanPart<'_>, Timestamp, Readings)],
    at: Timestamp,
) -> Readings {
    let mut firsts = Vec::with_capacity(plan.charges().len());
    let mut rows = 0;
    for charge in plan.charges() {
        firsts.push(rows);
        rows += charge.meter.len();
    }
    let mut all: Readings = std::iter::repeat_n(Reading::new(0, at), rows).collect();
    for (part, read_at, readings) in read {
        let mut readings = readings.iter();
        for &index in &part.indices {
            let rows = plan.charges()[index].meter.len();
            for (row, reading) in (firsts[index]..firsts[index] + rows).zip(&mut readings) {
                let reset = at + reading.reset.since(*read_at);
                all[row] = Reading::new(reading.used, reset);
            }
        }
    }
    all
}

/// Merges the usage of all parts.
pub(super) fn merge_usage(
    plan: &Plan<'_>,
    parts: &[PlanPart<'_>],
    replies: Vec<Result<Usage, Error>>,
) -> Result<Usage, Error> {
    let usages: Vec<Usage> = replies.into_iter().collect::<Result<_, _>>()?;
    let at = usages.iter().map(|usage| usage.at).max().unwrap_or_default();
    let read: Vec<_> =
        parts.iter().zip(usages).map(|(part, usage)| (part, usage.at, usage.readings)).collect();
    Ok(Usage { at, readings: merge_readings(plan, &read, at) })
}

/// Merges the closing times of gates in several slots. The one that is closed longest decides.
pub(super) fn merge_closed_gates(
    replies: Vec<Result<GateClosure, Error>>,
) -> Result<GateClosure, Error> {
    let replies: Vec<GateClosure> = replies.into_iter().collect::<Result<_, _>>()?;
    let last = replies.into_iter().max_by_key(|one| one.until.since(one.at));
    Ok(last.unwrap_or(GateClosure { at: Timestamp::ZERO, until: Timestamp::ZERO }))
}

/// Merges the replies of all slots of a handle. The result is a replay only if every slot reports
/// one. A slot that does not know the handle is ignored, unless none does.
pub(super) fn merge_ended(replies: Vec<Result<EndResult, Error>>) -> Result<EndResult, Error> {
    let mut all: Option<EndResult> = None;
    for reply in replies {
        match reply {
            Ok(one) => {
                all = Some(all.map_or(one, |all| EndResult {
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

/// Merges the renewals of all slots of a handle. If one slot has lost its lease, the handle is
/// lost.
pub(super) fn merge_renewed(
    replies: Vec<Result<Option<Renewal>, Error>>,
) -> Result<Renewal, Error> {
    let replies: Vec<Option<Renewal>> = replies.into_iter().collect::<Result<_, _>>()?;
    let first = replies.into_iter().flatten().min_by_key(|one| one.until.since(one.at));
    first.ok_or(Error::Unknown)
}

//! [`LeaseLog`]: turns starts, renewals and ends of leases, in any order, into the number of held slots
//! over time.

use super::LogError;
use sluicegate_core::id::Id;
use sluicegate_core::time::Timestamp;

/// The recorded events of the leases of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseLog {
    starts: Vec<LeaseStart>,
    renewals: Vec<(Id, Timestamp)>,
    ends: Vec<(Id, Timestamp)>,
}

#[derive(Clone, Copy, Debug)]
struct LeaseStart {
    at: Timestamp,
    id: Id,
    slots: u64,
    until: Option<Timestamp>,
}

/// A change of the number of held slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) at: Timestamp,
    pub(super) taken: u64,
    pub(super) freed: u64,
}

impl LeaseLog {
    pub(super) fn start(&mut self, at: Timestamp, id: Id, slots: u64, until: Option<Timestamp>) {
        self.starts.push(LeaseStart { at, id, slots, until });
    }

    pub(super) fn renew(&mut self, id: Id, until: Timestamp) {
        self.renewals.push((id, until));
    }

    pub(super) fn end(&mut self, at: Timestamp, id: Id) {
        self.ends.push((id, at));
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns every change of the number of held slots, oldest first. A lease is held from its
    /// start until just before its end.
    pub(super) fn held(&mut self, key: &str) -> Result<Vec<Change>, LogError> {
        self.starts.sort_unstable_by_key(|start| start.id);
        self.renewals.sort_unstable();
        self.ends.sort_unstable();
        if let Some(twice) = self.starts.windows(2).find(|pair| pair[0].id == pair[1].id) {
            let (key, id) = (key.into(), twice[0].id);
            return Err(LogError::StartedTwice { key, id });
        }
        if let Some(twice) = self.ends.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let (key, id) = (key.into(), twice[0].0);
            return Err(LogError::EndedTwice { key, id });
        }

        let (mut renewals, mut ends) = (&self.renewals[..], &self.ends[..]);
        let mut changes = Vec::with_capacity(2 * self.starts.len());
        for start in &self.starts {
            let renewed = take_of(&mut renewals, start.id, key)?;
            let expiry = start.until.map(|until| until.max(renewed.unwrap_or(until)));
            let until = take_of(&mut ends, start.id, key)?.or(expiry);
            push(start, until, key, &mut changes)?;
        }
        if let Some(&(id, _)) = renewals.first().or(ends.first()) {
            let key = key.into();
            return Err(LogError::Unstarted { key, id });
        }
        changes.sort_unstable_by_key(|change| change.at);
        Ok(changes)
    }
}

/// Removes the entries of `id` from the front of a sorted list. Returns the time of the latest.
fn take_of(
    list: &mut &[(Id, Timestamp)],
    id: Id,
    key: &str,
) -> Result<Option<Timestamp>, LogError> {
    let mut latest = None;
    while let [(other, at), rest @ ..] = *list
        && *other <= id
    {
        if *other < id {
            let (key, id) = (key.into(), *other);
            return Err(LogError::Unstarted { key, id });
        }
        latest = Some(*at);
        *list = rest;
    }
    Ok(latest)
}

fn push(
    start: &LeaseStart,
    until: Option<Timestamp>,
    key: &str,
    changes: &mut Vec<Change>,
) -> Result<(), LogError> {
    if let Some(until) = until.filter(|&until| until < start.at) {
        return Err(LogError::Backwards {
            key: key.into(),
            id: start.id,
            start: start.at,
            end: until,
        });
    }
    changes.push(Change { at: start.at, taken: start.slots, freed: 0 });
    changes.extend(until.map(|at| Change { at, taken: 0, freed: start.slots }));
    Ok(())
}

//! Counters of the in-memory store while their shards are locked: finding, creating, reading and
//! updating them.

use serde::{Deserialize, Serialize};
use sluicegate_core::algorithm::{Cell, EarliestStart, Reading, Slack};
use sluicegate_core::decision::Readings;
use sluicegate_core::time::{Clock, Timestamp};
use sluicegate_core::{Charge, Plan};
use smallvec::SmallVec;

use super::record::RecordedCharge;
use super::table::{EntryIndex, NameHash, Table};
use super::{CachePadded, Memory, SWEEP, SWEEP_FULL, Shard};
use crate::sync::MutexGuard;

/// Location of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CounterAddress {
    pub(super) shard: u16,
    pub(super) overflow: bool,
    pub(super) name: NameHash,
}

/// Result of looking up the counter of one charge, which may not exist yet.
#[derive(Clone, Debug)]
pub(super) struct CounterLookup {
    pub(super) address: CounterAddress,
    /// Index of the counter in its table, if it exists.
    entry: Option<EntryIndex>,
    /// State that a new counter starts with: a copy of the overflow counter, if there is one.
    initial: Option<Box<Cell>>,
    /// Set if the usage is not of this name alone: in the overflow counter, or in a new copy of it.
    shared: bool,
}

/// Locked shards, in the order of their numbers.
pub(super) struct LockedShards<'s> {
    guards: SmallVec<[(u16, MutexGuard<'s, Shard>); 4]>,
    keys_per_shard: usize,
}

impl<C: Clock> Memory<C> {
    /// Locks shards in the order of their numbers. All callers use this one order, so there is no
    /// deadlock.
    pub(super) fn lock(&self, shards: impl Iterator<Item = u16>) -> LockedShards<'_> {
        let mut shards: SmallVec<[u16; 4]> = shards.collect();
        if shards.len() > 1 {
            shards.sort_unstable();
            shards.dedup();
        }
        let mut guards = SmallVec::new();
        for &shard in &shards {
            let CachePadded(mutex) = &self.shards[usize::from(shard)];
            guards.push((shard, mutex.lock()));
        }
        LockedShards { guards, keys_per_shard: self.keys_per_shard }
    }

    /// Locks the shards of a plan's counters and looks the counters up.
    pub(super) fn lock_counters(
        &self,
        plan: &Plan<'_>,
    ) -> (LockedShards<'_>, SmallVec<[CounterLookup; 4]>, Timestamp) {
        let names = self.names(plan);
        let mut locked = self.lock(names.iter().map(|name| name.shard()));
        let now = self.now();
        let counters = self.find_counters(plan, &names, &mut locked, now);
        (locked, counters, now)
    }

    /// Returns the hashed names of a plan's counters.
    pub(super) fn names(&self, plan: &Plan<'_>) -> SmallVec<[NameHash; 4]> {
        let mut names = SmallVec::new();
        for charge in plan.charges() {
            names.push(self.name_of(charge));
        }
        names
    }

    /// Looks up the counters of a plan and advances them to `now`.
    pub(super) fn find_counters(
        &self,
        plan: &Plan<'_>,
        names: &[NameHash],
        locked: &mut LockedShards<'_>,
        now: Timestamp,
    ) -> SmallVec<[CounterLookup; 4]> {
        let mut counters = SmallVec::new();
        for (charge, &name) in plan.charges().iter().zip(names) {
            counters.push(self.find_counter(charge, name, locked, now));
        }
        counters
    }

    /// Looks up the counter of one charge.
    ///
    /// A name without a counter gets its own if there is room; otherwise it is counted in the
    /// overflow counter of its rule. Once there is room again, its new counter starts with a copy
    /// of the overflow counter, which then drains because nothing adds to it.
    fn find_counter(
        &self,
        charge: &Charge<'_>,
        name: NameHash,
        locked: &mut LockedShards<'_>,
        now: Timestamp,
    ) -> CounterLookup {
        let own = CounterAddress { shard: name.shard(), overflow: false, name };
        let keys_max = locked.keys_per_shard;
        let shard = locked.shard(own.shard);
        if let Some(entry) = find_live(&mut shard.cells, name, now) {
            shard.cells.get_mut(entry).0.advance(&charge.meter, now);
            return CounterLookup {
                address: own,
                entry: Some(entry),
                initial: None,
                shared: false,
            };
        }
        if shard.cells.len() >= keys_max {
            shard.cells.sweep(now, SWEEP_FULL, |_| false);
        }
        let full = shard.cells.len() >= keys_max;
        if !full && shard.overflow.len() == 0 {
            return CounterLookup { address: own, entry: None, initial: None, shared: false };
        }
        let overflow = self.hash_name(charge.overflow().as_bytes(), charge.meter.kind());
        let entry = find_live(&mut shard.overflow, overflow, now);
        if let Some(entry) = entry {
            shard.overflow.get_mut(entry).0.advance(&charge.meter, now);
        }
        if full {
            let address = CounterAddress { overflow: true, name: overflow, ..own };
            return CounterLookup { address, entry, initial: None, shared: true };
        }
        let initial = entry.map(|entry| Box::new(shard.overflow.get(entry).0.successor()));
        let shared = initial.is_some();
        CounterLookup { address: own, entry: None, initial, shared }
    }

    /// Returns the counter of a charge and creates it if it does not exist.
    pub(super) fn find_or_create(
        &self,
        charge: &Charge<'_>,
        lookup: &mut CounterLookup,
        locked: &mut LockedShards<'_>,
        now: Timestamp,
    ) -> EntryIndex {
        if let Some(entry) = lookup.entry {
            return entry;
        }
        let CounterAddress { shard, overflow, name } = lookup.address;
        let shard = locked.shard(shard);
        shard.cells.sweep(now, SWEEP, |_| false);
        shard.overflow.sweep(now, SWEEP, |_| false);
        let table = shard.table(overflow);
        let cell =
            lookup.initial.take().map_or_else(|| Cell::new(&charge.meter), |initial| *initial);
        // Two charges of one plan may overflow into the same counter.
        let entry = find_live(table, name, now)
            .unwrap_or_else(|| table.insert(name, cell, Timestamp::ZERO));
        lookup.entry = Some(entry);
        entry
    }
}

/// Returns the index of an entry. Removes the entry if it has expired. The index stays valid while
/// the shard is locked, because a sweep only removes expired entries.
pub(super) fn find_live(
    table: &mut Table<Cell>,
    name: NameHash,
    now: Timestamp,
) -> Option<EntryIndex> {
    let entry = table.find(name)?;
    let (_, expires) = table.get(entry);
    if expires > now {
        return Some(entry);
    }
    table.remove(entry);
    None
}

impl Shard {
    pub(super) fn table(&mut self, overflow: bool) -> &mut Table<Cell> {
        if overflow { &mut self.overflow } else { &mut self.cells }
    }
}

impl LockedShards<'_> {
    /// Returns the position of a shard among the locked ones.
    pub(super) fn guard(&self, shard: u16) -> usize {
        let guard = self.guards.iter().position(|(number, _)| *number == shard);
        guard.expect("the shards of a plan are locked together")
    }

    pub(super) fn shard_at(&mut self, guard: usize) -> &mut Shard {
        &mut self.guards[guard].1
    }

    pub(super) fn shard(&mut self, shard: u16) -> &mut Shard {
        self.shard_at(self.guard(shard))
    }

    fn cell<'c>(&'c self, lookup: &'c CounterLookup) -> Option<&'c Cell> {
        let (_, shard) = &self.guards[self.guard(lookup.address.shard)];
        let table = if lookup.address.overflow { &shard.overflow } else { &shard.cells };
        match lookup.entry {
            Some(entry) => Some(table.get(entry).0),
            None => lookup.initial.as_deref(),
        }
    }

    /// Returns the earliest start of a charge. A counter that does not exist counts as empty.
    pub(super) fn earliest(
        &self,
        charge: &Charge<'_>,
        lookup: &CounterLookup,
        from: Timestamp,
        slack: Slack,
    ) -> EarliestStart {
        let earliest = |cell: &Cell| cell.earliest(&charge.meter, from, charge.need, slack);
        match self.cell(lookup) {
            Some(cell) => earliest(cell),
            None => earliest(&Cell::new(&charge.meter)),
        }
    }

    /// Returns the readings of a plan's limits.
    pub(super) fn readings(
        &self,
        plan: &Plan<'_>,
        counters: &[CounterLookup],
        now: Timestamp,
    ) -> Readings {
        let mut readings = Readings::new();
        for (charge, lookup) in plan.charges().iter().zip(counters) {
            let mut push = |reading: Reading| {
                readings.push(Reading { shared: reading.shared || lookup.shared, ..reading });
            };
            match self.cell(lookup) {
                Some(cell) => cell.readings(&charge.meter, now, &mut push),
                None => Cell::new(&charge.meter).readings(&charge.meter, now, &mut push),
            }
        }
        readings
    }

    /// Changes the counter of an earlier charge. Returns `None` if the charge is gone: the counter
    /// has expired, or was reset after the charge.
    pub(super) fn update_counter<T>(
        &mut self,
        charge: &RecordedCharge,
        now: Timestamp,
        change: impl FnOnce(&mut Cell) -> T,
    ) -> Option<T> {
        let CounterAddress { shard, overflow, name } = charge.address;
        let table = self.shard(shard).table(overflow);
        let (cell, expires) = table.get_mut(table.find(name)?);
        cell.give_back_due(now);
        // A lease is found by its id, so after a reset this can't touch another lease.
        if charge.lease().is_none() && cell.was_reset_after(charge.at) {
            return None;
        }
        let result = change(cell);
        *expires = (*expires).max(cell.expires(charge.window));
        Some(result)
    }

    /// Charges the amount by which an earlier charge was too low. Creates the counter if it is
    /// gone.
    pub(super) fn charge_debt(&mut self, charge: &RecordedCharge, debt: u64, now: Timestamp) {
        let CounterAddress { shard, overflow, name } = charge.address;
        let table = self.shard(shard).table(overflow);
        let entry = table.find(name).unwrap_or_else(|| {
            table.insert(name, Cell::for_position(charge.used.position), Timestamp::ZERO)
        });
        let (cell, expires) = table.get_mut(entry);
        cell.charge_debt(charge.used.position, debt, now);
        *expires = (*expires).max(cell.expires(charge.window));
    }
}

//! Counters under lock.

use serde::{Deserialize, Serialize};
use sluicegate_core::algorithm::{Cell, Earliest, Reading};
use sluicegate_core::decision::Readings;
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_core::{Charge, Plan};
use smallvec::SmallVec;

use super::record::Held;
use super::table::{Name, Place, Table};
use super::{Memory, Padded, SWEEP, SWEEP_FULL, Shard};
use crate::sync::MutexGuard;

/// Where a counter lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Address {
    pub(super) shard: u16,
    pub(super) overflow: bool,
    pub(super) name: Name,
}

/// The counter of one charge, if there is one already.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) address: Address,
    place: Option<Place>,
    /// What it will begin with, if that is not nothing.
    heir: Option<Box<Cell>>,
}

/// Shards that are held still, lowest number first.
pub(super) struct Locked<'s> {
    guards: SmallVec<[(u16, MutexGuard<'s, Shard>); 4]>,
    keys_per_shard: usize,
}

impl<C: Clock> Memory<C> {
    /// Locks shards in the one order that everybody keeps to.
    pub(super) fn lock(&self, shards: impl Iterator<Item = u16>) -> Locked<'_> {
        let mut shards: SmallVec<[u16; 4]> = shards.collect();
        if shards.len() > 1 {
            shards.sort_unstable();
            shards.dedup();
        }
        let mut guards = SmallVec::new();
        for &shard in &shards {
            let Padded(mutex) = &self.shards[usize::from(shard)];
            guards.push((shard, mutex.lock()));
        }
        Locked { guards, keys_per_shard: self.keys_per_shard }
    }

    /// Locks the shards of a plan's counters and finds these as they are now.
    pub(super) fn hold(&self, plan: &Plan<'_>) -> (Locked<'_>, SmallVec<[Site; 4]>, Timestamp) {
        let names = self.names(plan);
        let mut locked = self.lock(names.iter().map(|name| name.shard()));
        let now = self.now();
        let sites = self.sites(plan, &names, &mut locked, now);
        (locked, sites, now)
    }

    /// The names of a plan's counters.
    pub(super) fn names(&self, plan: &Plan<'_>) -> SmallVec<[Name; 4]> {
        let mut names = SmallVec::new();
        for charge in plan.charges() {
            names.push(self.name_of(charge));
        }
        names
    }

    /// Finds the counters of a plan, brought to `now`.
    pub(super) fn sites(
        &self,
        plan: &Plan<'_>,
        names: &[Name],
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) -> SmallVec<[Site; 4]> {
        let mut sites = SmallVec::new();
        for (charge, &name) in plan.charges().iter().zip(names) {
            sites.push(self.site(charge, name, locked, now));
        }
        sites
    }

    /// A name without a counter gets one of its own if there is room; otherwise it is counted in
    /// the overflow of its rule. Once there is room again, it inherits what the overflow has
    /// counted, which then drains because nobody adds to it.
    fn site(
        &self,
        charge: &Charge<'_>,
        name: Name,
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) -> Site {
        let own = Address { shard: name.shard(), overflow: false, name };
        let keys_max = locked.keys_per_shard;
        let shard = locked.shard(own.shard);
        if let Some(place) = live(&mut shard.cells, name, now) {
            shard.cells.get_mut(place).0.advance(&charge.meter, now);
            return Site { address: own, place: Some(place), heir: None };
        }
        if shard.cells.len() >= keys_max {
            shard.cells.sweep(now, SWEEP_FULL, |_| false);
        }
        let full = shard.cells.len() >= keys_max;
        if !full && shard.overflow.len() == 0 {
            return Site { address: own, place: None, heir: None };
        }
        let overflow = self.hashed(charge.overflow().as_bytes(), charge.meter.kind());
        let place = live(&mut shard.overflow, overflow, now);
        if let Some(place) = place {
            shard.overflow.get_mut(place).0.advance(&charge.meter, now);
        }
        if full {
            let address = Address { overflow: true, name: overflow, ..own };
            return Site { address, place, heir: None };
        }
        let heir = place.map(|place| Box::new(shard.overflow.get(place).0.heir()));
        Site { address: own, place: None, heir }
    }

    /// The counter of a charge, made if there is none.
    pub(super) fn make(
        &self,
        charge: &Charge<'_>,
        site: &mut Site,
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) -> Place {
        if let Some(place) = site.place {
            return place;
        }
        let Address { shard, overflow, name } = site.address;
        let shard = locked.shard(shard);
        shard.cells.sweep(now, SWEEP, |_| false);
        shard.overflow.sweep(now, SWEEP, |_| false);
        let table = shard.table(overflow);
        let cell = site.heir.take().map_or_else(|| Cell::new(&charge.meter), |heir| *heir);
        // Two charges of one plan may overflow into the same counter.
        let place =
            live(table, name, now).unwrap_or_else(|| table.insert(name, cell, Timestamp::ZERO));
        site.place = Some(place);
        place
    }
}

/// The place of an entry, unless it has expired: then it is gone. A place that is found like this
/// stays good under the lock, because the hand only takes what has expired.
pub(super) fn live(table: &mut Table<Cell>, name: Name, now: Timestamp) -> Option<Place> {
    let place = table.find(name)?;
    let (_, expires) = table.get(place);
    if expires > now {
        return Some(place);
    }
    table.remove(place);
    None
}

impl Shard {
    pub(super) fn table(&mut self, overflow: bool) -> &mut Table<Cell> {
        if overflow { &mut self.overflow } else { &mut self.cells }
    }
}

impl Locked<'_> {
    /// The place of a shard among those that are held.
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

    fn cell<'c>(&'c self, site: &'c Site) -> Option<&'c Cell> {
        let (_, shard) = &self.guards[self.guard(site.address.shard)];
        let table = if site.address.overflow { &shard.overflow } else { &shard.cells };
        match site.place {
            Some(place) => Some(table.get(place).0),
            None => site.heir.as_deref(),
        }
    }

    /// When a charge fits; a counter that does not exist is an empty one.
    pub(super) fn earliest(
        &self,
        charge: &Charge<'_>,
        site: &Site,
        from: Timestamp,
        slack: Span,
    ) -> Earliest {
        let earliest = |cell: &Cell| cell.earliest(&charge.meter, from, charge.need, slack);
        match self.cell(site) {
            Some(cell) => earliest(cell),
            None => earliest(&Cell::new(&charge.meter)),
        }
    }

    /// What the limits of a plan show.
    pub(super) fn readings(&self, plan: &Plan<'_>, sites: &[Site], now: Timestamp) -> Readings {
        let mut readings = Readings::new();
        for (charge, site) in plan.charges().iter().zip(sites) {
            let shared = site.address.overflow || site.heir.is_some();
            let mut push = |reading: Reading| {
                readings.push(Reading { shared: reading.shared || shared, ..reading });
            };
            match self.cell(site) {
                Some(cell) => cell.readings(&charge.meter, now, &mut push),
                None => Cell::new(&charge.meter).readings(&charge.meter, now, &mut push),
            }
        }
        readings
    }

    /// Changes the counter of an earlier use, unless that is gone: it has expired, or the counter
    /// was reset since.
    pub(super) fn amend<T>(
        &mut self,
        held: &Held,
        now: Timestamp,
        change: impl FnOnce(&mut Cell) -> T,
    ) -> Option<T> {
        let Address { shard, overflow, name } = held.address;
        let table = self.shard(shard).table(overflow);
        let (cell, expires) = table.get_mut(table.find(name)?);
        cell.give_back_due(now);
        // A lease goes by its id, so there is none of somebody else's to be touched.
        if held.lease().is_none() && cell.forgot(held.at) {
            return None;
        }
        let result = change(cell);
        *expires = (*expires).max(cell.expires(held.window));
        Some(result)
    }

    /// Charges what an earlier use turned out to cost more, in its counter or in a new one.
    pub(super) fn charge_debt(&mut self, held: &Held, debt: u64, now: Timestamp) {
        let Address { shard, overflow, name } = held.address;
        let table = self.shard(shard).table(overflow);
        let place = table
            .find(name)
            .unwrap_or_else(|| table.insert(name, Cell::for_mark(held.used.mark), Timestamp::ZERO));
        let (cell, expires) = table.get_mut(place);
        cell.charge_debt(held.used.mark, debt, now);
        *expires = (*expires).max(cell.expires(held.window));
    }
}

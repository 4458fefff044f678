//! A hash table of things that expire.
//!
//! What has expired is found by a hand that goes round, a few places at every insertion, so no
//! operation ever scans the table, no timer exists per entry, and what has expired takes room only
//! until the hand has come by.

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};
use sluicegate_core::Timestamp;

/// The 128-bit hash that names an entry: two different names meet with a chance of 2⁻¹²⁸.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Name(pub(super) [u64; 2]);

impl Name {
    fn bits(self) -> u64 {
        self.0[0]
    }
}

/// The place of an entry. It stays the same as long as the entry lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

/// A counter fills one cache line, and lies in one.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<V> {
    name: Name,
    expires: Timestamp,
    /// `None` if the slot is free.
    value: Option<V>,
}

/// Slots in chunks: growing moves nothing and leaves at most one chunk unused.
#[derive(Debug)]
pub(super) struct Table<V> {
    index: HashTable<u32>,
    chunks: Vec<Vec<Slot<V>>>,
    free: Vec<u32>,
    hand: u32,
}

/// Small: each shard has one chunk that is not full.
const CHUNK: usize = 64;

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { index: HashTable::new(), chunks: Vec::new(), free: Vec::new(), hand: 0 }
    }
}

impl<V> Table<V> {
    /// How many entries there are, expired ones included that the hand has not found.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    fn slot(&self, at: u32) -> &Slot<V> {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    fn slot_mut(&mut self, at: u32) -> &mut Slot<V> {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    pub(super) fn find(&self, name: Name) -> Option<Place> {
        let found = self.index.find(name.bits(), |&at| self.slot(at).name == name);
        found.map(|&at| Place(at))
    }

    /// The entry and the instant at which it expires.
    pub(super) fn get(&self, place: Place) -> (&V, Timestamp) {
        let slot = self.slot(place.0);
        (slot.value.as_ref().expect("a place that was found is not free"), slot.expires)
    }

    pub(super) fn get_mut(&mut self, place: Place) -> (&mut V, &mut Timestamp) {
        let slot = self.slot_mut(place.0);
        let value = slot.value.as_mut().expect("a place that was found is not free");
        (value, &mut slot.expires)
    }

    /// Adds an entry under a name that has none.
    pub(super) fn insert(&mut self, name: Name, value: V, expires: Timestamp) -> Place {
        let slot = Slot { name, expires, value: Some(value) };
        let at = match self.free.pop() {
            Some(at) => {
                *self.slot_mut(at) = slot;
                at
            }
            None => self.push(slot),
        };
        let chunks = &self.chunks;
        self.index.insert_unique(name.bits(), at, |&at| {
            chunks[at as usize / CHUNK][at as usize % CHUNK].name.bits()
        });
        Place(at)
    }

    fn push(&mut self, slot: Slot<V>) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            // The first chunk grows with its use, later ones are worth their whole size.
            let room = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
        }
        let full = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("a chunk with room was just made");
        chunk.push(slot);
        u32::try_from(full + chunk.len() - 1).expect("the cap on keys is below 2^32")
    }

    pub(super) fn remove(&mut self, place: Place) -> V {
        let bits = self.slot(place.0).name.bits();
        if let Ok(entry) = self.index.find_entry(bits, |&at| at == place.0) {
            entry.remove();
        }
        self.free.push(place.0);
        self.slot_mut(place.0).value.take().expect("a place that was found is not free")
    }

    /// Moves the hand over `steps` places and removes what may go: what has expired at `now`, and
    /// what `droppable` gives up. Returns how many entries it removed.
    pub(super) fn sweep(
        &mut self,
        now: Timestamp,
        steps: usize,
        droppable: impl Fn(&V) -> bool,
    ) -> usize {
        let slots = self.index.len() + self.free.len();
        let mut removed = 0;
        for _ in 0..steps.min(slots) {
            let at = self.hand;
            self.hand = if at as usize + 1 >= slots { 0 } else { at + 1 };
            let slot = self.slot(at);
            let gone = |value| slot.expires <= now || droppable(value);
            if slot.value.as_ref().is_some_and(gone) {
                self.remove(Place(at));
                removed += 1;
            }
        }
        removed
    }

    /// Every entry with its name and expiry.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Name, &V, Timestamp)> {
        let slots = self.chunks.iter().flatten();
        slots.filter_map(|slot| Some((slot.name, slot.value.as_ref()?, slot.expires)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u64) -> Name {
        Name([n % 7, n])
    }

    #[test]
    fn entries_are_found_removed_and_their_place_used_again() {
        let mut table = Table::default();
        for n in 0..2_000 {
            table.insert(name(n), n, Timestamp::from_secs(n));
        }
        for n in (0..2_000).step_by(2) {
            let place = table.find(name(n)).expect("inserted");
            assert_eq!(table.remove(place), n);
        }
        assert_eq!(table.len(), 1_000);
        for n in 2_000..3_000 {
            table.insert(name(n), n, Timestamp::from_secs(n));
        }
        assert_eq!(table.chunks.len(), 2_000_usize.div_ceil(CHUNK));
        for n in 0..3_000 {
            let found = table.find(name(n)).map(|place| *table.get(place).0);
            let expected = (n >= 2_000 || n % 2 == 1).then_some(n);
            assert_eq!(found, expected, "{n}");
        }
        assert_eq!(table.iter().count(), 2_000);
    }

    #[test]
    fn the_hand_finds_all_that_expired_in_one_round() {
        let mut table = Table::default();
        for n in 0..1_000 {
            table.insert(name(n), n, Timestamp::from_secs(n));
        }
        let now = Timestamp::from_secs(499);
        let removed: usize = (0..100).map(|_| table.sweep(now, 10, |_| false)).sum();
        assert_eq!((removed, table.len()), (500, 500));
        assert_eq!(table.sweep(now, 5_000, |&n| n == 700), 1);
        assert_eq!(Table::<u8>::default().sweep(now, 9, |_| true), 0);
    }
}

//! A hash table whose entries expire.
//!
//! Every insertion sweeps a few slots for expired entries, continuing where the last sweep stopped.
//! So no operation scans the whole table, no entry needs a timer, and an expired entry takes room
//! only until the sweep reaches it.

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};
use sluicegate_core::Timestamp;

/// The 128-bit hash of an entry's name. Two different names collide with a probability of 2⁻¹²⁸.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct NameHash(pub(super) [u64; 2]);

impl NameHash {
    fn bits(self) -> u64 {
        self.0[0]
    }
}

/// Index of an entry. It stays the same for as long as the entry exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryIndex(u32);

/// One slot of the table, aligned so that a counter fills exactly one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct TableSlot<V> {
    name: NameHash,
    expires: Timestamp,
    /// `None` if the slot is free.
    value: Option<V>,
}

/// The table. Its slots are kept in chunks, so that growing moves nothing and wastes at most one
/// chunk.
#[derive(Debug)]
pub(super) struct Table<V> {
    index: HashTable<u32>,
    chunks: Vec<Vec<TableSlot<V>>>,
    free: Vec<u32>,
    next_sweep: u32,
}

/// Number of slots in a chunk. Small, because each shard has one chunk that is partly empty.
const CHUNK: usize = 64;

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { index: HashTable::new(), chunks: Vec::new(), free: Vec::new(), next_sweep: 0 }
    }
}

impl<V> Table<V> {
    /// Returns the number of entries, including expired ones that no sweep has removed yet.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    fn slot(&self, at: u32) -> &TableSlot<V> {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    fn slot_mut(&mut self, at: u32) -> &mut TableSlot<V> {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    pub(super) fn find(&self, name: NameHash) -> Option<EntryIndex> {
        let found = self.index.find(name.bits(), |&at| self.slot(at).name == name);
        found.map(|&at| EntryIndex(at))
    }

    /// Returns an entry and the instant at which it expires.
    pub(super) fn get(&self, index: EntryIndex) -> (&V, Timestamp) {
        let slot = self.slot(index.0);
        (slot.value.as_ref().expect("an index that was returned is in use"), slot.expires)
    }

    pub(super) fn get_mut(&mut self, index: EntryIndex) -> (&mut V, &mut Timestamp) {
        let slot = self.slot_mut(index.0);
        let value = slot.value.as_mut().expect("an index that was returned is in use");
        (value, &mut slot.expires)
    }

    /// Adds an entry. The table must not contain its name yet.
    pub(super) fn insert(&mut self, name: NameHash, value: V, expires: Timestamp) -> EntryIndex {
        let slot = TableSlot { name, expires, value: Some(value) };
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
        EntryIndex(at)
    }

    fn push(&mut self, slot: TableSlot<V>) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            // The first chunk grows as it fills; the later ones are allocated whole.
            let room = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
        }
        let full = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("a chunk with room was just made");
        chunk.push(slot);
        u32::try_from(full + chunk.len() - 1).expect("the cap on keys is below 2^32")
    }

    pub(super) fn remove(&mut self, index: EntryIndex) -> V {
        let bits = self.slot(index.0).name.bits();
        if let Ok(entry) = self.index.find_entry(bits, |&at| at == index.0) {
            entry.remove();
        }
        self.free.push(index.0);
        self.slot_mut(index.0).value.take().expect("an index that was returned is in use")
    }

    /// Visits the next `steps` slots and removes the entries that have expired at `now` or for
    /// which `droppable` returns true. Returns the number of removed entries.
    pub(super) fn sweep(
        &mut self,
        now: Timestamp,
        steps: usize,
        droppable: impl Fn(&V) -> bool,
    ) -> usize {
        let slots = self.index.len() + self.free.len();
        let mut removed = 0;
        for _ in 0..steps.min(slots) {
            let at = self.next_sweep;
            self.next_sweep = if at as usize + 1 >= slots { 0 } else { at + 1 };
            let slot = self.slot(at);
            let gone = |value| slot.expires <= now || droppable(value);
            if slot.value.as_ref().is_some_and(gone) {
                self.remove(EntryIndex(at));
                removed += 1;
            }
        }
        removed
    }

    /// Returns every entry with its name and expiry.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NameHash, &V, Timestamp)> {
        let slots = self.chunks.iter().flatten();
        slots.filter_map(|slot| Some((slot.name, slot.value.as_ref()?, slot.expires)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u64) -> NameHash {
        NameHash([n % 7, n])
    }

    #[test]
    fn entries_are_found_removed_and_their_slots_reused() {
        let mut table = Table::default();
        for n in 0..2_000 {
            table.insert(name(n), n, Timestamp::from_secs(n));
        }
        for n in (0..2_000).step_by(2) {
            let index = table.find(name(n)).expect("inserted");
            assert_eq!(table.remove(index), n);
        }
        assert_eq!(table.len(), 1_000);
        for n in 2_000..3_000 {
            table.insert(name(n), n, Timestamp::from_secs(n));
        }
        assert_eq!(table.chunks.len(), 2_000_usize.div_ceil(CHUNK));
        for n in 0..3_000 {
            let found = table.find(name(n)).map(|index| *table.get(index).0);
            let expected = (n >= 2_000 || n % 2 == 1).then_some(n);
            assert_eq!(found, expected, "{n}");
        }
        assert_eq!(table.iter().count(), 2_000);
    }

    #[test]
    fn one_round_of_sweeps_removes_all_expired_entries() {
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

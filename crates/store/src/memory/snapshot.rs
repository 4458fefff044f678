//! Snapshots: the contents of the in-memory store in a file, so that usage survives a restart.
//!
//! A [`MemorySnapshot`] holds every counter and record that has not expired. It contains wall-clock
//! times, so the time for which the process was down counts as elapsed. It is taken shard by shard,
//! so requests are blocked only while their own shard is copied.
//!
//! The format only grows at its end: a new version reads what older versions wrote, and older
//! versions skip the fields that they don't know.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sluicegate_core::Timestamp;
use sluicegate_core::algorithm::Cell;
use sluicegate_core::time::Clock;

use super::record::Record;
use super::table::NameHash;
use super::{CachePadded, Capacity, Memory};
use crate::file;

/// The first bytes of every snapshot.
const MAGIC: &[u8; 8] = b"sluice\0\x01";

/// The contents of a store at one time.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemorySnapshot {
    saved_at: Timestamp,
    hash_key: [u64; 2],
    cells: Vec<SnapshotEntry<Cell>>,
    overflow: Vec<SnapshotEntry<Cell>>,
    records: Vec<SnapshotEntry<Record>>,
    /// Hash of what the caller of each booking stated. Written after all fields of the first
    /// format.
    #[serde(skip)]
    stated: Vec<(NameHash, u64)>,
}

/// An entry of one of the store's tables.
#[derive(Debug, Serialize, Deserialize)]
struct SnapshotEntry<V> {
    name: NameHash,
    /// The shard of the entry. An overflow counter lies in the shard that overflowed, not in the
    /// one of its own name.
    shard: u16,
    expires: Timestamp,
    value: V,
}

/// A reason why a snapshot can't be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file can't be read.
    #[error("can't read the snapshot")]
    Read(#[from] io::Error),
    /// The file is not a snapshot, or has an unknown format version.
    #[error("not a snapshot, or one of an unknown format version")]
    Version,
    /// The checksum does not match: the file was cut off or changed.
    #[error("the snapshot is damaged: delete it to start without usage")]
    Damaged,
}

impl MemorySnapshot {
    /// Writes the snapshot with its checksum.
    pub fn write(&self, mut out: impl io::Write) -> io::Result<()> {
        let mut body = postcard::to_stdvec(self).map_err(io::Error::other)?;
        body = postcard::to_extend(&self.stated, body).map_err(io::Error::other)?;
        out.write_all(MAGIC)?;
        out.write_all(blake3::hash(&body).as_bytes())?;
        out.write_all(&body)?;
        out.flush()
    }

    /// Reads a snapshot and verifies its checksum.
    pub fn read(mut input: impl io::Read) -> Result<Self, RestoreError> {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes)?;
        let body = bytes.strip_prefix(MAGIC).ok_or(RestoreError::Version)?;
        let (checksum, body) = body.split_at_checked(32).ok_or(RestoreError::Damaged)?;
        if blake3::hash(body).as_bytes() != checksum {
            return Err(RestoreError::Damaged);
        }
        let damaged = |_| RestoreError::Damaged;
        let (mut snapshot, rest): (Self, _) = postcard::take_from_bytes(body).map_err(damaged)?;
        if !rest.is_empty() {
            snapshot.stated = postcard::from_bytes(rest).map_err(damaged)?;
        }
        Ok(snapshot)
    }

    /// Writes the snapshot to a file atomically: if that fails, the previous file stays.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        file::replace(path, |out| self.write(io::BufWriter::new(out)))
    }

    /// Reads a snapshot from a file. Returns `None` if there is no such file.
    pub fn load(path: &Path) -> Result<Option<Self>, RestoreError> {
        match File::open(path) {
            Ok(file) => Self::read(io::BufReader::new(file)).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the number of counters in the snapshot.
    pub fn keys(&self) -> usize {
        self.cells.len() + self.overflow.len()
    }
}

impl<C: Clock> Memory<C> {
    /// Takes a snapshot of everything that has not expired.
    pub fn snapshot(&self) -> MemorySnapshot {
        let saved_at = self.now();
        let mut snapshot = MemorySnapshot {
            saved_at,
            hash_key: self.hash_key,
            cells: Vec::new(),
            overflow: Vec::new(),
            records: Vec::new(),
            stated: Vec::new(),
        };
        for (number, CachePadded(shard)) in (0..).zip(&self.shards) {
            let shard = shard.lock();
            collect(&mut snapshot.cells, shard.cells.iter(), number, saved_at);
            collect(&mut snapshot.overflow, shard.overflow.iter(), number, saved_at);
        }
        for (number, CachePadded(records)) in (0..).zip(&self.records) {
            // The counters that were saved above do not contain later admissions. Settling one of
            // these after a restore would give back usage of other requests.
            let records = records.lock();
            let records = records.iter().filter(|(_, record, _)| record.at <= saved_at);
            collect(&mut snapshot.records, records, number, saved_at);
        }
        let stated = snapshot.records.iter();
        snapshot.stated =
            stated.filter_map(|entry| Some((entry.name, entry.value.stated?))).collect();
        snapshot
    }

    /// Returns a store with the contents of a snapshot.
    ///
    /// If the machine's clock was set back since the snapshot, the store's time continues from the
    /// time of the snapshot. Otherwise usage would be lost.
    pub fn restore(snapshot: MemorySnapshot, capacity: Capacity, clock: C) -> Self {
        let mut memory = Self::assemble(capacity, clock, snapshot.hash_key);
        memory.ahead = snapshot.saved_at.since(memory.clock.now());
        let now = memory.now();
        let live = |expires: Timestamp| expires > now;
        let shard = |number: u16| usize::from(number) % super::SHARDS;
        for entry in snapshot.cells.into_iter().filter(|entry| live(entry.expires)) {
            let CachePadded(mutex) = &memory.shards[shard(entry.shard)];
            mutex.lock().cells.insert(entry.name, entry.value, entry.expires);
        }
        for entry in snapshot.overflow.into_iter().filter(|entry| live(entry.expires)) {
            let CachePadded(mutex) = &memory.shards[shard(entry.shard)];
            mutex.lock().overflow.insert(entry.name, entry.value, entry.expires);
        }
        let stated: HashMap<_, _> = snapshot.stated.into_iter().collect();
        for mut entry in snapshot.records.into_iter().filter(|entry| live(entry.expires)) {
            entry.value.stated = stated.get(&entry.name).copied();
            let CachePadded(mutex) = &memory.records[shard(entry.shard)];
            mutex.lock().insert(entry.name, entry.value, entry.expires);
        }
        memory
    }
}

fn collect<'a, V: Clone + 'a>(
    into: &mut Vec<SnapshotEntry<V>>,
    entries: impl Iterator<Item = (NameHash, &'a V, Timestamp)>,
    shard: u16,
    now: Timestamp,
) {
    let live = entries.filter(|(_, _, expires)| *expires > now);
    into.extend(live.map(|(name, value, expires)| SnapshotEntry {
        name,
        shard,
        expires,
        value: value.clone(),
    }));
}

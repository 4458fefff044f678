//! Usage that survives a restart.
//!
//! A snapshot holds every counter and record that has not expired, by wall time, so that the time
//! for which the process was down counts as elapsed. It is written shard by shard, without
//! stopping anybody for longer than one shard takes.
//!
//! The format only grows at its end: a version reads what older ones wrote, and older ones skip what
//! they do not know.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sluicegate_core::Timestamp;
use sluicegate_core::algorithm::Cell;
use sluicegate_core::time::Clock;

use super::record::Record;
use super::table::Name;
use super::{Capacity, Memory, Padded};
use crate::file;

/// The first bytes of every snapshot.
const MAGIC: &[u8; 8] = b"sluice\0\x01";

/// The contents of a store at one time.
#[derive(Debug, Serialize, Deserialize)]
pub struct Snapshot {
    saved_at: Timestamp,
    hash_key: [u64; 2],
    cells: Vec<Entry<Cell>>,
    overflow: Vec<Entry<Cell>>,
    records: Vec<Entry<Record>>,
    /// What the caller of each booking stated. Written behind all that the first version knows.
    #[serde(skip)]
    stated: Vec<(Name, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry<V> {
    name: Name,
    /// An overflow counter lies in the shard that overflowed, not in that of its own name.
    shard: u16,
    expires: Timestamp,
    value: V,
}

/// Why a snapshot can't be read.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file can't be read.
    #[error("the snapshot can't be read")]
    Read(#[from] io::Error),
    /// Not a snapshot, or one of another version.
    #[error("this is not a snapshot of this version of Sluicegate")]
    Version,
    /// Cut off or changed.
    #[error("the snapshot is damaged: remove it to start without usage")]
    Damaged,
}

impl Snapshot {
    /// Writes it, followed by its checksum.
    pub fn write(&self, mut out: impl io::Write) -> io::Result<()> {
        let mut body = postcard::to_stdvec(self).map_err(io::Error::other)?;
        body = postcard::to_extend(&self.stated, body).map_err(io::Error::other)?;
        out.write_all(MAGIC)?;
        out.write_all(blake3::hash(&body).as_bytes())?;
        out.write_all(&body)?;
        out.flush()
    }

    /// Reads it and checks that it is whole.
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

    /// Writes it to a file: whole and on the disk, or the file that was there stays.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        file::replace(path, |out| self.write(io::BufWriter::new(out)))
    }

    /// Reads it from a file; `None` if there is no such file.
    pub fn load(path: &Path) -> Result<Option<Self>, RestoreError> {
        match File::open(path) {
            Ok(file) => Self::read(io::BufReader::new(file)).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// How many counters it holds.
    pub fn keys(&self) -> usize {
        self.cells.len() + self.overflow.len()
    }
}

impl<C: Clock> Memory<C> {
    /// Everything that has not expired.
    pub fn snapshot(&self) -> Snapshot {
        let saved_at = self.now();
        let mut snapshot = Snapshot {
            saved_at,
            hash_key: self.hash_key,
            cells: Vec::new(),
            overflow: Vec::new(),
            records: Vec::new(),
            stated: Vec::new(),
        };
        for (number, Padded(shard)) in (0..).zip(&self.shards) {
            let shard = shard.lock();
            collect(&mut snapshot.cells, shard.cells.iter(), number, saved_at);
            collect(&mut snapshot.overflow, shard.overflow.iter(), number, saved_at);
        }
        for (number, Padded(records)) in (0..).zip(&self.records) {
            // What was admitted meanwhile is not in the counters: settling it would give back what
            // belongs to others.
            let records = records.lock();
            let records = records.iter().filter(|(_, record, _)| record.at <= saved_at);
            collect(&mut snapshot.records, records, number, saved_at);
        }
        let stated = snapshot.records.iter();
        snapshot.stated =
            stated.filter_map(|entry| Some((entry.name, entry.value.stated?))).collect();
        snapshot
    }

    /// A store with the contents of a snapshot.
    ///
    /// If the snapshot is from the future, because somebody has set the clock back, time goes on
    /// from there: to forget usage would be the worse mistake.
    pub fn restore(snapshot: Snapshot, capacity: Capacity, clock: C) -> Self {
        let mut memory = Self::assemble(capacity, clock, snapshot.hash_key);
        memory.ahead = snapshot.saved_at.since(memory.clock.now());
        let now = memory.now();
        let live = |expires: Timestamp| expires > now;
        let shard = |number: u16| usize::from(number) % super::SHARDS;
        for entry in snapshot.cells.into_iter().filter(|entry| live(entry.expires)) {
            let Padded(mutex) = &memory.shards[shard(entry.shard)];
            mutex.lock().cells.insert(entry.name, entry.value, entry.expires);
        }
        for entry in snapshot.overflow.into_iter().filter(|entry| live(entry.expires)) {
            let Padded(mutex) = &memory.shards[shard(entry.shard)];
            mutex.lock().overflow.insert(entry.name, entry.value, entry.expires);
        }
        let stated: HashMap<_, _> = snapshot.stated.into_iter().collect();
        for mut entry in snapshot.records.into_iter().filter(|entry| live(entry.expires)) {
            entry.value.stated = stated.get(&entry.name).copied();
            let Padded(mutex) = &memory.records[shard(entry.shard)];
            mutex.lock().insert(entry.name, entry.value, entry.expires);
        }
        memory
    }
}

fn collect<'a, V: Clone + 'a>(
    into: &mut Vec<Entry<V>>,
    entries: impl Iterator<Item = (Name, &'a V, Timestamp)>,
    shard: u16,
    now: Timestamp,
) {
    let live = entries.filter(|(_, _, expires)| *expires > now);
    into.extend(live.map(|(name, value, expires)| Entry {
        name,
        shard,
        expires,
        value: value.clone(),
    }));
}

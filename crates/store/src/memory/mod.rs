//! The in-memory store: [`Memory`] keeps the usage of one process.
//!
//! Counters are spread over shards by a keyed hash of their name. A plan locks the shards of all
//! its counters, lowest number first, so plans never wait for each other in a circle; then it
//! reads the time, decides and writes. Records lie in shards of their own, which are locked before
//! any shard of counters.
//!
//! The number of counters is capped. When a shard is full of live counters, a new name shares an
//! overflow counter with the other late names of its rule. That is stricter than a counter of its
//! own, and it never evicts a live counter. When there is room again, a new counter starts with a
//! copy of the overflow counter, so no name starts from zero.

mod backlogs;
mod decide;
mod lifecycle;
mod locked;
mod record;
mod snapshot;
mod table;

use std::hash::{BuildHasher, Hasher, RandomState};

use siphasher::sip128::SipHasher13;
use sluicegate_core::algorithm::Cell;
use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, EndResult, Error, GateClosure, Renewal, Usage};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_core::{Charge, Decision, Id, Plan, Store};

pub use snapshot::{MemorySnapshot, RestoreError};

use crate::clock::MonotonicClock;
use crate::sync::Mutex;
use backlogs::Backlogs;
use record::Record;
use table::{NameHash, Table};

/// Maximum number of entries in a [`Memory`].
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Counters, besides one overflow counter per rule and shard.
    pub keys_max: usize,
    /// Open reservations and remembered ids.
    pub records_max: usize,
}

impl Capacity {
    /// Capacity of a store that decides for this node during an outage of Redis: at most 20 MB.
    pub const FALLBACK: Self = Self { keys_max: 200_000, records_max: 20_000 };
}

impl Default for Capacity {
    /// Limits that take about 200 MB when they are reached.
    fn default() -> Self {
        Self { keys_max: 2_000_000, records_max: 200_000 }
    }
}

/// Number of entries in a [`Memory`], including expired ones that no sweep has removed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Counters.
    pub keys: usize,
    /// Overflow counters.
    pub overflow: usize,
    /// Open reservations and remembered ids.
    pub records: usize,
}

/// The in-memory store.
#[derive(Debug)]
pub struct Memory<C = MonotonicClock> {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    records: Box<[CachePadded<Mutex<Table<Record>>>]>,
    keys_per_shard: usize,
    records_per_shard: usize,
    backlogs: Box<Mutex<Backlogs>>,
    /// Random key of the name hash: a client that does not know it can't choose names that collide.
    hash_key: [u64; 2],
    clock: C,
    /// Offset added to the clock if a restored snapshot was taken by a clock ahead of ours.
    ahead: Span,
}

/// The counters of one shard.
#[derive(Debug, Default)]
struct Shard {
    cells: Table<Cell>,
    overflow: Table<Cell>,
}

/// A value alone on its cache line, so that cores that lock neighbouring shards don't contend.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CachePadded<T>(T);

/// Number of shards: enough that a dozen cores seldom contend, few enough that there are few
/// overflow counters.
const SHARDS: usize = 64;
/// Number of slots that a sweep visits at every insertion.
const SWEEP: usize = 2;
/// Number of slots that a sweep visits when a shard is full.
const SWEEP_FULL: usize = 32;

impl Memory {
    /// Returns an empty store that reads the machine's clock.
    pub fn new(capacity: Capacity) -> Self {
        Self::with_clock(capacity, MonotonicClock::new())
    }
}

impl<C: Clock> Memory<C> {
    /// Returns an empty store that reads `clock`.
    pub fn with_clock(capacity: Capacity, clock: C) -> Self {
        // The standard library's random source, which needs no further crate.
        let random = || RandomState::new().build_hasher().finish();
        Self::assemble(capacity, clock, [random(), random()])
    }

    fn assemble(capacity: Capacity, clock: C, hash_key: [u64; 2]) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            records: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            keys_per_shard: capacity.keys_max.div_ceil(SHARDS).min(u32::MAX as usize / 2),
            records_per_shard: capacity.records_max.div_ceil(SHARDS).min(u32::MAX as usize / 2),
            backlogs: Box::default(),
            hash_key,
            clock,
            ahead: Span::ZERO,
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now() + self.ahead
    }

    fn name_of(&self, charge: &Charge<'_>) -> NameHash {
        self.hash_name(charge.key.as_bytes(), charge.meter.kind())
    }

    fn hash_name(&self, text: &[u8], kind: u8) -> NameHash {
        let [first, second] = self.hash_key;
        let hash = SipHasher13::new_with_keys(first, second ^ u64::from(kind)).hash(text);
        NameHash([hash.h1, hash.h2])
    }

    /// Hashes an id. Ids are hashed as well, so that a caller can't choose their shard.
    fn name_of_id(&self, id: Id) -> NameHash {
        self.hash_name(&id.to_bits().to_le_bytes(), u8::MAX)
    }

    /// Removes expired entries from the next `slots` slots of every shard, for times without
    /// insertions.
    pub fn sweep(&self, slots: usize) {
        let now = self.now();
        for CachePadded(shard) in &self.shards {
            let shard = &mut *shard.lock();
            shard.cells.sweep(now, slots, |_| false);
            shard.overflow.sweep(now, slots, |_| false);
        }
        for CachePadded(records) in &self.records {
            records.lock().sweep(now, slots, |_| false);
        }
    }

    /// Returns the number of entries in the store.
    pub fn size(&self) -> Size {
        let mut size = Size::default();
        for CachePadded(shard) in &self.shards {
            let shard = shard.lock();
            size.keys += shard.cells.len();
            size.overflow += shard.overflow.len();
        }
        for CachePadded(records) in &self.records {
            size.records += records.lock().len();
        }
        size
    }
}

impl NameHash {
    /// Returns the shard, taken from bits that the table inside it does not use.
    fn shard(self) -> u16 {
        (self.0[1] % SHARDS as u64) as u16
    }
}

impl<C: Clock> Store for Memory<C> {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.acquire_now(plan)
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.peek_now(plan)
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.book_now(plan)
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        self.claim_now(plan, claimant)
    }

    async fn cancel(&self, handle: &Handle) -> Result<EndResult, Error> {
        self.cancel_now(handle)
    }

    async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<EndResult, Error> {
        self.settle_now(handle.id, actual)
    }

    async fn release(&self, handle: &Handle) -> Result<EndResult, Error> {
        self.release_now(handle.id)
    }

    async fn renew(&self, handle: &Handle) -> Result<Renewal, Error> {
        self.renew_now(handle.id)
    }

    async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        Ok(self.reset_now(plan))
    }

    async fn close(&self, plan: &Plan<'_>, wait: Span) -> Result<GateClosure, Error> {
        Ok(self.close_now(plan, wait))
    }

    async fn refund(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        Ok(self.refund_now(plan))
    }

    async fn usage(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        Ok(self.usage_now(plan))
    }

    async fn exchange_backlogs(
        &self,
        plan: &Plan<'_>,
        report: &BacklogReport,
    ) -> Result<Vec<Backlog>, Error> {
        Ok(self.exchange_backlogs_now(plan, report))
    }

    fn nodes(&self) -> u32 {
        1
    }
}

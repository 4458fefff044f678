//! The test suite of all stores, run on the memory store.

use std::sync::Arc;

use sluicegate_core::Timestamp;
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::suite::EPOCH;
use sluicegate_testkit::{ManualClock, StoreSubject, store_suite};

struct MemorySubject {
    store: Memory<Arc<ManualClock>>,
    clock: Arc<ManualClock>,
}

impl StoreSubject for MemorySubject {
    type Store = Memory<Arc<ManualClock>>;
    const CASES: u32 = 3_000;

    fn fresh() -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        Self { store: Memory::with_clock(Capacity::default(), clock.clone()), clock }
    }

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        self.clock.set(now);
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        pollster::block_on(future)
    }
}

store_suite!(MemorySubject);

//! Tests of [`MemoryReservationStore`].

use std::sync::Arc;

use sluicegate_store::MemoryReservationStore;
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;
use sluicegate_testkit::suite::reservation_store::{
    a_reservation_store_has_a_maximum, a_reservation_store_keeps_its_promises,
};

fn store() -> (MemoryReservationStore<Arc<ManualClock>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(EPOCH));
    (MemoryReservationStore::with_clock(clock.clone()), clock)
}

#[test]
fn a_list_in_memory_keeps_its_promises() {
    let (store, clock) = store();
    pollster::block_on(a_reservation_store_keeps_its_promises(&store, &|now| clock.set(now)));
}

#[test]
fn a_list_in_memory_has_a_maximum() {
    let (store, clock) = store();
    pollster::block_on(a_reservation_store_has_a_maximum(&store, &|now| clock.set(now)));
}

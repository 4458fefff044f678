//! The test suite that every list of reservations has to pass.

use sluicegate_core::reservation_store::{
    CHANGES_MAX, OpenReservation, RESERVATIONS_MAX, ReservationChanges, ReservationStore,
};
use sluicegate_core::{Id, Span, Timestamp};

use super::EPOCH;

fn at(secs: u64) -> Timestamp {
    EPOCH + Span::from_secs(secs)
}

fn open(number: u128, due: u64, ends: u64) -> OpenReservation {
    let text = format!("{{\"text\": \"of {number}: é\n\"}}");
    OpenReservation { id: Id::from_bits(number), due: at(due), ends: at(ends), text }
}

fn opened(reservations: &[(u128, u64, u64)]) -> ReservationChanges {
    let opened = reservations.iter().map(|&(number, due, ends)| open(number, due, ends));
    ReservationChanges { opened: opened.collect(), ..ReservationChanges::default() }
}

fn ended(numbers: &[u128]) -> ReservationChanges {
    let ended = numbers.iter().map(|&number| Id::from_bits(number)).collect();
    ReservationChanges { ended, ..ReservationChanges::default() }
}

/// Opens, renews, ends and expires reservations. `store` is empty and reads a clock that `set_now`
/// sets.
pub async fn a_reservation_store_keeps_its_promises(
    store: &dyn ReservationStore,
    set_now: &dyn Fn(Timestamp),
) {
    set_now(EPOCH);
    expect(store, 0, &[]).await;
    let three = opened(&[(1, 30, 100), (2, 10, 200), (3, 20, 50)]);
    assert_eq!(store.apply(&three).await, Ok(0));
    expect(store, 3, &[]).await;
    set_now(at(10));
    expect(store, 3, &[2]).await;
    assert_eq!(store.find(Id::from_bits(3)).await, Ok(Some(open(3, 0, 0).text)));
    assert_eq!(store.find(Id::from_bits(9)).await, Ok(None));

    // An extended hold is over later; a report that comes late shortens nothing.
    let renewed =
        vec![(Id::from_bits(2), at(25)), (Id::from_bits(1), at(5)), (Id::from_bits(9), at(5))];
    let renewed = ReservationChanges { renewed, ..ReservationChanges::default() };
    assert_eq!(store.apply(&renewed).await, Ok(0));
    expect(store, 3, &[]).await;
    set_now(at(31));
    expect(store, 3, &[3, 2, 1]).await;
    let first = store.unsettled(1).await.expect("an answer");
    assert_eq!((first.texts.len(), first.count), (1, 3), "the rest is counted");

    // A repeated report changes nothing; an end removes it.
    assert_eq!(store.apply(&three).await, Ok(0));
    assert_eq!(store.apply(&ended(&[2, 9])).await, Ok(0));
    expect(store, 2, &[3, 1]).await;

    // Nothing of it is charged any more.
    set_now(at(50));
    expect(store, 1, &[1]).await;
    set_now(at(100));
    expect(store, 0, &[]).await;
}

/// The node that settles a reservation may report its end before the node that made it reports it.
/// `store` is empty and shared by nodes.
pub async fn an_end_may_be_reported_first(
    store: &dyn ReservationStore,
    set_now: &dyn Fn(Timestamp),
) {
    set_now(EPOCH);
    assert_eq!(store.apply(&ended(&[1])).await, Ok(0));
    set_now(at(15));
    assert_eq!(store.apply(&opened(&[(1, 10, 100), (2, 10, 100)])).await, Ok(0));
    expect(store, 1, &[2]).await;
    // The id may be used again later.
    set_now(at(30));
    assert_eq!(store.apply(&opened(&[(1, 10, 100)])).await, Ok(0));
    expect(store, 2, &[1, 2]).await;
}

/// A full list rejects new reservations and keeps the known ones. `store` is empty.
pub async fn a_reservation_store_has_a_maximum(
    store: &dyn ReservationStore,
    set_now: &dyn Fn(Timestamp),
) {
    set_now(EPOCH);
    let mut number = 0;
    while number < RESERVATIONS_MAX as u128 {
        let some: Vec<_> = (number..number + CHANGES_MAX as u128).map(|n| (n, 10, 100)).collect();
        number += some.len() as u128;
        assert_eq!(store.apply(&opened(&some)).await, Ok(0));
    }
    assert_eq!(store.apply(&opened(&[(7, 10, 100), (number, 10, 100)])).await, Ok(1));
    let all = store.unsettled(5).await.expect("an answer");
    assert_eq!((all.open, all.count), (RESERVATIONS_MAX as u64, 0));
    // They all expire, in steps that are small enough for one call.
    set_now(at(100));
    let mut left = RESERVATIONS_MAX as u64;
    while left > 0 {
        let now = store.unsettled(5).await.expect("an answer").open;
        assert!(now < left, "{now} of {left} are left");
        left = now;
    }
}

/// Checks the number of open reservations, and those whose hold is over, by number.
async fn expect(store: &dyn ReservationStore, open_count: u64, due: &[u128]) {
    let read = store.unsettled(100).await.expect("an answer");
    let expected: Vec<_> = due.iter().map(|&number| open(number, 0, 0).text).collect();
    assert_eq!((read.open, read.count), (open_count, due.len() as u64));
    assert_eq!(read.texts, expected);
}

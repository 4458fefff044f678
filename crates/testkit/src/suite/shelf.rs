//! What every shelf promises.

use sluicegate_core::shelf::{Shelf, Version};
use sluicegate_core::{Id, Span, Timestamp};

use super::EPOCH;

/// Puts, replaces, removes and waits. The shelf is empty and goes by a clock that `set_now` sets.
pub async fn a_shelf_keeps_its_promises(shelf: &dyn Shelf, set_now: &dyn Fn(Timestamp)) {
    let (a, b, c) = (Id::from_bits(1), Id::from_bits(2), Id::from_bits(3));
    set_now(EPOCH);
    let version = expect(shelf, None, &[]).await;
    shelf.put(a, "one: \"quoted\"\nand 1:2", None).await.expect("put");
    shelf.put(b, "two", Some(Span::from_secs(10))).await.expect("put");
    let version = expect(shelf, Some(version), &["one: \"quoted\"\nand 1:2", "two"]).await;
    assert_eq!(shelf.read(Some(version)).await, Ok(None), "nothing has changed");

    shelf.put(a, "uno", None).await.expect("put again");
    shelf.put(c, "three", Some(Span::from_secs(20))).await.expect("put");
    let version = expect(shelf, Some(version), &["three", "two", "uno"]).await;

    set_now(EPOCH + Span::from_millis(9_999));
    assert_eq!(shelf.read(Some(version)).await, Ok(None));
    set_now(EPOCH + Span::from_secs(10));
    let version = expect(shelf, Some(version), &["three", "uno"]).await;

    shelf.put(c, "three for ever", None).await.expect("put again");
    set_now(EPOCH + Span::from_secs(30));
    let version = expect(shelf, Some(version), &["three for ever", "uno"]).await;
    assert_eq!(shelf.remove(b).await, Ok(false), "it has ended");
    assert_eq!(shelf.read(Some(version)).await, Ok(None));
    assert_eq!(shelf.remove(a).await, Ok(true));
    assert_eq!(shelf.remove(a).await, Ok(false));
    expect(shelf, Some(version), &["three for ever"]).await;
}

/// What is on it now, in the order of the alphabet.
async fn expect(shelf: &dyn Shelf, known: Option<Version>, texts: &[&str]) -> Version {
    let contents = shelf.read(known).await.expect("an answer").expect("a change");
    let mut found = contents.texts;
    found.sort_unstable();
    assert_eq!(found, texts);
    contents.version
}

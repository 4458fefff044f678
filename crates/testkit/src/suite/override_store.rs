//! The test suite that every override store has to pass.

use sluicegate_core::override_store::{OverrideStore, OverridesVersion};
use sluicegate_core::{Id, Span, Timestamp};

use super::EPOCH;

/// Puts, replaces, removes and expires overrides. `store` is empty and reads a clock that `set_now`
/// sets.
pub async fn an_override_store_keeps_its_promises(
    store: &dyn OverrideStore,
    set_now: &dyn Fn(Timestamp),
) {
    let (a, b, c) = (Id::from_bits(1), Id::from_bits(2), Id::from_bits(3));
    set_now(EPOCH);
    let version = expect(store, None, &[]).await;
    store.put(a, "one: \"quoted\"\nand 1:2", None).await.expect("put");
    store.put(b, "two", Some(Span::from_secs(10))).await.expect("put");
    let version = expect(store, Some(version), &["one: \"quoted\"\nand 1:2", "two"]).await;
    assert_eq!(store.read(Some(version)).await, Ok(None), "nothing has changed");

    store.put(a, "uno", None).await.expect("put again");
    store.put(c, "three", Some(Span::from_secs(20))).await.expect("put");
    let version = expect(store, Some(version), &["three", "two", "uno"]).await;

    set_now(EPOCH + Span::from_millis(9_999));
    assert_eq!(store.read(Some(version)).await, Ok(None));
    set_now(EPOCH + Span::from_secs(10));
    let version = expect(store, Some(version), &["three", "uno"]).await;

    store.put(c, "three for ever", None).await.expect("put again");
    set_now(EPOCH + Span::from_secs(30));
    let version = expect(store, Some(version), &["three for ever", "uno"]).await;
    assert_eq!(store.remove(b).await, Ok(false), "it has ended");
    assert_eq!(store.read(Some(version)).await, Ok(None));
    assert_eq!(store.remove(a).await, Ok(true));
    assert_eq!(store.remove(a).await, Ok(false));
    expect(store, Some(version), &["three for ever"]).await;
}

/// Checks the stored overrides, in alphabetical order.
async fn expect(
    store: &dyn OverrideStore,
    known: Option<OverridesVersion>,
    texts: &[&str],
) -> OverridesVersion {
    let contents = store.read(known).await.expect("an answer").expect("a change");
    let mut found = contents.texts;
    found.sort_unstable();
    assert_eq!(found, texts);
    contents.version
}

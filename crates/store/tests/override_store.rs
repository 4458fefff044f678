//! Tests of [`FileOverrideStore`].
//!

use std::sync::Arc;

use sluicegate_core::override_store::OverrideStore as _;
use sluicegate_core::store::Error;
use sluicegate_core::{Id, Span};
use sluicegate_store::FileOverrideStore;
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;
use sluicegate_testkit::suite::override_store::an_override_store_keeps_its_promises;

#[test]
fn an_override_file_keeps_its_promises_and_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("overrides.jsonl");
    let clock = Arc::new(ManualClock::new(EPOCH));
    let overrides_store =
        FileOverrideStore::open_with_clock(&path, clock.clone()).expect("a store");
    pollster::block_on(an_override_store_keeps_its_promises(&overrides_store, &|now| {
        clock.set(now)
    }));
    let end = pollster::block_on(overrides_store.put(
        Id::from_bits(9),
        "nine",
        Some(Span::from_secs(60)),
    ));
    end.expect("put");
    let again = FileOverrideStore::open_with_clock(&path, clock.clone()).expect("the same file");
    let contents = pollster::block_on(again.read(None)).expect("an answer").expect("contents");
    assert_eq!(contents.texts, ["three for ever", "nine"]);
    clock.set(EPOCH + Span::from_secs(91));
    let contents = pollster::block_on(again.read(None)).expect("an answer").expect("contents");
    assert_eq!(contents.texts, ["three for ever"], "the time that it was closed counts");
}

#[test]
fn the_error_for_a_damaged_file_names_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("overrides.jsonl");
    let good = format!("{{\"name\":\"{}\",\"text\":\"x\"}}\n", Id::from_bits(1));
    std::fs::write(&path, good + "{\"name\":").expect("a file");
    let error = FileOverrideStore::open(&path).expect_err("it is damaged");
    assert_eq!(error.to_string(), "line 2 is not a valid override: repair or delete it");
}

#[test]
fn a_change_that_can_not_be_saved_has_no_effect() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gone").join("overrides.jsonl");
    let overrides_store = FileOverrideStore::open(&path).expect("nothing is there yet");
    let put = pollster::block_on(overrides_store.put(Id::from_bits(1), "x", None));
    assert!(matches!(put, Err(Error::Unavailable(_))), "{put:?}");
    let contents =
        pollster::block_on(overrides_store.read(None)).expect("an answer").expect("contents");
    assert_eq!(contents.texts, [""; 0]);
}

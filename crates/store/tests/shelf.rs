//! The shelf of one process.

use std::sync::Arc;

use sluicegate_core::shelf::Shelf as _;
use sluicegate_core::store::Error;
use sluicegate_core::{Id, Span};
use sluicegate_store::LocalShelf;
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;
use sluicegate_testkit::suite::shelf::a_shelf_keeps_its_promises;

#[test]
fn a_shelf_in_a_file_keeps_its_promises_and_survives() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("overrides.jsonl");
    let clock = Arc::new(ManualClock::new(EPOCH));
    let shelf = LocalShelf::open_with_clock(&path, clock.clone()).expect("a shelf");
    pollster::block_on(a_shelf_keeps_its_promises(&shelf, &|now| clock.set(now)));
    let end = pollster::block_on(shelf.put(Id::from_bits(9), "nine", Some(Span::from_secs(60))));
    end.expect("put");
    let again = LocalShelf::open_with_clock(&path, clock.clone()).expect("the same file");
    let contents = pollster::block_on(again.read(None)).expect("an answer").expect("contents");
    assert_eq!(contents.texts, ["three for ever", "nine"]);
    clock.set(EPOCH + Span::from_secs(91));
    let contents = pollster::block_on(again.read(None)).expect("an answer").expect("contents");
    assert_eq!(contents.texts, ["three for ever"], "the time that it was closed counts");
}

#[test]
fn a_damaged_file_is_told_by_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("overrides.jsonl");
    let good = format!("{{\"name\":\"{}\",\"text\":\"x\"}}\n", Id::from_bits(1));
    std::fs::write(&path, good + "{\"name\":").expect("a file");
    let error = LocalShelf::open(&path).expect_err("it is damaged");
    assert_eq!(error.to_string(), "line 2 is damaged: repair or remove it");
}

#[test]
fn what_can_not_be_written_does_not_apply() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gone").join("overrides.jsonl");
    let shelf = LocalShelf::open(&path).expect("nothing is there yet");
    let put = pollster::block_on(shelf.put(Id::from_bits(1), "x", None));
    assert!(matches!(put, Err(Error::Unavailable(_))), "{put:?}");
    let contents = pollster::block_on(shelf.read(None)).expect("an answer").expect("contents");
    assert_eq!(contents.texts, [""; 0]);
}

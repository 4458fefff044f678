//! An idle service uses almost no processor time.

mod common;

use common::RunningService;
use common::idle::{assert_idle, everything};

#[test]
fn an_idle_service_with_every_part_uses_less_than_one_percent_of_a_core() {
    let folder = tempfile::tempdir().expect("a folder");
    let snapshot = folder.path().join("usage");
    let overrides = folder.path().join("overrides.jsonl");
    let store = format!(
        "store: {{kind: memory, snapshot: {{path: '{}'}}, overrides: '{}'}}\n",
        snapshot.display(),
        overrides.display()
    );
    let service = RunningService::start(&format!("{store}{}", everything(folder.path())));
    assert_idle(&service);
    service.signal("-TERM");
    assert_eq!(service.end().0, Some(0));
}

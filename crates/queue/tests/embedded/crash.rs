//! Kills processes at every step of a message; nothing may be lost.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_queue::{Broker, Embedded};
use sluicegate_testkit::queue::crash::{child, nothing_is_lost};
use sluicegate_testkit::queue::run_for;

async fn connect(path: String) -> Arc<dyn Broker> {
    Arc::new(Embedded::open(Path::new(&path)).expect("a file"))
}

#[test]
fn processes_that_are_killed_at_any_step_lose_nothing() {
    run_for(Duration::from_secs(1_200), async {
        if child(connect).await {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("queue.db").display().to_string();
        let test = "crash::processes_that_are_killed_at_any_step_lose_nothing";
        nothing_is_lost(connect(path.clone()).await, &path, test).await;
    });
}

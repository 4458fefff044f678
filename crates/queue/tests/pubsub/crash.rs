//! Kills processes at every step of a message; nothing may be lost.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_queue::Broker;
use sluicegate_testkit::queue::crash::{child, nothing_is_lost};
use sluicegate_testkit::queue::run_for;

use crate::support::{self, server};

async fn connect(endpoint: String) -> Arc<dyn Broker> {
    support::connect(support::options_for(endpoint)).await
}

#[test]
fn processes_that_are_killed_at_any_step_lose_nothing() {
    run_for(Duration::from_secs(1_200), async {
        if child(connect).await {
            return;
        }
        let endpoint = server().endpoint();
        let test = "crash::processes_that_are_killed_at_any_step_lose_nothing";
        nothing_is_lost(connect(endpoint.clone()).await, &endpoint, test).await;
    });
}

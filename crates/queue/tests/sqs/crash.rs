//! Kills processes at every step of a message; nothing may be lost.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_queue::{Broker, Sqs};
use sluicegate_testkit::queue::crash::{child, nothing_is_lost};
use sluicegate_testkit::queue::run_for;

use crate::support::{config, moto};

async fn connect(port: String) -> Arc<dyn Broker> {
    let port = port.parse().expect("a port");
    Arc::new(Sqs::with_config(&config(port)).expect("a client"))
}

#[test]
fn processes_that_are_killed_at_any_step_lose_nothing() {
    run_for(Duration::from_secs(1_200), async {
        if child(connect).await {
            return;
        }
        let port = moto().port.to_string();
        let test = "crash::processes_that_are_killed_at_any_step_lose_nothing";
        nothing_is_lost(connect(port.clone()).await, &port, test).await;
    });
}

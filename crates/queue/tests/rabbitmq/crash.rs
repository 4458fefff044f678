//! Kills processes at every step of a message; nothing may be lost.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_queue::rabbitmq::Options;
use sluicegate_queue::{Broker, RabbitMq};
use sluicegate_testkit::queue::crash::{child, nothing_is_lost};
use sluicegate_testkit::queue::run_for;

use crate::support::calm;

async fn connect(url: String) -> Arc<dyn Broker> {
    Arc::new(RabbitMq::new(Options::new(url)).expect("an address"))
}

#[test]
fn processes_that_are_killed_at_any_step_lose_nothing() {
    run_for(Duration::from_secs(1_200), async {
        if child(connect).await {
            return;
        }
        let url = calm().url();
        let test = "crash::processes_that_are_killed_at_any_step_lose_nothing";
        nothing_is_lost(connect(url.clone()).await, &url, test).await;
    });
}

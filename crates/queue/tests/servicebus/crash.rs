//! Kills processes at every step of a message; nothing may be lost.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_queue::Broker;
use sluicegate_queue::servicebus::Options;
use sluicegate_testkit::queue::crash::{child, nothing_is_lost};
use sluicegate_testkit::queue::run_for;
use sluicegate_testkit::servicebus::{ServiceBusServer, connection_string};

use crate::support::broker;

/// Connects to `port/admin_port`.
async fn connect(address: String) -> Arc<dyn Broker> {
    let (port, admin_port) = address.split_once('/').expect("two ports");
    let key = ("RootManageSharedAccessKey", "c2VjcmV0");
    let text = connection_string(port.parse().expect("a port"), key.0, key.1);
    let options = Options::from_connection_string(&text).expect("complete");
    let admin_url = Some(format!("http://127.0.0.1:{admin_port}"));
    // A child that dies holds its messages for so long.
    broker(Options { admin_url, lock: Span::from_secs(10), ..options })
}

#[test]
fn processes_that_are_killed_at_any_step_lose_nothing() {
    run_for(Duration::from_secs(1_200), async {
        if child(connect).await {
            return;
        }
        let server = ServiceBusServer::start();
        let address = format!("{}/{}", server.port, server.admin_port);
        let test = "crash::processes_that_are_killed_at_any_step_lose_nothing";
        nothing_is_lost(connect(address.clone()).await, &address, test).await;
    });
}

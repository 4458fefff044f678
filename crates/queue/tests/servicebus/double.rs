//! Checks the double with Microsoft's SDKs: what the other tests show on it counts only as far as it
//! behaves like Service Bus.

use std::path::Path;
use std::process::Command;

use sluicegate_testkit::servicebus::{ServiceBusServer, programs, python};

fn passes(mut command: Command, server: &ServiceBusServer) {
    let ports = [server.port, server.admin_port].map(|port| port.to_string());
    let output = command.args(ports).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"passed\n", "{said}");
}

#[test]
fn the_double_passes_microsofts_sdk_for_python() {
    let server = ServiceBusServer::start_with(&["--key", "listener:bGlzdGVu:Listen"]);
    let mut command = python();
    command.arg(programs().join("sdk_check.py"));
    passes(command, &server);
}

#[test]
fn the_double_passes_microsofts_sdk_for_javascript() {
    let server = ServiceBusServer::start_with(&[]);
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/services/service-bus-sdk");
    assert!(folder.exists(), "no {}: run `cargo xtask services install`", folder.display());
    let mut command = Command::new("node_modules/.bin/node");
    command.arg(programs().join("sdk_check.mjs")).current_dir(folder);
    passes(command, &server);
}

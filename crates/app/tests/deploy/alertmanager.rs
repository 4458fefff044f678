//! `deploy/prometheus/alertmanager.yaml`, read by Alertmanager's own tool.

use std::process::Command;

use crate::process::{output, service};
use crate::repository;
use crate::systems::NAMES;

fn amtool(arguments: &[&str]) -> String {
    let config = repository("deploy/prometheus/alertmanager.yaml");
    let mut command = Command::new(service("prometheus-alertmanager/usr/bin/amtool"));
    command.args(arguments).arg(config);
    output(&mut command)
}

/// Returns the receiver of an alert with these labels.
fn receiver(labels: &[&str]) -> String {
    let config = repository("deploy/prometheus/alertmanager.yaml");
    let mut command = Command::new(service("prometheus-alertmanager/usr/bin/amtool"));
    command.args(["config", "routes", "test", "--config.file"]).arg(config).args(labels);
    output(&mut command).trim().to_owned()
}

#[test]
fn alerts_go_to_the_on_call_of_their_system() {
    amtool(&["check-config"]);
    for system in NAMES {
        let system_label = format!("system={system}");
        for severity in ["page", "critical"] {
            let severity = format!("severity={severity}");
            assert_eq!(receiver(&[&system_label, &severity]), format!("pager-{system}"));
        }
        for severity in ["warn", "warning"] {
            assert_eq!(receiver(&[&system_label, &format!("severity={severity}")]), "email");
        }
    }
    let chat = ["system=assistant-api", "severity=info", "notify=chat"];
    assert_eq!(receiver(&chat), "chat");
    let user = ["system=assistant-api", "severity=warning", "notify=user"];
    assert_eq!(receiver(&user), "user-mail");
    assert_eq!(receiver(&["system=unknown", "severity=page"]), "email", "nothing is dropped");
}

//! `deploy/prometheus/alertmanager.yaml`, read by Alertmanager's own tool.

use std::process::Command;

use crate::process::{output, service};
use crate::systems::NAMES;
use crate::{read, repository};

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

/// Returns the alerts that an alert of the same system silences, by the section `inhibit_rules`.
fn silenced_by(source: &str) -> Vec<String> {
    let config = read("deploy/prometheus/alertmanager.yaml");
    let (_, rules) = config.split_once("\ninhibit_rules:\n").expect("the section");
    let rules = rules.split("\n\n").next().expect("a section");
    // The names in matchers such as `[alertname=~"A|B"]`.
    let names = |rule: &str, key: &str| -> Vec<String> {
        let (_, rest) = rule.split_once(key).unwrap_or_else(|| panic!("{rule} has no {key}"));
        let matcher = rest.lines().next().expect("a line").trim();
        let matcher = matcher.strip_prefix("[alertname=").expect("a matcher of the name");
        let matcher = matcher.trim_start_matches('~').trim_end_matches(']').trim_matches('"');
        matcher.split('|').map(str::to_owned).collect()
    };
    let rules = rules.split("  - source_matchers: ").skip(1);
    let of_source = rules.filter(|rule| {
        assert!(rule.contains("equal: [system]"), "{rule}");
        names(&format!("source_matchers: {rule}"), "source_matchers: ").contains(&source.to_owned())
    });
    of_source.flat_map(|rule| names(rule, "target_matchers: ")).collect()
}

#[test]
fn a_node_that_is_down_silences_no_alert_about_the_others() {
    assert_eq!(silenced_by("NodeDown"), Vec::<String>::new());
    let consequences = ["RedisErrors", "ProxyRedisFails", "DecisionsSlow", "ProxyDecisionsSlow"];
    assert_eq!(silenced_by("RedisRefusesWrites"), consequences);
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

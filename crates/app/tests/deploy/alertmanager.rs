//! `deploy/prometheus/alertmanager.yaml`, read by Alertmanager's own tool.

use std::process::Command;

use serde_json::{Value, json};
use sluicegate_testkit::ports::free_ports;
use sluicegate_testkit::{eventually, eventually_get};

use crate::common::get;
use crate::process::{Running, output, service};
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

/// Starts Alertmanager, sends it alerts as `name system instance`, and returns those that are silenced by
/// another.
fn silenced(alerts: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let [port] = free_ports();
    let program = service("prometheus-alertmanager/usr/bin/prometheus-alertmanager");
    let mut command = Command::new(program);
    let config = repository("deploy/prometheus/alertmanager.yaml");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.path={}", folder.path().display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    command.args(["--cluster.listen-address=", "--log.level=error"]);
    let _process = Running::start(&mut command);
    let url = format!("http://127.0.0.1:{port}/api/v2/alerts");
    let sent: Vec<_> = alerts
        .iter()
        .map(|alert| {
            let words: Vec<_> = alert.split(' ').collect();
            let names = ["alertname", "system", "instance"].into_iter();
            let mut labels: serde_json::Map<_, _> =
                names.zip(words).map(|(name, word)| (name.to_owned(), word.into())).collect();
            labels.insert("severity".to_owned(), "page".into());
            json!({ "labels": labels })
        })
        .collect();
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build();
    let agent: ureq::Agent = agent.into();
    eventually(|| {
        let request = agent.post(&url).header("content-type", "application/json");
        request
            .send(Value::from(sent.clone()).to_string())
            .is_ok_and(|answer| answer.status() == 200)
    });
    // Each alert is processed when its state is known.
    let processed = eventually_get(|| {
        let (_, text) = get(&url);
        let found: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let found = found.as_array().cloned().unwrap_or_default();
        let is_known = |alert: &Value| alert["status"]["state"] != "unprocessed";
        if found.len() == alerts.len() && found.iter().all(is_known) {
            Ok(found)
        } else {
            Err(text)
        }
    });
    let silenced = processed.iter().filter(|alert| alert["status"]["state"] == "suppressed");
    let name = |alert: &Value| alert["labels"]["alertname"].as_str().expect("a name").to_owned();
    let mut silenced: Vec<_> = silenced.map(name).collect();
    silenced.sort();
    silenced
}

#[test]
fn a_node_that_is_down_silences_no_alert_about_the_others() {
    let consequences = ["RedisErrors limiter", "DecisionsSlow limiter"];
    let alerts = [&["NodeDown limiter node-1:9090"], &consequences[..]].concat();
    assert_eq!(silenced(&alerts), Vec::<String>::new());
    let alerts =
        [&["RedisRefusesWrites limiter", "ProxyRedisFails proxy"], &consequences[..]].concat();
    assert_eq!(
        silenced(&alerts),
        ["DecisionsSlow", "RedisErrors"],
        "only those of the same system"
    );
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

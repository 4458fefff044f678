//! A real Prometheus with `deploy/prometheus/prometheus.yaml` scrapes the five systems: every panel of
//! the Grafana dashboards and every alert asks for series that exist.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use sluicegate_testkit::ports::free_ports;
use sluicegate_testkit::{eventually, eventually_get};

use crate::common::get;
use crate::process::{Running, service};
use crate::read;
use crate::selectors::selectors;
use crate::systems::{NAMES, Systems};

/// A running Prometheus with the alerts of `deploy/prometheus`.
struct Prometheus {
    url: String,
    _process: Running,
    _exporter: Running,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(systems: &Systems) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [port, exporter] = free_ports();
        let mut config = read("deploy/prometheus/prometheus.yaml");
        let mut replace = |from: &str, to: &str| {
            assert!(config.contains(from), "prometheus.yaml has no {from}");
            config = config.replace(from, to);
        };
        for ((target, system), address) in
            [9090, 9190, 9290, 9390, 9490].into_iter().zip(NAMES).zip(systems.admin())
        {
            let labels = format!("        labels: {{system: {system}}}");
            replace(
                &format!("[localhost:{target}]\n{labels}"),
                &format!("['{address}']\n{labels}"),
            );
        }
        replace("[localhost:9121]", &format!("['127.0.0.1:{exporter}']"));
        replace("_interval: 15s", "_interval: 1s");
        // Nobody is to be notified.
        replace("[localhost:9093]", "[]");
        std::fs::write(folder.path().join("prometheus.yaml"), config).expect("a file");
        let alerts = read("deploy/prometheus/alerts.yaml");
        std::fs::write(folder.path().join("alerts.yaml"), alerts).expect("a file");
        let path = folder.path().display();
        let redis = format!("redis://127.0.0.1:{}", systems.redis.port);
        let exporter_program = "prometheus-redis-exporter/usr/bin/prometheus-redis-exporter";
        let mut exporter_command = Command::new(service(exporter_program));
        exporter_command.args(["-redis.addr", &redis, "-web.listen-address"]);
        exporter_command.arg(format!("127.0.0.1:{exporter}"));
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={path}/prometheus.yaml"));
        command.arg(format!("--storage.tsdb.path={path}/data"));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}")).arg("--log.level=error");
        let process = Running::start(&mut command);
        let url = format!("http://127.0.0.1:{port}/api/v1");
        let exporter = Running::start(&mut exporter_command);
        Self { url, _process: process, _exporter: exporter, _folder: folder }
    }

    /// Returns the data of a response, or the error as text.
    fn ask(&self, path: &str) -> Result<Value, String> {
        let url = format!("{}/{path}", self.url);
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build();
        let agent: ureq::Agent = agent.into();
        let mut response = agent.get(url).call().map_err(|error| error.to_string())?;
        let text = response.body_mut().read_to_string().map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_str(&text).map_err(|_| text.clone())?;
        if answer["status"] == "success" { Ok(answer["data"].clone()) } else { Err(text) }
    }

    /// Evaluates an expression; returns the number of series.
    fn count(&self, expression: &str) -> Result<usize, String> {
        let data = self.ask(&format!("query?query={}", encoded(expression)))?;
        Ok(data["result"].as_array().map_or(0, Vec::len))
    }

    /// Waits until an expression has a result. An expression that Prometheus refuses fails at once.
    fn wait_for(&self, expression: &str, place: &str) {
        eventually_get(|| match self.count(expression) {
            Ok(0) => Err(format!("{place}: no series for {expression}")),
            Ok(_) => Ok(()),
            Err(error) => panic!("{place}: {expression}: {error}"),
        });
    }
}

/// Encodes a text for a query string.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Returns the expressions of a dashboard as Grafana sends them, with the title of their panel.
fn panels(system: &str) -> Vec<(String, String)> {
    let dashboard: Value =
        serde_json::from_str(&read(&format!("deploy/grafana/{system}.json"))).expect("JSON");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let mut expression = target["expr"].as_str().expect("an expression").to_owned();
            for selector in selectors(&expression) {
                assert!(selector.contains("system=\"$system\""), "{system}: {selector}");
            }
            expression = expression.replace("$__rate_interval", "5m").replace("$system", system);
            for variable in variables {
                let name = format!("${}", variable["name"].as_str().expect("a name"));
                let all = variable["allValue"].as_str().unwrap_or_default();
                expression = expression.replace(&format!("\"{name}\""), &format!("\"{all}\""));
            }
            assert!(!expression.contains('$'), "{system}: unknown variable in {expression}");
            let title = panel["title"].as_str().expect("a title");
            found.push((format!("{system}: {title}"), expression));
        }
    }
    found
}

#[test]
fn every_panel_and_every_alert_asks_for_series_that_exist() {
    let systems = Systems::start();
    let prometheus = Prometheus::start(&systems);
    eventually(|| prometheus.count("up == 1") == Ok(NAMES.len() + 1));
    systems.wait_for_jobs();
    // A rate needs two scrapes that saw a series: the alerts on ratios see the second load.
    eventually(|| {
        systems.load();
        prometheus.count("sluicegate:refused:ratio_rate5m") == Ok(2)
    });
    let mut asked = BTreeSet::new();
    for system in NAMES {
        let panels = panels(system);
        assert!(panels.len() >= 10, "{system}: {} expressions", panels.len());
        for (title, expression) in panels {
            for selector in selectors(&expression) {
                prometheus.wait_for(&selector, &title);
                asked.insert(selector);
            }
            prometheus.wait_for(&expression, &title);
        }
    }

    let rules = prometheus.ask("rules").expect("the rules");
    for group in rules["groups"].as_array().expect("groups") {
        let system = group["name"].as_str().expect("a name");
        for rule in group["rules"].as_array().expect("rules") {
            let (name, query) = (&rule["name"], rule["query"].as_str().expect("a query"));
            assert_eq!(rule["health"], "ok", "{name}: {}", rule["lastError"]);
            for selector in selectors(query) {
                if system == "every-system" {
                    assert!(!selector.contains("system=\""), "{name}: {selector}");
                } else {
                    let filter = format!("system=\"{system}\"");
                    assert!(selector.contains(&filter), "{name}: {selector} is not filtered");
                }
                prometheus.wait_for(&selector, &format!("alert {name}"));
                asked.insert(selector);
            }
            if system != "every-system" {
                assert_eq!(rule["labels"]["system"], system, "{name}");
            }
        }
    }
    assert!(asked.len() > 100, "{}", asked.len());
    // The alerts of every system keep the label of the target, so that they reach its on-call.
    let (_, text) = get(&format!("{}/alerts", prometheus.url));
    let alerts: Value = serde_json::from_str(&text).expect("JSON");
    for alert in alerts["data"]["alerts"].as_array().expect("alerts") {
        assert!(alert["labels"]["system"].is_string(), "{alert}");
    }
}

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

/// Returns the variables of a dashboard that Prometheus fills: name, selector and label.
fn variables(system: &str) -> Vec<(String, String, String)> {
    let dashboard: Value =
        serde_json::from_str(&read(&format!("deploy/grafana/{system}.json"))).expect("JSON");
    let variables = dashboard["templating"]["list"].as_array().expect("variables").iter();
    let asks = variables.filter_map(|variable| {
        let query = variable["query"]["query"].as_str()?;
        assert_eq!(variable["definition"], query, "{system}");
        let (selector, label) =
            query.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(", ")?;
        let name = variable["name"].as_str().expect("a name").to_owned();
        Some((name, selector.replace("$system", system), label.to_owned()))
    });
    asks.collect()
}

/// Returns the expressions of a dashboard as Grafana sends them, with the title of their panel. Variables have
/// the `chosen` values, and others stand for all values.
fn panels(system: &str, chosen: &[(&str, &str)]) -> Vec<(String, String)> {
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
                let name = variable["name"].as_str().expect("a name");
                let all = variable["allValue"].as_str().unwrap_or_default();
                let all =
                    chosen.iter().find(|(other, _)| *other == name).map_or(all, |(_, one)| one);
                let name = format!("${name}");
                expression = expression.replace(&format!("\"{name}\""), &format!("\"{all}\""));
            }
            assert!(!expression.contains('$'), "{system}: unknown variable in {expression}");
            let title = panel["title"].as_str().expect("a title");
            found.push((format!("{system}: {title}"), expression));
        }
    }
    found
}

/// Checks that the panels about decisions show only the chosen tenant and model.
fn check_variables(prometheus: &Prometheus) {
    for system in &NAMES[..2] {
        for (name, other) in [("tenant", "nobody"), ("model", "none")] {
            for (title, expression) in panels(system, &[(name, other)]) {
                let is_about_decisions = ["Allowed and blocked", "Block rate", "Share of 429"]
                    .iter()
                    .any(|about| title.ends_with(about));
                if is_about_decisions {
                    assert_eq!(prometheus.count(&expression), Ok(0), "{title}: {expression}");
                }
            }
        }
    }
}

/// Checks the table of panels in the documentation: each panel with the series that this test has seen.
fn check_table(seen: &[(String, Vec<usize>)]) {
    let documented = read("docs/monitoring.md");
    let mut table = String::new();
    let mut is_documented = true;
    for (title, counts) in seen {
        let (system, panel) = title.split_once(": ").expect("a system");
        let start = format!("| {system} | {panel} | ");
        let row = documented.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix(" |"));
        let expected: Option<usize> = row.and_then(|count| count.parse().ok());
        let count: usize = counts.iter().sum();
        // A busy machine may have more, such as errors of calls that took too long.
        is_documented &= expected.is_some_and(|expected| (1..=count).contains(&expected));
        table.push_str(&format!("{start}{count} |\n"));
    }
    assert!(is_documented, "docs/monitoring.md needs these rows:\n{table}");
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
    let mut seen: Vec<(String, Vec<usize>)> = Vec::new();
    for system in NAMES {
        for (name, selector, label) in variables(system) {
            let path = format!("label/{label}/values?match%5B%5D={}", encoded(&selector));
            eventually_get(|| match prometheus.ask(&path) {
                Ok(values)
                    if values.as_array().is_some_and(|all| all.iter().any(|one| one != "")) =>
                {
                    Ok(())
                }
                other => Err(format!("{system}: no values of the variable {name}: {other:?}")),
            });
        }
        let panels = panels(system, &[]);
        assert!(panels.len() >= 10, "{system}: {} expressions", panels.len());
        for (title, expression) in panels {
            for selector in selectors(&expression) {
                prometheus.wait_for(&selector, &title);
                asked.insert(selector);
            }
            prometheus.wait_for(&expression, &title);
            let count = prometheus.count(&expression).expect("it was evaluated before");
            match seen.last_mut() {
                Some((last, counts)) if *last == title => counts.push(count),
                _ => seen.push((title, vec![count])),
            }
        }
    }
    check_variables(&prometheus);
    check_table(&seen);

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

//! [`NodeSnapshot`]: the data of one reading of the dashboard API.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sluicegate_core::Timestamp;

use super::super::remote::{ServiceClient, items};

/// Number of seconds of the time series that are read.
const SECONDS: usize = 120;
/// Number of seconds over which rates are averaged.
pub(super) const RATE_SECONDS: usize = 10;

/// The state of a node at one time.
pub(super) struct NodeSnapshot {
    overview: Value,
    nodes: Value,
    series: Value,
    limits: Value,
    metrics: Value,
}

/// A rule with its rates.
pub(super) struct RuleRates {
    pub(super) name: String,
    pub(super) group: String,
    pub(super) limits: String,
    pub(super) shadow: bool,
    pub(super) allowed_per_sec: Option<f64>,
    pub(super) denied_per_sec: Option<f64>,
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

/// A caller in the rankings.
pub(super) struct CallerCounts {
    pub(super) dimension: String,
    pub(super) value: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
}

impl NodeSnapshot {
    /// Reads the state of a node.
    pub(super) fn read(client: &ServiceClient) -> anyhow::Result<Self> {
        Ok(Self {
            overview: client.get("/v1/dashboard/overview")?,
            series: client.get(&format!("/v1/dashboard/series?last={SECONDS}"))?,
            limits: client.get("/v1/dashboard/limits")?,
            metrics: client.get(
                "/v1/dashboard/metrics?names=sluicegate_queue_%20sluicegate_worker_%20\
                 sluicegate_dispatch_%20sluicegate_provider_",
            )?,
            // While its store is down, a node does not know the others.
            nodes: client.get("/v1/dashboard/nodes").unwrap_or_default(),
        })
    }

    /// Returns a part of the overview by its JSON pointer, as text.
    pub(super) fn text(&self, pointer: &str) -> &str {
        self.overview.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns a number of the overview by its JSON pointer.
    pub(super) fn number(&self, pointer: &str) -> Option<f64> {
        self.overview.pointer(pointer).and_then(Value::as_f64)
    }

    /// Returns false if the store of the node can't be reached.
    pub(super) fn is_store_up(&self) -> bool {
        self.overview["store"]["up"] != false
    }

    /// Returns how long the node has been running, in seconds.
    pub(super) fn uptime_secs(&self) -> Option<u64> {
        self.seconds_since(self.text("/node/started"))
    }

    /// Returns the seconds from an instant to the time of the snapshot.
    pub(super) fn seconds_since(&self, instant: &str) -> Option<u64> {
        let [now, then] = [self.text("/now"), instant].map(|text| text.parse::<Timestamp>().ok());
        Some(now?.since(then?).as_micros() / 1_000_000)
    }

    /// Returns severity, title and remedy of each problem.
    pub(super) fn problems(&self) -> impl Iterator<Item = [&str; 3]> {
        items(&self.overview["problems"]).iter().map(|problem| {
            ["severity", "title", "remedy"].map(|name| problem[name].as_str().unwrap_or_default())
        })
    }

    /// Returns the values of a series, the oldest first; a gap is `None`.
    pub(super) fn series(&self, name: &str) -> Vec<Option<f64>> {
        items(&self.series["series"][name]).iter().map(Value::as_f64).collect()
    }

    /// Returns the mean of the last seconds of a series.
    pub(super) fn rate(&self, name: &str) -> Option<f64> {
        let values = self.series(name);
        let newest = values.iter().rev().take(RATE_SECONDS).flatten();
        let (sum, count) =
            newest.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Returns the summaries of all nodes that share the store, and the id of this one.
    pub(super) fn nodes(&self) -> (&[Value], &str) {
        (items(&self.nodes["nodes"]), self.nodes["own"].as_str().unwrap_or_default())
    }

    /// Returns all rules.
    pub(super) fn rules(&self) -> Vec<RuleRates> {
        let mut rules = Vec::new();
        for group in items(&self.limits["groups"]) {
            for rule in items(&group["rules"]) {
                let name = rule["name"].as_str().unwrap_or_default();
                let rate = |kind| self.rate(&json!(["rule", name, kind]).to_string());
                let total = |kind| rule[kind].as_u64().unwrap_or_default();
                let limits: Vec<_> =
                    items(&rule["limits"]).iter().filter_map(Value::as_str).collect();
                rules.push(RuleRates {
                    name: name.to_owned(),
                    group: group["group"].as_str().unwrap_or_default().to_owned(),
                    limits: limits.join(", "),
                    shadow: rule["shadow"] == true,
                    allowed_per_sec: rate("allowed"),
                    denied_per_sec: rate("denied"),
                    allowed: total("allowed"),
                    denied: total("denied"),
                });
            }
        }
        rules
    }

    /// Returns the keys closest to their limits, and the budgets.
    pub(super) fn closest(&self) -> impl Iterator<Item = &Value> {
        items(&self.limits["closest"]).iter().chain(items(&self.limits["budgets"]))
    }

    /// Returns the callers with most requests and most denials, each once.
    pub(super) fn callers(&self) -> Vec<CallerCounts> {
        let mut callers: Vec<CallerCounts> = Vec::new();
        let dimensions = self.limits["callers"].as_object().into_iter().flatten();
        for (dimension, ranked) in dimensions {
            let mut seen = BTreeSet::new();
            // Those with most requests come with their denials.
            for one in items(&ranked["requested"]).iter().chain(items(&ranked["denied"])) {
                let value = one["value"].as_str().unwrap_or_default();
                if seen.insert(value) {
                    callers.push(CallerCounts {
                        dimension: dimension.clone(),
                        value: value.to_owned(),
                        requests: one["count"].as_u64().unwrap_or_default(),
                        denied: one["denied"].as_u64().unwrap_or_default(),
                    });
                }
            }
        }
        callers
    }

    /// Returns the smaller of the shares of admissions and denials that the rankings are made from.
    pub(super) fn sampled_share(&self) -> f64 {
        let share = |class| self.limits["sampled"][class].as_f64().unwrap_or(1.0);
        share("admissions").min(share("denials"))
    }

    /// Returns the values of a label in all metrics, each once.
    pub(super) fn label_values(&self, label: &str) -> BTreeSet<&str> {
        let metrics = items(&self.metrics["metrics"]).iter();
        metrics.filter_map(|metric| metric["labels"][label].as_str()).collect()
    }

    /// Returns the sum of a metric over all series with these labels; `None` without such a series.
    pub(super) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let matches = |metric: &&Value| {
            metric["name"] == name
                && labels.iter().all(|(label, value)| metric["labels"][label] == *value)
        };
        let found = items(&self.metrics["metrics"]).iter().filter(matches);
        found.filter_map(|metric| metric["value"].as_f64()).reduce(|sum, value| sum + value)
    }

    /// Returns everything that the pages show, as JSON.
    pub(super) fn to_json(&self) -> Value {
        let rate = |name: &str| (name.to_owned(), json!(self.rate(name)));
        let rates = ["allowed", "denied", "errors", "p50", "p95", "p99"].map(rate);
        let rules = self.rules().into_iter().map(|rule| {
            json!({
                "rule": rule.name,
                "group": rule.group,
                "limits": rule.limits,
                "shadow": rule.shadow,
                "allowedPerSecond": rule.allowed_per_sec,
                "deniedPerSecond": rule.denied_per_sec,
                "allowed": rule.allowed,
                "denied": rule.denied,
            })
        });
        let callers = self.callers().into_iter().map(|caller| {
            let CallerCounts { dimension, value, requests, denied } = caller;
            json!({ "dimension": dimension, "value": value, "requests": requests, "denied": denied })
        });
        let queues = self.label_values("queue").into_iter().map(|queue| {
            let depth = |state| self.metric("sluicegate_queue_depth", &[("queue", queue), ("state", state)]);
            json!({
                "queue": queue,
                "ready": depth("ready"),
                "delayed": depth("delayed"),
                "inFlight": depth("in_flight"),
                "dead": depth("dead"),
                "oldestSeconds": self.metric("sluicegate_queue_oldest_seconds", &[("queue", queue)]),
            })
        });
        let providers = self.label_values("provider").into_iter().map(|provider| {
            let total = |name| self.metric(name, &[("provider", provider)]);
            json!({
                "provider": provider,
                "delayed": total("sluicegate_dispatch_delayed_total"),
                "deferred": total("sluicegate_worker_requeued_total"),
                "busy": total("sluicegate_worker_busy"),
                "done": total("sluicegate_worker_done_total"),
                "failed": total("sluicegate_worker_failed_total"),
                "dead": total("sluicegate_worker_dead_total"),
            })
        });
        let mut all = self.overview.clone();
        all["rates"] = Value::Object(rates.into_iter().collect());
        all["nodes"] = self.nodes["nodes"].clone();
        all["rules"] = rules.collect();
        all["closest"] = self.closest().cloned().collect();
        all["callers"] = callers.collect();
        all["sampled"] = self.limits["sampled"].clone();
        all["queues"] = queues.collect();
        all["providers"] = providers.collect();
        all
    }
}

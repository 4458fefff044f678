//! The summary of a node, which nodes on one Redis exchange for their dashboards.
//!
//! | part | contents |
//! |---|---|
//! | `rates`, `decisions` | means of the last 5 seconds; totals |
//! | `series` | the last 15 minutes by ten seconds; the last value is that of the newest second |
//! | `problems`, `pauses` | what is wrong right now; pauses that upstreams have asked for |
//! | `callers`, `closest`, `budgets` | the rankings |
//! | `metrics`, `routeLimits`, `rules` | values of gateways, workers and dispatchers; limits of routes; decisions by rule |
//! | `tail`, `reloads`, `audit` | the last decisions, reloads and actions |
//!
//! Every part has a maximum size. Entries that do not fit are left out.

use serde_json::{Map, Value, json};
use sluicegate_service::series::Resolution;

use super::api::{audit_json, rankings, reload_json, requests_per_second};
use super::{DashboardSources, problems};

/// Maximum size of a summary, in bytes.
pub(super) const BYTES_MAX: usize = 64 * 1_024;
/// Numbers of callers and keys in each ranking. They are tried in this order until the summary is
/// small enough.
const TOPS: [usize; 4] = [50, 20, 5, 0];
/// Seconds over which rates are averaged.
const OVER: usize = 5;
/// Values of each series: 15 minutes.
pub(super) const STEPS: usize = 90;
/// Maximum sizes of the parts, in bytes. Together they leave 8 KB of the summary to the rankings.
const SERIES_BYTES: usize = 20 * 1_024;
const METRICS_BYTES: usize = 12 * 1_024;
const TAIL_BYTES: usize = 6 * 1_024;
const LIST_BYTES: usize = 3 * 1_024;
/// Maximum length of a text in a list, in characters.
const TEXT_MAX: usize = 400;
/// Maximum number of decisions of the live tail, and of entries of the other lists.
const TAIL_MAX: usize = 20;
const LIST_MAX: usize = 50;

/// Beginnings of the names of series, the most important first.
const SERIES: [&str; 16] = [
    "allowed",
    "denied",
    "errors",
    "p50",
    "p95",
    "p99",
    "reserved",
    "settled",
    r#"["rate_limiter_redis_"#,
    r#"["sluicegate_gateway_queue_"#,
    r#"["sluicegate_queue_"#,
    r#"["sluicegate_gateway_upstream_answers_total""#,
    r#"["sluicegate_worker_done_total""#,
    r#"["sluicegate_redis_memory_bytes""#,
    r#"["sluicegate_redis_"#,
    r#"["rule""#,
];
/// Beginnings of the names of metrics.
const METRICS: [&str; 5] = [
    "sluicegate_gateway_",
    "sluicegate_worker_",
    "sluicegate_dispatch_",
    "sluicegate_provider_",
    "sluicegate_queue_messages_total",
];

impl DashboardSources {
    /// Returns the summary of this node as JSON, with at most 64 KB.
    pub fn summary(&self) -> String {
        self.own_summary().to_string()
    }

    /// Returns the summary of this node.
    pub(super) fn own_summary(&self) -> Value {
        let recorder = &self.recorder;
        let means = |name: &str| {
            let found = recorder.means(name, OVER).into_iter().find(|(other, _)| other == name);
            found.map(|(_, mean)| mean)
        };
        let rates = ["allowed", "denied", "errors", "p50", "p95", "p99"];
        let rates: Map<_, _> =
            rates.into_iter().map(|name| (name.to_owned(), json!(means(name)))).collect();
        let counts = recorder.decisions();
        let node = recorder.node();
        let pauses = self.pauses();
        let problems = problems::of(recorder, &pauses).into_iter().map(|problem| json!(problem));
        let pauses = pauses.iter().map(|pause| json!(pause));
        let (metrics, route_limits) = self.metrics_and_limits();
        let rules = counts
            .rules
            .iter()
            .map(|(name, rule)| json!([&**name, rule.allowed, rule.denied, rule.shadow_denied]));
        let reloads = recorder.reloads();
        let audit = self.service.audit().newest(LIST_MAX);
        let (admissions, denials) = recorder.sampled_shares();
        let mut summary = json!({
            "id": self.id,
            "host": node.host,
            "version": node.version,
            "started": node.started.to_string(),
            "at": recorder.now().to_string(),
            "rates": rates,
            "decisions": {
                "allowed": counts.allowed,
                "denied": counts.denied,
                "errors": counts.errors,
            },
            "problems": fitting(problems, LIST_BYTES),
            "pauses": fitting(pauses, LIST_BYTES),
            "series": self.recent_series(),
            "metrics": fitting(metrics, METRICS_BYTES),
            "routeLimits": fitting(route_limits, LIST_BYTES),
            "rules": fitting(rules, LIST_BYTES),
            "tail": fitting(recorder.newest_decisions(TAIL_MAX), TAIL_BYTES),
            "reloads": fitting(reloads.iter().map(reload_json), LIST_BYTES),
            "audit": fitting(audit.iter().map(audit_json), LIST_BYTES),
            "sampled": { "admissions": admissions, "denials": denials },
        });
        for top in TOPS {
            let ranked = recorder.callers(top);
            let (callers, closest, budgets) = rankings(&ranked);
            summary["since"] = ranked.since.to_string().into();
            summary["callers"] = callers;
            summary["closest"] = closest;
            summary["budgets"] = budgets;
            if summary.to_string().len() <= BYTES_MAX {
                break;
            }
        }
        summary
    }

    /// Returns the current values of the metrics, those that are not zero first, and the limits of the
    /// routes among them.
    fn metrics_and_limits(&self) -> (Vec<Value>, Vec<Value>) {
        let read = self
            .recorder
            .read_metrics(|name| METRICS.iter().any(|prefix| name.starts_with(prefix)));
        let Value::Array(mut metrics) = read.to_json() else { return Default::default() };
        metrics.sort_by_key(|metric| metric["value"] == 0.0);
        let mut routes: Vec<String> = metrics.iter().filter_map(route_of).collect();
        routes.sort_unstable();
        routes.dedup();
        let rules = self.service.limiter().rules();
        let rules: Vec<_> =
            rules.groups().flat_map(|(_, rules)| rules.collect::<Vec<_>>()).collect();
        let limits = routes.iter().filter_map(|route| {
            let rule = rules.iter().find(|rule| rule.name == *route)?;
            let texts: Vec<_> = rule.limits.iter().map(ToString::to_string).collect();
            Some(json!({ "name": route, "limits": texts, "perSecond": requests_per_second(rule) }))
        });
        let limits = limits.collect();
        (metrics, limits)
    }

    /// Returns the series of the last 15 minutes, the most important first as far as they fit.
    fn recent_series(&self) -> Value {
        let mut values = Map::new();
        let mut bytes = 0;
        let prefixes = SERIES.map(str::to_owned);
        let (slow, fast) = (
            self.recorder.series(Resolution::TenSeconds, STEPS, &prefixes),
            self.recorder.series(Resolution::Seconds, OVER, &prefixes),
        );
        let Some(all) = slow["series"].as_object() else { return Value::Null };
        for prefix in SERIES {
            for (name, series) in all.iter().filter(|(name, _)| name.starts_with(prefix)) {
                let Some(series) = series.as_array().filter(|_| !values.contains_key(name)) else {
                    continue;
                };
                // The values since the first one; they all end at the same step.
                let known = series.iter().position(|value| !value.is_null());
                let mut series = series[known.unwrap_or(series.len())..].to_vec();
                let newest = fast["series"][name].as_array().into_iter().flatten();
                let newest = newest.rev().find(|value| !value.is_null());
                if let Some((last, newest)) = series.last_mut().zip(newest) {
                    *last = newest.clone();
                }
                let size = name.len() + Value::from(series.clone()).to_string().len() + 8;
                if bytes + size <= SERIES_BYTES {
                    bytes += size;
                    values.insert(name.clone(), series.into());
                }
            }
        }
        json!({ "until": slow["until"], "step": slow["step"], "values": values })
    }
}

/// Returns the name of the rule of the route that a metric is about.
fn route_of(metric: &Value) -> Option<String> {
    let label = |name: &str| metric["labels"][name].as_str();
    Some(format!("{}/{}", label("gateway")?, label("route")?))
}

/// Returns the first entries that fit, with shortened texts.
fn fitting(entries: impl IntoIterator<Item = Value>, bytes_max: usize) -> Vec<Value> {
    let mut bytes = 0;
    let shortened = entries.into_iter().take(1_000).map(|mut entry| {
        shorten(&mut entry);
        entry
    });
    let fits = |entry: &Value| {
        let size = entry.to_string().len() + 1;
        let fits = bytes + size <= bytes_max;
        bytes += if fits { size } else { 0 };
        fits
    };
    shortened.filter(fits).collect()
}

/// Shortens all texts of a value.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
                text.truncate(end);
                text.push('…');
            }
        }
        Value::Array(values) => values.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_leave_room_for_rankings() {
        // Problems, pauses, limits of routes, rules, reloads, and the audit log.
        let lists = 6 * LIST_BYTES;
        let parts = SERIES_BYTES + METRICS_BYTES + TAIL_BYTES + lists;
        assert!(parts + 7 * 1_024 <= BYTES_MAX, "{parts} bytes");
    }

    #[test]
    fn entries_that_do_not_fit_are_left_out() {
        let entries = [json!("a".repeat(50)), json!("b".repeat(TEXT_MAX + 1)), json!("c")];
        assert_eq!(fitting(entries.clone(), 60), [entries[0].clone(), json!("c")]);
        let shortened = format!("{}…", "b".repeat(TEXT_MAX));
        assert_eq!(fitting(entries, 1_000)[1], json!(shortened));
    }
}

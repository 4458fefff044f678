//! Merges the summaries of several nodes into one of the same form.
//!
//! | part | merged by |
//! |---|---|
//! | rates, totals, series, metrics | the sum; the maximum of latencies, and of what all nodes see alike: queues and Redis |
//! | rankings of callers | the sum by caller |
//! | keys and budgets | the newest of each, because the counters are shared |
//! | problems, pauses, decisions, reloads, actions | all of them, each with its node |
//!
//! Other versions of the program may have written the summaries, so nothing is expected of their form.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::summary::STEPS;
use crate::recorder::CallerDimension;

/// Maximum number of entries of a merged list.
const LIST_MAX: usize = 100;

/// Merges summaries. That of one node stays as it is, except that its lists name it.
pub(super) fn together(nodes: &[Value]) -> Value {
    let several = nodes.len() > 1;
    let oldest = |part: &str| {
        let texts = nodes.iter().filter_map(|node| node[part].as_str());
        texts.min().map(str::to_owned)
    };
    let newest = nodes.iter().filter_map(|node| node["at"].as_str()).max();
    let least = |share: &str| {
        let shares = nodes.iter().filter_map(|node| node["sampled"][share].as_f64());
        shares.fold(1.0, f64::min)
    };
    let host = match nodes {
        [one] => one["host"].clone(),
        _ => format!("all {} nodes", nodes.len()).into(),
    };
    json!({
        "id": if several { &Value::Null } else { nodes.first().map_or(&Value::Null, |one| &one["id"]) },
        "host": host,
        "started": oldest("started"),
        "at": newest,
        "since": oldest("since"),
        "sampled": { "admissions": least("admissions"), "denials": least("denials") },
        "rates": numbers(nodes, "rates"),
        "decisions": numbers(nodes, "decisions"),
        "problems": problems(nodes),
        "pauses": listed(nodes, "pauses", "until"),
        "callers": callers(nodes),
        "closest": keys(nodes, "closest", |usage| order(&usage["share"])),
        "budgets": keys(nodes, "budgets", |usage| order(&usage["used"])),
        "series": series(nodes),
        "metrics": metrics(nodes),
        "routeLimits": route_limits(nodes),
        "rules": rules(nodes),
        "tail": listed(nodes, "tail", "at"),
        "reloads": listed(nodes, "reloads", "at"),
        "audit": listed(nodes, "audit", "at"),
    })
}

/// Returns true if the values of all nodes are the same thing seen several times, or can't be added.
fn is_shared(name: &str) -> bool {
    const SHARED: [&str; 7] = [
        "p50",
        "p95",
        "p99",
        "sluicegate_queue_",
        "sluicegate_redis_",
        "sluicegate_gateway_queue_oldest",
        "rate_limiter_redis_latency",
    ];
    let name = name.trim_start_matches("[\"");
    SHARED.iter().any(|prefix| name.starts_with(prefix))
}

fn merged(name: &str, one: f64, other: f64) -> f64 {
    if is_shared(name) { one.max(other) } else { one + other }
}

/// Returns a number that sorts like the value, which may be a decimal text.
fn order(value: &Value) -> f64 {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0.0)
}

fn list<'n>(node: &'n Value, part: &str) -> impl Iterator<Item = &'n Value> + use<'n> {
    node[part].as_array().into_iter().flatten()
}

/// Merges an object of numbers.
fn numbers(nodes: &[Value], part: &str) -> Value {
    let mut all: Map<String, Value> = Map::new();
    for (name, value) in nodes.iter().filter_map(|node| node[part].as_object()).flatten() {
        let known = all.get(name).cloned().unwrap_or_default();
        let sum = match (known.as_f64(), value.as_f64()) {
            (None, _) => value.clone(),
            (Some(_), None) => known,
            (Some(one), Some(other)) => match (known.as_u64(), value.as_u64()) {
                (Some(one), Some(other)) => json!(one.saturating_add(other)),
                _ => json!(merged(name, one, other)),
            },
        };
        all.insert(name.clone(), sum);
    }
    all.into()
}

/// Returns the entries of all nodes with the names of their nodes, the newest first.
fn listed(nodes: &[Value], part: &str, time: &str) -> Vec<Value> {
    let mut all: Vec<Value> = nodes
        .iter()
        .flat_map(|node| list(node, part).filter_map(|entry| with_node(entry, node)))
        .collect();
    all.sort_by_cached_key(|entry| Reverse(entry[time].as_str().unwrap_or_default().to_owned()));
    all.truncate(LIST_MAX);
    all
}

fn with_node(entry: &Value, node: &Value) -> Option<Value> {
    let mut entry = entry.as_object()?.clone();
    entry.insert("node".to_owned(), node["host"].clone());
    entry.insert("nodeId".to_owned(), node["id"].clone());
    Some(entry.into())
}

/// Returns the problems of all nodes, the critical ones first. A problem that several nodes have is
/// listed once.
fn problems(nodes: &[Value]) -> Vec<Value> {
    let mut all: Vec<(Value, Vec<&Value>)> = Vec::new();
    for node in nodes {
        for problem in list(node, "problems").take(LIST_MAX) {
            // Older versions write only the title.
            let problem = match problem.as_str() {
                Some(title) => {
                    json!({ "severity": "warning", "title": title, "remedy": "", "page": "overview" })
                }
                None => problem.clone(),
            };
            match all.iter_mut().find(|(known, _)| *known == problem) {
                Some((_, hosts)) => hosts.push(&node["host"]),
                None => all.push((problem, vec![&node["host"]])),
            }
        }
    }
    all.sort_by_key(|(problem, _)| problem["severity"] != "critical");
    all.truncate(LIST_MAX);
    let named = all.into_iter().filter_map(|(problem, hosts)| {
        let mut problem = problem.as_object()?.clone();
        problem.insert("nodes".to_owned(), json!(hosts));
        Some(problem.into())
    });
    named.collect()
}

fn callers(nodes: &[Value]) -> Value {
    let mut dimensions = Map::new();
    for dimension in CallerDimension::ALL {
        let dimension = dimension.name();
        let mut rankings = Map::new();
        for by in ["requested", "denied"] {
            let mut sums: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
            for node in nodes {
                for caller in list(&node["callers"][dimension], by) {
                    let sum = sums.entry(caller["value"].as_str().unwrap_or_default()).or_default();
                    for (sum, name) in sum.iter_mut().zip(["count", "denied", "error"]) {
                        *sum = sum.saturating_add(caller[name].as_u64().unwrap_or(0));
                    }
                }
            }
            let mut sums: Vec<_> = sums.into_iter().collect();
            sums.sort_by_key(|(_, [count, ..])| Reverse(*count));
            let sums = sums.into_iter().take(LIST_MAX).map(|(value, [count, denied, error])| {
                json!({ "value": value, "count": count, "denied": denied, "error": error })
            });
            rankings.insert(by.to_owned(), sums.collect());
        }
        dimensions.insert(dimension.to_owned(), rankings.into());
    }
    dimensions.into()
}

/// Returns the usages of all keys, each as it was seen last, the highest rank first.
fn keys(nodes: &[Value], part: &str, rank: impl Fn(&Value) -> f64) -> Vec<Value> {
    let mut all: BTreeMap<String, &Value> = BTreeMap::new();
    for usage in nodes.iter().flat_map(|node| list(node, part)) {
        let key = json!([usage["rule"], usage["limit"], usage["dimensions"]]).to_string();
        let seen = |usage: &Value| usage["at"].as_str().unwrap_or_default().to_owned();
        let known = all.entry(key).or_insert(usage);
        if seen(known) < seen(usage) {
            *known = usage;
        }
    }
    let mut all: Vec<_> = all.into_values().cloned().collect();
    all.sort_by(|one, other| rank(other).total_cmp(&rank(one)));
    all.truncate(LIST_MAX);
    all
}

/// Returns the series with 15 minutes each, which all end at the same step.
fn series(nodes: &[Value]) -> Value {
    let of = |node: &Value, name: &str| node["series"][name].as_u64().filter(|&value| value > 0);
    let step = nodes.iter().find_map(|node| of(node, "step")).unwrap_or(10);
    let until = nodes.iter().filter_map(|node| of(node, "until")).max().unwrap_or(0);
    let mut all: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for node in nodes.iter().filter(|node| of(node, "step") == Some(step)) {
        let behind = (until - of(node, "until").unwrap_or(0)) / step;
        let Ok(behind) = usize::try_from(behind) else { continue };
        for (name, values) in node["series"]["values"].as_object().into_iter().flatten() {
            let sum = all.entry(name).or_insert_with(|| vec![None; STEPS]);
            let values = values.as_array().into_iter().flatten().rev();
            // A node whose clock is behind has no value for the last steps.
            for (sum, value) in sum.iter_mut().rev().skip(behind).zip(values) {
                let Some(value) = value.as_f64() else { continue };
                *sum = Some(sum.map_or(value, |known| merged(name, known, value)));
            }
        }
    }
    json!({ "until": until, "step": step, "values": all })
}

fn metrics(nodes: &[Value]) -> Vec<Value> {
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    let metrics = nodes.iter().flat_map(|node| list(node, "metrics"));
    for metric in metrics.filter(|metric| metric.is_object()) {
        let (name, value) = (metric["name"].as_str().unwrap_or_default(), &metric["value"]);
        let key = json!([name, metric["labels"]]).to_string();
        match all.get_mut(&key) {
            None => {
                all.insert(key, metric.clone());
            }
            Some(known) => {
                known["value"] = merged(name, order(&known["value"]), order(value)).into();
                let counts = [&known["count"], &metric["count"]].map(Value::as_u64);
                if let [Some(one), Some(other)] = counts {
                    known["count"] = one.saturating_add(other).into();
                }
            }
        }
    }
    all.into_values().collect()
}

fn route_limits(nodes: &[Value]) -> Vec<Value> {
    let mut all: BTreeMap<&str, &Value> = BTreeMap::new();
    for route in nodes.iter().flat_map(|node| list(node, "routeLimits")) {
        all.entry(route["name"].as_str().unwrap_or_default()).or_insert(route);
    }
    all.into_values().cloned().collect()
}

fn rules(nodes: &[Value]) -> Vec<Value> {
    let mut all: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for rule in nodes.iter().flat_map(|node| list(node, "rules")) {
        let sums = all.entry(rule[0].as_str().unwrap_or_default()).or_default();
        for (place, sum) in sums.iter_mut().enumerate() {
            *sum = sum.saturating_add(rule[place + 1].as_u64().unwrap_or(0));
        }
    }
    all.into_iter()
        .map(|(name, [allowed, denied, shadow])| json!([name, allowed, denied, shadow]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, until: u64) -> Value {
        json!({
            "id": id,
            "host": format!("host-{id}"),
            "at": format!("2026-01-01T00:00:0{id}Z"),
            "started": "2025",
            "rates": { "allowed": 2.5, "denied": null, "p99": 4.0 },
            "decisions": { "allowed": 7 },
            "series": { "until": until, "step": 10, "values": {
                "allowed": [1.0, 2.0, 3.0], "p95": [id.parse::<f64>().expect("a number")],
                "[\"sluicegate_queue_depth\",\"q\",\"ready\"]": [8.0],
            } },
            "problems": [
                { "severity": "warning", "title": "slow" },
                { "severity": "critical", "title": format!("only {id}") },
            ],
            "budgets": [
                { "rule": "DAY", "limit": "9", "dimensions": [["userId", "ann"]], "used": id, "at": format!("2026-{id}") },
                { "rule": "DAY", "limit": "9", "dimensions": [["userId", id]], "used": "10.5", "at": "2026" },
            ],
            "metrics": [
                { "name": "sluicegate_gateway_wait_seconds", "labels": { "gateway": "g" }, "value": 1.5, "count": 2 },
                { "name": "sluicegate_queue_x", "labels": {}, "value": 3.0, "count": null },
            ],
            "rules": [["USER", 5, 1, 0]],
            "audit": [{ "at": format!("2026-{id}"), "action": "reset" }],
            "callers": { "userId": { "denied": [{ "value": "ann", "count": 3, "denied": 3, "error": 1 }] } },
        })
    }

    #[test]
    fn sums_are_added_and_shared_values_are_not() {
        let both = together(&[node("1", 1_000), node("2", 1_010)]);
        assert_eq!(both["rates"], json!({ "allowed": 5.0, "denied": null, "p99": 4.0 }));
        assert_eq!(both["decisions"], json!({ "allowed": 14 }));
        let last = |name: &str| {
            let values = both["series"]["values"][name].as_array().expect("values").clone();
            assert_eq!(values.len(), STEPS);
            values[STEPS - 4..].to_vec()
        };
        // The first node is a step behind.
        let sums = [json!(1.0), json!(3.0), json!(5.0), json!(3.0)];
        assert_eq!(last("allowed"), sums);
        assert_eq!(last("p95"), [json!(null), json!(null), json!(1.0), json!(2.0)]);
        let depth = last("[\"sluicegate_queue_depth\",\"q\",\"ready\"]");
        assert_eq!(depth[2..], [json!(8.0), json!(8.0)]);
        assert_eq!(
            (&both["series"]["until"], &both["series"]["step"]),
            (&json!(1_010), &json!(10))
        );
        let metric =
            |place: usize| (&both["metrics"][place]["value"], &both["metrics"][place]["count"]);
        assert_eq!(metric(0), (&json!(3.0), &json!(4)));
        assert_eq!(metric(1), (&json!(3.0), &json!(null)));
        assert_eq!(both["rules"], json!([["USER", 10, 2, 0]]));
        let denied = &both["callers"]["userId"]["denied"];
        assert_eq!(denied, &json!([{ "value": "ann", "count": 6, "denied": 6, "error": 2 }]));
    }

    #[test]
    fn a_key_has_the_newest_usage_and_the_largest_amount_is_first() {
        let both = together(&[node("3", 10), node("1", 10)]);
        let budgets = both["budgets"].as_array().expect("budgets");
        let used: Vec<_> = budgets.iter().map(|budget| budget["used"].as_str()).collect();
        assert_eq!(used, [Some("10.5"), Some("10.5"), Some("3")]);
        assert_eq!(budgets[2]["at"], "2026-3");
    }

    #[test]
    fn lists_name_the_node_of_each_entry() {
        let both = together(&[node("1", 10), node("2", 10)]);
        assert_eq!(both["audit"][0]["node"], "host-2", "the newest first");
        assert_eq!(
            (&both["audit"][1]["node"], &both["audit"][1]["nodeId"]),
            (&json!("host-1"), &json!("1"))
        );
        let problems = both["problems"].as_array().expect("problems");
        let shown: Vec<_> =
            problems.iter().map(|one| (one["title"].as_str(), one["nodes"].clone())).collect();
        assert_eq!(
            shown,
            [
                (Some("only 1"), json!(["host-1"])),
                (Some("only 2"), json!(["host-2"])),
                (Some("slow"), json!(["host-1", "host-2"])),
            ]
        );
    }

    #[test]
    fn a_summary_of_any_form_is_merged() {
        let odd = [
            json!(null),
            json!([1]),
            json!("text"),
            json!({ "series": { "until": "x", "step": 0, "values": [1] }, "problems": ["old"], "rules": [7, []] }),
            json!({ "series": { "until": u64::MAX, "step": 1, "values": { "a": "b" } }, "metrics": [1, {}], "callers": 3 }),
            json!({ "rates": { "allowed": "x" }, "budgets": [5], "tail": [[]], "closest": {} }),
        ];
        for one in &odd {
            together(std::slice::from_ref(one));
        }
        let all = together(&odd);
        assert_eq!(all["problems"][0]["title"], "old");
        assert_eq!(together(&[])["host"], "all 0 nodes");
    }
}

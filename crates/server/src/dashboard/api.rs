//! The API below `/v1/dashboard`. All of it reads; actions have their own endpoints.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query as Parameters, State};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use sluicegate_core::limit::Unit;
use sluicegate_core::rule::EstimateMode;
use sluicegate_core::{Limit, Money, Rule, Span, Timestamp};
use sluicegate_service::series::{KeyUsage, Resolution};

use super::events::EventStreams;
use super::{DashboardSources, RoutePause, RouteReading, nodes, problems};
use crate::auth;
use crate::recorder::{RankedCaller, Reload, TopCallers};
use crate::rest::{HandlerResult, Problem, json as json_response};
use crate::service::AuditEntry;

type Sources = State<Arc<DashboardSources>>;

/// Number of callers and keys in a ranking.
const TOP: usize = 50;
/// Number of entries of the audit log that are returned.
const AUDIT_MAX: usize = 500;
/// Prefixes of the metrics that pages may read.
const SHOWN: [&str; 6] = [
    "sluicegate_gateway_",
    "sluicegate_queue_",
    "sluicegate_worker_",
    "sluicegate_dispatch_",
    "sluicegate_provider_",
    "sluicegate_redis_",
];

/// Returns the state of the node, its problems, and its totals.
pub(super) async fn overview(State(sources): Sources) -> Response {
    let recorder = &sources.recorder;
    let decisions = recorder.decisions();
    let stores = recorder.read_metrics(|name| {
        name.starts_with("sluicegate_redis_")
            || name.starts_with("sluicegate_store_")
            || name == "rate_limiter_config_version"
            || name == "sluicegate_connections"
    });
    let of = |name: &str| stores.sum(name, &[]);
    let up = of("sluicegate_redis_up");
    let node = recorder.node();
    let servers: Vec<_> = stores
        .each("sluicegate_redis_memory_bytes")
        .map(|(labels, memory)| {
            let server = labels.first().map(|(_, server)| *server).unwrap_or_default();
            let of_server = |name: &str| stores.sum(name, &[("server", server)]);
            json!({
                "server": server,
                "memory": memory,
                "memoryMax": of_server("sluicegate_redis_memory_max_bytes"),
                "operations": of_server("sluicegate_redis_operations_per_second"),
            })
        })
        .collect();
    let connections: serde_json::Map<_, _> = stores
        .each("sluicegate_connections")
        .map(|(labels, value)| {
            (labels.first().map(|(_, name)| (*name).to_owned()).unwrap_or_default(), json!(value))
        })
        .collect();
    let body = json!({
        "now": recorder.now().to_string(),
        "node": { "host": node.host, "version": node.version, "started": node.started.to_string() },
        "configVersion": of("rate_limiter_config_version"),
        "decisions": {
            "allowed": decisions.allowed,
            "denied": decisions.denied,
            "errors": decisions.errors,
        },
        "store": {
            "kind": if up.is_some() { "redis" } else { "memory" },
            "up": up.map(|up| up > 0.0),
            "nodes": of("sluicegate_redis_nodes"),
            "keys": of("sluicegate_store_keys"),
            "records": of("sluicegate_store_records"),
            "cachedDenials": of("sluicegate_redis_deny_cache_hits_total"),
            "takingBack": of("sluicegate_redis_taking_back"),
            "servers": servers,
        },
        "connections": connections,
        "problems": problems::of(recorder, &sources.pauses()),
    });
    json_response(body.to_string())
}

/// The query parameters of `series`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeriesRequest {
    /// `15m` (default) or `24h`.
    range: Option<String>,
    /// Beginnings of names, separated by spaces; all series without it.
    names: Option<String>,
    /// Number of the newest values; all without it.
    last: Option<usize>,
}

/// Returns time series.
pub(super) async fn series(
    State(sources): Sources,
    parameters: Result<Parameters<SeriesRequest>, QueryRejection>,
) -> HandlerResult {
    let Parameters(asked) = parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
    let resolution = match asked.range.as_deref() {
        None | Some("15m") => Resolution::Seconds,
        Some("24h") => Resolution::TenSeconds,
        Some(_) => return Err(Problem::field("range", "write 15m or 24h")),
    };
    let steps = match asked.last {
        None => resolution.steps(),
        Some(0) => return Err(Problem::field("last", "write a number from 1")),
        Some(last) => last.min(resolution.steps()),
    };
    let names = asked.names.unwrap_or_default();
    let prefixes: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
    let read = sources.recorder.series(resolution, steps, &prefixes);
    Ok(json_response(read.to_string()))
}

/// Returns every rule as compiled, the callers that are denied most, and the keys closest to their
/// limits.
pub(super) async fn limits(State(sources): Sources) -> Response {
    let recorder = &sources.recorder;
    let counts = recorder.decisions().rules;
    let rules = sources.service.limiter().rules();
    let groups: Vec<_> = rules
        .groups()
        .map(|(name, rules)| {
            let rules = rules.map(|rule| {
                let place = counts.binary_search_by(|(other, _)| (**other).cmp(&rule.name));
                let counts = place.map(|place| counts[place].1).unwrap_or_default();
                let mut shown = rule_json(rule);
                shown["allowed"] = counts.allowed.into();
                shown["denied"] = counts.denied.into();
                shown["shadowDenied"] = counts.shadow_denied.into();
                shown
            });
            json!({ "group": name, "rules": rules.collect::<Vec<_>>() })
        })
        .collect();
    let top = recorder.callers(TOP);
    let (callers, closest, budgets) = rankings(&top);
    let (admissions, denials) = recorder.sampled_shares();
    let body = json!({
        "now": recorder.now().to_string(),
        "groups": groups,
        "since": top.since.to_string(),
        "sampled": { "admissions": admissions, "denials": denials },
        "callers": callers,
        "closest": closest,
        "budgets": budgets,
    });
    json_response(body.to_string())
}

/// Returns the ranked callers, the keys closest to their limits, and the budgets.
pub(super) fn rankings(top: &TopCallers) -> (Value, Value, Value) {
    let list =
        |callers: &[RankedCaller]| -> Vec<Value> { callers.iter().map(caller_json).collect() };
    let callers: serde_json::Map<_, _> = top
        .dimensions
        .iter()
        .map(|ranked| {
            let both =
                json!({ "requested": list(&ranked.requested), "denied": list(&ranked.denied) });
            (ranked.dimension.name().to_owned(), both)
        })
        .collect();
    let usages = |keys: &[KeyUsage]| keys.iter().map(usage_json).collect::<Vec<_>>().into();
    (callers.into(), usages(&top.closest), usages(&top.budgets))
}

/// Returns the routes of the gateways of this process: until when they are closed and why, and the
/// limits that their upstreams have announced.
pub(super) async fn gateways(State(sources): Sources) -> Response {
    let readings = sources.gateways.read().await;
    let mut pauses: Vec<(Value, RoutePause)> =
        sources.pauses().into_iter().map(|pause| (Value::Null, pause)).collect();
    let is_closed = |reading: &RouteReading| matches!(reading.closed_until, Ok(Some(_)));
    if readings.iter().any(is_closed) {
        // Only the node that got the upstream's answer knows the reason, so the other nodes are
        // asked. If they do not answer, the reason is missing.
        for node in nodes::other_nodes(&sources).await.unwrap_or_default() {
            let of_node = node["pauses"].as_array().cloned().unwrap_or_default();
            let of_node = of_node.into_iter().filter_map(|one| serde_json::from_value(one).ok());
            pauses.extend(of_node.map(|pause| (node["host"].clone(), pause)));
        }
    }
    let routes = readings.iter().map(|reading| route_json(reading, &pauses));
    let routes: Vec<_> = routes.collect();
    json_response(
        json!({ "now": sources.recorder.now().to_string(), "routes": routes }).to_string(),
    )
}

fn route_json(reading: &RouteReading, pauses: &[(Value, RoutePause)]) -> Value {
    let RouteReading { gateway, route, closed_until, windows, seen } = reading;
    let end = |pause: &RoutePause| pause.until.parse::<Timestamp>().ok();
    // The pause that ends last has closed the route.
    let pause = pauses
        .iter()
        .filter(|(_, pause)| pause.gateway == *gateway && pause.route == *route)
        .max_by_key(|(_, pause)| end(pause));
    let pause = pause.filter(|_| matches!(closed_until, Ok(Some(_))));
    json!({
        "gateway": gateway,
        "route": route,
        "closedUntil": closed_until.as_ref().ok().and_then(|until| until.map(|at| at.to_string())),
        "error": closed_until.as_ref().err(),
        "reason": pause.map(|(_, pause)| &pause.reason),
        "learnedBy": pause.map(|(node, _)| node),
        "announced": { "at": seen.map(|at| at.to_string()), "windows": windows },
    })
}

fn rule_json(rule: &Rule) -> Value {
    let when = rule.when.iter().map(|(name, pattern)| format!("{name} = {pattern}"));
    let limits: Vec<_> = rule.limits.iter().map(ToString::to_string).collect();
    json!({
        "name": rule.name,
        "description": rule.description,
        "reason": rule.reason,
        "when": when.collect::<Vec<_>>(),
        "per": rule.per,
        "limits": limits,
        "perSecond": requests_per_second(rule),
        "shadow": rule.shadow,
        "unlimited": rule.unlimited,
        "optimistic": rule.mode == EstimateMode::Optimistic,
        "outage": rule.outage.map(|policy| policy.word()),
        "key": rule.key,
    })
}

/// Returns the requests per second that the limits of a rule allow on average; `None` if no limit counts
/// requests in a window.
pub(super) fn requests_per_second(rule: &Rule) -> Option<f64> {
    let counts = |limit: &&Limit| limit.unit() == Unit::Requests && limit.window() > Span::ZERO;
    let rate = |limit: &Limit| limit.rate() as f64 * 1e6 / limit.window().as_micros() as f64;
    rule.limits.iter().filter(counts).map(rate).reduce(f64::min)
}

fn caller_json(caller: &RankedCaller) -> Value {
    let RankedCaller { value, count, denied, error } = caller;
    json!({ "value": value, "count": count, "denied": denied, "error": error })
}

fn usage_json(usage: &KeyUsage) -> Value {
    let amount = |number: u64| match Money::from_nanos(number) {
        Some(money) if usage.unit == Unit::Usd.name() => money.to_string().into(),
        _ => Value::from(number),
    };
    json!({
        "rule": usage.rule,
        "limit": usage.limit_text,
        "dimensions": usage.dimensions,
        "used": amount(usage.used()),
        "of": amount(usage.limit),
        "bookedAhead": amount(usage.booked_ahead()),
        "share": usage.share(),
        "unit": usage.unit,
        "at": usage.at.to_string(),
        "usedUpAt": usage.used_up_at().map(|at| at.to_string()),
        "reset": usage.reset.to_string(),
    })
}

/// The query parameters of `metrics`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetricsRequest {
    /// Beginnings of names, separated by spaces.
    names: String,
}

/// Returns the current values of metrics of gateways, queues and Redis.
pub(super) async fn metrics(
    State(sources): Sources,
    parameters: Result<Parameters<MetricsRequest>, QueryRejection>,
) -> HandlerResult {
    let Parameters(asked) = parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
    let names: Vec<_> = asked.names.split_whitespace().collect();
    let is_shown = |name: &&&str| !SHOWN.iter().any(|prefix| name.starts_with(prefix));
    if let Some(other) = names.iter().find(is_shown) {
        let right = format!("{other} is unknown: names begin with {}", SHOWN.join(", "));
        return Err(Problem::field("names", right));
    }
    let read =
        sources.recorder.read_metrics(|name| names.iter().any(|prefix| name.starts_with(prefix)));
    Ok(json_response(json!({ "metrics": read.to_json() }).to_string()))
}

/// Returns the last decisions of the live tail and the last reloads.
pub(super) async fn activity(State(sources): Sources) -> Response {
    let recorder = &sources.recorder;
    let reloads = recorder.reloads();
    let reloads = Value::from(reloads.iter().map(reload_json).collect::<Vec<_>>());
    let (admissions, denials) = recorder.sampled_shares();
    let sampled = json!({ "admissions": admissions, "denials": denials });
    let tail = recorder.tail();
    json_response(format!(r#"{{"reloads":{reloads},"sampled":{sampled},"decisions":{tail}}}"#))
}

/// Returns a reload: its changes, or the reason why it was rejected.
pub(super) fn reload_json(reload: &Reload) -> Value {
    let (at, version) = (reload.at.to_string(), reload.version);
    match &reload.outcome {
        Ok(changes) => json!({ "at": at, "version": version, "changes": changes }),
        Err(error) => json!({ "at": at, "version": version, "error": error }),
    }
}

/// Returns the last actions of the audit log, the newest first.
pub(super) async fn audit(State(sources): Sources) -> Response {
    let entries = sources.service.audit().newest(AUDIT_MAX);
    let entries: Vec<_> = entries.iter().map(audit_json).collect();
    json_response(json!({ "audit": entries }).to_string())
}

pub(super) fn audit_json(entry: &AuditEntry) -> Value {
    json!({
        "at": entry.at.to_string(),
        "by": entry.by,
        "action": entry.action,
        "target": entry.target,
        "reason": entry.reason,
        "detail": entry.detail,
    })
}

/// The query parameters of `events`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsRequest {
    /// True to receive the live tail, too.
    #[serde(default)]
    tail: bool,
}

/// Opens a stream of events.
pub(super) async fn events(
    State(sources): Sources,
    State(streams): State<EventStreams>,
    uri: Uri,
    headers: HeaderMap,
    parameters: Result<Parameters<EventsRequest>, QueryRejection>,
) -> HandlerResult {
    let Parameters(asked) = parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
    let access = auth::require(sources.tokens.clone()).with_browsers(sources.browsers.clone());
    let permitted = move || access.caller(&Method::GET, &uri, &headers).is_ok();
    streams.open(sources.recorder.ticks(), asked.tail, permitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_rate_of_a_rule_is_drawn_whatever_its_window() {
        let check = |limits: &[&str], expected: Option<f64>| {
            let limits = limits.iter().map(|text| text.parse::<Limit>().expect("a limit"));
            assert_eq!(requests_per_second(&Rule::new("R", limits)), expected);
        };
        check(&["25/s"], Some(25.0));
        check(&["600/min"], Some(10.0));
        check(&["1/2s"], Some(0.5));
        check(&["25/s", "600/min", "864000/day"], Some(10.0));
        check(&["10 concurrent", "100 tokens/s"], None);
        check(&["10 concurrent", "3/s"], Some(3.0));
    }
}

//! The summaries of all nodes that share the store, each alone and all together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query as Parameters, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use sluicegate_core::{Span, Timestamp};
use tokio::sync::Mutex;

use super::DashboardSources;
use super::summary::BYTES_MAX;
use super::together::together;
use crate::rest::{HandlerResult, Problem, json as json_response};

/// Interval at which a node writes its summary.
pub const SUMMARY_EVERY: Duration = Duration::from_secs(2);
/// Time until a summary expires: two may be lost.
pub const SUMMARY_LASTS: Span = Span::from_secs(6);
/// Time for which an answer serves all open pages, unless a new second begins earlier.
const ANSWER_LASTS: Span = Span::from_millis(500);
/// Maximum number of answers that are kept: all nodes together, and some nodes alone.
const ANSWERS_MAX: usize = 16;

/// The last answers of `summary`, so that ten open pages cost as much as one.
#[derive(Clone, Debug, Default)]
pub(super) struct SummaryAnswers(Arc<Mutex<HashMap<String, SummaryAnswer>>>);

#[derive(Debug)]
struct SummaryAnswer {
    made: Timestamp,
    /// The second of the data.
    second: u64,
    text: String,
}

/// The query parameters of `summary`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SummaryRequest {
    /// `all` (default), `own`, or the id of a node.
    node: Option<String>,
}

/// Returns the summaries of all other nodes that share the store.
pub(super) async fn other_nodes(sources: &DashboardSources) -> Result<Vec<Value>, String> {
    let Some(nodes) = &sources.nodes else { return Ok(Vec::new()) };
    let texts = nodes.read().await?;
    // Another program may have written them.
    let small = texts.iter().filter(|text| text.len() <= BYTES_MAX);
    let parsed = small.filter_map(|text| serde_json::from_str::<Value>(text).ok());
    Ok(parsed.filter(|summary| summary["id"] != sources.id.as_str()).collect())
}

/// Returns this node and all others, the oldest first.
fn in_order(mut nodes: Vec<Value>, own: Value) -> Vec<Value> {
    nodes.push(own);
    let place = |node: &Value| {
        let text = |name: &str| node[name].as_str().unwrap_or_default().to_owned();
        (text("started"), text("id"))
    };
    nodes.sort_by_cached_key(place);
    nodes
}

/// Returns the summaries of all nodes that share the store, or only that of this node.
pub(super) async fn nodes(State(sources): State<Arc<DashboardSources>>) -> HandlerResult {
    let others = other_nodes(&sources).await.map_err(|problem| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("no summaries: {problem}"))
    })?;
    let nodes = in_order(others, sources.own_summary());
    Ok(json_response(json!({ "own": sources.id, "nodes": nodes }).to_string()))
}

/// Returns the summary of one node, or of all together, and a list of all nodes.
pub(super) async fn summary(
    State(sources): State<Arc<DashboardSources>>,
    State(answers): State<SummaryAnswers>,
    parameters: Result<Parameters<SummaryRequest>, QueryRejection>,
) -> HandlerResult {
    let Parameters(asked) = parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
    let node = asked.node.unwrap_or_else(|| "all".to_owned());
    let second = sources.recorder.ticks().borrow().second;
    let now = sources.recorder.now();
    // Held while an answer is made, so that it is made once.
    let mut answers = answers.0.lock().await;
    let is_fresh =
        |answer: &SummaryAnswer| answer.second == second && now.since(answer.made) < ANSWER_LASTS;
    if let Some(answer) = answers.get(&node).filter(|answer| is_fresh(answer)) {
        return Ok(json_response(answer.text.clone()));
    }
    let text = answer(&sources, &node).await.to_string();
    answers.retain(|_, answer| is_fresh(answer));
    if answers.len() < ANSWERS_MAX {
        answers.insert(node, SummaryAnswer { made: now, second, text: text.clone() });
    }
    Ok(json_response(text))
}

async fn answer(sources: &DashboardSources, node: &str) -> Value {
    let (others, problem) = match other_nodes(sources).await {
        Ok(others) => (others, None),
        Err(problem) => (Vec::new(), Some(problem)),
    };
    let nodes = in_order(others, sources.own_summary());
    let id = if node == "own" { sources.id.as_str() } else { node };
    let summary = if node == "all" {
        Some(together(&nodes))
    } else {
        let found = nodes.iter().find(|one| one["id"] == id);
        found.map(|one| together(std::slice::from_ref(one)))
    };
    json!({
        "now": sources.recorder.now().to_string(),
        "own": sources.id,
        "nodes": nodes.iter().map(line).collect::<Vec<_>>(),
        "problem": problem,
        "summary": summary,
    })
}

/// Returns a node in a few words.
fn line(node: &Value) -> Value {
    let problems = node["problems"].as_array().map_or(0, Vec::len);
    let mut line = json!({ "problems": problems });
    for name in ["id", "host", "version", "started", "at", "rates", "decisions"] {
        line[name] = node[name].clone();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::TICK;

    /// Interval at which a page asks while it gets no live data. With live data it asks every [`TICK`].
    const PAGE_ASKS: Duration = Duration::from_secs(1);

    #[test]
    fn pages_show_changes_of_this_node_within_2_s_and_those_of_others_within_5_s() {
        let page = include_str!("assets/parts.js");
        assert!(page.contains(&format!("const ALONE = {};", PAGE_ASKS.as_secs())));
        // An answer is never older than the last tick of this node.
        let tick = Duration::from_micros(TICK.as_micros());
        assert!(tick + PAGE_ASKS <= Duration::from_secs(2));
        let answer_lasts = Duration::from_micros(ANSWER_LASTS.as_micros());
        assert!(tick + SUMMARY_EVERY + answer_lasts + PAGE_ASKS <= Duration::from_secs(5));
        assert!(SUMMARY_LASTS >= Span::from(2 * SUMMARY_EVERY), "one lost summary hides no node");
    }
}

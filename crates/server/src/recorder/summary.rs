//! The summary of a node, which nodes on one Redis exchange for their dashboards.

use serde_json::{Value, json};

use super::Recorder;
use crate::dashboard::{RoutePause, rankings};

/// Maximum size of a summary, in bytes.
const BYTES_MAX: usize = 64 * 1_024;
/// Numbers of callers and keys in each ranking. They are tried in this order until the summary is
/// small enough.
const TOPS: [usize; 4] = [50, 20, 5, 0];
/// Seconds over which rates are averaged.
const OVER: usize = 5;

impl Recorder {
    /// Returns the summary of this node as JSON, with at most 64 KB.
    pub fn summary(&self, id: &str, problems: &[String], pauses: &[RoutePause]) -> String {
        let means = |name: &str| {
            let found = self.means(name, OVER).into_iter().find(|(other, _)| other == name);
            found.map(|(_, mean)| mean)
        };
        let rates = ["allowed", "denied", "errors", "p50", "p95", "p99"];
        let rates: serde_json::Map<_, _> =
            rates.into_iter().map(|name| (name.to_owned(), json!(means(name)))).collect();
        let counts = self.decisions();
        let node = self.node();
        let mut summary = json!({
            "id": id,
            "host": node.host,
            "version": node.version,
            "started": node.started.to_string(),
            "at": self.now().to_string(),
            "rates": rates,
            "decisions": {
                "allowed": counts.allowed,
                "denied": counts.denied,
                "errors": counts.errors,
            },
            "problems": problems,
            "pauses": pauses,
        });
        for top in TOPS {
            let (callers, closest, budgets) = rankings(&self.callers(top));
            summary["callers"] = callers;
            summary["closest"] = closest;
            summary["budgets"] = budgets;
            let text = summary.to_string();
            if text.len() <= BYTES_MAX {
                return text;
            }
        }
        summary["problems"] = Value::Array(Vec::new());
        summary["pauses"] = Value::Array(Vec::new());
        summary.to_string()
    }
}

//! [`Page`]: the pages of `sluicegate top` and their tables.

use super::snapshot::NodeSnapshot;
use super::sorted_table::{SortedTable, TableCell, Tone};

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Page {
    /// Rates, latency, problems, rules and nodes
    Overview,
    /// Keys closest to their limits, and callers
    Limits,
    /// Queues and providers
    Queues,
}

impl Page {
    /// All pages, in the order of their keys.
    pub(super) const ALL: [Self; 3] = [Self::Overview, Self::Limits, Self::Queues];

    /// Returns the title.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Limits => "Limits",
            Self::Queues => "Queues",
        }
    }

    /// Returns the tables of the page.
    pub(super) fn tables(self, node: &NodeSnapshot) -> [SortedTable; 2] {
        match self {
            Self::Overview => [rules(node), nodes(node)],
            Self::Limits => [closest(node), callers(node)],
            Self::Queues => [queues(node), providers(node)],
        }
    }
}

/// Formats all pages as text.
pub(super) fn text_of_all(node: &NodeSnapshot) -> String {
    let mut parts = vec![format!("{}\n{}", node_line(node), rate_line(node))];
    let problems: Vec<_> = problem_lines(node).into_iter().map(|(_, line)| line).collect();
    parts.push(match problems.is_empty() {
        true => "no problems".to_owned(),
        false => problems.join("\n"),
    });
    for page in Page::ALL {
        parts.extend(page.tables(node).iter().map(SortedTable::to_text));
    }
    parts.join("\n\n")
}

/// Formats name, version and age of a node.
pub(super) fn node_line(node: &NodeSnapshot) -> String {
    let up = node.uptime_secs().map_or_else(|| "–".to_owned(), duration);
    let config = node.number("/configVersion").unwrap_or_default();
    let cell = TableCell::text(node.text("/node/host"));
    format!("{} · {} · up {up} · config {config}", cell.text, node.text("/node/version"))
}

/// Formats the rates of a node, its latency and its store.
pub(super) fn rate_line(node: &NodeSnapshot) -> String {
    let per_second = |name| node.rate(name).map_or_else(|| "–".to_owned(), number);
    let latency = |name| node.rate(name).map_or_else(|| "–".to_owned(), millis);
    let (allowed, denied) = (node.rate("allowed"), node.rate("denied"));
    let share = percent(denied.unwrap_or(0.0), allowed.unwrap_or(0.0) + denied.unwrap_or(0.0));
    let store = match node.is_store_up() {
        true => node.text("/store/kind").to_owned(),
        false => format!("{} (down)", node.text("/store/kind")),
    };
    format!(
        "allowed {}/s  denied {}/s ({share})  p50 {}  p95 {}  p99 {}  store {store}",
        per_second("allowed"),
        per_second("denied"),
        latency("p50"),
        latency("p95"),
        latency("p99"),
    )
}

/// Formats the problems of a node.
pub(super) fn problem_lines(node: &NodeSnapshot) -> Vec<(Tone, String)> {
    let line = |[severity, title, remedy]: [&str; 3]| {
        let tone = if severity == "critical" { Tone::Bad } else { Tone::Warning };
        (tone, TableCell::text(&format!("{severity}: {title}: {remedy}")).text)
    };
    node.problems().map(line).collect()
}

fn rules(node: &NodeSnapshot) -> SortedTable {
    let rows = node.rules().into_iter().map(|rule| {
        let (allowed, denied) =
            (rule.allowed_per_sec.unwrap_or(0.0), rule.denied_per_sec.unwrap_or(0.0));
        let share = (allowed + denied > 0.0).then(|| denied / (allowed + denied));
        let shadow = if rule.shadow { " (shadow)" } else { "" };
        vec![
            TableCell::text(&format!("{}{shadow}", rule.name)),
            TableCell::text(&rule.limits),
            TableCell::number(rule.allowed_per_sec, number),
            TableCell::number(rule.denied_per_sec, number).if_positive(Tone::Bad),
            TableCell::number(share, |share| percent(share, 1.0)),
            TableCell::number(Some(rule.allowed as f64), whole),
            TableCell::number(Some(rule.denied as f64), whole),
        ]
    });
    SortedTable {
        title: "Rules",
        columns: &["rule", "limit", "allowed/s", "denied/s", "share", "allowed", "denied"],
        sort_column: 6,
        rows: rows.collect(),
        empty: "no rules",
    }
}

fn nodes(node: &NodeSnapshot) -> SortedTable {
    let (nodes, own) = node.nodes();
    let rows = nodes.iter().map(|one| {
        let rate = |name: &str| one["rates"][name].as_f64();
        let id = one["id"].as_str().unwrap_or_default();
        let mark = if id == own { " (this node)" } else { "" };
        let host = one["host"].as_str().unwrap_or_default();
        let short: String = id.chars().take(8).collect();
        let up = node.seconds_since(one["started"].as_str().unwrap_or_default());
        let problems = one["problems"].as_array().map_or(0, Vec::len);
        vec![
            TableCell::text(&format!("{host} {short}{mark}")),
            TableCell::number(rate("allowed"), number),
            TableCell::number(rate("denied"), number).if_positive(Tone::Bad),
            TableCell::number(rate("p99"), millis),
            TableCell::number(Some(problems as f64), whole).if_positive(Tone::Warning),
            TableCell::number(up.map(|up| up as f64), |up| duration(up as u64)),
        ]
    });
    SortedTable {
        title: "Nodes",
        columns: &["node", "allowed/s", "denied/s", "p99", "problems", "up"],
        sort_column: 0,
        rows: rows.collect(),
        empty: "no summary of a node yet",
    }
}

fn closest(node: &NodeSnapshot) -> SortedTable {
    let rows = node.closest().map(|usage| {
        let pairs = usage["dimensions"].as_array().into_iter().flatten().map(|pair| {
            let part = |at: usize| pair[at].as_str().unwrap_or_default();
            format!("{}={}", part(0), part(1))
        });
        let pairs: Vec<_> = pairs.collect();
        let caller = match pairs.is_empty() {
            true => "everyone together".to_owned(),
            false => pairs.join(" "),
        };
        let amount = |name: &str| match &usage[name] {
            serde_json::Value::String(money) => {
                TableCell::number(money.parse().ok(), |_| money.clone())
            }
            other => TableCell::number(other.as_f64(), whole),
        };
        let share = usage["share"].as_f64();
        let tone = match share {
            Some(share) if share >= 1.0 => Tone::Bad,
            Some(share) if share >= 0.8 => Tone::Warning,
            _ => Tone::Plain,
        };
        let mut shown = TableCell::number(share, |share| percent(share, 1.0));
        shown.tone = tone;
        vec![
            TableCell::text(&caller),
            TableCell::text(usage["rule"].as_str().unwrap_or_default()),
            TableCell::text(usage["limit"].as_str().unwrap_or_default()),
            amount("used"),
            amount("of"),
            shown,
            amount("bookedAhead"),
        ]
    });
    SortedTable {
        title: "Closest to the limit",
        columns: &["caller", "rule", "limit", "used", "of", "share", "booked ahead"],
        sort_column: 5,
        rows: rows.collect(),
        empty: "no usage yet",
    }
}

fn callers(node: &NodeSnapshot) -> SortedTable {
    let rows = node.callers().into_iter().map(|caller| {
        let (requests, denied) = (caller.requests as f64, caller.denied as f64);
        let share = (requests > 0.0).then(|| denied / requests);
        vec![
            TableCell::text(&caller.value),
            TableCell::text(&caller.dimension),
            TableCell::number(Some(requests), whole),
            TableCell::number(Some(denied), whole).if_positive(Tone::Bad),
            TableCell::number(share, |share| percent(share, 1.0)),
        ]
    });
    SortedTable {
        title: "Callers of the last minutes",
        columns: &["caller", "dimension", "requests", "denied", "share"],
        sort_column: 3,
        rows: rows.collect(),
        empty: "no requests yet",
    }
}

fn queues(node: &NodeSnapshot) -> SortedTable {
    let rows = node.label_values("queue").into_iter().map(|queue| {
        let depth = |state| {
            let labels = [("queue", queue), ("state", state)];
            TableCell::number(node.metric("sluicegate_queue_depth", &labels), whole)
        };
        let oldest = node.metric("sluicegate_queue_oldest_seconds", &[("queue", queue)]);
        vec![
            TableCell::text(queue),
            depth("ready"),
            depth("delayed"),
            depth("in_flight"),
            depth("dead").if_positive(Tone::Bad),
            TableCell::number(oldest, |seconds| duration(seconds.round() as u64)),
        ]
    });
    SortedTable {
        title: "Queues",
        columns: &["queue", "ready", "delayed", "in flight", "dead", "oldest"],
        sort_column: 0,
        rows: rows.collect(),
        empty: "this process runs no dispatcher and no worker",
    }
}

fn providers(node: &NodeSnapshot) -> SortedTable {
    let rows = node.label_values("provider").into_iter().map(|provider| {
        let total = |name| TableCell::number(node.metric(name, &[("provider", provider)]), whole);
        let rpm = |tier| {
            let labels = [("provider", provider), ("tier", tier)];
            TableCell::number(node.metric("sluicegate_provider_rpm", &labels), number)
        };
        vec![
            TableCell::text(provider),
            rpm("dispatch"),
            rpm("worker"),
            total("sluicegate_dispatch_delayed_total"),
            total("sluicegate_worker_requeued_total"),
            total("sluicegate_worker_busy"),
            total("sluicegate_worker_done_total"),
            total("sluicegate_worker_failed_total").if_positive(Tone::Warning),
            total("sluicegate_worker_dead_total").if_positive(Tone::Bad),
        ]
    });
    SortedTable {
        title: "Providers",
        columns: &[
            "provider", "disp/min", "work/min", "delayed", "deferred", "busy", "done", "failed",
            "dead",
        ],
        sort_column: 0,
        rows: rows.collect(),
        empty: "no provider yet",
    }
}

/// Formats a number with about three digits.
pub(super) fn number(value: f64) -> String {
    let scaled = |value: f64, unit: &str| match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}{unit}"),
        size if size >= 10.0 => format!("{value:.1}{unit}"),
        _ => format!("{value:.2}{unit}"),
    };
    match value.abs() {
        size if size >= 1e9 => scaled(value / 1e9, "G"),
        size if size >= 1e6 => scaled(value / 1e6, "M"),
        size if size >= 1e4 => scaled(value / 1e3, "k"),
        _ => scaled(value, ""),
    }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn percent(part: f64, all: f64) -> String {
    if all > 0.0 { format!("{} %", number(100.0 * part / all)) } else { "–".to_owned() }
}

/// Formats a time in milliseconds.
fn millis(value: f64) -> String {
    if value < 1.0 {
        format!("{} µs", number(value * 1e3))
    } else {
        format!("{} ms", number(value))
    }
}

/// Formats a duration in seconds.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.123, "0.12"),
            (12.34, "12.3"),
            (123.4, "123"),
            (9_999.0, "9999"),
            (12_345.0, "12.3k"),
            (2e6, "2M"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!([millis(0.25), millis(2.5)], ["250 µs", "2.50 ms"]);
        let durations = [59, 61, 3_700, 200_000].map(duration);
        assert_eq!(durations, ["59 s", "1 min", "1 h 1 min", "2 days"]);
    }
}

//! Reads from decision logs the times from which admitted work may start.

use std::collections::HashSet;

use serde_json::Value;
use sluicegate_core::Timestamp;

/// Returns the times from which admitted work may start, by the clock of the store, in order: the
/// admissions for which `counts` is true, without those that were given back.
pub(crate) fn admits(logs: &[String], counts: impl Fn(&Value) -> bool) -> Vec<Timestamp> {
    // Paced work is admitted ahead of its start.
    times(logs, counts, |at, start| at.max(start.unwrap_or_default()))
}

/// Returns the starts for which this work was booked, in order, even if it was claimed later.
#[allow(dead_code, reason = "some test programs use it")]
pub(crate) fn booked_starts(logs: &[String], counts: impl Fn(&Value) -> bool) -> Vec<Timestamp> {
    times(logs, counts, |at, start| start.unwrap_or(at))
}

/// Returns a time of each admission, made of the time of its decision and of its start.
fn times(
    logs: &[String],
    counts: impl Fn(&Value) -> bool,
    of: impl Fn(Timestamp, Option<Timestamp>) -> Timestamp,
) -> Vec<Timestamp> {
    let lines = parsed(logs);
    let (went, _) = admitted(&lines);
    let time = |line: &Value, field: &str| {
        let time: jiff::Timestamp = line[field].as_str()?.parse().expect("a time");
        Some(Timestamp::from_micros(time.as_microsecond() as u64))
    };
    let went = went.into_iter().filter(|line| counts(line));
    let each = went.map(|line| of(time(line, "at").expect("a time"), time(line, "start")));
    let mut times: Vec<_> = each.collect();
    times.sort_unstable();
    times
}

/// Returns the number of turns that were missed: claims that came after their start and got a later
/// one, and turns that were given back, because the answer came or the work started too late.
#[allow(dead_code, reason = "some test programs use it")]
pub(crate) fn missed(logs: &[String]) -> usize {
    let lines = parsed(logs);
    let rebooked = lines.iter().filter(|line| line["effect"] == "rebooked").count();
    rebooked + admitted(&lines).1.len()
}

fn parsed(logs: &[String]) -> Vec<Value> {
    let lines = logs.iter().flat_map(|log| log.lines());
    let lines: Vec<Value> =
        lines.map(|line| serde_json::from_str(line).unwrap_or_default()).collect();
    let dropped = lines.iter().find(|line| line["dropped"].as_u64().is_some_and(|n| n > 0));
    assert!(dropped.is_none(), "lines are missing, so nothing is proven: {dropped:?}");
    lines
}

/// Returns the admissions that were used, and those that were given back.
fn admitted(lines: &[Value]) -> (Vec<&Value>, Vec<&Value>) {
    let cancelled: HashSet<_> = lines
        .iter()
        .filter(|line| line["operation"] == "cancel")
        .filter_map(|line| line["requestId"].as_str())
        .collect();
    let admitted = lines.iter().filter(|line| {
        line["allowed"] == true && matches!(line["operation"].as_str(), Some("acquire" | "claim"))
    });
    admitted.partition(|line| !line["requestId"].as_str().is_some_and(|id| cancelled.contains(id)))
}

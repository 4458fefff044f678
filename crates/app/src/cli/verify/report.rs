//! The messages that `sluicegate verify` prints: the table of the fullest windows, exceeded limits,
//! notes, and reasons for which the log proves nothing.

use serde_json::{Value, json};
use sluicegate_checker::{Bound, Finding, Violation};
use sluicegate_core::Money;
use sluicegate_core::limit::Unit;

use super::super::check::table;
use super::counter::DISORDER_MAX;
use super::ledger::{Outcome, Row};
use super::logs::Logs;
use super::processes::{Flaw, Process};

/// Returns the rows to show, each with its fullest window.
fn shown(outcome: &Outcome) -> impl Iterator<Item = (&Row, Finding)> {
    outcome.rows.iter().filter_map(|row| Some((row, row.peak?)))
}

/// Formats the table of the fullest windows, or returns `None` if there are none to show.
pub(super) fn fullest(outcome: &Outcome, top: usize) -> Option<String> {
    let row = |(row, peak): (&Row, Finding)| {
        let scope = &row.found.scope;
        let unit = scope.limit().unit();
        let debts = if peak.exceeds() && !row.fails() { " with debts" } else { "" };
        [
            row.key.clone(),
            scope.to_string(),
            grouped(row.admits),
            format!("{} of {}{debts}", amount(peak.sum, unit), amount(peak.allowed, unit)),
            peak.interval.to_string(),
        ]
    };
    let rows: Vec<_> = shown(outcome).take(top).map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let mut text = table(&["counter", "limit", "admissions", "peak usage", "window"], &rows);
    let more = shown(outcome).skip(top).count() as u64;
    if more > 0 {
        text.push_str(&format!("\n… and {} more", grouped(more)));
    }
    Some(text)
}

/// Returns the result of a check as JSON, with the fullest windows.
pub(super) fn result_json(
    outcome: &Outcome,
    logs: &Logs,
    all: Bound,
    top: usize,
    [doubts, exceeded]: [&[String]; 2],
) -> Value {
    let row = |(row, peak): (&Row, Finding)| {
        let scope = &row.found.scope;
        let unit = scope.limit().unit();
        json!({
            "counter": row.key,
            "limit": scope.to_string(),
            "admissions": row.admits,
            "used": amount(peak.sum, unit),
            "of": amount(peak.allowed, unit),
            "window": peak.interval.to_string(),
        })
    };
    let result = match (exceeded.is_empty(), doubts.is_empty()) {
        (false, _) => "exceeded",
        (true, false) => "not proven",
        (true, true) => "proven",
    };
    json!({
        "result": result,
        "provenUpTo": logs.processes.up_to().map(|process| process.known_until().to_string()),
        "admissions": outcome.admits,
        "counters": outcome.counters,
        "limits": outcome.limits,
        "fullest": shown(outcome).take(top).map(row).collect::<Vec<_>>(),
        "exceeded": exceeded,
        "doubts": doubts,
        "notes": notes(outcome, logs, all),
        "warnings": logs.stats.shown,
        "skippedLines": logs.stats.others,
    })
}

/// Formats an amount; money in dollars.
fn amount(number: u128, unit: Unit) -> String {
    let nanos = u64::try_from(number).ok().filter(|_| unit == Unit::Usd);
    nanos.and_then(Money::from_nanos).map_or_else(|| number.to_string(), |m| m.to_string())
}

/// Returns a message for each exceeded limit, with the log line that exceeded it.
pub(super) fn exceeded(outcome: &Outcome, logs: &Logs) -> Vec<String> {
    let mut found = Vec::new();
    for Row { key, found: about, .. } in &outcome.rows {
        let Some((finding, position)) = about.exceeded else { continue };
        let (key, scope) = (key.as_str().into(), about.scope.clone());
        let violation = Violation { key, scope, finding };
        let position =
            position.map(|position| format!(" ({})", logs.name(position))).unwrap_or_default();
        found.push(format!("{violation}{position}"));
    }
    found
}

/// Returns notes on the scope of the proof.
pub(super) fn notes(outcome: &Outcome, logs: &Logs, all: Bound) -> Vec<String> {
    let mut notes = Vec::new();
    let begin = logs.processes.begin();
    let slices = logs.processes.iter().filter(|process| process.is_slice());
    if let Some(last) = slices.max_by_key(|process| process.known_from()) {
        notes.push(format!(
            "the first lines of {} are missing: windows that begin before {begin} are not proven",
            last.name
        ));
    }
    for process in logs.processes.iter().filter(|process| !process.has_ended()) {
        let (at, (_, position)) = (process.known_until(), process.last);
        notes.push(format!(
            "{} has no end line: it was killed or is still running, so its admissions after {at} \
             ({}) are unknown",
            process.name,
            logs.name(position)
        ));
    }
    for position in &logs.stats.torn {
        notes.push(format!("{}: the line is cut off", logs.name(*position)));
    }
    let processes = logs.processes.iter().count();
    if processes > 1 && outcome.rows.iter().any(Row::fails) {
        notes.push(format!(
            "the lines are of {processes} processes: with a memory store, check the log of each alone, \
             because each counts by itself"
        ));
    }
    if outcome.shared > 0 {
        notes.push(format!(
            "{} by the store not compared with the log, because the store was full (store.keys_max) \
             and counted several keys together",
            plural(outcome.shared, "count")
        ));
    }
    if outcome.by_node > 0 {
        notes.push(format!(
            "{} decided by nodes on their own while the store did not respond; together with those \
             of the store, they are checked against {all} of each limit (--bound)",
            plural(outcome.by_node, "admission")
        ));
    }
    notes
}

/// Returns `proven`, or `proven up to` a time.
pub(super) fn proven(logs: &Logs) -> String {
    match logs.processes.up_to() {
        Some(process) => format!("proven up to {}", process.known_until()),
        None => "proven".to_owned(),
    }
}

/// Formats an error in the lines of a process.
fn flaw(process: &Process, flaw: &Flaw, logs: &Logs) -> String {
    let name = &process.name;
    let numbers = |what: &str, from: u64, to: u64| match from == to {
        true => format!("{what} {from} of {name} is missing"),
        false => format!("{what}s {from} to {to} of {name} are missing"),
    };
    match *flaw {
        Flaw::Missing { what, from, to, before } => {
            format!("{}: {} before this line", logs.name(before), numbers(what, from, to))
        }
        Flaw::Cut { what, from, to } => numbers(what, from, to),
        Flaw::AfterEnd(line) => format!("line {line} of {name} comes after its end line"),
        Flaw::Jump(position) => format!(
            "{}: the difference between `at` and `timestamp` jumps by more than a minute",
            logs.name(position)
        ),
    }
}

/// Returns the reasons for which the log is incomplete or was changed.
fn incomplete(outcome: &Outcome, logs: &Logs) -> Vec<String> {
    let mut doubts = Vec::new();
    let stats = &logs.stats;
    if let Some(position) = stats.unnumbered {
        doubts.push(format!(
            "{}: no sequence numbers (fields node, started, seq, line): the log was written by an \
             older version",
            logs.name(position)
        ));
    }
    if let (lines, Some(position)) = stats.repeated {
        let lines = plural(lines, "line");
        doubts.push(format!("{}: {lines} with duplicate sequence numbers", logs.name(position)));
    }
    for process in logs.processes.iter() {
        doubts.extend(process.flaws().iter().take(1).map(|one| flaw(process, one, logs)));
    }
    let begin = logs.processes.begin();
    let open = logs.processes.up_to();
    let up_to = open.map(Process::known_until);
    if let Some(too_short) = open.and_then(Process::too_short) {
        doubts.push(too_short);
    } else if let Some(up_to) = up_to.filter(|&up_to| up_to < begin) {
        doubts.push(format!(
            "the logs of the processes do not overlap in time: one begins at {begin}, another \
             ends at {up_to}"
        ));
    }
    if let (None, Some(torn)) = (up_to, stats.torn.first()) {
        doubts.push(format!("{}: a line after the end line is cut off", logs.name(*torn)));
    }
    let known = |at| at >= begin && up_to.is_none_or(|up_to| at <= up_to);
    if let Some((key, found)) = outcome.unexplained.iter().find(|(_, found)| known(found.at)) {
        doubts.push(format!(
            "{}: the store counted {} on {key}, but the log contains only {}: lines or the log of a \
             node are missing",
            logs.name(found.position),
            found.count,
            found.explained
        ));
    }
    doubts
}

/// Returns the reasons for which a log without a violation proves nothing.
pub(super) fn doubts(outcome: &Outcome, logs: &Logs) -> Vec<String> {
    let stats = &logs.stats;
    let mut doubts = incomplete(outcome, logs);
    if let Some(ppm) = stats.sample_ppm {
        let percent = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
        let percent = percent.trim_end_matches('0').trim_end_matches('.');
        doubts.push(format!(
            "only {percent} % of admissions are logged, and a sample proves nothing: set \
             log.decisions.allowed to 1.0"
        ));
    }
    if stats.dropped > 0 {
        let lines = plural(stats.dropped, "line");
        doubts.push(format!("{lines} dropped when the log was written"));
    }
    if stats.malformed > 0 {
        doubts.push(format!("{} malformed", plural(stats.malformed, "line")));
    }
    if outcome.late > 0 {
        let late = plural(outcome.late, "admission");
        doubts.push(format!("{late} more than {DISORDER_MAX} out of order: sort the log by `at`"));
    }
    let unsettled = outcome.rows.iter().filter(|row| row.found.unsettled.is_some()).count();
    if unsettled > 0 {
        let limits = plural(unsettled as u64, "limit");
        doubts.push(format!(
            "{limits} exceeded, unless reservations or bookings were given back that the log does \
             not contain"
        ));
    }
    if outcome.admits == 0 {
        doubts.push("no request was admitted".to_owned());
    }
    doubts
}

/// Formats the size of the log, as `12,345 admissions on 1,234 counters under 3 limits`.
pub(super) fn extent(outcome: &Outcome) -> String {
    format!(
        "{} on {} under {}",
        plural(outcome.admits, "admission"),
        plural(outcome.counters as u64, "counter"),
        plural(outcome.limits as u64, "limit")
    )
}

/// Formats a number with a noun: `1 admission`, `12,345 admissions`.
pub(super) fn plural(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(number))
}

/// Formats a number with thousands separators: `12,345`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")]
        {
            assert_eq!(grouped(number), text);
        }
    }
}

//! What is said of a log.

use sluicegate_checker::{Bound, Violation};
use sluicegate_core::Money;
use sluicegate_core::limit::Unit;

use super::super::check::table;
use super::counter::DISORDER_MAX;
use super::ledger::{Outcome, Row};
use super::logs::Logs;
use super::processes::{Flaw, Process};

/// The fullest windows.
pub(super) fn fullest(outcome: &Outcome, top: usize) -> String {
    let row = |row: &Row| {
        let (scope, worst) = (&row.found.scope, row.found.worst);
        let unit = scope.limit().unit();
        [
            row.key.clone(),
            scope.to_string(),
            grouped(row.admits),
            format!("{} of {}", amount(worst.sum, unit), amount(worst.allowed, unit)),
            worst.interval.to_string(),
        ]
    };
    let rows: Vec<_> = outcome.rows.iter().take(top).map(row).collect();
    let mut text = table(&["counter", "limit", "admits", "fullest", "window"], &rows);
    if outcome.rows.len() > top {
        let more = grouped((outcome.rows.len() - top) as u64);
        text.push_str(&format!("\n… and {more} more"));
    }
    text
}

/// A number; of money, dollars.
fn amount(number: u128, unit: Unit) -> String {
    let nanos = u64::try_from(number).ok().filter(|_| unit == Unit::Usd);
    nanos.and_then(Money::from_nanos).map_or_else(|| number.to_string(), |m| m.to_string())
}

/// The limits that were exceeded, each with the line that did.
pub(super) fn exceeded(outcome: &Outcome, logs: &Logs) -> Vec<String> {
    let mut found = Vec::new();
    for Row { key, found: about, .. } in &outcome.rows {
        let Some((finding, place)) = about.exceeded else { continue };
        let (key, scope) = (key.as_str().into(), about.scope.clone());
        let violation = Violation { key, scope, finding };
        let place = place.map(|place| format!(" ({})", logs.name(place))).unwrap_or_default();
        found.push(format!("\x1b[1;31mexceeded:\x1b[0m {violation}{place}"));
    }
    found
}

/// What to know of a proof.
pub(super) fn notes(outcome: &Outcome, logs: &Logs, all: Bound) -> Vec<String> {
    let mut notes = Vec::new();
    let begin = logs.processes.begin();
    let slices = logs.processes.iter().filter(|process| process.is_slice());
    if let Some(last) = slices.max_by_key(|process| process.known_from()) {
        notes.push(format!(
            "the first lines of {} are not there: windows that begin before {begin} are not proven",
            last.name
        ));
    }
    for process in logs.processes.iter().filter(|process| !process.has_ended()) {
        let (at, (_, place)) = (process.known_until(), process.last);
        notes.push(format!(
            "{} has no end line: it was killed or is still running, and what it admitted after {at} \
             ({}) is not known",
            process.name,
            logs.name(place)
        ));
    }
    for place in &logs.seen.torn {
        notes.push(format!("{} is cut off", logs.name(*place)));
    }
    if outcome.alone > 0 {
        notes.push(format!(
            "decided by nodes on their own while the store did not answer: {}; together with those \
             of the store they are held to {all} of each limit (--bound)",
            counted(outcome.alone, "admit")
        ));
    }
    notes
}

/// `proven`, or until when.
pub(super) fn proven(logs: &Logs) -> String {
    match logs.processes.up_to() {
        Some(process) => format!("proven up to {}", process.known_until()),
        None => "proven".to_owned(),
    }
}

/// What is wrong with the lines of a process.
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
        Flaw::Jump(place) => format!(
            "{}: `at` and `timestamp` lie more than a minute further apart than in the line before",
            logs.name(place)
        ),
    }
}

/// Why the lines of a log are not all there, or not as they were written.
fn incomplete(outcome: &Outcome, logs: &Logs) -> Vec<String> {
    let mut doubts = Vec::new();
    let seen = &logs.seen;
    if let Some(place) = seen.unnumbered {
        doubts.push(format!(
            "{}: there is no sequence number (node, started, seq, line): write the log with this \
             version",
            logs.name(place)
        ));
    }
    if let (lines, Some(place)) = seen.repeated {
        let lines = counted(lines, "line");
        doubts.push(format!("{}: {lines} with numbers that are there before", logs.name(place)));
    }
    for process in logs.processes.iter() {
        doubts.extend(process.flaws().iter().take(1).map(|one| flaw(process, one, logs)));
    }
    let (begin, up_to) = (logs.processes.begin(), logs.processes.up_to());
    let up_to = up_to.map(Process::known_until);
    if let Some(up_to) = up_to.filter(|&up_to| up_to < begin) {
        doubts.push(format!(
            "there is no time at which all processes are known: one is known from {begin} on, \
             another until {up_to}"
        ));
    }
    if let (None, Some(torn)) = (up_to, seen.torn.first()) {
        doubts.push(format!("{}: the line is cut off after the end", logs.name(*torn)));
    }
    let known = |at| at >= begin && up_to.is_none_or(|up_to| at <= up_to);
    if let Some((key, found)) = outcome.unexplained.iter().find(|(_, found)| known(found.at)) {
        doubts.push(format!(
            "{}: the store had counted {} on {key}, where the log explains {}: lines or the log of \
             a node are missing",
            logs.name(found.place),
            found.count,
            found.explained
        ));
    }
    doubts
}

/// Why a log without a violation proves nothing all the same.
pub(super) fn doubts(outcome: &Outcome, logs: &Logs) -> Vec<String> {
    let seen = &logs.seen;
    let mut doubts = incomplete(outcome, logs);
    if let Some(ppm) = seen.sample_ppm {
        let percent = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
        let percent = percent.trim_end_matches('0').trim_end_matches('.');
        doubts.push(format!(
            "only {percent} % of admissions are logged, and a sample proves nothing: \
             set log.decisions.allowed to 1.0"
        ));
    }
    if seen.dropped > 0 {
        let lines = counted(seen.dropped, "line");
        doubts.push(format!("{lines} got lost when the log was written"));
    }
    if seen.malformed > 0 {
        doubts.push(format!("{} can't be read", counted(seen.malformed, "line")));
    }
    if outcome.late > 0 {
        let late = counted(outcome.late, "admit");
        doubts.push(format!(
            "{late} came more than {DISORDER_MAX} out of order: sort the log by `at`"
        ));
    }
    let unsettled = outcome.rows.iter().filter(|row| row.found.unsettled.is_some()).count();
    if unsettled > 0 {
        let limits = counted(unsettled as u64, "limit");
        doubts.push(format!(
            "{limits} exceeded unless reservations or bookings were given back, \
             which the log does not say"
        ));
    }
    if outcome.admits == 0 {
        doubts.push("nothing was admitted".to_owned());
    }
    doubts
}

/// `12,345 admits on 1,234 counters under 3 limits`.
pub(super) fn extent(outcome: &Outcome) -> String {
    format!(
        "{} on {} under {}",
        counted(outcome.admits, "admit"),
        counted(outcome.counters as u64, "counter"),
        counted(outcome.limits as u64, "limit")
    )
}

/// `1 admit`, `12,345 admits`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(number))
}

/// `12,345`.
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

//! What is said of a log.

use sluicegate_core::Money;
use sluicegate_core::checker::Violation;
use sluicegate_core::limit::Unit;

use super::super::check::table;
use super::counter::DISORDER_MAX;
use super::ledger::{Outcome, Row};
use super::logs::{Logs, Seen};

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

/// Why a log without a violation proves nothing all the same.
pub(super) fn doubts(outcome: &Outcome, seen: &Seen) -> Vec<String> {
    let mut doubts = Vec::new();
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

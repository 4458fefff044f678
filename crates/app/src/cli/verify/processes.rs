//! The processes that wrote the logs, and the check that all of their lines are present.
//!
//! | lines of a process | windows that can be proven |
//! |---|---|
//! | its first line, or a later one | those that begin after the first line present |
//! | its end line | all until its end |
//! | no end line | those until its last line: later admissions are unknown |
//! | a number is missing or occurs twice | none |
//!
//! A decision is logged after it was made, so lines are not in order of their timestamps. Where
//! lines are cut off at the begin or end, the provable time is shortened by the longest duration of
//! any decision of the process. A process that was killed after less time than that proves nothing.
//!
//! A decision may still have been in progress when the log ended, and have taken longer than all that
//! were logged. The counts of the store show that: they contain its charge. If earlier counts show that
//! such charges were all made near the end of a log, its provable time is shortened by
//! [`IN_PROGRESS_MAX`].

use std::collections::{BTreeMap, HashMap};

use sluicegate_core::{Span, Timestamp};

use super::line::{Event, LogEntry, Stamp};
use super::logs::LogPosition;

/// All processes that wrote lines.
#[derive(Default)]
pub(super) struct Processes {
    index_by_name: HashMap<String, usize>,
    all: Vec<Process>,
}

/// The lines of one process, in numbers.
pub(super) struct Process {
    /// Name of the node and start time of the process.
    pub(super) name: String,
    /// Line numbers and admission numbers seen.
    lines: NumberRanges,
    admits: NumberRanges,
    /// Times of the earliest and the latest line.
    pub(super) first: Timestamp,
    pub(super) last: (Timestamp, LogPosition),
    /// Number of the first line, and the time at which it was written, by the clock of the node.
    first_written: Option<(u64, Timestamp)>,
    /// Shortest time from a decision, by the clock of the store, to its line, by that of the node: the
    /// difference of the clocks, and at most a moment more.
    delay_min: Option<i64>,
    /// Longest duration of a call.
    longest: Span,
    /// True if the store counted an admission near the end of the log that has no line in it.
    in_progress: bool,
    /// Number of lines that the process reported as dropped.
    dropped: u64,
    /// True if only a sample of its admissions is logged.
    sampled: bool,
    /// Number of the end line, and of the last admission as it reports.
    end: Option<(u64, u64)>,
    /// Difference between the clocks of the node and the store in the last line, in microseconds.
    ahead: Option<i64>,
    /// First line in which that difference jumped.
    jumped: Option<LogPosition>,
}

/// Maximum change of the clock difference between a node and the store from one line to the next.
const JUMP_MAX_MICROS: u64 = 60_000_000;

/// Maximum time from a charge by the store to its log line that is assumed for a decision that was in
/// progress when a log ended without an end line.
const IN_PROGRESS_MAX: Span = Span::from_secs(10);

/// Set of numbers as ranges: first number → (last number, position of the first).
#[derive(Default)]
struct NumberRanges(BTreeMap<u64, (u64, LogPosition)>);

/// An error in the lines of a process: some are missing or were changed.
pub(super) enum Flaw {
    /// The numbers `from` to `to` are missing before the line at `before`.
    Missing { what: &'static str, from: u64, to: u64, before: LogPosition },
    /// The end line reports a higher number than any line has.
    Cut { what: &'static str, from: u64, to: u64 },
    /// A line comes after the end line.
    AfterEnd(u64),
    /// The timestamps of the store and the node in a line contradict each other.
    Jump(LogPosition),
}

impl Processes {
    /// Records a line. Returns false if its line number or its admission number was seen before.
    pub(super) fn see(&mut self, stamp: Stamp, entry: &LogEntry, position: LogPosition) -> bool {
        let Stamp { process, seq, line, admits, written } = stamp;
        let index = match self.index_by_name.get(&process) {
            Some(&index) => index,
            None => {
                self.index_by_name.insert(process.clone(), self.all.len());
                self.all.push(Process::new(process, entry.at, position));
                self.all.len() - 1
            }
        };
        let process = &mut self.all[index];
        if !process.lines.add(line, position) || admits && !process.admits.add(seq, position) {
            return false;
        }
        if let Some(written) = written {
            if process.first_written.is_none_or(|(first, _)| line < first) {
                process.first_written = Some((line, written));
            }
            // The time of an entry without a time of the store is that of the node.
            if entry.ahead.is_some() {
                let delay = written.as_micros() as i64 - entry.at.as_micros() as i64;
                process.delay_min = Some(process.delay_min.map_or(delay, |min| min.min(delay)));
            }
        }
        process.first = process.first.min(entry.at);
        if process.last.0 <= entry.at {
            process.last = (entry.at, position);
        }
        if let Some(ahead) = entry.ahead {
            let before = process.ahead.replace(ahead);
            if before.is_some_and(|before| before.abs_diff(ahead) > JUMP_MAX_MICROS) {
                process.jumped.get_or_insert(position);
            }
        }
        process.longest = process.longest.max(entry.latency);
        process.dropped += entry.dropped;
        process.sampled |= entry.sample_ppm.is_some();
        if entry.event == Event::End {
            process.end = Some((line, seq));
        }
        true
    }

    /// Takes note that the store counted admissions without a line, all of them made after `since`.
    /// Near the end of a log without an end line, these are decisions that were in progress.
    pub(super) fn allow_for_decisions_in_progress(&mut self, since: Timestamp) {
        for process in self.all.iter_mut().filter(|process| process.end.is_none()) {
            process.in_progress |= since >= process.last.0 - IN_PROGRESS_MAX;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.all.iter()
    }

    /// Returns the time from which all lines are present, as far as the logs have been read.
    pub(super) fn begin(&self) -> Timestamp {
        let cut = self.all.iter().filter(|process| process.is_slice());
        let cut = cut.map(Process::known_from).max();
        let first = self.all.iter().map(|process| process.first).min();
        cut.max(first).unwrap_or_default()
    }

    /// Returns the process whose lines end first; `None` if all processes shut down cleanly.
    pub(super) fn up_to(&self) -> Option<&Process> {
        let open = self.all.iter().filter(|process| process.end.is_none());
        open.min_by_key(|process| process.known_until())
    }
}

impl Process {
    fn new(name: String, at: Timestamp, position: LogPosition) -> Self {
        Self {
            name,
            lines: NumberRanges::default(),
            admits: NumberRanges::default(),
            first: at,
            last: (at, position),
            first_written: None,
            delay_min: None,
            longest: Span::ZERO,
            in_progress: false,
            dropped: 0,
            sampled: false,
            end: None,
            ahead: None,
            jumped: None,
        }
    }

    /// Returns the time from which its admissions are known, if its first lines are missing: these
    /// were written before the first line that is present.
    pub(super) fn known_from(&self) -> Timestamp {
        let written = self.first_written.zip(self.delay_min).map(|((_, written), delay)| {
            let micros = written.as_micros().checked_add_signed(-delay);
            micros.map_or(written, Timestamp::from_micros)
        });
        self.first.max(written.unwrap_or(self.first)) + self.longest
    }

    /// Returns the time until which its admissions are known, if its last lines are missing.
    pub(super) fn known_until(&self) -> Timestamp {
        self.last.0 - self.unlogged_max()
    }

    /// Returns the maximum time for which decisions before the last line may have no line yet.
    fn unlogged_max(&self) -> Span {
        self.longest.max(if self.in_progress { IN_PROGRESS_MAX } else { Span::ZERO })
    }

    /// Returns the reason for which its lines prove nothing, if they cover too little time.
    pub(super) fn too_short(&self) -> Option<String> {
        let (name, covered) = (&self.name, self.last.0.since(self.first));
        (covered < self.unlogged_max()).then(|| match self.in_progress {
            false => format!(
                "{name} has no end line, and its lines cover less time than its longest decision \
                 took ({})",
                self.longest
            ),
            true => format!(
                "{name} has no end line, the store counted admissions that have no line yet, and the \
                 lines cover less than {IN_PROGRESS_MAX}"
            ),
        })
    }

    /// Returns true if its first lines are missing.
    pub(super) fn is_slice(&self) -> bool {
        self.lines.first() > Some(1)
    }

    /// Returns true if it shut down cleanly.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the errors in its lines. Lines that it reported as dropped are not errors.
    pub(super) fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        if self.lines.missing() > self.dropped {
            flaws.extend(self.lines.gaps("line"));
        }
        let whole = self.lines.missing() == 0 && !self.sampled && self.dropped == 0;
        if whole {
            flaws.extend(self.admits.gaps("admission"));
        }
        if let Some((line, seq)) = self.end {
            if let Some(later) = self.lines.last().filter(|&last| last > line) {
                flaws.push(Flaw::AfterEnd(later));
            }
            let last = self.admits.last().unwrap_or_default();
            let begins = self.is_slice() && self.admits.0.is_empty();
            if whole && last != seq && !begins {
                let (from, to) = (last.min(seq) + 1, last.max(seq));
                flaws.push(Flaw::Cut { what: "admission", from, to });
            }
        }
        // The first admission must have the number 1.
        if whole && !self.is_slice() && self.admits.first().is_some_and(|first| first > 1) {
            let (from, to) = (1, self.admits.first().unwrap_or_default() - 1);
            flaws.push(Flaw::Cut { what: "admission", from, to });
        }
        flaws.extend(self.jumped.map(Flaw::Jump));
        flaws
    }
}

impl NumberRanges {
    /// Adds a number. Returns false if it was present.
    fn add(&mut self, number: u64, position: LogPosition) -> bool {
        let before = self.0.range(..=number).next_back().map(|(&from, &range)| (from, range));
        if before.is_some_and(|(_, (to, _))| number <= to) {
            return false;
        }
        let after = number.checked_add(1).and_then(|next| self.0.remove(&next));
        let to = after.map_or(number, |(to, _)| to);
        match before {
            Some((from, (last, first))) if last + 1 == number => {
                self.0.insert(from, (to, first));
            }
            _ => {
                self.0.insert(number, (to, position));
            }
        }
        true
    }

    fn first(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    fn last(&self) -> Option<u64> {
        self.0.values().next_back().map(|(to, _)| *to)
    }

    /// Returns the number of missing numbers between the first and the last.
    fn missing(&self) -> u64 {
        let seen: u64 = self.0.iter().map(|(from, (to, _))| to - from + 1).sum();
        let all = self.last().zip(self.first()).map_or(0, |(last, first)| last - first + 1);
        all.saturating_sub(seen)
    }

    fn gaps(&self, what: &'static str) -> impl Iterator<Item = Flaw> {
        let ranges = self.0.iter().zip(self.0.iter().skip(1));
        ranges.map(move |((_, (to, _)), (next, (_, before)))| Flaw::Missing {
            what,
            from: to + 1,
            to: next - 1,
            before: *before,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_any_order_become_ranges() {
        let position = LogPosition::new(0, 1);
        let mut numbers = NumberRanges::default();
        for number in [3, 1, 2, 9, 7, 8] {
            assert!(numbers.add(number, position));
        }
        assert!(!numbers.add(2, position) && !numbers.add(9, position));
        assert_eq!((numbers.first(), numbers.last(), numbers.missing()), (Some(1), Some(9), 3));
        let gaps: Vec<_> = numbers.gaps("line").collect();
        assert!(matches!(gaps[..], [Flaw::Missing { from: 4, to: 6, .. }]));
    }
}

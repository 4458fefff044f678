//! Reads several log files as one stream, merged by time, and collects statistics about the lines.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::line::{self, Event, Line, LogEntry, Stamp};
use super::processes::Processes;

/// Maximum length of a line. A decision has a few hundred bytes, or some kilobytes with ids of
/// maximum length.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Number of entries of each file that are read ahead. A line may be this much out of order.
const AHEAD_MAX: usize = 64;
/// Maximum number of malformed lines to print.
const SHOWN_MAX: usize = 10;

/// The merged logs of all nodes.
pub(super) struct Logs {
    logs: Vec<Log>,
    /// Statistics of the lines read so far.
    pub(super) stats: LineStats,
    /// Processes that wrote the lines.
    pub(super) processes: Processes,
}

/// Statistics about the lines of all logs.
#[derive(Debug, Default)]
pub(super) struct LineStats {
    pub(super) decisions: u64,
    /// Number of lines that are not log entries.
    pub(super) others: u64,
    /// Number of malformed lines.
    pub(super) malformed: u64,
    /// Messages about the first malformed lines.
    pub(super) shown: Vec<String>,
    /// Number of lines that were lost when the log was written.
    pub(super) dropped: u64,
    /// Smallest sample rate of admissions of any node; none if all are logged.
    pub(super) sample_ppm: Option<u32>,
    /// First line without sequence numbers.
    pub(super) unnumbered: Option<LogPosition>,
    /// Number of duplicate lines, and the first of them.
    pub(super) repeated: (u64, Option<LogPosition>),
    /// Last lines of files that are cut off.
    pub(super) torn: Vec<LogPosition>,
}

/// Position of a line: file and line number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogPosition {
    log: u16,
    line: u32,
}

impl LogPosition {
    #[cfg(test)]
    pub(super) const fn new(log: u16, line: u32) -> Self {
        Self { log, line }
    }
}

struct Log {
    number: u16,
    name: String,
    input: Box<dyn BufRead>,
    line: u32,
    /// Next entries, read ahead to merge the logs by time, and to restore the order of lines that a
    /// log shipper has mixed up a little.
    ahead: VecDeque<NextEntry>,
    ended: bool,
    hasher: RandomState,
}

/// An entry that was read ahead.
struct NextEntry {
    /// Line in the file.
    line: u32,
    /// Hash of the process that wrote it, and its line number in that process, if it has one.
    written: Option<(u64, u64)>,
    entry: LogEntry,
}

impl Logs {
    /// Opens log files; `-` is standard input.
    pub(super) fn open(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let numbered = paths.iter().zip(0..=u16::MAX);
        let logs = numbered.map(|(path, number)| Log::open(path, number));
        let logs = logs.collect::<anyhow::Result<Vec<_>>>()?;
        anyhow::ensure!(logs.len() == paths.len(), "too many logs: at most {} at once", logs.len());
        let mut logs = Self { logs, stats: LineStats::default(), processes: Processes::default() };
        for log in &mut logs.logs {
            log.fill(&mut logs.stats, &mut logs.processes)?;
        }
        Ok(logs)
    }

    /// Returns the next entry of all logs in order of time.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<(LogPosition, LogEntry)>> {
        let waiting = self.logs.iter_mut().filter_map(|log| {
            let first = log.first()?;
            Some((log.ahead[first].entry.at, first, log))
        });
        let Some((_, first, log)) = waiting.min_by_key(|(at, ..)| *at) else { return Ok(None) };
        let Some(NextEntry { line, entry, .. }) = log.ahead.remove(first) else { return Ok(None) };
        let position = LogPosition { log: log.number, line };
        log.fill(&mut self.stats, &mut self.processes)?;
        Ok(Some((position, entry)))
    }

    /// Counts a line that could be parsed, but has invalid values.
    pub(super) fn malformed(&mut self, position: LogPosition, error: &impl fmt::Display) {
        let shown = format!("{}: {error}", self.name(position));
        self.stats.malformed(shown);
    }

    /// Formats a position as `node1.log:17`.
    pub(super) fn name(&self, position: LogPosition) -> String {
        format!("{}:{}", self.logs[usize::from(position.log)].name, position.line)
    }
}

impl LineStats {
    /// Records dropped lines and the sample rate that a line reports.
    fn missing(&mut self, dropped: u64, sample_ppm: Option<u32>) {
        self.dropped += dropped;
        if let Some(ppm) = sample_ppm {
            self.sample_ppm = Some(self.sample_ppm.map_or(ppm, |least| least.min(ppm)));
        }
    }

    fn malformed(&mut self, shown: String) {
        self.malformed += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(shown);
        }
    }
}

impl Log {
    fn open(path: &Path, number: u16) -> anyhow::Result<Self> {
        let (name, input): (_, Box<dyn BufRead>) = match path.to_str() {
            Some("-") => ("stdin".to_owned(), Box::new(BufReader::new(io::stdin()))),
            _ => {
                let name = path.display().to_string();
                let file = File::open(path).with_context(|| format!("can't read {name}"))?;
                (name, Box::new(BufReader::with_capacity(1 << 16, file)))
            }
        };
        let (ahead, hasher) = (VecDeque::new(), RandomState::new());
        Ok(Self { number, name, input, line: 0, ahead, ended: false, hasher })
    }

    /// Returns the index of the entry that comes first: of those that the process of the next line
    /// wrote, the one with the smallest number.
    fn first(&self) -> Option<usize> {
        let next = self.ahead.front()?;
        let Some((process, _)) = next.written else { return Some(0) };
        let same = self.ahead.iter().enumerate().filter_map(|(index, entry)| {
            entry.written.filter(|(other, _)| *other == process).map(|(_, line)| (line, index))
        });
        same.min().map(|(_, index)| index)
    }

    /// Reads ahead.
    fn fill(&mut self, stats: &mut LineStats, processes: &mut Processes) -> anyhow::Result<()> {
        while !self.ended && self.ahead.len() < AHEAD_MAX {
            self.advance(stats, processes)?;
        }
        Ok(())
    }

    /// Reads up to the next log entry.
    fn advance(&mut self, stats: &mut LineStats, processes: &mut Processes) -> anyhow::Result<()> {
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            let input = &mut self.input;
            input
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut buffer)
                .with_context(|| format!("can't read {}", self.name))?;
            if buffer.is_empty() {
                self.ended = true;
                return Ok(());
            }
            self.line = self.line.saturating_add(1);
            let complete = buffer.ends_with(b"\n");
            if !complete && buffer.len() as u64 == LINE_BYTES_MAX {
                self.input.skip_until(b'\n')?;
                self.malformed(stats, "line too long: more than 1 MiB");
                continue;
            }
            let position = LogPosition { log: self.number, line: self.line };
            match line::read(&buffer) {
                Ok(Line::LogEntry(mut entry)) => {
                    stats.decisions += u64::from(matches!(entry.event, Event::Decision(_)));
                    stats.missing(entry.dropped, entry.sample_ppm);
                    let stamp = entry.stamp.take();
                    let hash = |stamp: &Stamp| (self.hasher.hash_one(&stamp.process), stamp.line);
                    let written = stamp.as_ref().map(hash);
                    if stamp.is_none() {
                        stats.unnumbered.get_or_insert(position);
                    }
                    if stamp.is_some_and(|stamp| !processes.see(stamp, &entry, position)) {
                        stats.repeated.0 += 1;
                        stats.repeated.1.get_or_insert(position);
                        continue;
                    }
                    self.ahead.push_back(NextEntry { line: self.line, written, entry });
                    return Ok(());
                }
                Ok(Line::Other) => stats.others += 1,
                // The process was killed while writing it, or is still writing it.
                Err(_) if !complete => stats.torn.push(position),
                Err(error) => self.malformed(stats, &error),
            }
        }
    }

    /// Counts the line that was just read as malformed.
    fn malformed(&self, stats: &mut LineStats, error: &str) {
        stats.malformed(format!("{}:{}: {error}", self.name, self.line));
    }
}

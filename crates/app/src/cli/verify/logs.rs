//! Several logs, read as one: the decision that was made first comes first.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sluicegate_core::Timestamp;

use super::line::{self, Decision, Followed, Line};

/// A decision is a few hundred bytes, and some kilobytes with every id as long as it may be.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How many lines that can't be read are shown.
const SHOWN_MAX: usize = 10;

/// The logs of all nodes.
pub(super) struct Logs {
    logs: Vec<Log>,
    /// What was found in them so far.
    pub(super) seen: Seen,
}

/// What was found besides admissions.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) decisions: u64,
    /// Lines that say something else.
    pub(super) others: u64,
    /// Lines that could not be read.
    pub(super) malformed: u64,
    /// The first of those, each with its place.
    pub(super) shown: Vec<String>,
    /// Lines that were lost when the log was written.
    pub(super) dropped: u64,
    /// The smallest share of admissions that any node logged, if not all.
    pub(super) sample_ppm: Option<u32>,
}

/// Where something is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    log: u16,
    line: u32,
}

struct Log {
    name: String,
    input: Box<dyn BufRead>,
    line: u32,
    /// Read ahead, so that logs can be compared.
    next: Option<(u32, Event)>,
}

/// What happened.
pub(super) enum Event {
    Decided(Decision),
    Followed(Followed),
}

impl Event {
    /// When, by the clock of the store.
    const fn at(&self) -> Timestamp {
        match self {
            Self::Decided(decision) => decision.at,
            Self::Followed(followed) => followed.at,
        }
    }
}

impl Logs {
    /// Opens files; `-` is standard input.
    pub(super) fn open(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let logs = paths.iter().map(|path| Log::open(path)).collect::<anyhow::Result<_>>()?;
        let mut logs = Self { logs, seen: Seen::default() };
        for log in &mut logs.logs {
            log.advance(&mut logs.seen)?;
        }
        Ok(logs)
    }

    /// What happened next, in all logs.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<(Place, Event)>> {
        let waiting = self.logs.iter_mut().enumerate().filter(|(_, log)| log.next.is_some());
        let first = waiting.min_by_key(|(_, log)| log.next.as_ref().map(|(_, next)| next.at()));
        let Some((number, log)) = first else { return Ok(None) };
        let Some((line, event)) = log.next.take() else { return Ok(None) };
        log.advance(&mut self.seen)?;
        let log = u16::try_from(number).context("more logs than can be read at once")?;
        Ok(Some((Place { log, line }, event)))
    }

    /// Takes note of a decision that could be read, but not understood.
    pub(super) fn malformed(&mut self, place: Place, error: &impl fmt::Display) {
        let shown = format!("{}: {error}", self.name(place));
        self.seen.malformed(shown);
    }

    /// `node1.log:17`.
    pub(super) fn name(&self, place: Place) -> String {
        format!("{}:{}", self.logs[usize::from(place.log)].name, place.line)
    }
}

impl Seen {
    /// A line tells what is not in the log.
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
    fn open(path: &Path) -> anyhow::Result<Self> {
        let (name, input): (_, Box<dyn BufRead>) = match path.to_str() {
            Some("-") => ("stdin".to_owned(), Box::new(BufReader::new(io::stdin()))),
            _ => {
                let name = path.display().to_string();
                let file = File::open(path).with_context(|| format!("can't read {name}"))?;
                (name, Box::new(BufReader::with_capacity(1 << 16, file)))
            }
        };
        Ok(Self { name, input, line: 0, next: None })
    }

    /// Reads on until something happened.
    fn advance(&mut self, seen: &mut Seen) -> anyhow::Result<()> {
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            let input = &mut self.input;
            input
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut buffer)
                .with_context(|| format!("can't read {}", self.name))?;
            if buffer.is_empty() {
                return Ok(());
            }
            self.line = self.line.saturating_add(1);
            let complete = buffer.ends_with(b"\n");
            if !complete && buffer.len() as u64 == LINE_BYTES_MAX {
                self.input.skip_until(b'\n')?;
                self.malformed(seen, "longer than any decision");
                continue;
            }
            match line::read(&buffer) {
                Ok(Line::Decision(decision)) => {
                    seen.decisions += 1;
                    seen.missing(decision.dropped, decision.sample_ppm);
                    self.next = Some((self.line, Event::Decided(decision)));
                    return Ok(());
                }
                Ok(Line::Followed(followed)) => {
                    seen.missing(followed.dropped, followed.sample_ppm);
                    self.next = Some((self.line, Event::Followed(followed)));
                    return Ok(());
                }
                Ok(Line::Other) => seen.others += 1,
                // Somebody is still writing it.
                Err(_) if !complete => seen.others += 1,
                Err(error) => self.malformed(seen, &error),
            }
        }
    }

    /// Takes note of the line that was just read.
    fn malformed(&self, seen: &mut Seen, error: &str) {
        seen.malformed(format!("{}:{}: {error}", self.name, self.line));
    }
}

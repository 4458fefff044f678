//! [`DecisionLog`]: writes one line per decision and per later change, for people, for programs, and
//! for `sluicegate verify`.
//!
//! A line of JSON has these fields; those in brackets are optional:
//!
//! | field | meaning |
//! |---|---|
//! | `timestamp`, `level` | the time of this node; `INFO`, or `WARN` for a denial |
//! | `requestId`, `operation` | the id of the work; `acquire`, `peek`, `book` or `claim` |
//! | [`traceId`] | the trace that the request belongs to |
//! | [`userId`, `tenantId`, `modelId`, `modelTier`, `clientType`] | dimensions with a separate field |
//! | [`apiKeyId`] | the keyed hash of `apiKey` |
//! | [`dimensions`], [`hashed`] | the other dimensions; secret ones by their keyed hashes |
//! | `allowed`, [`replayed`], [`shadowed`] | the decision; the shadow rules that would have denied it |
//! | [`decided`] | the source of an admission: `store`, `fallback` (this node's share while the store does not answer), `unlimited` (the same, uncounted), or `replay` (the id was admitted before) |
//! | [`reason`, `scopeHit`, `retryAt`] | the reason of a denial, the rule, and the time from which it would fit |
//! | [`remaining`, `windowResetAt`] | of the limit that was hit, or of the tightest |
//! | `latencyMs`, `scopes` | the time taken; the usage of every limit, with dollars as decimals |
//! | `at`, [`start`, `until`, `latest`] | the store's time; the start of a booking or of paced work; the time until which it must be claimed, renewed or settled; the latest time at which paced work may start |
//! | [`charges`] | what an admission charged, or would have charged at the store: key, limits, amount (money in nano-dollars), the lease of a slot; `need` if less or more than the amount had to fit; `at` if the servers of a Redis Cluster differ; for a replay and a claim, the earlier charges |
//! | [`uncharged`] | the reason why an admission has no charges |
//! | [`unconfirmed`] | the charges (key, amount) that the store may have made although it did not answer and an outage policy decided |
//! | [`claimant`] | the claimant of a booking |
//! | [`samplePpm`] | the logged share of such decisions, in parts per million |
//! | [`dropped`] | the number of lines missing before this one |
//! | `node`, `started` | the host, and the time when its process began to log: together they identify the process |
//! | `seq` | the number of admissions (`allowed`, without peeks) of the process up to this line, logged or not |
//! | `line` | the number of the line among all that the process wrote or dropped |
//! | `writtenUs` | the time at which the line got its number, in microseconds since `started`; never less than in an earlier line |
//!
//! Later changes have lines without `allowed`: `settle`, `release`, `cancel`, `renew`, `refund`,
//! `reset`, and a `claim` that is not answered with a decision.
//!
//! | field | meaning |
//! |---|---|
//! | `requestId`, `operation`, [`traceId`], `latencyMs`, `at` | as above |
//! | [`replayed`], [`claimant`], [`cost`] | the admission had ended before; the claimant of the handle; the actual cost |
//! | [`until`] | the end after a renewal |
//! | [`effect`, `start`, `charges`] | a claim that is `early`, `spent` or `rebooked`; its start; the charges at that time |
//! | [`charges`] | the refunded amounts, as far as the counters had any |
//! | [`keys`] | the counters that were reset |
//! | [`effect`] `unknown` | the store did not answer, or the caller stopped waiting: the change may or may not have happened; `unconfirmed` and `cost` are the charges that it may have made |
//!
//! The last line of a process that ends cleanly has the `operation` `end`: `seq` is the number of its
//! admissions, and `droppedTotal` the number of all lost lines.
//! `docs/decisions/018-what-a-log-proves.md` says what such a log proves.
//!
//! **A line is a line.** Ids are escaped, so a client can neither forge a line nor control a
//! terminal. **Secrets are hashed**: values of `apiKey`, and of the dimensions listed as secret,
//! never appear.
//!
//! **A decision never waits for the disk.** Each thread formats lines into its own buffer and copies
//! them to a bounded queue, which one thread writes out. A line that does not fit is dropped and
//! counted.

mod json;
mod line;
mod sample;
mod text;
mod writer;

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use line::Context;
pub(crate) use line::SecretDimensions;
use sample::Sampler;
pub use sluicegate_config::SampleRate;
use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Timestamp};
use writer::{LineEnd, Writer};

use crate::service::{ChangeEvent, DecisionEvent, Observer, Operation, UnansweredEvent};

/// The decision log. Clones share the same log.
#[derive(Clone)]
pub struct DecisionLog(Arc<Inner>);

struct Inner {
    format: LineFormat,
    sampler: Sampler,
    secrets: SecretDimensions,
    clock: Arc<dyn Clock>,
    process: Arc<LogProcess>,
    writer: Writer,
}

/// The process that writes the log, with its counters.
struct LogProcess {
    /// `"node":"…","started":"…"`, which every line repeats.
    name: Vec<u8>,
    started: Timestamp,
    /// Number of admissions, logged or not.
    admits: AtomicU64,
    /// Number of lines, written or dropped. The writer assigns the numbers, so they are in order.
    lines: AtomicU64,
}

impl LogProcess {
    fn new(node: &str, started: Timestamp) -> Self {
        let name = json::process(node, started);
        Self { name, started, admits: AtomicU64::new(0), lines: AtomicU64::new(0) }
    }

    /// Returns the numbers of the next line: the admissions so far, its own, and the time.
    fn numbers(&self, admits: bool, clock: &dyn Clock) -> (u64, u64, Span) {
        let seq = match admits {
            true => self.admits.fetch_add(1, Relaxed) + 1,
            false => self.admits.load(Relaxed),
        };
        (seq, self.lines.fetch_add(1, Relaxed) + 1, clock.now().since(self.started))
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineFormat {
    /// One JSON object per line, for programs.
    #[default]
    Json,
    /// A short text, for people at a terminal.
    Text,
}

/// Options of the decision log.
#[derive(Clone, Debug)]
pub struct Options {
    /// The format of the lines.
    pub format: LineFormat,
    /// The logged share of admissions; all by default.
    pub allowed: SampleRate,
    /// The logged share of denials; all by default, because users ask about them.
    pub denied: SampleRate,
    /// Dimensions that are logged as hashes, in addition to `apiKey`.
    pub secret: Vec<String>,
    /// Key of the hash, as in the settings of the ruleset. All nodes have the same key, so that a
    /// value has the same hash and a request is sampled the same way on each.
    pub hash_key: [u8; 32],
    /// Maximum size of the queue; 4 MiB by default, a few thousand lines.
    pub queue_bytes_max: usize,
    /// Name of this node in its lines, next to the start time of the process.
    pub node: String,
}

impl Options {
    /// Returns options that log everything as JSON.
    pub fn new(hash_key: [u8; 32]) -> Self {
        Self {
            format: LineFormat::default(),
            allowed: SampleRate::ALL,
            denied: SampleRate::ALL,
            secret: Vec::new(),
            hash_key,
            queue_bytes_max: 4 << 20,
            node: "node".to_owned(),
        }
    }
}

impl DecisionLog {
    /// Creates a log that writes to `out` in a separate thread. `clock` is the clock of this node.
    pub fn new(
        out: Box<dyn Write + Send>,
        clock: impl Clock + 'static,
        options: Options,
    ) -> io::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let process = Arc::new(LogProcess::new(&options.node, clock.now()));
        let (format, last, time) = (options.format, process.clone(), clock.clone());
        let end = move |lost| match format {
            LineFormat::Json => json::end_of_log(&last, &time, lost),
            LineFormat::Text => Vec::new(),
        };
        Ok(Self(Arc::new(Inner {
            format,
            sampler: Sampler::new(&options.hash_key, options.allowed, options.denied),
            secrets: SecretDimensions::new(options.secret, options.hash_key),
            clock,
            process,
            writer: Writer::start(out, options.queue_bytes_max, end)?,
        })))
    }

    /// Returns the number of lost lines: the queue was full, or the output failed.
    pub fn dropped(&self) -> u64 {
        self.0.writer.dropped()
    }

    /// Accepts no more lines, and waits until all accepted lines and the end line are written.
    pub fn close(&self) {
        self.0.writer.close();
    }
}

impl Observer for DecisionLog {
    fn on_decision(&self, event: &DecisionEvent<'_, '_, '_>) {
        let answer = &event.answer;
        let admits = answer.is_allowed() && event.operation != Operation::Peek;
        let share = self.0.sampler.takes(answer.plan().id.id, answer.decision().is_allowed());
        if share.is_none() && admits {
            self.0.process.admits.fetch_add(1, Relaxed);
        }
        self.line(share, admits, |format, context, out| match format {
            LineFormat::Json => json::decision(event, context, out),
            LineFormat::Text => text::decision(event, context, out),
        });
    }

    fn on_change(&self, event: &ChangeEvent<'_, '_>) {
        // Sampled like the admission that it belongs to.
        let share = self.0.sampler.takes(event.id, true);
        self.line(share, false, |format, context, out| match format {
            LineFormat::Json => json::change(event, context, out),
            LineFormat::Text => text::change(event, context, out),
        });
    }

    fn on_unanswered(&self, event: &UnansweredEvent<'_, '_>) {
        let share = self.0.sampler.takes(event.id, true);
        self.line(share, false, |format, context, out| match format {
            LineFormat::Json => json::unanswered(event, context, out),
            LineFormat::Text => text::unanswered(event, context, out),
        });
    }
}

impl DecisionLog {
    /// Writes a line, if it was sampled. `admits` is true for admissions, which are counted.
    fn line(
        &self,
        share: Option<SampleRate>,
        admits: bool,
        write: impl FnOnce(LineFormat, &Context<'_>, &mut Vec<u8>),
    ) {
        let Some(share) = share else { return };
        let Inner { format, secrets, clock, process, writer, .. } = &*self.0;
        thread_local! {
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        BUFFER.with_borrow_mut(|buffer| {
            let dropped = writer.take_missing();
            let context = Context { now: clock.now(), secrets, share, dropped, process };
            buffer.clear();
            write(*format, &context, buffer);
            let end = || match format {
                LineFormat::Json => LineEnd::numbered(process.numbers(admits, clock)),
                LineFormat::Text => LineEnd::plain(),
            };
            if !writer.send(buffer, end) {
                writer.missing(dropped);
            }
        });
    }
}

impl fmt::Debug for DecisionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionLog").field("format", &self.0.format).finish_non_exhaustive()
    }
}

//! One line per decision and per what follows it, for people, for machines, and for `verify`.
//!
//! A line of JSON has these fields; those in brackets only where there is something to say:
//!
//! | field | what it says |
//! |---|---|
//! | `timestamp`, `level` | the time of this node; `INFO`, or `WARN` for a denial |
//! | `requestId`, `operation` | the id of the work; `acquire`, `peek` or `book` |
//! | [`userId`, `tenantId`, `modelId`, `modelTier`, `clientType`] | dimensions that have a field of their own |
//! | [`apiKeyId`] | the keyed hash of `apiKey` |
//! | [`dimensions`], [`hashed`] | all others; those that are secret, by their keyed hashes |
//! | `allowed`, [`replayed`], [`shadowed`] | the decision; which shadow rules would have denied it |
//! | [`decided`] | who admitted it: `store`, `fallback` (this node's share while the store does not answer), `unlimited` (the same, uncounted), or `replay` (the id was admitted before) |
//! | [`reason`, `scopeHit`, `retryAt`] | why not, by which rule, and until when |
//! | [`remaining`, `windowResetAt`] | of the limit that hit, or of the tightest |
//! | `latencyMs`, `scopes` | what every limit showed: dollars as decimals |
//! | `at`, [`start`, `until`] | the store's time; of a booking its start; when it has to be claimed, renewed or settled |
//! | [`charges`] | of every admission what it charged, or would have charged at the store: key, limits, amount (money in nano-dollars), how long a slot is leased; `need` where less or more than the amount had to fit; `at` where the servers of a Redis Cluster differ; of a replay and of a claim, what was charged before |
//! | [`uncharged`] | why an admission has no charges |
//! | [`claimant`] | who claimed a booking |
//! | [`samplePpm`] | only so many of a million such decisions are logged |
//! | [`dropped`] | so many lines are missing before this one |
//! | `node`, `started` | the host, and when its process began to log: together they name the process |
//! | `seq` | how many admissions (`allowed`, without peeks) the process has made until this line, logged or not |
//! | `line` | the number of the line among all that the process wrote or dropped |
//!
//! What follows a decision has a line as well, without `allowed`: `settle`, `release`, `cancel`,
//! `renew`, `refund`, `reset`, and a `claim` that is not answered by a decision.
//!
//! | field | what it says |
//! |---|---|
//! | `requestId`, `operation`, `latencyMs`, `at` | as above |
//! | [`replayed`], [`claimant`], [`cost`] | it had ended before; by whose handle; the actual cost |
//! | [`until`] | how long it lasts after a renewal |
//! | [`effect`, `start`, `charges`] | a claim that is `early`, `spent` or `rebooked`; its start; what is charged then |
//! | [`charges`] | what was refunded, as far as it was there |
//! | [`keys`] | the counters that were reset |
//! | [`effect`] `unknown` | the store did not answer, or the caller stopped waiting: it may have been done or not |
//!
//! The last line of a process that ends in good order has the `operation` `end`: `seq` is the number
//! of its admissions, `droppedTotal` that of all lines that were lost. What such a log proves is in
//! `docs/decisions/018-what-a-log-proves.md`.
//!
//! **A line is a line.** Whatever ids contain is escaped, so nobody can write a second one, or make
//! a terminal do something. **Secrets are hashed**: values of `apiKey`, and of the dimensions
//! that are listed as secret, never get here.
//!
//! **A decision never waits for the disk.** Lines are formatted into a buffer of the thread and
//! copied to a bounded queue that one thread writes out; a line that has no room is dropped and
//! counted.

mod escape;
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

use line::{Context, Secrets};
use sample::Sampler;
pub use sample::Share;
use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;
use writer::{Ending, Writer};

use crate::service::{Decided, Followed, Observer, Operation, Unanswered};

/// The log. A clone is another handle to the same.
#[derive(Clone)]
pub struct DecisionLog(Arc<Inner>);

struct Inner {
    format: Format,
    sampler: Sampler,
    secrets: Secrets,
    clock: Arc<dyn Clock>,
    process: Arc<Process>,
    writer: Writer,
}

/// The process that writes the log, and how far it has come.
struct Process {
    /// `"node":"…","started":"…"`, which every line repeats.
    name: Vec<u8>,
    /// Admissions, logged or not.
    admits: AtomicU64,
    /// Lines, written or dropped. The writer draws their numbers, so that they are in order.
    lines: AtomicU64,
}

impl Process {
    fn new(node: &str, started: Timestamp) -> Self {
        let name = json::process(node, started);
        Self { name, admits: AtomicU64::new(0), lines: AtomicU64::new(0) }
    }

    /// The numbers of the next line: of admissions until then, and its own.
    fn numbers(&self, admits: bool) -> (u64, u64) {
        let seq = match admits {
            true => self.admits.fetch_add(1, Relaxed) + 1,
            false => self.admits.load(Relaxed),
        };
        (seq, self.lines.fetch_add(1, Relaxed) + 1)
    }
}

/// What lines look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// An object per line, for machines.
    #[default]
    Json,
    /// The essentials, for people at a terminal.
    Text,
}

/// How decisions are logged.
#[derive(Clone, Debug)]
pub struct Options {
    /// What lines look like.
    pub format: Format,
    /// How many of the admissions are logged; all unless set otherwise.
    pub allowed: Share,
    /// How many of the denials are logged; all unless set otherwise, because they are what people
    /// ask about.
    pub denied: Share,
    /// Dimensions of which only a hash is logged, besides `apiKey`.
    pub secret: Vec<String>,
    /// The key of that hash, as in the settings of the ruleset. Every node of an installation has
    /// the same: the same value has the same hash, and all nodes sample the same requests.
    pub hash_key: [u8; 32],
    /// How much may wait to be written; 4 MiB unless set otherwise, some thousand lines.
    pub queue_bytes_max: usize,
    /// What this node is called in its lines; beside it stands when the process began to log.
    pub node: String,
}

impl Options {
    /// Everything, as JSON.
    pub fn new(hash_key: [u8; 32]) -> Self {
        Self {
            format: Format::default(),
            allowed: Share::ALL,
            denied: Share::ALL,
            secret: Vec::new(),
            hash_key,
            queue_bytes_max: 4 << 20,
            node: "node".to_owned(),
        }
    }
}

impl DecisionLog {
    /// A log that writes to `out`, from a thread of its own. The clock is this node's.
    pub fn new(
        out: Box<dyn Write + Send>,
        clock: impl Clock + 'static,
        options: Options,
    ) -> io::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let process = Arc::new(Process::new(&options.node, clock.now()));
        let (format, last, time) = (options.format, process.clone(), clock.clone());
        let end = move |lost| match format {
            Format::Json => json::end_of_log(&last, time.now(), lost),
            Format::Text => Vec::new(),
        };
        Ok(Self(Arc::new(Inner {
            format,
            sampler: Sampler::new(&options.hash_key, options.allowed, options.denied),
            secrets: Secrets::new(options.secret, options.hash_key),
            clock,
            process,
            writer: Writer::start(out, options.queue_bytes_max, end)?,
        })))
    }

    /// How many lines were lost: no room in the queue, or the output failed.
    pub fn dropped(&self) -> u64 {
        self.0.writer.dropped()
    }

    /// Takes no more lines, and waits until all that were taken are written, and the end line after
    /// them.
    pub fn close(&self) {
        self.0.writer.close();
    }
}

impl Observer for DecisionLog {
    fn decided(&self, decided: &Decided<'_, '_, '_>) {
        let answer = &decided.answer;
        let admits = answer.is_allowed() && decided.operation != Operation::Peek;
        let share = self.0.sampler.takes(answer.plan().id.id, answer.decision().is_allowed());
        if share.is_none() && admits {
            self.0.process.admits.fetch_add(1, Relaxed);
        }
        self.line(share, admits, |format, context, out| match format {
            Format::Json => json::decided(decided, context, out),
            Format::Text => text::decided(decided, context, out),
        });
    }

    fn followed(&self, followed: &Followed<'_, '_>) {
        // With the admission that it is about, or not at all.
        let share = self.0.sampler.takes(followed.id, true);
        self.line(share, false, |format, context, out| match format {
            Format::Json => json::followed(followed, context, out),
            Format::Text => text::followed(followed, context, out),
        });
    }

    fn unanswered(&self, unanswered: &Unanswered) {
        let share = self.0.sampler.takes(unanswered.id, true);
        self.line(share, false, |format, context, out| match format {
            Format::Json => json::unanswered(unanswered, context, out),
            Format::Text => text::unanswered(unanswered, context, out),
        });
    }
}

impl DecisionLog {
    /// Writes a line, if it has a share by which it is logged; `admits` if it is one of those that
    /// are counted.
    fn line(
        &self,
        share: Option<Share>,
        admits: bool,
        write: impl FnOnce(Format, &Context<'_>, &mut Vec<u8>),
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
                Format::Json => Ending::numbered(process.numbers(admits)),
                Format::Text => Ending::plain(),
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

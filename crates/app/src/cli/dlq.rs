//! `sluicegate dlq`: lists, replays and deletes dead letters, which are messages whose processing
//! failed for good.

use anyhow::bail;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{DEAD_SUFFIX, DeadLetter, DeadLetterFilter, Error, Queue, WallClock};

use super::check::table;
use super::queue::{BrokerArgs, block_on, flush_created, message_json};
use super::{print, print_error};
use crate::queue::{MissingQueue, Queues};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate dlq list jobs                                list dead letters with time and error
  sluicegate dlq list jobs --type crawl_repo --error 404
  sluicegate dlq show jobs 8f14e45f-ceea                  print one dead letter as JSON
  sluicegate dlq replay jobs --older-than 1h --dry-run    count the dead letters to replay
  sluicegate dlq replay jobs --error 'HTTP 503'           send them to the queue they failed in
  sluicegate dlq delete jobs --type crawl_org --yes

The broker is the `queue` section of --config. Without --config, it is the embedded queue in
sluicegate-queue.db in the current directory.";

/// Maximum length of an error in a table, in characters.
const ERROR_WIDTH: usize = 60;

#[derive(Args)]
pub(super) struct Dlq {
    #[command(subcommand)]
    action: DlqAction,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Subcommand)]
enum DlqAction {
    /// List dead letters
    List {
        #[command(flatten)]
        args: LetterFilterArgs,
        /// Print each dead letter as one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Print one dead letter with all its fields, as JSON
    Show {
        /// Queue in which the message failed
        queue: String,
        /// Job id of the message
        job: String,
    },
    /// Send dead letters again, with their original bodies, to the queue in which they failed
    Replay {
        #[command(flatten)]
        args: LetterFilterArgs,
        /// Only print the number of matching dead letters
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete dead letters
    Delete {
        #[command(flatten)]
        args: LetterFilterArgs,
        /// Only print the number of matching dead letters
        #[arg(long)]
        dry_run: bool,
        /// Confirm the deletion
        #[arg(long)]
        yes: bool,
    },
}

/// Options that select dead letters. All that are given must match.
#[derive(Args)]
struct LetterFilterArgs {
    /// Queue in which the messages failed, or a dead-letter queue to select from all its letters
    queue: String,
    /// Select messages of this type
    #[arg(long = "type", value_name = "WORD")]
    kind: Option<String>,
    /// Select messages whose error contains this text
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Select messages of this job
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Select messages that failed longer ago than this, such as 1h
    #[arg(long, value_name = "DURATION")]
    older_than: Option<Span>,
    /// Maximum number of dead letters [default: all that can be read]
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    max: u64,
}

impl LetterFilterArgs {
    fn filter(&self, queue: &Queue) -> DeadLetterFilter {
        let (kind, error) = (self.kind.clone(), self.error.clone());
        let until = self.older_than.map(|span| WallClock.now() - span);
        let queue = queue.shared_dead_letters();
        DeadLetterFilter { queue, job: self.job.clone(), kind, error, until }
    }
}

/// Opens the queue in which messages failed; or the one that a dead-letter queue belongs to, if `name` is
/// its name. Brokers that keep dead letters inside their queue have no queue of that name.
async fn open(queues: &Queues, name: &str, missing: MissingQueue) -> anyhow::Result<Queue> {
    let opened = queues.queue(name, missing).await;
    let is_missing =
        |error: &anyhow::Error| matches!(error.downcast_ref(), Some(Error::NoQueue { .. }));
    match (opened, name.strip_suffix(DEAD_SUFFIX)) {
        (Err(error), Some(live)) if is_missing(&error) => match queues.queue(live, missing).await {
            Ok(queue) if queue.dead_letter_name() == name => Ok(queue),
            _ => Err(error),
        },
        (opened, _) => opened,
    }
}

impl Dlq {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let Self { action, broker } = self;
        block_on(async move {
            let (queues, missing) = broker.open().await?;
            match action {
                DlqAction::List { args, json } => {
                    let queue = open(&queues, &args.queue, missing).await?;
                    list(&queue, &args, json).await
                }
                DlqAction::Show { queue, job } => {
                    let queue = open(&queues, &queue, missing).await?;
                    let one = DeadLetterFilter {
                        queue: queue.shared_dead_letters(),
                        job: Some(job.clone()),
                        ..DeadLetterFilter::default()
                    };
                    let show = |letter: &DeadLetter| print(&letter_json(letter));
                    let found = queue.dead_letters().list(&one, 1, show).await? > 0;
                    if !found {
                        let name = queue.name();
                        print_error(&format!("no dead letter of queue {name} has job id {job:?}"));
                    }
                    Ok(found)
                }
                DlqAction::Replay { args, dry_run } => {
                    let queue = open(&queues, &args.queue, missing).await?;
                    if dry_run {
                        return print_count(&queue, &args, "would be replayed").await;
                    }
                    flush_created(&queues, &queue).await;
                    let bar = bar(&queue, &args).await?;
                    let letters = queue.dead_letters();
                    let done = letters.replay(&args.filter(&queue), args.max, |_| bar.inc(1)).await;
                    bar.finish_and_clear();
                    print(&format!("{} replayed", letters_in_words(done?)));
                    Ok(true)
                }
                DlqAction::Delete { args, dry_run, yes } => {
                    let queue = open(&queues, &args.queue, missing).await?;
                    if dry_run {
                        return print_count(&queue, &args, "would be deleted").await;
                    }
                    if !yes {
                        bail!("add --yes to delete dead letters, or --dry-run to count them");
                    }
                    let bar = bar(&queue, &args).await?;
                    let letters = queue.dead_letters();
                    let done = letters.delete(&args.filter(&queue), args.max, |_| bar.inc(1)).await;
                    bar.finish_and_clear();
                    print(&format!("{} deleted", letters_in_words(done?)));
                    Ok(true)
                }
            }
        })
    }
}

async fn list(queue: &Queue, args: &LetterFilterArgs, json: bool) -> anyhow::Result<bool> {
    let mut rows = Vec::new();
    let letters = queue.dead_letters();
    let show = |letter: &DeadLetter| match json {
        true => print(&letter_json(letter)),
        false => rows.push(row(letter)),
    };
    let count = letters.list(&args.filter(queue), args.max, show).await?;
    if !json {
        print(&table(&["failed at", "job", "type", "attempts", "queue", "error"], &rows));
        print(&format!("\n{}", letters_in_words(count)));
    }
    Ok(true)
}

async fn print_count(queue: &Queue, args: &LetterFilterArgs, what: &str) -> anyhow::Result<bool> {
    let count = queue.dead_letters().list(&args.filter(queue), args.max, |_| {}).await?;
    print(&format!("{} {what}", letters_in_words(count)));
    Ok(true)
}

/// Creates a progress bar, which is visible only on a terminal. Its length is an upper bound,
/// because the filter is applied while the letters are read.
async fn bar(queue: &Queue, args: &LetterFilterArgs) -> anyhow::Result<ProgressBar> {
    let letters = match queue.capabilities().depth {
        true => queue.dead_depth().await?.ready,
        false => u64::MAX,
    };
    let bar = ProgressBar::new(letters.min(args.max));
    let style = ProgressStyle::with_template("{bar:40} {pos} of at most {len}, {eta} left");
    bar.set_style(style.expect("the template is valid"));
    Ok(bar)
}

fn row(letter: &DeadLetter) -> [String; 6] {
    let message = &letter.message;
    let died = letter.failure();
    let error = died.map_or("dead-lettered by the broker", |died| &died.message);
    [
        died.map(|died| died.at.to_string()).unwrap_or_default(),
        message.meta.job.to_string(),
        message.kind.clone().unwrap_or_default(),
        attempts(letter).to_string(),
        died.map(|died| died.queue.clone()).unwrap_or_default(),
        error.lines().next().unwrap_or_default().chars().take(ERROR_WIDTH).collect(),
    ]
}

/// Formats a dead letter as JSON: the original message and its failure.
pub(crate) fn letter_json(letter: &DeadLetter) -> String {
    let mut message = letter.message.clone();
    message.body = letter.original().into();
    let mut shown: serde_json::Value =
        serde_json::from_str(&message_json(&message)).unwrap_or_default();
    if let Some(died) = letter.failure() {
        // If the body is JSON, it contains the full error.
        let mut full = error_in_body(letter);
        full.remove("timestamp");
        let stack = died.stack.clone().map(serde_json::Value::String);
        let stack = stack.or_else(|| full.remove("stack"));
        // Without a stack, the message is in its place.
        let stack = stack.unwrap_or_else(|| died.message.clone().into());
        let mut record = serde_json::Map::new();
        record.insert("at".to_owned(), died.at.to_string().into());
        record.insert("queue".to_owned(), died.queue.clone().into());
        record.insert("message".to_owned(), died.message.clone().into());
        record.insert("stack".to_owned(), stack);
        record.insert("attempts".to_owned(), attempts(letter).into());
        for (name, value) in full {
            record.entry(name).or_insert(value);
        }
        shown["died"] = record.into();
    }
    shown.to_string()
}

/// Returns the number of times that the job was tried. The metadata counts failures before the last
/// attempt.
fn attempts(letter: &DeadLetter) -> u64 {
    let tried = error_in_body(letter).get("attempts").and_then(serde_json::Value::as_u64);
    tried.unwrap_or_else(|| u64::from(letter.message.meta.attempt) + 1)
}

/// Returns the member `error` that was added to the body of a dead letter, if it is JSON.
fn error_in_body(letter: &DeadLetter) -> serde_json::Map<String, serde_json::Value> {
    // The whole body may be nested too deeply for a tree.
    let added = || {
        let (at, length) = letter.failure()?.splice?;
        let member = letter.message.body.get(at..at.checked_add(length)?)?;
        let begin = member.iter().position(|byte| *byte == b'{')?;
        let end = member.iter().rposition(|byte| *byte == b'}')?;
        serde_json::from_slice(member.get(begin..=end)?).ok()
    };
    added().unwrap_or_default()
}

fn letters_in_words(count: u64) -> String {
    match count {
        1 => "1 dead letter".to_owned(),
        count => format!("{count} dead letters"),
    }
}

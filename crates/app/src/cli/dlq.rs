//! `sluicegate dlq`: what nobody could work on.

use anyhow::bail;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{DeadLetter, DeadLetterFilter, Queue, WallClock};

use super::check::table;
use super::queue::{At, block_on, shown};
use super::say;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate dlq list jobs                                what died, when and why
  sluicegate dlq list jobs --type crawl_repo --error 404
  sluicegate dlq show jobs 8f14e45f-ceea                  one letter, whole
  sluicegate dlq replay jobs --older-than 1h --dry-run    what would be sent again
  sluicegate dlq replay jobs --error 'HTTP 503'           as its producer sent it, where it died
  sluicegate dlq delete jobs --type crawl_org --yes

Which broker: the `queue` part of --config. Without one, sluicegate-queue.db in this folder.";

/// What is shown of an error in a table.
const ERROR_WIDTH: usize = 60;

#[derive(Args)]
pub(super) struct Dlq {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    at: At,
}

#[derive(Subcommand)]
enum Action {
    /// Show letters
    List {
        #[command(flatten)]
        which: Which,
        /// One line of JSON each
        #[arg(long)]
        json: bool,
    },
    /// Show one letter, whole
    Show {
        /// The queue in which it died
        queue: String,
        /// Its job
        job: String,
    },
    /// Send letters again, as their producers sent them
    Replay {
        #[command(flatten)]
        which: Which,
        /// Only say how many
        #[arg(long)]
        dry_run: bool,
    },
    /// Throw letters away
    Delete {
        #[command(flatten)]
        which: Which,
        /// Only say how many
        #[arg(long)]
        dry_run: bool,
        /// Yes, these
        #[arg(long)]
        yes: bool,
    },
}

/// Which letters are meant.
#[derive(Args)]
struct Which {
    /// The queue in which they died
    queue: String,
    /// Those of this kind of work
    #[arg(long = "type", value_name = "WORD")]
    kind: Option<String>,
    /// Those in whose error this text is
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Those of this job
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Those that died longer ago, such as 1h
    #[arg(long, value_name = "SPAN")]
    older_than: Option<Span>,
    /// The most letters
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    max: u64,
}

impl Which {
    fn filter(&self) -> DeadLetterFilter {
        let (kind, error) = (self.kind.clone(), self.error.clone());
        let until = self.older_than.map(|span| WallClock.now() - span);
        DeadLetterFilter { job: self.job.clone(), kind, error, until }
    }
}

impl Dlq {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let Self { action, at } = self;
        block_on(async move {
            let (queues, missing) = at.open().await?;
            match action {
                Action::List { which, json } => {
                    let queue = queues.queue(&which.queue, missing).await?;
                    list(&queue, &which, json).await
                }
                Action::Show { queue, job } => {
                    let queue = queues.queue(&queue, missing).await?;
                    let one = DeadLetterFilter { job: Some(job), ..DeadLetterFilter::default() };
                    let show = |letter: &DeadLetter| say(&whole(letter));
                    Ok(queue.dead_letters().list(&one, 1, show).await? > 0)
                }
                Action::Replay { which, dry_run } => {
                    let queue = queues.queue(&which.queue, missing).await?;
                    if dry_run {
                        return counted(&queue, &which, "would be sent again").await;
                    }
                    let bar = bar(&queue, &which).await?;
                    let letters = queue.dead_letters();
                    let done = letters.replay(&which.filter(), which.max, |_| bar.inc(1)).await;
                    bar.finish_and_clear();
                    say(&format!("{} sent again", letters_in_words(done?)));
                    Ok(true)
                }
                Action::Delete { which, dry_run, yes } => {
                    let queue = queues.queue(&which.queue, missing).await?;
                    if dry_run {
                        return counted(&queue, &which, "would be thrown away").await;
                    }
                    if !yes {
                        bail!("say --yes to throw letters away, or --dry-run to see how many");
                    }
                    let bar = bar(&queue, &which).await?;
                    let letters = queue.dead_letters();
                    let done = letters.delete(&which.filter(), which.max, |_| bar.inc(1)).await;
                    bar.finish_and_clear();
                    say(&format!("{} thrown away", letters_in_words(done?)));
                    Ok(true)
                }
            }
        })
    }
}

async fn list(queue: &Queue, which: &Which, json: bool) -> anyhow::Result<bool> {
    let mut rows = Vec::new();
    let letters = queue.dead_letters();
    let show = |letter: &DeadLetter| match json {
        true => say(&whole(letter)),
        false => rows.push(row(letter)),
    };
    let count = letters.list(&which.filter(), which.max, show).await?;
    if !json {
        say(&table(&["died", "job", "type", "attempt", "queue", "error"], &rows));
        say(&format!("\n{}", letters_in_words(count)));
    }
    Ok(true)
}

async fn counted(queue: &Queue, which: &Which, what: &str) -> anyhow::Result<bool> {
    let count = queue.dead_letters().list(&which.filter(), which.max, |_| {}).await?;
    say(&format!("{} {what}", letters_in_words(count)));
    Ok(true)
}

/// Shown on a terminal only. How many letters there are is known before they are looked at.
async fn bar(queue: &Queue, which: &Which) -> anyhow::Result<ProgressBar> {
    let bar = ProgressBar::new(queue.dead_depth().await?.ready.min(which.max));
    let style = ProgressStyle::with_template("{bar:40} {pos} of at most {len} letters, {eta} left");
    bar.set_style(style.expect("the template is right"));
    Ok(bar)
}

fn row(letter: &DeadLetter) -> [String; 6] {
    let message = &letter.message;
    let died = letter.failure();
    let error = died.map_or("put here by the broker", |died| &died.message);
    [
        died.map(|died| died.at.to_string()).unwrap_or_default(),
        message.meta.job.to_string(),
        message.kind.clone().unwrap_or_default(),
        message.meta.attempt.to_string(),
        died.map(|died| died.queue.clone()).unwrap_or_default(),
        error.lines().next().unwrap_or_default().chars().take(ERROR_WIDTH).collect(),
    ]
}

/// A letter as JSON: the message that it was, and how it ended.
fn whole(letter: &DeadLetter) -> String {
    let mut message = letter.message.clone();
    message.body = letter.original().into();
    let mut shown: serde_json::Value = serde_json::from_str(&shown(&message)).unwrap_or_default();
    if let Some(died) = letter.failure() {
        // In a body that is JSON, the whole error is in it.
        let body: serde_json::Value =
            serde_json::from_slice(&letter.message.body).unwrap_or_default();
        let stack = died.stack.as_deref().or_else(|| body["error"]["stack"].as_str());
        shown["died"] = serde_json::json!({
            "at": died.at.to_string(),
            "queue": died.queue,
            "message": died.message,
            "stack": stack,
        });
    }
    shown.to_string()
}

fn letters_in_words(count: u64) -> String {
    match count {
        1 => "1 letter".to_owned(),
        count => format!("{count} letters"),
    }
}

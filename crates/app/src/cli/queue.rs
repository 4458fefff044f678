//! `sluicegate queue`: shows the depth of queues, sends, peeks at and purges messages.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{
    DeliveryTime, Depth, Error, JobId, Message, Queue, WallClock, without_byte_order_mark,
};

use super::check::table;
use super::{print, print_error, print_note};
use crate::configuration::ConfigSource;
use crate::queue::{MissingQueue, Queues};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate queue depth jobs results                 number of messages in each queue
  sluicegate queue depth jobs --json                  the same as JSON
  sluicegate queue send jobs '{\"repo\": \"a/b\"}' --type crawl_repo --create
  sluicegate queue send jobs --in 10min - < job.json  deliver the message in 10 minutes
  sluicegate queue send jobs --lines jobs.ndjson      send each line of a file as a message
  sluicegate queue peek jobs --max 3                  print 3 messages, leave them in the queue
  sluicegate queue cancel jobs job-7                  delete the delayed message of a job
  sluicegate queue purge jobs --yes                   delete all messages

The broker is the `queue` section of --config. Without --config, it is the embedded queue in
sluicegate-queue.db in the current directory.";

#[derive(Args)]
pub(super) struct QueueCommand {
    #[command(subcommand)]
    action: QueueAction,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Options that select the broker.
#[derive(Args)]
pub(super) struct BrokerArgs {
    /// Configuration file with a `queue` section [default: the embedded queue in
    /// ./sluicegate-queue.db]
    #[arg(short, long, value_name = "FILE", env = "SLUICEGATE_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// Create queues that do not exist
    #[arg(long, global = true)]
    create: bool,
}

impl BrokerArgs {
    pub(super) async fn open(self) -> anyhow::Result<(Queues, MissingQueue)> {
        let config = ConfigSource::new(self.config).load()?.config;
        let missing = if self.create { MissingQueue::Create } else { MissingQueue::Fail };
        let broker = config.queue.clone().unwrap_or_default();
        let queues = Queues::open(&broker).await?.with_dead_letters(&config);
        queues.expect_delays(&config);
        Ok((queues, missing))
    }
}

#[derive(Subcommand)]
enum QueueAction {
    /// Show the number of messages in queues
    Depth {
        /// Names of the queues
        #[arg(value_name = "QUEUE", required = true)]
        queues: Vec<String>,
        /// Print each queue as one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Send a message
    Send(SendArgs),
    /// Print messages, one line of JSON each, and leave them in the queue
    Peek {
        /// Name of the queue
        queue: String,
        /// Maximum number of messages
        #[arg(long, value_name = "N", default_value_t = 10)]
        max: u64,
    },
    /// Delete the delayed messages of a job
    Cancel {
        /// Name of the queue
        queue: String,
        /// Job id of the messages
        job: String,
    },
    /// Delete all messages that are not being processed
    Purge {
        /// Name of the queue
        queue: String,
        /// Confirm that all messages are to be deleted
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
struct SendArgs {
    /// Name of the queue
    queue: String,
    /// Message body; - reads it from standard input
    #[arg(required_unless_present = "lines")]
    body: Option<String>,
    /// Message type, such as crawl_repo
    #[arg(long = "type", value_name = "WORD")]
    kind: Option<String>,
    /// Job id [default: the field of the body that queue.job_id names, or else a random id]
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Priority from 0 to 9; 9 is delivered first (queue.priorities, or the embedded queue)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: u8,
    /// Maximum number of attempts [default: the attempts of the worker]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_attempts: Option<u32>,
    /// Delay before the message is delivered, such as 30s
    #[arg(long = "in", value_name = "DURATION")]
    delay: Option<Span>,
    /// Send each line of this file as a message; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["body", "job"])]
    lines: Option<PathBuf>,
}

/// Maximum number of messages in one send call.
const BATCH: usize = 500;
/// Longest wait without a note that says why.
const QUIET_MAX: Span = Span::from_secs(1);

impl QueueCommand {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let Self { action, broker } = self;
        block_on(async move {
            let (queues, missing) = broker.open().await?;
            match action {
                QueueAction::Depth { queues: names, json } => {
                    return depths(&queues, &names, missing, json).await;
                }
                QueueAction::Send(send) => {
                    let queue = queues.queue(&send.queue, missing).await?;
                    flush_created(&queues, &queue).await;
                    send.run(&queue).await?;
                }
                QueueAction::Peek { queue, max } => {
                    let queue = queues.queue(&queue, missing).await?;
                    let count = queue.peek(max, |message| print(&message_json(message))).await?;
                    return Ok(count > 0);
                }
                QueueAction::Cancel { queue, job } => {
                    let queue = queues.queue(&queue, missing).await?;
                    let id = JobId::try_from(job.clone()).context("JOB")?;
                    let cancelled = queue.cancel(&id).await?;
                    if cancelled == 0 {
                        let name = queue.name();
                        print_error(&format!(
                            "no delayed message of queue {name} has job id {job:?}"
                        ));
                        return Ok(false);
                    }
                    print(&format!("{cancelled} cancelled"));
                }
                QueueAction::Purge { queue: name, yes } => {
                    let queue = queues.queue(&name, missing).await?;
                    if !yes {
                        let known = match queue.capabilities().depth {
                            true => Some(queue.depth().await?),
                            false => None,
                        };
                        let count = match known {
                            Some(Depth { ready, delayed: Some(delayed), .. }) => {
                                format!("{ready} ready and {delayed} delayed messages")
                            }
                            Some(Depth { ready, delayed: None, .. }) => {
                                format!("{ready} ready and an unknown number of delayed messages")
                            }
                            None => "an unknown number of messages".to_owned(),
                        };
                        bail!("queue {name} has {count}: add --yes to delete all of them");
                    }
                    match queue.purge().await? {
                        Some(purged) => print(&format!("{purged} messages deleted")),
                        None => print("all messages will be deleted; this takes up to a minute"),
                    }
                }
            }
            Ok(true)
        })
    }
}

impl SendArgs {
    async fn run(&self, queue: &Queue) -> anyhow::Result<()> {
        let when = match self.delay {
            None => DeliveryTime::Now,
            Some(delay) => DeliveryTime::At(WallClock.now() + delay),
        };
        let Some(file) = &self.lines else {
            let message = self.message(queue, self.body()?)?;
            print(&queue.send_at(message, when).await?.to_string());
            return Ok(());
        };
        let text = match file.as_os_str() == "-" {
            true => read_standard_input()?,
            false => std::fs::read(file)
                .with_context(|| format!("--lines: can't read {}", file.display()))?,
        };
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        let bar = ProgressBar::new(lines.len() as u64);
        for part in lines.chunks(BATCH) {
            let batch = part.iter().map(|line| Ok((self.message(queue, line.to_vec())?, when)));
            let sent = queue.send_batch(batch.collect::<anyhow::Result<_>>()?).await;
            for (sent, line) in sent.into_iter().zip(part) {
                let line = String::from_utf8_lossy(line);
                sent.with_context(|| {
                    format!("sent {} messages, then failed at {line}", bar.position())
                })?;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        print(&format!("{} messages sent", lines.len()));
        Ok(())
    }

    fn body(&self) -> anyhow::Result<Vec<u8>> {
        match self.body.as_deref().unwrap_or_default() {
            "-" => read_standard_input(),
            body => Ok(body.as_bytes().to_vec()),
        }
    }

    fn message(&self, queue: &Queue, body: Vec<u8>) -> anyhow::Result<Message> {
        let job = self.job.clone().map(JobId::try_from).transpose().context("--job")?;
        let job = job.or_else(|| queue.job_in(&body));
        let mut message = Message::of_job(job.unwrap_or_else(JobId::random), body);
        message.kind.clone_from(&self.kind);
        message.meta.max_attempts = self.max_attempts;
        let json = without_byte_order_mark(&message.body);
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(json).is_ok();
        message.content_type = is_json.then(|| "application/json".to_owned());
        Ok(message.with_priority(self.priority))
    }
}

/// Depth of one queue, and the number of its dead letters.
struct QueueDepth {
    queue: String,
    depth: Depth,
    dead: DeadCount,
}

/// Number of dead letters of a queue.
enum DeadCount {
    Known(u64),
    /// The dead-letter queue of this name is shared. Counting the letters of one queue would
    /// require receiving all of them.
    Shared(String),
    /// There is no dead-letter queue.
    None,
}

/// Prints the depth of queues. A queue that can't be read does not hide the others.
async fn depths(
    queues: &Queues,
    names: &[String],
    missing: MissingQueue,
    json: bool,
) -> anyhow::Result<bool> {
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    for name in names {
        let row = async { QueueDepth::read(&queues.queue(name, missing).await?).await };
        match row.await {
            Ok(row) if json => print(&row.to_json().to_string()),
            Ok(row) => rows.push(row.row()),
            Err(problem) => problems.push(format!("{problem:#}")),
        }
    }
    if !rows.is_empty() {
        let head = ["queue", "ready", "delayed", "in flight", "oldest", "dead letters"];
        print(&table(&head, &rows));
    }
    match problems.is_empty() {
        true => Ok(true),
        false => bail!("{}", problems.join("\n")),
    }
}

impl QueueDepth {
    async fn read(queue: &Queue) -> anyhow::Result<Self> {
        let depth = queue.depth().await?;
        let dead = match queue.own_dead_count().await {
            Ok(Some(own)) => DeadCount::Known(own),
            Ok(None) => DeadCount::Shared(queue.dead_letter_name().to_owned()),
            Err(Error::NoQueue { .. }) => DeadCount::None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { queue: queue.name().to_owned(), depth, dead })
    }

    fn row(&self) -> [String; 6] {
        let Self { queue, depth, dead } = self;
        let or_unknown =
            |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
        let oldest = depth.oldest.map(|oldest| Span::from_secs(oldest.as_secs_ceil()).to_string());
        [
            queue.clone(),
            depth.ready.to_string(),
            or_unknown(depth.delayed),
            or_unknown(depth.in_flight),
            oldest.unwrap_or_default(),
            match dead {
                DeadCount::Known(count) => count.to_string(),
                DeadCount::Shared(name) => format!("in {name}"),
                DeadCount::None => String::new(),
            },
        ]
    }

    fn to_json(&self) -> serde_json::Value {
        let Self { queue, depth, dead } = self;
        let (count, shared) = match dead {
            DeadCount::Known(count) => (Some(count), None),
            DeadCount::Shared(name) => (None, Some(name)),
            DeadCount::None => (None, None),
        };
        serde_json::json!({
            "queue": queue,
            "ready": depth.ready,
            "delayed": depth.delayed,
            "inFlight": depth.in_flight,
            "oldestMs": depth.oldest.map(|oldest| oldest.as_micros() / 1_000),
            "deadLetters": count,
            "sharedDeadLetterQueue": shared,
        })
    }
}

/// Waits until queues that this command created survive a crash of the broker: a queue that is lost
/// takes its messages with it.
pub(super) async fn flush_created(queues: &Queues, queue: &Queue) {
    let wait = queues.creation_flush();
    if wait > QUIET_MAX {
        let (name, broker) = (queue.name(), queue.capabilities().broker);
        print_note(&format!(
            "queue {name} is new: sending in {wait}, when {broker} has written the queue to disk"
        ));
    }
    queues.flush_created().await;
}

fn read_standard_input() -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).context("can't read standard input")?;
    Ok(text)
}

/// Formats a message as one line of JSON. Invalid UTF-8 in a body is replaced.
pub(super) fn message_json(message: &Message) -> String {
    let body = serde_json::from_slice(without_byte_order_mark(&message.body));
    let body: serde_json::Value =
        body.unwrap_or_else(|_| String::from_utf8_lossy(&message.body).into());
    let meta = &message.meta;
    serde_json::json!({
        "id": message.id().to_string(),
        "type": message.kind,
        "failedAttempts": meta.attempt,
        "maxAttempts": meta.max_attempts,
        "deferrals": meta.deferrals,
        "priority": message.priority,
        "sentAt": meta.sent_at.map(|at| at.to_string()),
        "notBefore": meta.not_before.map(|at| at.to_string()),
        "headers": message.headers,
        "body": body,
    })
    .to_string()
}

/// Runs a command on a Tokio runtime.
pub(super) fn block_on(work: impl Future<Output = anyhow::Result<bool>>) -> anyhow::Result<bool> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("can't start the async runtime")?;
    let outcome = runtime.block_on(work);
    // Requeued messages may still be on their way to the broker.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

//! `sluicegate queue`: what lies in queues.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use sluicegate_core::Span;
use sluicegate_queue::{DeliveryTime, Error, JobId, Message, Queue};

use super::check::table;
use super::say;
use crate::configuration::Source;
use crate::queue::{Missing, Queues};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate queue depth jobs results                how much is in each
  sluicegate queue send jobs '{\"repo\": \"a/b\"}' --type crawl_repo --create
  sluicegate queue send jobs --in 10min - < job.json
  sluicegate queue send jobs --lines - < jobs.ndjson each line is a message
  sluicegate queue peek jobs --max 3                 looks, and leaves them there
  sluicegate queue purge jobs --yes                  throws all of it away

Which broker: the `queue` part of --config. Without one, sluicegate-queue.db in this folder.";

#[derive(Args)]
pub(super) struct QueueCommand {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    at: At,
}

/// Which broker, and what if a queue is missing there.
#[derive(Args)]
pub(super) struct At {
    /// The configuration; without one, the embedded queue in this folder
    #[arg(short, long, value_name = "FILE", env = "SLUICEGATE_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// Make queues that do not exist
    #[arg(long, global = true)]
    create: bool,
}

impl At {
    pub(super) async fn open(self) -> anyhow::Result<(Queues, Missing)> {
        let config = Source::new(self.config).load()?.config.queue.unwrap_or_default();
        let missing = if self.create { Missing::Make } else { Missing::Refuse };
        Ok((Queues::open(&config).await?, missing))
    }
}

#[derive(Subcommand)]
enum Action {
    /// Show how many messages there are
    Depth {
        /// The queues
        #[arg(value_name = "QUEUE", required = true)]
        queues: Vec<String>,
    },
    /// Send a message
    Send(Send),
    /// Show messages and leave them there
    Peek {
        /// The queue
        queue: String,
        /// The most messages
        #[arg(long, value_name = "N", default_value_t = 10)]
        max: u64,
    },
    /// Throw away everything that nobody holds
    Purge {
        /// The queue
        queue: String,
        /// Yes, all of it
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
struct Send {
    /// The queue
    queue: String,
    /// The body; - is standard input
    body: String,
    /// What kind of work it is
    #[arg(long = "type", value_name = "WORD")]
    kind: Option<String>,
    /// The id of the job; without one, what the body says where queue.job_id is set, or a new one
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// From 0 to 9; 9 goes first where the broker can do it
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: u8,
    /// Deliver it so much later, such as 30s
    #[arg(long = "in", value_name = "SPAN")]
    delay: Option<Span>,
    /// Each line of the body is a message of its own
    #[arg(long, conflicts_with = "job")]
    lines: bool,
}

/// How many messages are sent at once.
const BATCH: usize = 500;

impl QueueCommand {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let Self { action, at } = self;
        block_on(async move {
            let (queues, missing) = at.open().await?;
            match action {
                Action::Depth { queues: names } => {
                    let mut rows = Vec::new();
                    for name in &names {
                        rows.push(depth(&queues.queue(name, missing).await?).await?);
                    }
                    let head = ["queue", "ready", "delayed", "in flight", "oldest", "dead letters"];
                    say(&table(&head, &rows));
                }
                Action::Send(send) => {
                    let queue = queues.queue(&send.queue, missing).await?;
                    send.run(&queue).await?;
                }
                Action::Peek { queue, max } => {
                    let queue = queues.queue(&queue, missing).await?;
                    let shown = queue.peek(max, |message| say(&shown(message))).await?;
                    return Ok(shown > 0);
                }
                Action::Purge { queue: name, yes } => {
                    let queue = queues.queue(&name, missing).await?;
                    if !yes {
                        let ready = queue.depth().await?.ready;
                        bail!("{name} has {ready} messages: say --yes to throw all of it away");
                    }
                    match queue.purge().await? {
                        Some(purged) => say(&format!("{purged} messages thrown away")),
                        None => say("everything is thrown away, which takes up to a minute"),
                    }
                }
            }
            Ok(true)
        })
    }
}

impl Send {
    async fn run(&self, queue: &Queue) -> anyhow::Result<()> {
        let body = self.body()?;
        let when = self.delay.map_or(DeliveryTime::Now, DeliveryTime::After);
        if !self.lines {
            let message = self.message(queue, body)?;
            say(&queue.send_at(message, when).await?.to_string());
            return Ok(());
        }
        let lines = body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        let bar = ProgressBar::new(lines.len() as u64);
        for part in lines.chunks(BATCH) {
            let batch = part.iter().map(|line| Ok((self.message(queue, line.to_vec())?, when)));
            let sent = queue.send_batch(batch.collect::<anyhow::Result<_>>()?).await;
            for (sent, line) in sent.into_iter().zip(part) {
                let shown = String::from_utf8_lossy(line);
                sent.with_context(|| format!("{} were sent, and then {shown}", bar.position()))?;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        say(&format!("{} messages sent", lines.len()));
        Ok(())
    }

    fn body(&self) -> anyhow::Result<Vec<u8>> {
        if self.body != "-" {
            return Ok(self.body.clone().into_bytes());
        }
        let mut body = Vec::new();
        std::io::stdin().read_to_end(&mut body).context("can't read standard input")?;
        Ok(body)
    }

    fn message(&self, queue: &Queue, body: Vec<u8>) -> anyhow::Result<Message> {
        let job = self.job.clone().map(JobId::try_from).transpose().context("--job")?;
        let job = job.or_else(|| queue.job_in(&body));
        let mut message = Message::of_job(job.unwrap_or_else(JobId::random), body);
        message.kind.clone_from(&self.kind);
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&message.body).is_ok();
        message.content_type = is_json.then(|| "application/json".to_owned());
        Ok(message.with_priority(self.priority))
    }
}

async fn depth(queue: &Queue) -> anyhow::Result<[String; 6]> {
    let depth = queue.depth().await?;
    let dead = match queue.dead_depth().await {
        Ok(dead) => dead.ready.to_string(),
        Err(Error::NoQueue { .. }) => String::new(),
        Err(error) => return Err(error.into()),
    };
    let told = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    let oldest = depth.oldest.map(|oldest| Span::from_secs(oldest.as_secs_ceil()).to_string());
    Ok([
        queue.name().to_owned(),
        depth.ready.to_string(),
        told(depth.delayed),
        told(depth.in_flight),
        oldest.unwrap_or_default(),
        dead,
    ])
}

/// One line of JSON. A body that is no text is shown as what can be read of it.
pub(super) fn shown(message: &Message) -> String {
    let body = serde_json::from_slice::<serde_json::Value>(&message.body);
    let body = body.unwrap_or_else(|_| String::from_utf8_lossy(&message.body).into());
    let meta = &message.meta;
    serde_json::json!({
        "id": message.id().to_string(),
        "type": message.kind,
        "attempt": meta.attempt,
        "deferrals": meta.deferrals,
        "priority": message.priority,
        "sentAt": meta.sent_at.map(|at| at.to_string()),
        "notBefore": meta.not_before.map(|at| at.to_string()),
        "headers": message.headers,
        "body": body,
    })
    .to_string()
}

pub(super) fn block_on(work: impl Future<Output = anyhow::Result<bool>>) -> anyhow::Result<bool> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("can't start")?;
    let outcome = runtime.block_on(work);
    // What was given back is on its way.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

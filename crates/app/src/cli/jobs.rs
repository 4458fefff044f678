//! `sluicegate jobs why`: finds a job in the running process and in the queues, and prints what it
//! is waiting for.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluicegate_config::{Config, QueueBroker};
use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{DeadLetterFilter, Message, Queue, WallClock};

use super::print_error;
use super::queue::block_on;
use super::remote::Remote;
use crate::configuration::ConfigSource;
use crate::queue::{MissingQueue, Queues};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate jobs why 7f3a --config jobs.yaml            where job 7f3a is and what it waits for
  sluicegate jobs why 7f3a --config jobs.yaml --search   also search RabbitMQ and SQS queues

The command asks the dispatcher or worker process at its admin listener (--admin), then searches the
queues of the configuration. RabbitMQ and SQS can't be browsed without receiving messages: their
queues are searched only with --search, which receives the messages and requeues them.

Exit code: 0 found, 1 not found, 2 error";

const NOT_FOUND: &str = "job not found: it was never sent, or it finished too long ago";

#[derive(Args)]
pub(super) struct Jobs {
    #[command(subcommand)]
    action: JobsAction,
}

#[derive(Subcommand)]
enum JobsAction {
    /// Show where a job is, what it waits for, and until when
    Why(WhyArgs),
}

#[derive(Args)]
struct WhyArgs {
    /// Id of the job
    job: String,
    /// Configuration file with the `queue`, `dispatch` and `workers` sections
    #[arg(short, long, value_name = "FILE", env = "SLUICEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Also search RabbitMQ and SQS queues, by receiving their messages and requeueing them
    #[arg(long)]
    search: bool,
    /// Address of the admin listener of the dispatcher or worker process [default: listen.admin of
    /// --config]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// Bearer token, if the admin listener requires one
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// One place where the job was found, as JSON and as text.
struct JobLocation {
    value: Value,
    words: String,
}

impl Jobs {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        match self.action {
            JobsAction::Why(why) => why.run(),
        }
    }
}

impl WhyArgs {
    fn run(self) -> anyhow::Result<bool> {
        let Self { job, config, search, admin, token, json } = self;
        let config = ConfigSource::new(config).load()?.config;
        let scheme = if config.listen.admin.tls.is_some() { "https" } else { "http" };
        let admin = admin.unwrap_or_else(|| format!("{scheme}://{}", config.listen.admin.address));
        let remote = Remote::new(admin, token, json);
        let now = WallClock.now();
        let mut found = Vec::new();
        match remote.get(&format!("/v1/jobs/{job}")) {
            Ok(seen) => found.push(JobLocation { words: describe_state(&seen, now), value: seen }),
            // The queues can still be searched.
            Err(problem) => print_error(&format!("{problem:#}")),
        }
        let found = block_on(async move {
            search_queues(&config, &job, search, now, &mut found).await?;
            let values = found.iter().map(|found| found.value.clone()).collect();
            remote.show(&Value::Array(values), |_| match found.is_empty() {
                true => NOT_FOUND.to_owned(),
                false => {
                    let words: Vec<_> = found.iter().map(|found| found.words.as_str()).collect();
                    words.join("\n")
                }
            });
            Ok(!found.is_empty())
        })?;
        Ok(found)
    }
}

/// Searches the queues of a configuration for a job.
async fn search_queues(
    config: &Config,
    job: &str,
    search: bool,
    now: Timestamp,
    found: &mut Vec<JobLocation>,
) -> anyhow::Result<()> {
    let names = queue_names(config);
    if names.is_empty() {
        return Ok(());
    }
    let broker = config.queue.clone().unwrap_or_default();
    if !search && !matches!(broker.broker, QueueBroker::Embedded { .. }) {
        return Ok(());
    }
    if let QueueBroker::Embedded { path } = &broker.broker
        && !path.exists()
    {
        return Ok(());
    }
    let queues = Queues::open(&broker).await.context("queue")?;
    for (name, dead_letter) in names {
        let Ok(queue) = queues.queue_with(&name, dead_letter.as_deref(), MissingQueue::Fail).await
        else {
            continue;
        };
        search_queue(&queue, job, now, found).await?;
    }
    Ok(())
}

async fn search_queue(
    queue: &Queue,
    job: &str,
    now: Timestamp,
    found: &mut Vec<JobLocation>,
) -> anyhow::Result<()> {
    let name = queue.name().to_owned();
    queue
        .peek(u64::MAX, |message| {
            if message.meta.job.as_str() == job {
                found.push(queue_location(&name, message, now));
            }
        })
        .await?;
    let filter = DeadLetterFilter {
        queue: queue.shared_dead_letters(),
        job: Some(job.to_owned()),
        ..DeadLetterFilter::default()
    };
    let dead = queue.dead_letters();
    let listed = dead.list(&filter, 1, |letter| {
        let error = letter.failure().map_or("", |died| died.message.as_str());
        let words = format!(
            "it is a dead letter of queue {name}: {error}\n\
             replay it with: sluicegate dlq replay {name} --job {job}"
        );
        let value = json!({"queue": name, "state": "dead", "error": error});
        found.push(JobLocation { value, words });
    });
    listed.await?;
    Ok(())
}

fn queue_location(queue: &str, message: &Message, now: Timestamp) -> JobLocation {
    let meta = &message.meta;
    let until = meta.not_before.filter(|until| *until > now);
    let booked = meta.booking.is_some();
    let waits = match until {
        None => "ready, but not received yet: no worker is running, or other messages come first"
            .to_owned(),
        Some(until) => {
            let why = if meta.attempt > 0 { "its next attempt" } else { "its provider's limit" };
            let why = if booked { "its booked start time" } else { why };
            format!("waiting for {why} until {until} (in {})", until.since(now).in_words())
        }
    };
    let words = format!(
        "it is in queue {queue}: {waits}; failed attempts: {}, deferrals by a limit: {}",
        meta.attempt, meta.deferrals
    );
    let value = json!({
        "queue": queue,
        "state": if until.is_some() { "delayed" } else { "ready" },
        "until": until.map(|until| until.to_string()),
        "booked": booked,
        "attempt": meta.attempt,
        "deferrals": meta.deferrals,
    });
    JobLocation { value, words }
}

fn describe_state(seen: &Value, now: Timestamp) -> String {
    let text = |key: &str| seen[key].as_str().unwrap_or_default().to_owned();
    let (queue, provider) = (text("queue"), text("provider"));
    let what = match seen["event"].as_str().unwrap_or_default() {
        "dispatched" => format!("dispatched to queue {queue} for provider {provider}"),
        "delayed" => {
            format!("sent to queue {queue} with a delay: the limit of {provider} is reached")
        }
        "waiting" => {
            format!("a worker of queue {queue} has it and waits for the limit of {provider}")
        }
        "deferred" => {
            format!("requeued to {queue} by a worker: the limit of {provider} is reached")
        }
        "in_work" => format!("running: a worker of queue {queue} works on it, for {provider}"),
        "retried" => format!("failed, will be retried from queue {queue}: {}", text("error")),
        "done" => format!("done, by a worker of queue {queue}"),
        "dead" => format!("failed for good, dead letter of queue {queue}: {}", text("error")),
        other => other.to_owned(),
    };
    let until = seen["until"].as_str().and_then(|until| until.parse::<Timestamp>().ok());
    let until = until.map_or_else(String::new, |until| match until > now {
        true => format!(", until {until} (in {})", until.since(now).in_words()),
        false => format!(", until {until} (already past)"),
    });
    format!("{} {what}{until}", text("at"))
}

/// Lists the queues of a configuration that can contain a job, with their dead letter queues.
fn queue_names(config: &Config) -> Vec<(String, Option<String>)> {
    let mut names: Vec<(String, Option<String>)> = Vec::new();
    let mut add = |name: &str, dead_letter: &Option<String>| match names
        .iter_mut()
        .find(|(other, _)| other == name)
    {
        Some((_, known)) => *known = dead_letter.clone().or(known.take()),
        None => names.push((name.to_owned(), dead_letter.clone())),
    };
    if let Some(dispatch) = &config.dispatch {
        add(&dispatch.source, &dispatch.dead_letter);
        dispatch.providers.iter().for_each(|provider| add(&provider.queue, &None));
    }
    for worker in &config.workers {
        add(&worker.queue, &worker.dead_letter);
        worker.handler.queues().for_each(|queue| add(queue, &None));
    }
    names
}

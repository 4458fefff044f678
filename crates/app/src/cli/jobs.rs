//! `sluicegate jobs`: where a job is, and what it waits for.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluicegate_config::{Config, QueueBroker};
use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{DeadLetterFilter, Message, Queue, WallClock};

use super::complain;
use super::queue::block_on;
use super::remote::Remote;
use crate::configuration::Source;
use crate::queue::{Missing, Queues};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate jobs why 7f3a --config jobs.yaml        where it is, what it waits for, until when
  sluicegate jobs why 7f3a --config jobs.yaml --search  also in queues that can't be browsed

The process that had to do with the job last is asked at its admin listener (--admin); then the queues
of the configuration are looked through. RabbitMQ and SQS show a message only to who receives it, so
there --search takes messages and gives them back.";

const UNSEEN: &str = "nobody has seen it: it was never sent, it is done, or it was too long ago";
/// How many messages of a queue are looked through.
const LOOK_MAX: u64 = 100_000;

#[derive(Args)]
pub(super) struct Jobs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Say where a job is, what it waits for, and until when
    Why(Why),
}

#[derive(Args)]
struct Why {
    /// The id of the job
    job: String,
    /// The configuration with its queues
    #[arg(short, long, value_name = "FILE", env = "SLUICEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Also take messages from queues that can't be browsed, and give them back
    #[arg(long)]
    search: bool,
    /// The admin listener of the process that has to do with it; without one, that of --config
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// The bearer token, if it asks for one
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print what was found as data
    #[arg(long)]
    json: bool,
}

/// What was found of a job.
struct Found {
    /// As data.
    value: Value,
    /// In words.
    words: String,
}

impl Jobs {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        match self.action {
            Action::Why(why) => why.run(),
        }
    }
}

impl Why {
    fn run(self) -> anyhow::Result<bool> {
        let Self { job, config, search, admin, token, json } = self;
        let config = Source::new(config).load()?.config;
        let scheme = if config.listen.admin.tls.is_some() { "https" } else { "http" };
        let admin = admin.unwrap_or_else(|| format!("{scheme}://{}", config.listen.admin.address));
        let remote = Remote::new(admin, token, json);
        let now = WallClock.now();
        let mut found = Vec::new();
        match remote.get(&format!("/v1/jobs/{job}")) {
            Ok(seen) => found.push(Found { words: seen_words(&seen, now), value: seen }),
            // No reason to give up: the queues may know.
            Err(problem) => complain(&format!("{problem:#}")),
        }
        let found = block_on(async move {
            look(&config, &job, search, now, &mut found).await?;
            let values = found.iter().map(|found| found.value.clone()).collect();
            remote.show(&Value::Array(values), |_| match found.is_empty() {
                true => UNSEEN.to_owned(),
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

/// Looks through the queues of a configuration.
async fn look(
    config: &Config,
    job: &str,
    search: bool,
    now: Timestamp,
    found: &mut Vec<Found>,
) -> anyhow::Result<()> {
    let names = names(config);
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
        let Ok(queue) = queues.queue_with(&name, dead_letter.as_deref(), Missing::Refuse).await
        else {
            continue;
        };
        lying(&queue, job, now, found).await?;
    }
    Ok(())
}

async fn lying(
    queue: &Queue,
    job: &str,
    now: Timestamp,
    found: &mut Vec<Found>,
) -> anyhow::Result<()> {
    let name = queue.name().to_owned();
    queue
        .peek(LOOK_MAX, |message| {
            if message.meta.job.as_str() == job {
                found.push(lies(&name, message, now));
            }
        })
        .await?;
    let filter = DeadLetterFilter { job: Some(job.to_owned()), ..DeadLetterFilter::default() };
    let dead = queue.dead_letters();
    let listed = dead.list(&filter, 1, |letter| {
        let error = letter.failure().map_or("", |died| died.message.as_str());
        let words = format!(
            "it lies with the dead letters of {name}: {error}\n\
             send it again with: sluicegate dlq replay {name} --job {job}"
        );
        let value = json!({"queue": name, "state": "dead", "error": error});
        found.push(Found { value, words });
    });
    // Where dead letters of several queues share a place, they are found once for each.
    listed.await?;
    Ok(())
}

fn lies(queue: &str, message: &Message, now: Timestamp) -> Found {
    let meta = &message.meta;
    let until = meta.not_before.filter(|until| *until > now);
    let booked = meta.booking.is_some();
    let waits = match until {
        None => "it waits to be taken: nobody works on this queue, or others come first".to_owned(),
        Some(until) => {
            let why = if meta.attempt > 0 { "the next attempt" } else { "its provider's limit" };
            let why = if booked { "the moment that is booked for it" } else { why };
            format!("it waits for {why}, until {until}, {} from now", until.since(now).in_words())
        }
    };
    let words = format!(
        "it is in {queue}: {waits}; failures so far {}, waits for a limit {}",
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
    Found { value, words }
}

fn seen_words(seen: &Value, now: Timestamp) -> String {
    let text = |key: &str| seen[key].as_str().unwrap_or_default().to_owned();
    let (queue, provider) = (text("queue"), text("provider"));
    let what = match seen["event"].as_str().unwrap_or_default() {
        "dispatched" => format!("it was sent to {queue}, for {provider}"),
        "delayed" => {
            format!("the limit of {provider} is reached: it was sent to {queue} for later")
        }
        "waiting" => format!("a worker of {queue} holds it and waits for the limit of {provider}"),
        "deferred" => {
            format!("a worker gave it back to {queue} until the limit of {provider} lets it go")
        }
        "in_work" => format!("a worker of {queue} works on it, for {provider}"),
        "retried" => format!("it failed and is tried again from {queue}: {}", text("error")),
        "done" => format!("it is done, by a worker of {queue}"),
        "dead" => format!("it was given up, from {queue}: {}", text("error")),
        other => other.to_owned(),
    };
    let until = seen["until"].as_str().and_then(|until| until.parse::<Timestamp>().ok());
    let until = until.map_or_else(String::new, |until| match until > now {
        true => format!(", until {until}, {} from now", until.since(now).in_words()),
        false => format!(", until {until}, which is past"),
    });
    format!("{} {what}{until}", text("at"))
}

/// The queues in which a job can lie, and where their dead letters go.
fn names(config: &Config) -> Vec<(String, Option<String>)> {
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

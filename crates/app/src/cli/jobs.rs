//! `sluicegate jobs why`: finds a job in the running process and in the queues, and prints what it
//! is waiting for.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluicegate_config::{Config, QueueBroker};
use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{DeadLetterFilter, FoundMessage, Queue, SearchCoverage, WallClock};

use super::query::percent_encode;
use super::queue::block_on;
use super::remote::{AccessArgs, CallRejected, Remote, display, items};
use super::{print_error, print_note};
use crate::configuration::ConfigSource;
use crate::queue::{MissingQueue, Queues};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate jobs why 7f3a --config jobs.yaml            where job 7f3a is and what it waits for
  sluicegate jobs why 7f3a --config jobs.yaml --search   also search queues of a broker

The command asks the process at its admin listener (--admin), then searches the queues of the
configuration and those that clients of the queue API of that process use. The embedded queue and Service Bus can be browsed without receiving
messages: those of other brokers are searched only with --search, which receives messages and requeues them.

Exit code: 0 found, 1 not found, 2 error";

const NOT_FOUND: &str = "job not found: it was never sent, or it finished too long ago";
/// Added to [`NOT_FOUND`] if the queues of the broker were not searched.
const NOT_SEARCHED: &str = "; add --search to search the queues of the broker";
/// Added to [`NOT_FOUND`] if the queues were searched by receiving.
const NOT_VISIBLE: &str = "; messages that a worker holds can't be found by searching";

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
    /// Also search RabbitMQ, SQS and Pub/Sub queues, by receiving their messages and requeueing them
    #[arg(long)]
    search: bool,
    /// Address of the admin listener of the dispatcher or worker process [default: listen.admin of
    /// --config]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    #[command(flatten)]
    access: AccessArgs,
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
        let Self { job, config, search, admin, access, json } = self;
        let config_file = config.clone();
        let config = ConfigSource::new(config).load()?.config;
        let scheme = if config.listen.admin.tls.is_some() { "https" } else { "http" };
        let admin = admin.unwrap_or_else(|| format!("{scheme}://{}", config.listen.admin.address));
        let remote = Remote::new(admin, access, json);
        let now = WallClock.now();
        // Providers are optional: without them, the answer is less exact.
        let providers = remote.get("/v1/providers").unwrap_or_default();
        // Queues that only clients of the queue API use are in no configuration.
        let of_clients = remote.get("/v1/queues").unwrap_or_default();
        let (mut found, mut unseen) = (Vec::new(), None);
        match remote.get(&format!("/v1/jobs/{}", percent_encode(&job))) {
            Ok(seen) => {
                let words = describe_state(&seen, &providers, now);
                found.push(JobLocation { words, value: seen });
            }
            // The queues can still be searched.
            Err(problem) => unseen = Some(problem),
        }
        let is_browsable = config.queue.as_ref().is_none_or(|queue| {
            matches!(queue.broker, QueueBroker::Embedded { .. } | QueueBroker::ServiceBus { .. })
        });
        block_on(async move {
            if is_browsable || search {
                let config_file = config_file.as_deref();
                let job_search = JobSearch { job: &job, now, providers: &providers, config_file };
                job_search.run(&config, &of_clients, &mut found).await?;
            }
            // If a queue has the job, it does not matter that the process has not seen it.
            let is_answer = |problem: &anyhow::Error| problem.is::<CallRejected>();
            if let Some(problem) = unseen.filter(|it| found.is_empty() || !is_answer(it)) {
                let words = format!("{problem:#}");
                match found.is_empty() {
                    true => print_error(&words),
                    false => print_note(&format!("only the queues were searched: {words}")),
                }
            }
            let values = found.iter().map(|found| found.value.clone()).collect();
            remote.show(&Value::Array(values), |_| match found.is_empty() {
                true if is_browsable => NOT_FOUND.to_owned(),
                true if search => format!("{NOT_FOUND}{NOT_VISIBLE}"),
                true => format!("{NOT_FOUND}{NOT_SEARCHED}"),
                false => {
                    let words: Vec<_> = found.iter().map(|found| found.words.as_str()).collect();
                    words.join("\n")
                }
            });
            Ok(!found.is_empty())
        })
    }
}

/// A search for a job in the queues.
struct JobSearch<'a> {
    job: &'a str,
    now: Timestamp,
    /// Answer of `GET /v1/providers`.
    providers: &'a Value,
    config_file: Option<&'a Path>,
}

impl JobSearch<'_> {
    /// Searches the queues of a configuration and those that the process knows: the answer of
    /// `GET /v1/queues`.
    async fn run(
        &self,
        config: &Config,
        known: &Value,
        found: &mut Vec<JobLocation>,
    ) -> anyhow::Result<()> {
        let mut names = queue_names(config);
        for queue in items(&known["queues"]) {
            let (name, dead_letter) =
                (display(&queue["queue"]), display(&queue["deadLetterQueue"]));
            if !name.is_empty() && !names.iter().any(|(other, _)| *other == name) {
                names.push((name, Some(dead_letter).filter(|name| !name.is_empty())));
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        let broker = config.queue.clone().unwrap_or_default();
        if let QueueBroker::Embedded { path } = &broker.broker
            && !path.exists()
        {
            return Ok(());
        }
        let queues = Queues::open(&broker).await.context("queue")?;
        for (name, dead_letter) in names {
            let opened = queues.queue_with(&name, dead_letter.as_deref(), MissingQueue::Fail).await;
            let Ok(queue) = opened else { continue };
            let provider = provider_of(config, &name);
            self.search_queue(&queue, provider.as_deref(), found).await?;
        }
        Ok(())
    }

    async fn search_queue(
        &self,
        queue: &Queue,
        provider: Option<&str>,
        found: &mut Vec<JobLocation>,
    ) -> anyhow::Result<()> {
        let (job, name) = (self.job, queue.name());
        let coverage =
            queue.find(job, |message| found.push(self.in_queue(name, provider, &message))).await?;
        if coverage == SearchCoverage::Part {
            print_error(&format!("queue {name} has more messages than can be searched"));
        }
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
                 replay it with: {}",
                self.replay_command(name)
            );
            let value = json!({"queue": name, "state": "dead", "error": error});
            found.push(JobLocation { value, words });
        });
        listed.await?;
        Ok(())
    }

    /// Returns the command that replays the dead letter of the job, as a shell reads it.
    fn replay_command(&self, queue: &str) -> String {
        // One word, so that an id that begins with a dash is not read as an option.
        let job = shell_word(&format!("--job={}", self.job));
        let mut command = format!("sluicegate dlq replay {} {job}", shell_word(queue));
        if let Some(file) = self.config_file {
            command.push_str(&format!(" --config {}", shell_word(&file.to_string_lossy())));
        }
        command
    }

    fn in_queue(&self, queue: &str, provider: Option<&str>, found: &FoundMessage) -> JobLocation {
        let FoundMessage { message, leased_until } = found;
        let (meta, now) = (&message.meta, self.now);
        let until = meta.not_before.filter(|until| *until > now);
        let booked = meta.booking.is_some();
        let blocked = provider.and_then(|provider| blocked_provider(self.providers, provider));
        let (state, until, waits) = match (leased_until, until, blocked) {
            (Some(end), _, _) => {
                let words = format!(
                    "a worker has it; unless that worker extends its lease, it is delivered again \
                     {}",
                    at(*end, now)
                );
                ("leased", Some(*end), words)
            }
            (None, Some(until), _) => {
                let why = match provider {
                    _ if booked => "booked start time",
                    _ if meta.attempt > 0 => "next attempt",
                    Some(_) if meta.deferrals > 0 => "provider's limit",
                    Some(_) => "delay, which its sender or the dispatcher set,",
                    None => "delay",
                };
                let words = format!("waiting for its {why} until {}", at(until, now));
                ("delayed", Some(until), words)
            }
            (None, None, Some((state, until, words))) => (state, until, words),
            (None, None, None) => {
                let words = match provider {
                    Some(_) => {
                        "ready, but not received yet: no worker is running, or other messages come \
                         first"
                    }
                    None => "ready, but not received yet",
                };
                ("ready", None, words.to_owned())
            }
        };
        let words = format!(
            "it is in queue {queue}: {waits}; failed attempts: {}, deferrals by a limit: {}",
            meta.attempt, meta.deferrals
        );
        let value = json!({
            "queue": queue,
            "state": state,
            "until": until.map(|until| until.to_string()),
            "booked": booked,
            "failed_attempts": meta.attempt,
            "deferrals": meta.deferrals,
        });
        JobLocation { value, words }
    }
}

/// Quotes a text for a POSIX shell, unless it is a plain word.
fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Formats an instant with the time until then.
fn at(instant: Timestamp, now: Timestamp) -> String {
    match instant > now {
        true => format!("{instant} (in {})", instant.since(now).in_words()),
        false => format!("{instant} (already past)"),
    }
}

/// Returns the state of a provider that admits no job now, until when, and both in words.
fn blocked_provider(
    providers: &Value,
    provider: &str,
) -> Option<(&'static str, Option<Timestamp>, String)> {
    let known = items(providers).iter().find(|known| known["provider"] == provider)?;
    let until = known["until"].as_str().and_then(|until| until.parse::<Timestamp>().ok());
    let shown = until.map(|until| format!(" until {}", at(until, WallClock.now())));
    let shown = shown.unwrap_or_default();
    match known["state"].as_str()? {
        "paused" => {
            Some(("paused", until, format!("provider {provider} asked for a pause{shown}")))
        }
        "limited" => Some(("limited", until, format!("the limit of {provider} is reached{shown}"))),
        _ => None,
    }
}

fn describe_state(seen: &Value, providers: &Value, now: Timestamp) -> String {
    let text = |key: &str| seen[key].as_str().unwrap_or_default().to_owned();
    let (queue, provider, error) = (text("queue"), text("provider"), text("error"));
    let blocked = blocked_provider(providers, &provider);
    let pause = blocked.filter(|(state, ..)| *state == "paused").map(|(_, _, words)| words);
    let limit = || match &pause {
        Some(pause) => pause.clone(),
        None => format!("the limit of {provider} is reached"),
    };
    let what = match seen["event"].as_str().unwrap_or_default() {
        "sent" => format!("sent to queue {queue} by a client of the queue API"),
        "leased" => format!("a client of the queue API has it, from queue {queue}"),
        "deferred" if provider.is_empty() => {
            format!("returned to queue {queue} by a client of the queue API")
        }
        "done" if provider.is_empty() => {
            format!("done, by a client of the queue API, from queue {queue}")
        }
        "dispatched" => format!("dispatched to queue {queue} for provider {provider}"),
        "delayed" => format!("sent to queue {queue} with a delay: {}", limit()),
        "waiting" => match &pause {
            Some(pause) => format!("a worker of queue {queue} has it and waits: {pause}"),
            None => {
                format!("a worker of queue {queue} has it and waits for the limit of {provider}")
            }
        },
        "deferred" if !error.is_empty() => {
            format!("requeued to {queue} by a worker: {provider} refused it: {error}")
        }
        "deferred" => format!("requeued to {queue} by a worker: {}", limit()),
        "in_work" => format!("running: a worker of queue {queue} works on it, for {provider}"),
        "retried" => format!("failed, will be retried from queue {queue}: {error}"),
        "done" => format!("done, by a worker of queue {queue}"),
        "dead" => format!("failed for good, dead letter of queue {queue}: {error}"),
        other => other.to_owned(),
    };
    let until = seen["until"].as_str().and_then(|until| until.parse::<Timestamp>().ok());
    let until = until.map_or_else(String::new, |until| format!(", until {}", at(until, now)));
    let mut words = format!("{} {what}{until}", text("at"));
    let earlier = items(&seen["earlier"]);
    if !earlier.is_empty() {
        words.push_str("\nearlier:");
    }
    for event in earlier {
        let [at, name, queue] = ["at", "event", "queue"].map(|field| display(&event[field]));
        let name = name.replace('_', " ");
        let error = event["error"].as_str().map_or_else(String::new, |error| format!(": {error}"));
        words.push_str(&format!("\n  {at} {name}, queue {queue}{error}"));
    }
    words
}

/// Returns the provider whose jobs are in a queue.
fn provider_of(config: &Config, queue: &str) -> Option<String> {
    let worker = config.workers.iter().find(|worker| worker.queue == queue);
    let of_worker = worker.map(|worker| worker.provider.clone());
    of_worker.or_else(|| {
        let mut providers = config.dispatch.iter().flat_map(|dispatch| &dispatch.providers);
        providers.find(|provider| provider.queue == queue).map(|provider| provider.name.clone())
    })
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

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn a_shell_reads_one_word() {
        for (text, word) in [
            ("acme/site-1", "acme/site-1"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's", r"'it'\''s'"),
            ("Übung", "'Übung'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }
}

//! `sluicegate serve`: starts the service, handles signals and reloads changed configuration files.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use notify::{RecursiveMode, Watcher};
use sluicegate_config::{Config, LogFormat, LogLevel};
use sluicegate_dispatch::Stop;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::AlreadyLogged;
use super::gateway_notes::rules_for_no_gateway;
use crate::configuration::ConfigSource;
use crate::console::Console;
use crate::log_line::LineFormat;
use crate::queue::MissingQueue;
use crate::store;
use crate::trace_log::WithTraceId;
use crate::wire::{Node, Role, RunOptions};

/// Target of the log lines of the AMQP client.
const AMQP_CLIENT: &str = "lapin";
/// Environment variable with the levels of the log per module.
const LOG_FILTER: &str = "SLUICEGATE_LOG";

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate serve                               defaults: 100 requests per hour, user and model, in memory
  REDIS_URL=redis://10.0.0.5:6379 sluicegate serve
                                                 the same on Redis; several servers of a Redis Cluster,
                                                 separated by commas, with REDIS_CLUSTER_MODE=true
  sluicegate serve --config limits.yaml          use this configuration
  sluicegate serve --config ratelimit.yaml       a configuration of envoyproxy/ratelimit works, too
  sluicegate serve -c jobs.yaml --only gateway   run only the gateways of the configuration
  sluicegate serve -c jobs.yaml --only worker --create
                                                 run only the workers, create missing queues

A changed configuration file is reloaded automatically.

Signals:
  SIGTERM, SIGINT  finish requests and jobs in flight, then exit; a second signal exits at once
  SIGHUP           reload the configuration if started without a terminal (as a daemon), else exit";

#[derive(Args)]
pub(super) struct Serve {
    /// Configuration file [default: built-in defaults]
    #[arg(short, long, value_name = "FILE", env = "SLUICEGATE_CONFIG")]
    config: Option<PathBuf>,
    #[arg(hide = true, value_name = "FILE", value_parser = super::file_without_option)]
    _file: Option<Infallible>,
    /// Run only these parts of the service, comma-separated [default: all]. The admin listener always
    /// runs
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Role>,
    /// Create queues that do not exist
    #[arg(long)]
    create: bool,
    /// Show a progress line for jobs below the log
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = ProgressMode::Auto)]
    progress: ProgressMode,
}

/// Value of `--progress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProgressMode {
    /// If standard error is a terminal
    Auto,
    /// Even if standard error is not a terminal
    Always,
    /// No progress line
    Never,
}

impl Serve {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let source = ConfigSource::new(self.config);
        let loaded = source.load()?;
        let console = Console::start().context("can't start the log writer")?;
        let progress = match self.progress {
            ProgressMode::Auto => Console::is_terminal(),
            ProgressMode::Always => true,
            ProgressMode::Never => false,
        };
        let progress = progress.then(|| console.clone());
        start_logging(&loaded.config, &console)?;
        for warning in &loaded.warnings {
            warn!("{warning}");
        }
        store::log_selected(&loaded.config);
        let roles = match self.only.is_empty() {
            true => Role::ALL.to_vec(),
            false => self.only,
        };
        idle_parts(&roles, &loaded.config)?;
        if roles == [Role::Gateway] {
            for rule in rules_for_no_gateway(&loaded.config) {
                warn!(rule, "the rule never applies: no gateway provides all its dimensions");
            }
        }
        let missing = if self.create { MissingQueue::Create } else { MissingQueue::Fail };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let outcome = runtime.block_on(async {
            let stop = Stop::default();
            let run = RunOptions { roles: &roles, missing, progress, stop };
            serve(source, &loaded.config, run).await
        });
        // A DNS lookup that is still running must not delay the exit.
        runtime.shutdown_timeout(Duration::from_secs(1));
        // The error comes before "stopped", so the cause is among the last lines of the log.
        if let Err(error) = &outcome {
            error!("{error:#}");
        }
        info!("stopped");
        console.close();
        match outcome {
            Ok(()) => Ok(true),
            Err(_) if tracing::enabled!(tracing::Level::ERROR) => Err(AlreadyLogged.into()),
            Err(error) => Err(error),
        }
    }
}

/// Warns about parts of `--only` that the configuration does not have. It is an error if it has none
/// of them, because the process would do nothing.
fn idle_parts(roles: &[Role], config: &Config) -> anyhow::Result<()> {
    let section = |role: &Role| match role {
        Role::Gateway if config.gateways.is_empty() => Some("gateways"),
        Role::Dispatch if config.dispatch.is_none() => Some("dispatch"),
        Role::Worker if config.workers.is_empty() => Some("workers"),
        _ => None,
    };
    let missing: Vec<_> = roles.iter().filter_map(section).collect();
    if missing.len() == roles.len() {
        anyhow::bail!(
            "--only: nothing to run, because the configuration has no section {}",
            missing.join(" or ")
        );
    }
    if !roles.contains(&Role::Limiter) {
        for section in missing {
            warn!(section, "--only: section missing in the configuration");
        }
    }
    Ok(())
}

async fn serve(source: ConfigSource, config: &Config, run: RunOptions<'_>) -> anyhow::Result<()> {
    let node = Node::new(source.clone(), config, run.roles)?;
    // Installed before anything slow, so that an early signal is not lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = HangupSignal::new(&source)?;
    let mut changed = watch(&source)?;

    let stop = run.stop.clone();
    let reloading = node.clone();
    let signals = tokio::spawn(async move {
        let signal = loop {
            tokio::select! {
                _ = interrupt.recv() => break "SIGINT",
                _ = terminate.recv() => break "SIGTERM",
                action = hangup.recv() => match action {
                    HangupAction::Reload => reload(&reloading).await,
                    HangupAction::Exit => break "SIGHUP",
                },
                Some(()) = changed.recv() => reload(&reloading).await,
            }
        };
        info!(
            signal,
            "stopping: finishing requests and jobs in flight; send a second signal to stop at once"
        );
        stop.drain.cancel();
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("stopping at once: unfinished jobs are requeued");
        stop.now.cancel();
    });
    let outcome = node.run(config, run).await;
    signals.abort();
    outcome
}

/// Receiver of SIGHUP, which means either that the terminal was closed or that an operator wants
/// the service to reload its configuration.
struct HangupSignal {
    action: HangupAction,
    /// `None` if the parent process set SIGHUP to ignored, as `nohup` does.
    signal: Option<Signal>,
}

/// Reaction to SIGHUP; see docs/decisions/014-what-sighup-means.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HangupAction {
    Reload,
    Exit,
}

impl HangupSignal {
    fn new(source: &ConfigSource) -> anyhow::Result<Self> {
        // Only a process with a controlling terminal can open this.
        let has_terminal = std::fs::File::open("/dev/tty").is_ok();
        let is_service = !has_terminal && !source.files().is_empty();
        let action = if is_service { HangupAction::Reload } else { HangupAction::Exit };
        let signal = match is_ignored(SignalKind::hangup()) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self { action, signal })
    }

    async fn recv(&mut self) -> HangupAction {
        match &mut self.signal {
            Some(signal) => {
                signal.recv().await;
                self.action
            }
            None => std::future::pending().await,
        }
    }
}

/// Returns true if a signal was set to ignored when this process started. Reads `/proc`, so it is
/// always false where that does not exist.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

async fn reload(node: &Arc<Node>) {
    let node = node.clone();
    // `Node::reload` has logged the error.
    let _ = tokio::task::spawn_blocking(move || node.reload()).await;
}

/// Watches the configuration files and sends a message after one of them has changed.
///
/// Watches their folders, because editors and orchestrators replace files instead of writing to
/// them. Waits 100 ms after an event, so that several writes cause one reload.
fn watch(source: &ConfigSource) -> anyhow::Result<mpsc::Receiver<()>> {
    let (changed_tx, changed_rx) = mpsc::channel(1);
    if source.files().is_empty() {
        // Keeps the channel open: a closed one would return `None` from every `recv`.
        std::mem::forget(changed_tx);
        return Ok(changed_rx);
    }
    let (event_tx, mut event_rx) = mpsc::channel(1);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            // If the channel is full, a check is already pending.
            let _ = event_tx.try_send(());
        }
    })
    .context("can't watch files")?;
    let mut known = BTreeMap::new();
    for path in source.files() {
        watch_folder(&mut watcher, &path)?;
        known.insert(path.clone(), std::fs::read(&path).ok());
    }
    let source = source.clone();
    tokio::spawn(async move {
        while event_rx.recv().await.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut changed = false;
            for path in source.files() {
                let now = read_stable(&path).await;
                // Another file in the folder changed.
                if known.get(&path) == Some(&now) {
                    continue;
                }
                if now.is_none() {
                    warn!(file = %path.display(), "configuration file is missing or unreadable");
                }
                // A file that an earlier reload added, such as `prices.file`.
                if !known.contains_key(&path)
                    && let Err(problem) = watch_folder(&mut watcher, &path)
                {
                    warn!("{problem:#}: changes of this file are not detected");
                }
                changed |= known.insert(path, now).is_some();
            }
            if changed && changed_tx.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(changed_rx)
}

/// Reads a file; returns `None` if it is missing or can't be read.
///
/// A file that is missing or empty may be in the middle of a replacement, so this retries for a
/// second.
async fn read_stable(path: &Path) -> Option<Vec<u8>> {
    for _ in 0..10 {
        let content = tokio::fs::read(path).await.ok();
        if content.as_ref().is_some_and(|content| !content.is_empty()) {
            return content;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::fs::read(path).await.ok()
}

fn watch_folder(watcher: &mut impl Watcher, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    watcher
        .watch(folder, RecursiveMode::NonRecursive)
        .with_context(|| format!("can't watch {}", folder.display()))
}

/// Installs the logger, which writes to standard error. Standard output carries the decision log.
fn start_logging(config: &Config, console: &Console) -> anyhow::Result<()> {
    let filter = log_filter(config.log.level, std::env::var(LOG_FILTER).ok())?;
    let (terminal, console) = (Console::is_terminal(), console.clone());
    let json = match config.log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !terminal,
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(move || console.clone())
        // Otherwise a failed write would be reported on standard error, which is where writing
        // failed, by a macro that panics.
        .log_internal_errors(false)
        .with_target(false);
    if json {
        let builder = builder.json().flatten_event(true).map_event_format(WithTraceId::json);
        builder.finish().with(filter).init();
    } else {
        let format = WithTraceId::text(LineFormat::new(Console::has_colour()));
        builder.with_ansi(false).event_format(format).finish().with(filter).init();
    }
    Ok(())
}

/// Returns the filter of the log: that of the environment, or the level of the configuration. The AMQP
/// client logs errors that its caller expects, such as a queue that is about to be created, so it is off
/// unless the environment names it.
fn log_filter(level: LogLevel, variable: Option<String>) -> anyhow::Result<Targets> {
    if let Some(text) = variable.filter(|text| !text.is_empty()) {
        let filter: Targets = text.parse().with_context(|| {
            format!(
                "{LOG_FILTER}={text:?} is no log filter: write levels per module, such as \
                 warn,sluicegate_store=debug"
            )
        })?;
        return Ok(match text.contains(AMQP_CLIENT) {
            true => filter,
            false => filter.with_target(AMQP_CLIENT, LevelFilter::OFF),
        });
    }
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Ok(Targets::new().with_default(level).with_target(AMQP_CLIENT, LevelFilter::OFF))
}

//! `sluicegate serve`.

use std::collections::BTreeMap;
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
use tracing_subscriber::EnvFilter;

use super::Logged;
use crate::configuration::Source;
use crate::console::Console;
use crate::queue::Missing;
use crate::wire::{Node, Part, Run};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate serve                          100 requests per hour, user and model, in memory
  sluicegate serve --config limits.yaml     what the file says
  sluicegate serve --config ratelimit.yaml  the same, of a file of envoyproxy/ratelimit
  sluicegate serve --config F --only gateway  its gateways, and nothing else of it
  sluicegate serve --config F --only worker --create  its workers, making queues that are missing
  kill -HUP PID                             read the file again (as a change of it does), if it was
                                            started without a terminal; else the end, as with TERM";

#[derive(Args)]
pub(super) struct Serve {
    /// The configuration; without one, the defaults apply
    #[arg(short, long, value_name = "FILE", env = "SLUICEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Start only these parts of the configuration; metrics and administration are always there
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// Make queues that do not exist
    #[arg(long)]
    create: bool,
    /// Show how jobs get on, in a line below the log
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Progress::Auto)]
    progress: Progress,
}

/// When to show how jobs get on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Progress {
    /// On a terminal
    Auto,
    /// Whatever standard error is
    Always,
    /// Not at all
    Never,
}

impl Serve {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let source = Source::new(self.config);
        let loaded = source.load()?;
        let console = Console::start().context("can't start the log")?;
        let progress = match self.progress {
            Progress::Auto => Console::is_terminal(),
            Progress::Always => true,
            Progress::Never => false,
        };
        let progress = progress.then(|| console.clone());
        start_logging(&loaded.config, &console);
        for warning in &loaded.warnings {
            warn!("{warning}");
        }
        let parts = match self.only.is_empty() {
            true => Part::ALL.to_vec(),
            false => self.only,
        };
        let missing = if self.create { Missing::Make } else { Missing::Refuse };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let outcome = runtime.block_on(async {
            let stop = Stop::default();
            let run = Run { parts: &parts, missing, progress, stop };
            serve(source, &loaded.config, run).await
        });
        // A name that is still being resolved is not waited for.
        runtime.shutdown_timeout(Duration::from_secs(1));
        // The cause before the end: whoever reads the log upwards finds it.
        if let Err(error) = &outcome {
            error!("{error:#}");
        }
        info!("stopped");
        console.close();
        match outcome {
            Ok(()) => Ok(true),
            Err(_) if tracing::enabled!(tracing::Level::ERROR) => Err(Logged.into()),
            Err(error) => Err(error),
        }
    }
}

async fn serve(source: Source, config: &Config, run: Run<'_>) -> anyhow::Result<()> {
    let node = Node::new(source.clone(), config, run.parts)?;
    // Before anything can take long: a signal that comes early must not be lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = Hangup::new(&source)?;
    let mut changed = watch(&source)?;

    let stop = run.stop.clone();
    let reloading = node.clone();
    let signals = tokio::spawn(async move {
        let signal = loop {
            tokio::select! {
                _ = interrupt.recv() => break "SIGINT",
                _ = terminate.recv() => break "SIGTERM",
                meaning = hangup.recv() => match meaning {
                    Meaning::Reload => reload(&reloading).await,
                    Meaning::End => break "SIGHUP",
                },
                Some(()) = changed.recv() => reload(&reloading).await,
            }
        };
        info!(
            signal,
            "stopping: what is in flight is finished first; a second signal ends it at once"
        );
        stop.drain.cancel();
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("stopping at once: what is in work is given back");
        stop.now.cancel();
    });
    let outcome = node.run(config, run).await;
    signals.abort();
    outcome
}

/// SIGHUP: the terminal was closed, or an operator asks a service to read its files again.
struct Hangup {
    meaning: Meaning,
    /// None where whoever started the process has it ignored, as `nohup` does.
    signal: Option<Signal>,
}

/// What SIGHUP asks for; see docs/decisions/014-what-sighup-means.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Reload,
    End,
}

impl Hangup {
    fn new(source: &Source) -> anyhow::Result<Self> {
        // Only a process that belongs to a terminal can open this.
        let has_terminal = std::fs::File::open("/dev/tty").is_ok();
        let is_service = !has_terminal && !source.files().is_empty();
        let meaning = if is_service { Meaning::Reload } else { Meaning::End };
        let signal = match is_ignored(SignalKind::hangup()) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self { meaning, signal })
    }

    async fn recv(&mut self) -> Meaning {
        match &mut self.signal {
            Some(signal) => {
                signal.recv().await;
                self.meaning
            }
            None => std::future::pending().await,
        }
    }
}

/// Whether a signal was ignored when this process started, where the system tells.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

async fn reload(node: &Arc<Node>) {
    let node = node.clone();
    // What is wrong has been logged; there is nobody else to tell.
    let _ = tokio::task::spawn_blocking(move || node.reload()).await;
}

/// Tells when one of the files has changed, once they have been quiet for a moment.
///
/// Their folders are watched, because editors and orchestrators replace files instead of writing
/// them.
fn watch(source: &Source) -> anyhow::Result<mpsc::Receiver<()>> {
    let (tell, told) = mpsc::channel(1);
    if source.files().is_empty() {
        // Never closed: a receiver without sender would answer all the time.
        std::mem::forget(tell);
        return Ok(told);
    }
    let (touched, mut touches) = mpsc::channel(1);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            // Full means that somebody is already on the way.
            let _ = touched.try_send(());
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
        while touches.recv().await.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut changed = false;
            for path in source.files() {
                let now = settled(&path).await;
                // Something else in the folder.
                if known.get(&path) == Some(&now) {
                    continue;
                }
                if now.is_none() {
                    warn!(file = %path.display(), "a configuration file is gone or unreadable");
                }
                // A file that an earlier change has named.
                if !known.contains_key(&path)
                    && let Err(problem) = watch_folder(&mut watcher, &path)
                {
                    warn!("{problem:#}: a change of it is not noticed");
                }
                changed |= known.insert(path, now).is_some();
            }
            if changed && tell.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(told)
}

/// The content of a file; `None` if it is gone or can't be read.
///
/// A file that is missing or empty may be in the middle of being replaced: it gets a second to come
/// back.
async fn settled(path: &Path) -> Option<Vec<u8>> {
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

/// Logs go to standard error; standard output is for decisions.
fn start_logging(config: &Config, console: &Console) {
    let level = match config.log.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let filter =
        EnvFilter::try_from_env("SLUICEGATE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let (terminal, console) = (Console::is_terminal(), console.clone());
    let json = match config.log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !terminal,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || console.clone())
        // A line that could not be written would be told of on standard error, which is where it
        // could not be written, and by a macro that panics.
        .log_internal_errors(false)
        .with_target(false);
    if json {
        builder.json().flatten_event(true).init();
    } else {
        builder.with_ansi(terminal).init();
    }
}

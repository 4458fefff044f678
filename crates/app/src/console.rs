//! Writes log lines and the progress line of jobs to standard error, from a thread of its own.
//!
//! Logging neither blocks nor fails: a closed terminal, or a pipe whose reader is slow or gone, must
//! not delay a decision or end the process. If the buffer is full, lines are dropped, and their
//! number is logged as soon as writing works again.

use std::convert::Infallible;
use std::io::{self, IsTerminal as _, Write};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tracing::warn;

/// Size of the buffer in bytes: some thousand lines.
const BYTES_MAX: usize = 1 << 20;
/// Maximum time to wait for the last lines when the process exits.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Handle of the writer thread. Clones share the thread.
#[derive(Clone)]
pub(crate) struct Console(Arc<Inner>);

struct Inner {
    pending: Mutex<PendingOutput>,
    wake: Condvar,
    /// Disconnects when the thread ends.
    ended: Mutex<Receiver<Infallible>>,
}

#[derive(Default)]
struct PendingOutput {
    bytes: Vec<u8>,
    lines: u64,
    /// Number of dropped lines that has not been logged yet.
    dropped: u64,
    progress: Option<ProgressUpdate>,
    closed: bool,
}

/// An update of the progress line.
enum ProgressUpdate {
    Show(String),
    Clear,
}

impl Console {
    /// Starts the writer thread.
    pub(crate) fn start() -> io::Result<Self> {
        Self::over(io::stderr())
    }

    fn over(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (end, ended) = sync_channel(1);
        let (pending, wake, ended) = (Mutex::default(), Condvar::new(), Mutex::new(ended));
        let console = Self(Arc::new(Inner { pending, wake, ended }));
        let inner = console.0.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            inner.write_out(out);
            drop(end);
        })?;
        Ok(console)
    }

    /// Returns true if standard error is a terminal.
    pub(crate) fn is_terminal() -> bool {
        io::stderr().is_terminal()
    }

    /// Returns true if standard error is a terminal with colours, and `NO_COLOR` is not set.
    pub(crate) fn has_colour() -> bool {
        anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
    }

    /// Shows a progress line below the log, in place of the previous one.
    pub(crate) fn show_progress(&self, text: String) {
        self.0.progress(ProgressUpdate::Show(text));
    }

    /// Removes the progress line.
    pub(crate) fn clear_progress(&self) {
        self.0.progress(ProgressUpdate::Clear);
    }

    /// Waits until all lines are written, but at most [`CLOSE_MAX`]: the reader may be stuck.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
        self.0.wake.notify_one();
        let ended = self.0.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(CLOSE_MAX);
    }
}

/// Each call of `write` takes one log line and never fails.
impl Write for Console {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Inner {
    fn line(&self, line: &[u8]) {
        let mut pending = self.lock();
        if line.len() > BYTES_MAX - pending.bytes.len() {
            pending.dropped += 1;
            return;
        }
        pending.bytes.extend_from_slice(line);
        pending.lines += 1;
        drop(pending);
        self.wake.notify_one();
    }

    fn progress(&self, progress: ProgressUpdate) {
        self.lock().progress = Some(progress);
        self.wake.notify_one();
    }

    fn write_out(&self, mut out: impl Write) {
        let mut bar: Option<ProgressBar> = None;
        while let Some(PendingOutput { bytes, lines, progress, .. }) = self.next() {
            if lines > 0 {
                let mut write = || out.write_all(&bytes).and_then(|()| out.flush());
                let written = match &bar {
                    None => write(),
                    Some(bar) => ProgressBar::suspend(bar, write),
                };
                self.record_write(lines, written);
            }
            match progress {
                None => {}
                Some(ProgressUpdate::Show(text)) => {
                    let bar = bar.get_or_insert_with(new_bar);
                    bar.set_message(text);
                    bar.tick();
                }
                Some(ProgressUpdate::Clear) => clear(&mut bar),
            }
        }
        clear(&mut bar);
    }

    /// Waits for output and takes it; returns `None` after `close`.
    fn next(&self) -> Option<PendingOutput> {
        let mut pending = self.lock();
        while pending.lines == 0 && pending.progress.is_none() {
            if pending.closed {
                return None;
            }
            pending = self.wake.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        let (closed, dropped) = (pending.closed, pending.dropped);
        Some(std::mem::replace(
            &mut pending,
            PendingOutput { closed, dropped, ..PendingOutput::default() },
        ))
    }

    /// Counts lines that could not be written, and logs their number after the next success.
    fn record_write(&self, lines: u64, written: io::Result<()>) {
        let mut pending = self.lock();
        if written.is_err() {
            pending.dropped += lines;
            return;
        }
        let dropped = std::mem::take(&mut pending.dropped);
        drop(pending);
        if dropped > 0 {
            warn!(dropped, "log lines were dropped: standard error was blocked or closed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, PendingOutput> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn clear(bar: &mut Option<ProgressBar>) {
    if let Some(bar) = bar.take() {
        bar.finish_and_clear();
    }
}

fn new_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {wide_msg}");
    ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

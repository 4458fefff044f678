//! [`Writer`]: the thread that writes the decision log, with its bounded queue.
//!
//! The queue is a byte buffer of whole lines. The thread swaps it for an empty one and writes it
//! out, so lines that arrive meanwhile become one write. The bound is in bytes, so it holds for
//! lines of any length, and nothing is allocated once both buffers have grown.

use std::convert::Infallible;
use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sluicegate_core::Span;

/// Time that the thread waits for more lines before it writes. Waking the thread costs more than
/// writing a line, and no reader needs the log sooner.
const LINGER: Duration = Duration::from_millis(10);

/// Maximum time that closing waits for a blocked output: a process must end even if its output is
/// not read.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// A background writer, until it is closed or dropped.
pub(super) struct Writer {
    queue: Arc<Queue>,
    /// Disconnected when the thread has ended; `None` after a `close` has waited for it.
    ended: Mutex<Option<Receiver<Infallible>>>,
}

struct Queue {
    queued: Mutex<QueuedLines>,
    wake: Condvar,
    bytes_max: usize,
    /// Number of lines lost since the start.
    dropped: AtomicU64,
    /// Number of lost lines that no later line has reported yet.
    missing: AtomicU64,
}

#[derive(Default)]
struct QueuedLines {
    bytes: Vec<u8>,
    lines: u64,
    /// Number of lines that the thread is writing.
    writing: u64,
    /// True if the thread sleeps until it is notified.
    idle: bool,
    closed: bool,
}

/// The end of a line. Its numbers are assigned while the queue is locked, so that lines are
/// numbered in the order in which they are written and a log can be cut anywhere.
pub(super) struct LineEnd {
    bytes: [u8; 96],
    length: usize,
}

impl LineEnd {
    /// Returns a newline.
    pub(super) fn plain() -> Self {
        Self::new().with(b"\n")
    }

    /// Returns the number of admissions, the number of the line, its time, and the end of the object.
    pub(super) fn numbered((seq, line, written): (u64, u64, Span)) -> Self {
        let mut digits = itoa::Buffer::new();
        let ending = Self::new().with(b",\"seq\":").with(digits.format(seq).as_bytes());
        let ending = ending.with(b",\"line\":").with(digits.format(line).as_bytes());
        let written = digits.format(written.as_micros());
        let ending = ending.with(b",\"writtenUs\":").with(written.as_bytes());
        ending.with(b"}\n")
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    const fn new() -> Self {
        Self { bytes: [0; 96], length: 0 }
    }

    /// Appends bytes. Three numbers of twenty digits and their names fit.
    fn with(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }
}

/// Numbers of lost lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostLines {
    /// Lines lost since the start.
    pub(super) total: u64,
    /// Lost lines that no line has reported yet.
    pub(super) unreported: u64,
}

impl Writer {
    /// Starts the thread. After `close` it writes `end` as the last line.
    pub(super) fn start(
        out: Box<dyn Write + Send>,
        bytes_max: usize,
        end: impl FnOnce(LostLines) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue {
            queued: Mutex::default(),
            wake: Condvar::new(),
            bytes_max,
            dropped: AtomicU64::new(0),
            missing: AtomicU64::new(0),
        });
        let theirs = queue.clone();
        let (ends, ended) = sync_channel(1);
        thread::Builder::new().name("decision-log".to_owned()).spawn(move || {
            theirs.write_out(out, end);
            drop(ends);
        })?;
        Ok(Self { queue, ended: Mutex::new(Some(ended)) })
    }

    /// Queues a line and its end. Returns false if the line was dropped.
    pub(super) fn send(&self, line: &[u8], end: impl FnOnce() -> LineEnd) -> bool {
        self.queue.send(line, end)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.queue.dropped.load(Relaxed)
    }

    /// Returns the number of lost lines that are not reported yet; the caller reports them.
    pub(super) fn take_missing(&self) -> u64 {
        let missing = &self.queue.missing;
        if missing.load(Relaxed) == 0 { 0 } else { missing.swap(0, Relaxed) }
    }

    /// Puts back lost lines that the caller could not report.
    pub(super) fn missing(&self, lines: u64) {
        self.queue.missing.fetch_add(lines, Relaxed);
    }

    /// Waits until everything is written. Lines that take too long count as dropped.
    pub(super) fn close(&self) {
        self.queue.close();
        // Keeps the lock while it waits, so that a second `close` waits as well.
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = ended.take()
            && ended.recv_timeout(CLOSE_MAX) == Err(RecvTimeoutError::Timeout)
        {
            self.queue.abandon();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    fn send(&self, line: &[u8], end: impl FnOnce() -> LineEnd) -> bool {
        let mut queued = self.lock();
        let end = end();
        let end = end.as_bytes();
        if queued.closed || line.len() + end.len() > self.bytes_max - queued.bytes.len() {
            drop(queued);
            self.lost(1);
            return false;
        }
        let before = queued.bytes.len();
        queued.bytes.extend_from_slice(line);
        queued.bytes.extend_from_slice(end);
        queued.lines += 1;
        let half = before < self.half() && self.half() <= queued.bytes.len();
        let wake = mem::take(&mut queued.idle) || half;
        drop(queued);
        if wake {
            self.wake.notify_one();
        }
        true
    }

    fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    /// Drops the queued lines.
    fn abandon(&self) {
        let mut queued = self.lock();
        queued.bytes.clear();
        let lines = mem::take(&mut queued.lines) + queued.writing;
        drop(queued);
        self.lost(lines);
    }

    fn write_out(&self, mut out: Box<dyn Write + Send>, end: impl FnOnce(LostLines) -> Vec<u8>) {
        let mut batch = Vec::new();
        let mut torn = false;
        while let Some(lines) = self.next(&mut batch) {
            let written = write(&mut *out, &batch, torn);
            torn = written.is_err();
            if torn {
                self.lost(lines);
            }
        }
        let unreported = self.missing.swap(0, Relaxed);
        let end = end(LostLines { total: self.dropped.load(Relaxed), unreported });
        // If it cannot be written, its absence shows that the last lines are unknown.
        let _ = write(&mut *out, &end, torn && !end.is_empty());
    }

    /// Swaps the written batch for the queued lines; `None` at the end.
    fn next(&self, batch: &mut Vec<u8>) -> Option<u64> {
        batch.clear();
        let mut queued = self.lock();
        queued.writing = 0;
        while queued.bytes.is_empty() {
            if queued.closed {
                return None;
            }
            queued.idle = true;
            queued = self.wake.wait(queued).unwrap_or_else(PoisonError::into_inner);
        }
        // Lines seldom come alone. Those that arrive now find the thread awake and need not wake
        // it.
        let linger = |queued: &mut QueuedLines| !queued.closed && queued.bytes.len() < self.half();
        let lingered = self.wake.wait_timeout_while(queued, LINGER, linger);
        let (mut queued, _) = lingered.unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut queued.bytes, batch);
        queued.writing = mem::take(&mut queued.lines);
        Some(queued.writing)
    }

    const fn half(&self) -> usize {
        self.bytes_max / 2
    }

    fn lost(&self, lines: u64) {
        self.dropped.fetch_add(lines, Relaxed);
        self.missing.fetch_add(lines, Relaxed);
    }

    /// Locks the queue. No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, QueuedLines> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes whole lines. After a failure the output may end inside a line, which is ended first so
/// that it does not damage the next.
fn write(out: &mut dyn Write, batch: &[u8], torn: bool) -> io::Result<()> {
    if torn {
        out.write_all(b"\n")?;
    }
    out.write_all(batch)?;
    out.flush()
}

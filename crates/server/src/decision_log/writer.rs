//! The one thread that writes, and the bounded queue before it.
//!
//! The queue is a buffer of bytes that takes whole lines. The thread exchanges it for an empty
//! one and writes it out, so lines that come meanwhile become one write. A bound in bytes holds
//! whatever the length of a line, and nothing is allocated once both buffers have grown.

use std::convert::Infallible;
use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the thread waits for further lines before it writes: waking it costs more than a line,
/// and nobody reads a log faster than this.
const LINGER: Duration = Duration::from_millis(10);

/// How long closing waits for an output that takes nothing: a process must come to its end although
/// nobody reads what it writes.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Writes lines in the background, until it is closed or dropped.
pub(super) struct Writer {
    queue: Arc<Queue>,
    /// Disconnected when the thread has ended; none once somebody has waited for that.
    ended: Mutex<Option<Receiver<Infallible>>>,
}

struct Queue {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    bytes_max: usize,
    /// Lines lost since the start.
    dropped: AtomicU64,
    /// Those of them that no line has told of yet.
    missing: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    lines: u64,
    /// The lines that the thread has taken to write them.
    writing: u64,
    /// The thread sleeps until it is woken.
    idle: bool,
    closed: bool,
}

/// What a line ends with. Its numbers are drawn while the queue is locked, so that lines are
/// numbered in the order in which they are written: a log can be cut anywhere.
pub(super) struct Ending {
    bytes: [u8; 64],
    length: usize,
}

impl Ending {
    /// A newline.
    pub(super) fn plain() -> Self {
        Self::new().with(b"\n")
    }

    /// The number of admissions, that of the line, and the end of an object.
    pub(super) fn numbered((seq, line): (u64, u64)) -> Self {
        let mut digits = itoa::Buffer::new();
        let ending = Self::new().with(b",\"seq\":").with(digits.format(seq).as_bytes());
        let ending = ending.with(b",\"line\":").with(digits.format(line).as_bytes());
        ending.with(b"}\n")
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    const fn new() -> Self {
        Self { bytes: [0; 64], length: 0 }
    }

    /// Two numbers of twenty digits and their names fit.
    fn with(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }
}

/// How many lines were lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    /// Since the start.
    pub(super) total: u64,
    /// Those of them that no line has told of yet.
    pub(super) untold: u64,
}

impl Writer {
    /// Starts the thread. When it is closed it writes `end` after all other lines.
    pub(super) fn start(
        out: Box<dyn Write + Send>,
        bytes_max: usize,
        end: impl FnOnce(Lost) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue {
            waiting: Mutex::default(),
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

    /// Takes a line and what it ends with, or counts it as dropped: false.
    pub(super) fn send(&self, line: &[u8], end: impl FnOnce() -> Ending) -> bool {
        self.queue.send(line, end)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.queue.dropped.load(Relaxed)
    }

    /// How many lines are missing that nobody has told of; the caller will.
    pub(super) fn take_missing(&self) -> u64 {
        let missing = &self.queue.missing;
        if missing.load(Relaxed) == 0 { 0 } else { missing.swap(0, Relaxed) }
    }

    /// So many are missing, and it could not be told.
    pub(super) fn missing(&self, lines: u64) {
        self.queue.missing.fetch_add(lines, Relaxed);
    }

    /// Waits until everything is written; what takes too long counts as dropped.
    pub(super) fn close(&self) {
        self.queue.close();
        // Under the lock, so that whoever closes a second time waits as well.
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
    fn send(&self, line: &[u8], end: impl FnOnce() -> Ending) -> bool {
        let mut waiting = self.lock();
        let end = end();
        let end = end.as_bytes();
        if waiting.closed || line.len() + end.len() > self.bytes_max - waiting.bytes.len() {
            drop(waiting);
            self.lost(1);
            return false;
        }
        let before = waiting.bytes.len();
        waiting.bytes.extend_from_slice(line);
        waiting.bytes.extend_from_slice(end);
        waiting.lines += 1;
        let half = before < self.half() && self.half() <= waiting.bytes.len();
        let wake = mem::take(&mut waiting.idle) || half;
        drop(waiting);
        if wake {
            self.wake.notify_one();
        }
        true
    }

    fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    /// Drops the lines that wait.
    fn abandon(&self) {
        let mut waiting = self.lock();
        waiting.bytes.clear();
        let lines = mem::take(&mut waiting.lines) + waiting.writing;
        drop(waiting);
        self.lost(lines);
    }

    fn write_out(&self, mut out: Box<dyn Write + Send>, end: impl FnOnce(Lost) -> Vec<u8>) {
        let mut batch = Vec::new();
        let mut torn = false;
        while let Some(lines) = self.next(&mut batch) {
            let written = write(&mut *out, &batch, torn);
            torn = written.is_err();
            if torn {
                self.lost(lines);
            }
        }
        let untold = self.missing.swap(0, Relaxed);
        let end = end(Lost { total: self.dropped.load(Relaxed), untold });
        // If it can't be written, its absence says that what came last is not known.
        let _ = write(&mut *out, &end, torn && !end.is_empty());
    }

    /// Exchanges what has been written for what waits; `None` at the end.
    fn next(&self, batch: &mut Vec<u8>) -> Option<u64> {
        batch.clear();
        let mut waiting = self.lock();
        waiting.writing = 0;
        while waiting.bytes.is_empty() {
            if waiting.closed {
                return None;
            }
            waiting.idle = true;
            waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        // Lines seldom come alone. Those that come now find the thread awake, and pay nothing.
        let linger = |waiting: &mut Waiting| !waiting.closed && waiting.bytes.len() < self.half();
        let lingered = self.wake.wait_timeout_while(waiting, LINGER, linger);
        let (mut waiting, _) = lingered.unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut waiting.bytes, batch);
        waiting.writing = mem::take(&mut waiting.lines);
        Some(waiting.writing)
    }

    const fn half(&self) -> usize {
        self.bytes_max / 2
    }

    fn lost(&self, lines: u64) {
        self.dropped.fetch_add(lines, Relaxed);
        self.missing.fetch_add(lines, Relaxed);
    }

    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes whole lines. After a failure the output may end inside of one: that line is ended
/// first, so that it does not spoil the next.
fn write(out: &mut dyn Write, batch: &[u8], torn: bool) -> io::Result<()> {
    if torn {
        out.write_all(b"\n")?;
    }
    out.write_all(batch)?;
    out.flush()
}

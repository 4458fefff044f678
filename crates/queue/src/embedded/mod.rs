//! [`Embedded`]: a durable queue in a local SQLite file in WAL mode, which needs no server.
//!
//! ```text
//! operations ─channel→ writer thread: one transaction for all that wait ─commit→ results
//! ```
//!
//! Several processes of one machine may share a file. An operation returns when its transaction is
//! on the disk, so `kill -9` at any instant loses nothing that was acknowledged, and relaying a
//! message is atomic.

mod open;
mod receipt;
mod row;
mod source;
mod transaction;
mod watcher;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::future::{BoxFuture, FutureExt as _};
use rusqlite::Connection;
use sluicegate_core::time::{Clock, EXACT_MAX};
use sluicegate_core::{Span, Timestamp};

use crate::broker::{
    Broker, Capabilities, ConsumeOptions, Depth, LeaseKind, MessageSource, OutgoingMessage,
    QueueName, RawMessage, ResumedMessage,
};
use crate::{Error, JobId, WallClock};
use receipt::EmbeddedReceipt;
use source::EmbeddedSource;
use transaction::LeasedRow;
use watcher::FileWatcher;
use writer::Writer;

/// Name of the broker in messages.
const NAME: &str = "the embedded queue";
/// Maximum message size; as large as that of RabbitMQ.
const SIZE_MAX: usize = 16 << 20;

const CAPABILITIES: Capabilities = Capabilities {
    broker: NAME,
    lease: LeaseKind::Timed(Span::from_micros(EXACT_MAX)),
    delay_max: Span::from_micros(EXACT_MAX),
    delay_min: Span::ZERO,
    fixed_delays: false,
    browse: true,
    depth: true,
    priorities: true,
    size_max: SIZE_MAX,
    counts_returns: false,
    creation_flush: Span::ZERO,
    atomic_relay: true,
};

/// A broker that stores its queues in a file.
pub struct Embedded {
    path: PathBuf,
    writer: Writer,
    clock: Arc<dyn Clock>,
    reader: Arc<Mutex<Connection>>,
    /// Shared by all consumers; it lives as long as one of them.
    watch: Mutex<Weak<FileWatcher>>,
}

impl Embedded {
    /// Opens the file, or creates it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::with_clock(path, Arc::new(WallClock))
    }

    /// Opens the file with another clock. All processes that share a file must use the same clock.
    pub fn with_clock(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let writer = Writer::start(open::writer(path)?)?;
        let reader = Arc::new(Mutex::new(open::reader(path)?));
        Ok(Self { path: path.to_owned(), writer, clock, reader, watch: Mutex::default() })
    }

    /// Starts the watcher that wakes consumers when other processes write to the file, unless it is
    /// running.
    fn watch(&self) -> Result<Arc<FileWatcher>, Error> {
        let mut running = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = running.upgrade() {
            return Ok(watch);
        }
        let watch = Arc::new(FileWatcher::start(&self.path, self.writer.arrived.clone())?);
        *running = Arc::downgrade(&watch);
        Ok(watch)
    }

    /// Reads on a connection of its own, so that reads do not delay the writer.
    async fn read<T: Send + 'static>(
        &self,
        queue_name: &QueueName,
        read: impl FnOnce(&Connection, i64) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (reader, queue_name) = (self.reader.clone(), queue_name.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = transaction::queue_id(&reader, &queue_name)?;
            read(&reader, queue).map_err(|error| open::failed(&error))
        });
        reading.await.unwrap_or_else(|_| Err(unavailable("the process is stopping")))
    }
}

fn unavailable(detail: impl Into<String>) -> Error {
    Error::Unavailable { broker: NAME, detail: detail.into() }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Broker for Embedded {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn publish<'a>(
        &'a self,
        queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        async move {
            let (count, now) = (batch.len(), self.clock.now());
            let queue_name = queue_name.clone();
            let publish = move |transaction: &mut transaction::Transaction<'_>| {
                transaction.publish(&queue_name, batch, now)
            };
            match self.writer.run(publish).await {
                Ok(results) => results,
                Err(error) => vec![Err(error); count],
            }
        }
        .boxed()
    }

    fn publish_once<'a>(
        &'a self,
        queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
        window: Span,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        async move {
            let (count, now) = (batch.len(), self.clock.now());
            let queue_name = queue_name.clone();
            let publish = move |transaction: &mut transaction::Transaction<'_>| {
                transaction.publish_once(&queue_name, batch, window, now)
            };
            match self.writer.run(publish).await {
                Ok(results) => results,
                Err(error) => vec![Err(error); count],
            }
        }
        .boxed()
    }

    fn cancel<'a>(
        &'a self,
        queue_name: &'a QueueName,
        job: &'a JobId,
    ) -> BoxFuture<'a, Result<u64, Error>> {
        let (queue_name, job, now) =
            (queue_name.clone(), job.as_str().to_owned(), self.clock.now());
        self.writer.run(move |transaction| transaction.cancel(&queue_name, &job, now)).boxed()
    }

    fn consume<'a>(
        &'a self,
        queue_name: &'a QueueName,
        options: ConsumeOptions,
    ) -> BoxFuture<'a, Result<Box<dyn MessageSource>, Error>> {
        async move {
            self.check(queue_name).await?;
            let (writer, clock, watch) = (self.writer.clone(), self.clock.clone(), self.watch()?);
            let queue_name = queue_name.clone();
            let source: Box<dyn MessageSource> =
                Box::new(EmbeddedSource { queue_name, options, writer, clock, _watch: watch });
            Ok(source)
        }
        .boxed()
    }

    fn depth<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Depth, Error>> {
        let (now, dead) = (self.clock.now(), transaction::is_dead(queue_name));
        self.read(queue_name, move |reader, queue| transaction::depth(reader, dead, queue, now))
            .boxed()
    }

    fn browse<'a>(
        &'a self,
        queue_name: &'a QueueName,
        after: u64,
        max: usize,
    ) -> BoxFuture<'a, Result<Vec<(u64, RawMessage)>, Error>> {
        let dead = transaction::is_dead(queue_name);
        self.read(queue_name, move |reader, queue| {
            transaction::browse(reader, dead, queue, after, max)
        })
        .boxed()
    }

    fn lease_end<'a>(
        &'a self,
        queue_name: &'a QueueName,
        number: u64,
    ) -> BoxFuture<'a, Result<Option<Timestamp>, Error>> {
        let (now, dead) = (self.clock.now(), transaction::is_dead(queue_name));
        self.read(queue_name, move |reader, _| transaction::lease_end_of(reader, dead, number, now))
            .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        // The writer runs operations in order.
        self.writer.run(|_| Ok(())).map(drop).boxed()
    }

    fn check<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        self.read(queue_name, |_, _| Ok(())).boxed()
    }

    fn create<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        let queue_name = queue_name.clone();
        self.writer.run(move |transaction| transaction.create(&queue_name)).boxed()
    }

    fn purge<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        let (queue_name, now) = (queue_name.clone(), self.clock.now());
        let purge = self.writer.run(move |transaction| transaction.purge(&queue_name, now));
        async move {
            let purged = purge.await?;
            let reader = self.reader.clone();
            // If other processes use the file, it may keep its size; the space is used again.
            let _ = tokio::task::spawn_blocking(move || {
                open::shrink(&reader.lock().unwrap_or_else(PoisonError::into_inner))
            })
            .await;
            Ok(Some(purged))
        }
        .boxed()
    }

    fn resume<'a>(
        &'a self,
        queue_name: &'a QueueName,
        token: &'a str,
    ) -> BoxFuture<'a, Result<ResumedMessage, Error>> {
        async move {
            let leased = LeasedRow::parse(token).ok_or(Error::Lost)?;
            let dead = transaction::is_dead(queue_name);
            let incoming = self
                .read(queue_name, move |reader, queue| {
                    transaction::leased(reader, dead, queue, leased)
                })
                .await?;
            let incoming = Some(incoming.ok_or(Error::Lost)?);
            let (writer, clock) = (self.writer.clone(), self.clock.clone());
            let queue_name = queue_name.clone();
            let receipt = EmbeddedReceipt { queue_name, leased: Some(leased), writer, clock };
            Ok(ResumedMessage { incoming, receipt: Box::new(receipt) })
        }
        .boxed()
    }
}

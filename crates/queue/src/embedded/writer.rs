//! [`Writer`]: the thread that writes to the file. All waiting operations share one transaction, so
//! that one write to the disk serves them all.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use rusqlite::Connection;
use tokio::sync::{Notify, mpsc, oneshot};

use super::transaction::Transaction;
use super::{open, unavailable};
use crate::Error;
use crate::broker::QueueName;
use crate::step::DeliveryStep;

/// Maximum number of queued operations; further callers wait before they enqueue theirs.
const WAITING_MAX: usize = 4_096;
/// Maximum number of operations in one transaction, which bounds the time that a caller waits.
const BATCH_MAX: usize = 1_024;

/// An operation. Returns a callback for the end of the transaction.
type WriteOperation = Box<dyn FnOnce(&mut Transaction<'_>) -> Completion + Send>;
/// A callback that receives the result of the commit.
type Completion = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// A handle to the thread, which ends with the last handle.
#[derive(Clone)]
pub(super) struct Writer {
    operations: mpsc::Sender<WriteOperation>,
    /// Wakes consumers after a transaction that may have made messages ready, and only then: if an
    /// empty query woke its own consumer, the process would never be idle.
    pub(super) arrived: Arc<Notify>,
}

impl Writer {
    pub(super) fn start(connection: Connection) -> Result<Self, Error> {
        let (operations, waiting) = mpsc::channel(WAITING_MAX);
        let arrived = Arc::new(Notify::new());
        let wake = arrived.clone();
        std::thread::Builder::new()
            .name("queue-writer".to_owned())
            .spawn(move || write(&connection, waiting, &wake))
            .map_err(|error| unavailable(format!("can't start a thread: {error}")))?;
        Ok(Self { operations, arrived })
    }

    /// Runs an operation in the next transaction. Returns when it is on the disk.
    pub(super) fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Transaction<'_>) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        self.run_then(operation, |done| done)
    }

    /// Runs an operation in the next transaction, then maps its result on the writer thread.
    pub(super) fn run_then<T: Send + 'static, U: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Transaction<'_>) -> Result<T, Error> + Send + 'static,
        then: impl FnOnce(T) -> U + Send + 'static,
    ) -> BoxFuture<'static, Result<U, Error>> {
        let (reply, result) = oneshot::channel();
        let operation: WriteOperation = Box::new(move |transaction| {
            let outcome = operation(transaction);
            Box::new(move |written| {
                // The caller may have stopped waiting.
                let _ = reply.send(written.and(outcome).map(then));
            })
        });
        let operations = self.operations.clone();
        async move {
            let stopped = || unavailable("the writer thread has stopped");
            operations.send(operation).await.map_err(|_| stopped())?;
            result.await.unwrap_or_else(|_| Err(stopped()))
        }
        .boxed()
    }

    /// Runs an operation in the next transaction without reporting its result, if there is room in
    /// the channel.
    pub(super) fn run_detached(
        &self,
        operation: impl FnOnce(&mut Transaction<'_>) -> Result<(), Error> + Send + 'static,
    ) {
        let _ = self.operations.try_send(Box::new(move |transaction| {
            let _ = operation(transaction);
            Box::new(|_| {})
        }));
    }
}

fn write(connection: &Connection, mut waiting: mpsc::Receiver<WriteOperation>, arrived: &Notify) {
    let mut queue_ids = HashMap::<QueueName, i64>::new();
    let mut turns = 0;
    let mut operations = Vec::with_capacity(BATCH_MAX);
    while waiting.blocking_recv_many(&mut operations, BATCH_MAX) > 0 {
        collect_waiting(&mut waiting, &mut operations);
        match transaction(connection, (&mut queue_ids, &mut turns), &mut operations) {
            Ok(true) => arrived.notify_waiters(),
            Ok(false) => {}
            Err((error, completions)) => {
                // A queue whose creation was rolled back must not be remembered.
                queue_ids.clear();
                for done in completions {
                    done(Err(error.clone()));
                }
            }
        }
    }
}

/// Collects further operations as long as some arrive, so that concurrent callers share one
/// transaction, such as all deliveries of a batch. A single caller does not wait.
fn collect_waiting(
    waiting: &mut mpsc::Receiver<WriteOperation>,
    operations: &mut Vec<WriteOperation>,
) {
    loop {
        let before = operations.len();
        std::thread::yield_now();
        while operations.len() < BATCH_MAX
            && let Ok(operation) = waiting.try_recv()
        {
            operations.push(operation);
        }
        if operations.len() == before {
            return;
        }
    }
}

/// Runs all operations in one transaction. Returns true if messages may have become ready, or the
/// callbacks of the operations that failed.
fn transaction(
    connection: &Connection,
    (queue_ids, turns): (&mut HashMap<QueueName, i64>, &mut u64),
    operations: &mut Vec<WriteOperation>,
) -> Result<bool, (Error, Vec<Completion>)> {
    let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| open::failed(&error));
    if let Err(error) = begun {
        // Operations that were not started fail when their channel is dropped.
        operations.clear();
        return Err((error, Vec::new()));
    }
    let mut transaction =
        Transaction { connection, queue_ids, turns, arrived: false, failed: None };
    let completions: Vec<_> =
        operations.drain(..).map(|operation| operation(&mut transaction)).collect();
    let arrived = transaction.arrived;
    if let Some(error) = transaction.failed {
        let _ = connection.execute_batch("ROLLBACK");
        return Err((error, completions));
    }
    DeliveryStep::Published.emit();
    if let Err(error) = connection.execute_batch("COMMIT") {
        // SQLite may already have rolled back.
        let _ = connection.execute_batch("ROLLBACK");
        return Err((open::failed(&error), completions));
    }
    DeliveryStep::Confirmed.emit();
    for done in completions {
        done(Ok(()));
    }
    Ok(arrived)
}

//! [`Writer`]: the thread that writes to the file. All waiting operations share one transaction, so
//! that one write to the disk serves them all.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use rusqlite::Connection;
use tokio::sync::{Notify, mpsc, oneshot};

use super::operations::Work;
use super::{open, unavailable};
use crate::Error;
use crate::broker::Place;
use crate::step::Step;

/// Maximum number of queued operations; further callers wait before they enqueue theirs.
const WAITING_MAX: usize = 4_096;
/// Maximum number of operations in one transaction, which bounds the time that a caller waits.
const TOGETHER_MAX: usize = 1_024;

/// An operation. Returns a callback for the end of the transaction.
type Job = Box<dyn FnOnce(&mut Work<'_>) -> Done + Send>;
/// A callback that receives the result of the commit.
type Done = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// A handle to the thread, which ends with the last handle.
#[derive(Clone)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
    /// Wakes consumers after a transaction that may have made messages ready, and only then: if an
    /// empty query woke its own consumer, the process would never be idle.
    pub(super) arrived: Arc<Notify>,
}

impl Writer {
    pub(super) fn start(connection: Connection) -> Result<Self, Error> {
        let (jobs, waiting) = mpsc::channel(WAITING_MAX);
        let arrived = Arc::new(Notify::new());
        let wake = arrived.clone();
        std::thread::Builder::new()
            .name("queue-writer".to_owned())
            .spawn(move || write(&connection, waiting, &wake))
            .map_err(|error| unavailable(format!("can't start a thread: {error}")))?;
        Ok(Self { jobs, arrived })
    }

    /// Runs an operation in the next transaction. Returns when it is on the disk.
    pub(super) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Work<'_>) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        self.run_then(job, |done| done)
    }

    /// Runs an operation in the next transaction, then maps its result on the writer thread.
    pub(super) fn run_then<T: Send + 'static, U: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Work<'_>) -> Result<T, Error> + Send + 'static,
        then: impl FnOnce(T) -> U + Send + 'static,
    ) -> BoxFuture<'static, Result<U, Error>> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |work| {
            let outcome = job(work);
            Box::new(move |written| {
                // The caller may have stopped waiting.
                let _ = tell.send(written.and(outcome).map(then));
            })
        });
        let jobs = self.jobs.clone();
        async move {
            let stopped = || unavailable("the writer thread has stopped");
            jobs.send(job).await.map_err(|_| stopped())?;
            told.await.unwrap_or_else(|_| Err(stopped()))
        }
        .boxed()
    }

    /// Runs an operation in the next transaction without reporting its result, if there is room in
    /// the channel.
    pub(super) fn run_later(
        &self,
        job: impl FnOnce(&mut Work<'_>) -> Result<(), Error> + Send + 'static,
    ) {
        let _ = self.jobs.try_send(Box::new(move |work| {
            let _ = job(work);
            Box::new(|_| {})
        }));
    }
}

fn write(connection: &Connection, mut waiting: mpsc::Receiver<Job>, arrived: &Notify) {
    let mut numbers = HashMap::<Place, i64>::new();
    let mut jobs = Vec::with_capacity(TOGETHER_MAX);
    while waiting.blocking_recv_many(&mut jobs, TOGETHER_MAX) > 0 {
        gather(&mut waiting, &mut jobs);
        match transaction(connection, &mut numbers, &mut jobs) {
            Ok(true) => arrived.notify_waiters(),
            Ok(false) => {}
            Err((error, untold)) => {
                // A queue whose creation was rolled back must not be remembered.
                numbers.clear();
                for done in untold {
                    done(Err(error.clone()));
                }
            }
        }
    }
}

/// Collects further operations as long as some arrive, so that concurrent callers share one
/// transaction, such as all deliveries of a batch. A single caller does not wait.
fn gather(waiting: &mut mpsc::Receiver<Job>, jobs: &mut Vec<Job>) {
    loop {
        let before = jobs.len();
        std::thread::yield_now();
        while jobs.len() < TOGETHER_MAX
            && let Ok(job) = waiting.try_recv()
        {
            jobs.push(job);
        }
        if jobs.len() == before {
            return;
        }
    }
}

/// Runs all operations in one transaction. Returns true if messages may have become ready, or the
/// callbacks of the operations that failed.
fn transaction(
    connection: &Connection,
    numbers: &mut HashMap<Place, i64>,
    jobs: &mut Vec<Job>,
) -> Result<bool, (Error, Vec<Done>)> {
    let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| open::failed(&error));
    if let Err(error) = begun {
        // Operations that were not started fail when their channel is dropped.
        jobs.clear();
        return Err((error, Vec::new()));
    }
    let mut work = Work { connection, numbers, arrived: false };
    let dones: Vec<_> = jobs.drain(..).map(|job| job(&mut work)).collect();
    let arrived = work.arrived;
    Step::Published.reached();
    if let Err(error) = connection.execute_batch("COMMIT") {
        // SQLite may already have rolled back.
        let _ = connection.execute_batch("ROLLBACK");
        return Err((open::failed(&error), dones));
    }
    Step::Confirmed.reached();
    for done in dones {
        done(Ok(()));
    }
    Ok(arrived)
}

//! The thread that writes: everything that waits goes into one transaction, so that one write to
//! the disk serves all of it.

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

/// The most operations that wait; further ones wait before they get in line.
const WAITING_MAX: usize = 4_096;
/// The most operations in one transaction: nobody waits for more than these.
const TOGETHER_MAX: usize = 1_024;

/// An operation. It returns what tells its caller, which is called when the transaction is over.
type Job = Box<dyn FnOnce(&mut Work<'_>) -> Done + Send>;
/// Is told whether the transaction was written.
type Done = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// The way to the thread, which ends with the last of them.
#[derive(Clone)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
    /// Wakes consumers after a transaction that may have made messages ready, and only then: an
    /// empty take that woke its own consumer would keep the process busy for ever.
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
            .map_err(|error| unavailable(format!("no thread can be started: {error}")))?;
        Ok(Self { jobs, arrived })
    }

    /// Does something in the next transaction; returns when it is on the disk.
    pub(super) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Work<'_>) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        self.run_then(job, |done| done)
    }

    /// The same, and then something with what came of it, on the thread of the writer.
    pub(super) fn run_then<T: Send + 'static, U: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Work<'_>) -> Result<T, Error> + Send + 'static,
        then: impl FnOnce(T) -> U + Send + 'static,
    ) -> BoxFuture<'static, Result<U, Error>> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |work| {
            let outcome = job(work);
            Box::new(move |written| {
                // Whoever asked may be gone.
                let _ = tell.send(written.and(outcome).map(then));
            })
        });
        let jobs = self.jobs.clone();
        async move {
            let stopped = || unavailable("its writer has stopped");
            jobs.send(job).await.map_err(|_| stopped())?;
            told.await.unwrap_or_else(|_| Err(stopped()))
        }
        .boxed()
    }

    /// Does something in the next transaction, if there is room in the line, and tells nobody.
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
                // A queue that was made in vain must not be remembered.
                numbers.clear();
                for done in untold {
                    done(Err(error.clone()));
                }
            }
        }
    }
}

/// Takes what comes along as long as something does: those who ask at the same time, as for every
/// delivery of a batch, are served by one write. Whoever is alone waits for nobody.
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

/// Does all of it, or tells whom it could not be done for. Returns whether messages may have become
/// ready.
fn transaction(
    connection: &Connection,
    numbers: &mut HashMap<Place, i64>,
    jobs: &mut Vec<Job>,
) -> Result<bool, (Error, Vec<Done>)> {
    let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| open::failed(&error));
    if let Err(error) = begun {
        // Those that were not begun are told by the end of their channel.
        jobs.clear();
        return Err((error, Vec::new()));
    }
    let mut work = Work { connection, numbers, arrived: false };
    let dones: Vec<_> = jobs.drain(..).map(|job| job(&mut work)).collect();
    let arrived = work.arrived;
    Step::Published.reached();
    if let Err(error) = connection.execute_batch("COMMIT") {
        // SQLite may have rolled back by itself already.
        let _ = connection.execute_batch("ROLLBACK");
        return Err((open::failed(&error), dones));
    }
    Step::Confirmed.reached();
    for done in dones {
        done(Ok(()));
    }
    Ok(arrived)
}

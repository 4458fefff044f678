//! [`FileWatcher`]: detects commits of other processes, which SQLite does not announce.
//!
//! SQLite counts commits in memory that all processes of a file share, so polling takes
//! microseconds and no lock on the file.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Notify;

use super::{open, unavailable};
use crate::Error;

/// Polling interval.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A thread that polls the file until the last handle is dropped.
pub(super) struct FileWatcher {
    /// Nothing is sent: dropping it stops the thread.
    _running: SyncSender<()>,
}

impl FileWatcher {
    /// Starts the thread. It wakes `arrived` whenever another connection has written to the file.
    pub(super) fn start(path: &Path, arrived: Arc<Notify>) -> Result<Self, Error> {
        let connection = open::reader(path)?;
        let (running, ended) = sync_channel::<()>(1);
        let mut seen = commits(&connection);
        std::thread::Builder::new()
            .name("queue-watch".to_owned())
            .spawn(move || {
                while ended.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    let now = commits(&connection);
                    // An unreadable file wakes consumers too: they report the error.
                    if now.is_none() || now != seen {
                        arrived.notify_waiters();
                    }
                    seen = now;
                }
            })
            .map_err(|error| unavailable(format!("can't start a thread: {error}")))?;
        Ok(Self { _running: running })
    }
}

/// Returns a number that changes with every commit of another connection.
fn commits(connection: &Connection) -> Option<i64> {
    let mut statement = connection.prepare_cached("PRAGMA data_version").ok()?;
    statement.query_row([], |row| row.get(0)).ok()
}

//! Notices messages of other processes, which nothing announces.
//!
//! SQLite counts the commits of others in memory that all processes of a file share, so that
//! looking is a matter of microseconds and takes no lock on the file.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Notify;

use super::{open, unavailable};
use crate::Error;

/// How often the file is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// A thread that looks at the file until the last handle to it is dropped.
pub(super) struct Watch {
    /// Nothing is sent: the thread ends when it is dropped.
    _running: SyncSender<()>,
}

impl Watch {
    /// Wakes `arrived` whenever somebody has written to the file, from now on.
    pub(super) fn start(path: &Path, arrived: Arc<Notify>) -> Result<Self, Error> {
        let connection = open::connection(path)?;
        let (running, ended) = sync_channel::<()>(1);
        let mut seen = commits(&connection);
        std::thread::Builder::new()
            .name("queue-watch".to_owned())
            .spawn(move || {
                while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    let now = commits(&connection);
                    // A file that can't be read wakes consumers, too: they say what is wrong.
                    if now.is_none() || now != seen {
                        arrived.notify_waiters();
                    }
                    seen = now;
                }
            })
            .map_err(|error| unavailable(format!("no thread can be started: {error}")))?;
        Ok(Self { _running: running })
    }
}

/// A number that changes with every commit of another connection.
fn commits(connection: &Connection) -> Option<i64> {
    let mut statement = connection.prepare_cached("PRAGMA data_version").ok()?;
    statement.query_row([], |row| row.get(0)).ok()
}

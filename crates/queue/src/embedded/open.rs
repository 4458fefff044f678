//! The file: how it is opened, and what is in it.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::unavailable;
use crate::Error;

/// How long another process may hold the file.
const BUSY: Duration = Duration::from_secs(10);
/// Counted up when the tables change.
const VERSION: i64 = 1;

/// A message is hidden until `ready_at`; a lease is the same, with `leased` set and a `fence` that
/// nobody else has. `due` is what `ready_at` was before, so that what is given back keeps its
/// place. Numbers are never used twice: a receipt that is too late must not find a stranger.
const TABLES: &str = "
    CREATE TABLE queue (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        dead INTEGER NOT NULL,
        UNIQUE (name, dead)
    ) STRICT;
    CREATE TABLE message (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        queue INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        ready_at INTEGER NOT NULL,
        leased INTEGER NOT NULL DEFAULT 0,
        fence INTEGER NOT NULL DEFAULT 0,
        returns INTEGER NOT NULL DEFAULT 0,
        due INTEGER NOT NULL,
        envelope TEXT NOT NULL,
        content_type TEXT,
        headers TEXT,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX message_ready ON message (queue, priority, ready_at, leased);
    CREATE TABLE dead_letter (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        queue INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        ready_at INTEGER NOT NULL,
        leased INTEGER NOT NULL DEFAULT 0,
        fence INTEGER NOT NULL DEFAULT 0,
        returns INTEGER NOT NULL DEFAULT 0,
        due INTEGER NOT NULL,
        envelope TEXT NOT NULL,
        content_type TEXT,
        headers TEXT,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX dead_letter_ready ON dead_letter (queue, priority, ready_at, leased);
";

/// A connection to the file, which has its tables.
pub(super) fn connection(path: &Path) -> Result<Connection, Error> {
    let named = |error: rusqlite::Error| {
        let detail = format!("{error}: is queue.path a file that this process may write?");
        Error::Unusable { queue: path.display().to_string(), detail }
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(named)?;
    connection.busy_timeout(BUSY).map_err(named)?;
    // FULL: a commit is on the disk when it returns, not only out of our hands.
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 4000; PRAGMA cache_size = -65536;",
        )
        .map_err(named)?;
    connection.set_prepared_statement_cache_capacity(64);
    tables(&connection).map_err(named)?;
    let version = version(&connection).map_err(named)?;
    if version != VERSION {
        let detail = format!(
            "its tables are of version {version}, and this program knows {VERSION}: use the \
             program that made it, or another file"
        );
        return Err(Error::Unusable { queue: path.display().to_string(), detail });
    }
    Ok(connection)
}

/// Makes the tables, unless another process was first.
fn tables(connection: &Connection) -> rusqlite::Result<()> {
    if version(connection)? != 0 {
        return Ok(());
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let made = if version(connection)? == 0 {
        connection
            .execute_batch(TABLES)
            .and_then(|()| connection.pragma_update(None, "user_version", VERSION))
    } else {
        Ok(())
    };
    connection.execute_batch(if made.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    made
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// What an error of SQLite means to our callers.
pub(super) fn failed(error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            unavailable("another process holds its file")
        }
        Some(ErrorCode::DiskFull) => unavailable("the disk is full: make room, and it goes on"),
        _ => unavailable(error.to_string()),
    }
}

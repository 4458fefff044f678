//! The file: how it is opened, and what is in it.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::unavailable;
use crate::Error;

/// How long another process may hold the file.
const BUSY: Duration = Duration::from_secs(10);
/// Counted up when the tables change.
const VERSION: i64 = 2;

const QUEUES: &str = "
    CREATE TABLE queue (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        dead INTEGER NOT NULL,
        UNIQUE (name, dead)
    ) STRICT;
";

/// Twice, for messages and for dead letters: see [`sql`].
///
/// A message is hidden until `ready_at`; a lease is the same, with `leased` set and a `fence` that
/// no other lease has: a receipt that is too late must not find a stranger. `due` is what
/// `ready_at` was before, so that what is given back keeps its place.
///
/// What its producer sent lies apart, so that a lease need not write it anew.
const MESSAGES: &str = "
    CREATE TABLE $t (
        id INTEGER PRIMARY KEY,
        queue INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        ready_at INTEGER NOT NULL,
        leased INTEGER NOT NULL DEFAULT 0,
        fence INTEGER NOT NULL DEFAULT 0,
        returns INTEGER NOT NULL DEFAULT 0,
        due INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX $t_ready ON $t (queue, priority, ready_at, leased);
    CREATE TABLE $t_content (
        id INTEGER PRIMARY KEY,
        envelope TEXT NOT NULL,
        content_type TEXT,
        headers TEXT,
        body BLOB NOT NULL
    ) STRICT;
";

/// Dead letters have tables of their own, of the same columns: `$t` is what they are called.
pub(super) fn sql(dead: bool, template: &str) -> String {
    template.replace("$t", if dead { "dead_letter" } else { "message" })
}

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
    // FULL: a commit is on the disk when it returns, not only out of our hands. Of a small page, a
    // message of 2 KB would leave half empty.
    connection
        .execute_batch(
            "PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 1000; PRAGMA cache_size = -65536;",
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
        let tables = [QUEUES.to_owned(), sql(false, MESSAGES), sql(true, MESSAGES)].concat();
        connection
            .execute_batch(&tables)
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

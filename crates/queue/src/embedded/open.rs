//! Opens the SQLite file and creates its tables.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::unavailable;
use crate::Error;

/// Maximum time to wait while another process holds the file.
const BUSY: Duration = Duration::from_secs(10);
/// Version of the tables.
const VERSION: i64 = 2;

const QUEUES: &str = "
    CREATE TABLE queue (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        dead INTEGER NOT NULL,
        UNIQUE (name, dead)
    ) STRICT;
";

/// The tables of messages, created twice: for messages and for dead letters, see [`sql`].
///
/// A message is invisible until `ready_at`. A lease works the same way, with `leased` set and a
/// `fence` that no other lease has, so that a late receipt can't settle another delivery. `due` is
/// the value of `ready_at` before the lease, so that a requeued message keeps its position.
///
/// The content is in a table of its own, so that a lease does not have to write it again.
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

/// Jobs that are not published again for a time. Older programs that share the file ignore the
/// table.
const SENT_JOBS: &str = "
    CREATE TABLE IF NOT EXISTS sent_job (
        queue INTEGER NOT NULL,
        job TEXT NOT NULL,
        until INTEGER NOT NULL,
        UNIQUE (queue, job)
    ) STRICT;
    CREATE INDEX IF NOT EXISTS sent_job_until ON sent_job (until);
";

/// Replaces `$t` by the name of the table: dead letters are in tables of their own with the same
/// columns.
pub(super) fn sql(dead: bool, template: &str) -> String {
    template.replace("$t", if dead { "dead_letter" } else { "message" })
}

/// Maximum size of the pages that the connection for writing remembers, in KiB.
const WRITER_CACHE_KB: u32 = 64 << 10;
/// The same for connections that only read. They scan a queue from its beginning to its end, and seldom
/// read a page twice.
const READER_CACHE_KB: u32 = 4 << 10;

/// Opens the connection that writes, and creates the tables if needed.
pub(super) fn writer(path: &Path) -> Result<Connection, Error> {
    connection(path, WRITER_CACHE_KB)
}

/// Opens a connection that only reads, and creates the tables if needed.
pub(super) fn reader(path: &Path) -> Result<Connection, Error> {
    connection(path, READER_CACHE_KB)
}

fn connection(path: &Path, cache_kb: u32) -> Result<Connection, Error> {
    let named = |error: rusqlite::Error| {
        let detail =
            format!("{error}: check that queue.path is a file that this process may write");
        Error::Unusable { queue: path.display().to_string(), detail }
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(named)?;
    connection.busy_timeout(BUSY).map_err(named)?;
    // FULL: a commit is on the disk when it returns, not only in the system's cache. With a smaller
    // page, a message of 2 KB would leave half of it empty. Savepoints copy pages to memory, not to a
    // file.
    connection
        .execute_batch(&format!(
            "PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 1000; PRAGMA cache_size = -{cache_kb};
             PRAGMA temp_store = MEMORY;"
        ))
        .map_err(named)?;
    connection.set_prepared_statement_cache_capacity(64);
    tables(&connection).map_err(named)?;
    connection.execute_batch(SENT_JOBS).map_err(named)?;
    let version = version(&connection).map_err(named)?;
    if version != VERSION {
        let detail = format!(
            "its tables have version {version}, and this program supports {VERSION}: use the \
             program that created the file, or another file"
        );
        return Err(Error::Unusable { queue: path.display().to_string(), detail });
    }
    Ok(connection)
}

/// Returns the space of deleted messages to the file system, if it is most of the file.
pub(super) fn shrink(connection: &Connection) -> rusqlite::Result<()> {
    let pages = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    if pages("freelist_count")? * 2 < pages("page_count")? {
        return Ok(());
    }
    connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")
}

/// Creates the tables, unless another process did.
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

/// Converts an error of SQLite.
pub(super) fn failed(error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            unavailable("another process has locked the file")
        }
        Some(ErrorCode::DiskFull) => unavailable("the disk is full: free some space"),
        _ => unavailable(error.to_string()),
    }
}

//! [`Transaction`]: the operations on queues inside an SQLite transaction.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};
use sluicegate_core::{Span, Timestamp};

use super::open::sql;
use super::row::{self, RowTexts, SELECT};
use super::{NAME, SIZE_MAX, open};
use crate::broker::{Depth, OutgoingMessage, QueueName, RawMessage};
use crate::{Error, Message};

/// A statement in its two forms, for messages and for dead letters. Built once, because most run
/// with every message.
struct QueueSql(LazyLock<[String; 2]>);

impl QueueSql {
    fn of(&self, dead: bool) -> &str {
        let [live, of_dead] = &*self.0;
        if dead { of_dead } else { live }
    }
}

macro_rules! both {
    ($template:expr) => {
        QueueSql(LazyLock::new(|| [false, true].map(|dead| sql(dead, &$template))))
    };
}

static HIGHEST_PRIORITY: QueueSql = both!("SELECT max(priority) FROM $t WHERE queue = ?1");
/// Sorted like the index, so that SQLite does not sort.
static READY: QueueSql = both!(format!(
    "{SELECT} WHERE queue = ?1 AND priority = ?2 AND ready_at <= ?3 \
     ORDER BY ready_at, leased, id LIMIT ?4"
));
static LEASE: QueueSql = both!(
    "UPDATE $t SET ready_at = ?2, returns = returns + leased, leased = 1, fence = ?3 WHERE id = ?1"
);
static LEASED: QueueSql =
    both!(format!("{SELECT} WHERE id = ?1 AND fence = ?2 AND leased = 1 AND queue = ?3"));
static NEXT: QueueSql = both!("SELECT min(ready_at) FROM $t WHERE queue = ?1 AND priority = ?2");
static DELETE: QueueSql = both!("DELETE FROM $t WHERE id = ?1 AND fence = ?2");
static DELETE_CONTENT: QueueSql = both!("DELETE FROM $t_content WHERE id = ?1");
/// Column `returns` counts leases that ended, but not messages that a consumer returned.
static REQUEUE: QueueSql =
    both!("UPDATE $t SET ready_at = due, leased = 0 WHERE id = ?1 AND fence = ?2");
static EXTEND: QueueSql =
    both!("UPDATE $t SET ready_at = ?3 WHERE id = ?1 AND fence = ?2 AND leased = 1");
static INSERT_CONTENT: QueueSql =
    both!("INSERT INTO $t_content (envelope, content_type, headers, body) VALUES (?1, ?2, ?3, ?4)");
static INSERT: QueueSql =
    both!("INSERT INTO $t (id, queue, priority, ready_at, due) VALUES (?1, ?2, ?3, ?4, ?4)");

/// Number of calls of which one begins with the lowest priority.
const FAIR_TURN: u64 = 8;
/// Maximum number of remembered jobs that one call forgets.
const FORGOTTEN_MAX: i64 = 1_000;
/// Remembers a job until ?4, unless it is remembered at ?3.
const REMEMBER_JOB: &str = "INSERT INTO sent_job (queue, job, until) VALUES (?1, ?2, ?4) \
     ON CONFLICT (queue, job) DO UPDATE SET until = excluded.until WHERE until <= ?3";
const FORGET_JOB: &str = "DELETE FROM sent_job WHERE queue = ?1 AND job = ?2";
const FORGET_JOBS: &str = "DELETE FROM sent_job WHERE rowid IN \
     (SELECT rowid FROM sent_job WHERE until <= ?1 LIMIT ?2)";

/// Extra space for the metadata of a message that is passed on. Without it, a message of the
/// maximum size could be neither retried nor dead-lettered.
const RELAY_ROOM: usize = 64 << 10;

/// A transaction, with the state that the writer keeps between transactions.
pub(super) struct Transaction<'w> {
    pub(super) connection: &'w Connection,
    /// Row ids of queues. Queues are never deleted, so they stay valid.
    pub(super) queue_ids: &'w mut HashMap<QueueName, i64>,
    /// Number of receive calls so far.
    pub(super) turns: &'w mut u64,
    /// Set by every operation that may make a message ready sooner than consumers expect.
    pub(super) arrived: bool,
    /// The failure of an operation that had already changed something: nothing may be committed.
    pub(super) failed: Option<Error>,
}

/// A leased row: its id and the fence of the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeasedRow {
    pub(super) id: i64,
    pub(super) fence: i64,
}

/// Prints `<id>-<fence>`.
impl fmt::Display for LeasedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.id, self.fence)
    }
}

impl LeasedRow {
    /// Parses what [`fmt::Display`] prints.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (id, fence) = text.split_once('-')?;
        Some(Self { id: id.parse().ok()?, fence: fence.parse().ok()? })
    }
}

/// The leased messages, and if there are none, the time at which the next becomes ready.
pub(super) struct LeasedBatch {
    pub(super) rows: Vec<(LeasedRow, RawMessage)>,
    pub(super) next_at: Option<Timestamp>,
}

impl<'w> Transaction<'w> {
    pub(super) fn create(&mut self, queue_name: &QueueName) -> Result<(), Error> {
        let sql = "INSERT INTO queue (name, dead) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        self.execute(sql, params![queue_name.name(), is_dead(queue_name)]).map(drop)
    }

    pub(super) fn publish(
        &mut self,
        queue_name: &QueueName,
        batch: Vec<OutgoingMessage>,
        now: Timestamp,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let mut insert = self.insert_statements(queue_name)?;
        Ok(batch.into_iter().map(|outgoing| insert.insert(&outgoing, now, SIZE_MAX)).collect())
    }

    /// Publishes messages, except those of jobs that were published less than `window` ago.
    pub(super) fn publish_once(
        &mut self,
        queue_name: &QueueName,
        batch: Vec<OutgoingMessage>,
        window: Span,
        now: Timestamp,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let queue = self.queue_id(queue_name)?;
        self.execute(FORGET_JOBS, params![micros(now), FORGOTTEN_MAX])?;
        let mut results = Vec::with_capacity(batch.len());
        for outgoing in batch {
            let job = outgoing.message.meta.job.as_str().to_owned();
            let arguments = params![queue, job, micros(now), micros(now + window)];
            // Changes nothing if the job is known.
            if self.execute(REMEMBER_JOB, arguments)? == 0 {
                results.push(Ok(()));
                continue;
            }
            let mut published = self.publish(queue_name, vec![outgoing], now)?;
            let published = published.pop().unwrap_or_else(|| unreachable!("one has one result"));
            if published.is_err() {
                self.execute(FORGET_JOB, params![queue, job])?;
            }
            results.push(published);
        }
        Ok(results)
    }

    /// Deletes the delayed messages of a job.
    pub(super) fn cancel(
        &mut self,
        queue_name: &QueueName,
        job: &str,
        now: Timestamp,
    ) -> Result<u64, Error> {
        let (queue, dead) = (self.queue_id(queue_name)?, is_dead(queue_name));
        let those = "SELECT id FROM $t JOIN $t_content USING (id) \
                     WHERE queue = ?1 AND ready_at > ?2 AND NOT leased \
                     AND json_extract(envelope, '$.job') = ?3";
        self.savepoint(|transaction| {
            let found = || {
                let mut found = transaction.connection.prepare_cached(&sql(dead, those))?;
                let ids = found.query_map(params![queue, micros(now), job], |row| row.get(0))?;
                ids.collect::<rusqlite::Result<Vec<i64>>>()
            };
            let ids = found().map_err(|error| open::failed(&error))?;
            for id in &ids {
                transaction.execute(&sql(dead, "DELETE FROM $t WHERE id = ?1"), params![id])?;
                transaction.execute(DELETE_CONTENT.of(dead), params![id])?;
            }
            Ok(ids.len() as u64)
        })
    }

    /// Leases messages: highest priority first, then oldest. In every eighth call, an eighth of the
    /// messages is taken from the lowest priority up, so that none starves. If a row fails, the
    /// leases of the rows before it expire.
    pub(super) fn take(
        &mut self,
        queue_name: &QueueName,
        max: usize,
        (now, until): (Timestamp, Timestamp),
    ) -> Result<LeasedBatch, Error> {
        let (queue, dead) = (self.queue_id(queue_name)?, is_dead(queue_name));
        let mut taken = LeasedBatch { rows: Vec::new(), next_at: None };
        let failed = |error: rusqlite::Error| open::failed(&error);
        let highest: Option<u8> = self
            .connection
            .prepare_cached(HIGHEST_PRIORITY.of(dead))
            .and_then(|mut s| s.query_row([queue], |r| r.get(0)))
            .map_err(failed)?;
        let Some(highest) = highest else { return Ok(taken) };
        let mut ready = self.connection.prepare_cached(READY.of(dead)).map_err(failed)?;
        let mut lease = self.connection.prepare_cached(LEASE.of(dead)).map_err(failed)?;
        let (fence, highest) = (fence(), highest.min(Message::PRIORITY_MAX));
        let mut take = |priority: u8, most: usize, rows: &mut Vec<_>| {
            let first = rows.len();
            let arguments = params![queue, priority, micros(now), most];
            for row in ready.query_map(arguments, row::read)? {
                let (id, incoming) = row?;
                rows.push((LeasedRow { id, fence }, incoming));
            }
            for (row, _) in &rows[first..] {
                lease.execute(params![row.id, micros(until), fence])?;
            }
            rusqlite::Result::Ok(())
        };
        *self.turns += 1;
        if highest > 0 && self.turns.is_multiple_of(FAIR_TURN) {
            let share = max.div_ceil(FAIR_TURN as usize);
            for priority in 0..highest {
                let left = share - taken.rows.len();
                if left > 0 {
                    take(priority, left, &mut taken.rows).map_err(failed)?;
                }
            }
        }
        for priority in (0..=highest).rev() {
            let left = max - taken.rows.len();
            if left > 0 {
                take(priority, left, &mut taken.rows).map_err(failed)?;
            }
        }
        if taken.rows.is_empty() {
            taken.next_at = self.next_at(dead, queue, highest)?;
        }
        Ok(taken)
    }

    /// Returns the time at which the next message becomes ready or the next lease ends.
    fn next_at(&self, dead: bool, queue: i64, highest: u8) -> Result<Option<Timestamp>, Error> {
        let failed = |error: rusqlite::Error| open::failed(&error);
        let mut next = self.connection.prepare_cached(NEXT.of(dead)).map_err(failed)?;
        let mut first: Option<i64> = None;
        for priority in 0..=highest.min(Message::PRIORITY_MAX) {
            let at: Option<i64> =
                next.query_row(params![queue, priority], |row| row.get(0)).map_err(failed)?;
            first = first.into_iter().chain(at).min();
        }
        Ok(first.map(timestamp))
    }

    pub(super) fn ack(&mut self, queue_name: &QueueName, leased: LeasedRow) -> Result<(), Error> {
        let dead = is_dead(queue_name);
        self.settle(DELETE.of(dead), params![leased.id, leased.fence])?;
        let deleted = self.execute(DELETE_CONTENT.of(dead), params![leased.id]).map(drop);
        self.or_roll_back(deleted)
    }

    /// Acknowledges a message and inserts its successor atomically: the message is never missing
    /// and never duplicated.
    ///
    /// This is not done in a savepoint, for which SQLite copies every page that changes: that took
    /// most of the time of a dispatcher. Instead, all errors that a caller can cause are checked
    /// before the first change.
    pub(super) fn relay(
        &mut self,
        (from, leased): (&QueueName, LeasedRow),
        to: &QueueName,
        next: &OutgoingMessage,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut insert = self.insert_statements(to)?;
        let texts = insert.check(&next.message, SIZE_MAX + RELAY_ROOM)?;
        self.ack(from, leased)?;
        let inserted = insert.write(next, &texts, now);
        self.or_roll_back(inserted)
    }

    /// Rolls back the whole transaction if an operation fails after its first change. At that point
    /// only SQLite itself can fail, for example because the disk is full.
    fn or_roll_back(&mut self, outcome: Result<(), Error>) -> Result<(), Error> {
        if let Err(error) = &outcome {
            self.failed = Some(error.clone());
        }
        outcome
    }

    /// Runs several statements in a savepoint: all or none. A failure does not affect other
    /// operations of the same transaction.
    fn savepoint<T>(
        &mut self,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.execute("SAVEPOINT job", params![])?;
        let outcome = job(self);
        if outcome.is_err() {
            self.execute("ROLLBACK TO job", params![])?;
        }
        self.execute("RELEASE job", params![])?;
        outcome
    }

    pub(super) fn requeue(
        &mut self,
        queue_name: &QueueName,
        leased: LeasedRow,
    ) -> Result<(), Error> {
        self.arrived = true;
        self.settle(REQUEUE.of(is_dead(queue_name)), params![leased.id, leased.fence])
    }

    pub(super) fn extend(
        &mut self,
        queue_name: &QueueName,
        leased: LeasedRow,
        until: Timestamp,
    ) -> Result<(), Error> {
        // A lease that is shortened may end before the instant that consumers wait for.
        self.arrived = true;
        let arguments = params![leased.id, leased.fence, micros(until)];
        self.settle(EXTEND.of(is_dead(queue_name)), arguments)
    }

    pub(super) fn purge(&mut self, queue_name: &QueueName, now: Timestamp) -> Result<u64, Error> {
        let (queue, dead) = (self.queue_id(queue_name)?, is_dead(queue_name));
        let those = "queue = ?1 AND NOT (leased AND ready_at > ?2)";
        let content =
            format!("DELETE FROM $t_content WHERE id IN (SELECT id FROM $t WHERE {those})");
        let rows = format!("DELETE FROM $t WHERE {those}");
        self.savepoint(|transaction| {
            transaction.execute(&sql(dead, &content), params![queue, micros(now)])?;
            let purged = transaction.execute(&sql(dead, &rows), params![queue, micros(now)])?;
            Ok(purged as u64)
        })
    }

    /// Prepares the statements that insert messages into a queue.
    fn insert_statements(&mut self, queue_name: &QueueName) -> Result<InsertStatements<'w>, Error> {
        self.arrived = true;
        let (queue, dead) = (self.queue_id(queue_name)?, is_dead(queue_name));
        let connection = self.connection;
        let prepare = |sql| connection.prepare_cached(sql).map_err(|e| open::failed(&e));
        Ok(InsertStatements {
            queue,
            content: prepare(INSERT_CONTENT.of(dead))?,
            row: prepare(INSERT.of(dead))?,
        })
    }

    fn settle(&self, sql: &str, arguments: &[&dyn rusqlite::ToSql]) -> Result<(), Error> {
        match self.execute(sql, arguments)? {
            0 => Err(Error::Lost),
            _ => Ok(()),
        }
    }

    fn execute(&self, sql: &str, arguments: &[&dyn rusqlite::ToSql]) -> Result<usize, Error> {
        let mut statement = self.connection.prepare_cached(sql).map_err(|e| open::failed(&e))?;
        statement.execute(arguments).map_err(|error| open::failed(&error))
    }

    fn queue_id(&mut self, queue_name: &QueueName) -> Result<i64, Error> {
        if let Some(number) = self.queue_ids.get(queue_name) {
            return Ok(*number);
        }
        let number = queue_id(self.connection, queue_name)?;
        self.queue_ids.insert(queue_name.clone(), number);
        Ok(number)
    }
}

/// The statements that insert messages into one queue.
struct InsertStatements<'c> {
    queue: i64,
    content: CachedStatement<'c>,
    row: CachedStatement<'c>,
}

impl InsertStatements<'_> {
    fn insert(
        &mut self,
        outgoing: &OutgoingMessage,
        now: Timestamp,
        size_max: usize,
    ) -> Result<(), Error> {
        let texts = self.check(&outgoing.message, size_max)?;
        self.write(outgoing, &texts, now)
    }

    /// Checks the size of a message. Returns its texts.
    fn check(&self, message: &Message, size_max: usize) -> Result<RowTexts, Error> {
        let texts = RowTexts::of(message);
        let size = texts.size(message);
        match size > size_max {
            true => Err(Error::TooLarge { broker: NAME, size, max: SIZE_MAX }),
            false => Ok(texts),
        }
    }

    fn write(
        &mut self,
        OutgoingMessage { message, delay }: &OutgoingMessage,
        RowTexts { envelope, headers }: &RowTexts,
        now: Timestamp,
    ) -> Result<(), Error> {
        let failed = |error: rusqlite::Error| open::failed(&error);
        let due = micros(message.meta.not_before.unwrap_or_else(|| now + delay.span()).max(now));
        let (content_type, body) = (&message.content_type, message.body.as_ref());
        // The row last, so that a reader never finds a row without content.
        let content = params![envelope, content_type, headers, body];
        let id = self.content.insert(content).map_err(failed)?;
        let priority = message.priority.min(Message::PRIORITY_MAX);
        self.row.execute(params![id, self.queue, priority, due]).map_err(failed).map(drop)
    }
}

/// Returns the row id of a queue, or an error if it does not exist.
pub(super) fn queue_id(connection: &Connection, queue_name: &QueueName) -> Result<i64, Error> {
    let sql = "SELECT id FROM queue WHERE name = ?1 AND dead = ?2";
    let found = connection
        .prepare_cached(sql)
        .and_then(|mut s| {
            s.query_row(params![queue_name.name(), is_dead(queue_name)], |row| row.get(0))
                .optional()
        })
        .map_err(|error| open::failed(&error))?;
    found.ok_or_else(|| Error::NoQueue { queue: queue_name.name().to_owned() })
}

pub(super) fn depth(
    reader: &Connection,
    dead: bool,
    queue: i64,
    now: Timestamp,
) -> rusqlite::Result<Depth> {
    let sql = sql(
        dead,
        "SELECT count(*) FILTER (WHERE ready_at <= ?2), \
                count(*) FILTER (WHERE ready_at > ?2 AND NOT leased), \
                count(*) FILTER (WHERE ready_at > ?2 AND leased), \
                min(ready_at) FILTER (WHERE ready_at <= ?2) \
         FROM $t WHERE queue = ?1",
    );
    reader.prepare_cached(&sql)?.query_row(params![queue, micros(now)], |row| {
        let count = |column: usize| row.get::<_, i64>(column).map(|count| count.unsigned_abs());
        let oldest: Option<i64> = row.get(3)?;
        Ok(Depth {
            ready: count(0)?,
            delayed: Some(count(1)?),
            in_flight: Some(count(2)?),
            oldest: oldest.map(|at| now.since(timestamp(at))),
        })
    })
}

pub(super) fn browse(
    reader: &Connection,
    dead: bool,
    queue: i64,
    after: u64,
    max: usize,
) -> rusqlite::Result<Vec<(u64, RawMessage)>> {
    // By row id and not by the index, which would require sorting for every page.
    let text = format!("{SELECT} WHERE +queue = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
    let mut statement = reader.prepare_cached(&sql(dead, &text))?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![queue, after, max], row::read)?;
    rows.map(|row| row.map(|(id, incoming)| (id.unsigned_abs(), incoming))).collect()
}

/// Returns the end of the lease on a row, if it is leased.
pub(super) fn lease_end_of(
    reader: &Connection,
    dead: bool,
    id: u64,
    now: Timestamp,
) -> rusqlite::Result<Option<Timestamp>> {
    let sql = sql(dead, "SELECT ready_at FROM $t WHERE id = ?1 AND leased AND ready_at > ?2");
    let id = i64::try_from(id).unwrap_or(i64::MAX);
    let mut statement = reader.prepare_cached(&sql)?;
    let end = statement.query_row(params![id, micros(now)], |row| row.get(0)).optional()?;
    Ok(end.map(timestamp))
}

/// Returns a leased message of a queue, or `None` if its lease was lost or settled.
pub(super) fn leased(
    reader: &Connection,
    dead: bool,
    queue: i64,
    leased: LeasedRow,
) -> rusqlite::Result<Option<RawMessage>> {
    let mut statement = reader.prepare_cached(LEASED.of(dead))?;
    let row = statement.query_row(params![leased.id, leased.fence, queue], row::read).optional()?;
    // The lease in progress is no redelivery yet.
    Ok(row.map(|(_, incoming)| RawMessage { redeliveries: 0, ..incoming }))
}

/// Returns a random number that identifies a lease across all processes.
fn fence() -> i64 {
    (uuid::Uuid::new_v4().as_u64_pair().1 >> 1) as i64
}

pub(super) const fn is_dead(queue_name: &QueueName) -> bool {
    matches!(queue_name, QueueName::Dead(_))
}

/// Converts a timestamp for SQLite; the largest timestamp is below 2^53.
pub(super) const fn micros(at: Timestamp) -> i64 {
    at.as_micros() as i64
}

const fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.unsigned_abs())
}

/// Returns the end of a lease that starts now.
pub(super) fn lease_end(now: Timestamp, visibility: Span) -> Timestamp {
    now + visibility.max(Span::from_millis(1))
}

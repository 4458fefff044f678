//! [`Work`]: the operations on queues inside an SQLite transaction.

use std::collections::HashMap;
use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};
use sluicegate_core::{Span, Timestamp};

use super::open::sql;
use super::row::{self, SELECT, Written};
use super::{NAME, SIZE_MAX, open};
use crate::broker::{Depth, Incoming, Outgoing, Place};
use crate::{Error, Message};

/// A statement in its two forms, for messages and for dead letters. Built once, because most run
/// with every message.
struct Sql(LazyLock<[String; 2]>);

impl Sql {
    fn of(&self, dead: bool) -> &str {
        let [live, of_dead] = &*self.0;
        if dead { of_dead } else { live }
    }
}

macro_rules! both {
    ($template:expr) => {
        Sql(LazyLock::new(|| [false, true].map(|dead| sql(dead, &$template))))
    };
}

static URGENT: Sql = both!("SELECT max(priority) FROM $t WHERE queue = ?1");
/// Sorted like the index, so that SQLite does not sort.
static READY: Sql = both!(format!(
    "{SELECT} WHERE queue = ?1 AND priority = ?2 AND ready_at <= ?3 \
     ORDER BY ready_at, leased, id LIMIT ?4"
));
static LEASE: Sql = both!(
    "UPDATE $t SET ready_at = ?2, returns = returns + leased, leased = 1, fence = ?3 WHERE id = ?1"
);
static NEXT: Sql = both!("SELECT min(ready_at) FROM $t WHERE queue = ?1 AND priority = ?2");
static DELETE: Sql = both!("DELETE FROM $t WHERE id = ?1 AND fence = ?2");
static DELETE_CONTENT: Sql = both!("DELETE FROM $t_content WHERE id = ?1");
static GIVE_BACK: Sql = both!(
    "UPDATE $t SET ready_at = due, leased = 0, returns = returns + 1 WHERE id = ?1 AND fence = ?2"
);
static EXTEND: Sql =
    both!("UPDATE $t SET ready_at = ?3 WHERE id = ?1 AND fence = ?2 AND leased = 1");
static INSERT_CONTENT: Sql =
    both!("INSERT INTO $t_content (envelope, content_type, headers, body) VALUES (?1, ?2, ?3, ?4)");
static INSERT: Sql =
    both!("INSERT INTO $t (id, queue, priority, ready_at, due) VALUES (?1, ?2, ?3, ?4, ?4)");

/// A transaction, with the state that the writer keeps between transactions.
pub(super) struct Work<'w> {
    pub(super) connection: &'w Connection,
    /// Row ids of queues. Queues are never deleted, so they stay valid.
    pub(super) numbers: &'w mut HashMap<Place, i64>,
    /// Set by every operation that may make a message ready sooner than consumers expect.
    pub(super) arrived: bool,
}

/// A leased row: its id and the fence of the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leased {
    pub(super) id: i64,
    pub(super) fence: i64,
}

/// The leased messages, and if there are none, the time at which the next becomes ready.
pub(super) struct Taken {
    pub(super) rows: Vec<(Leased, Incoming)>,
    pub(super) next_at: Option<Timestamp>,
}

impl Work<'_> {
    pub(super) fn create(&mut self, place: &Place) -> Result<(), Error> {
        let sql = "INSERT INTO queue (name, dead) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        self.execute(sql, params![place.name(), is_dead(place)]).map(drop)
    }

    pub(super) fn publish(
        &mut self,
        place: &Place,
        batch: Vec<Outgoing>,
        now: Timestamp,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let mut insert = self.inserting(place)?;
        Ok(batch.into_iter().map(|outgoing| insert.insert(&outgoing, now)).collect())
    }

    /// Leases messages: highest priority first, then oldest. If a later row fails, the leases of
    /// the earlier rows simply end.
    pub(super) fn take(
        &mut self,
        place: &Place,
        max: usize,
        (now, until): (Timestamp, Timestamp),
    ) -> Result<Taken, Error> {
        let (queue, dead) = (self.number(place)?, is_dead(place));
        let mut taken = Taken { rows: Vec::new(), next_at: None };
        let failed = |error: rusqlite::Error| open::failed(&error);
        let urgent: Option<u8> = self
            .connection
            .prepare_cached(URGENT.of(dead))
            .and_then(|mut s| s.query_row([queue], |r| r.get(0)))
            .map_err(failed)?;
        let Some(urgent) = urgent else { return Ok(taken) };
        let mut ready = self.connection.prepare_cached(READY.of(dead)).map_err(failed)?;
        let fence = fence();
        for priority in (0..=urgent.min(Message::PRIORITY_MAX)).rev() {
            let left = max - taken.rows.len();
            let arguments = params![queue, priority, micros(now), left];
            let rows = ready.query_map(arguments, row::read).map_err(failed)?;
            for row in rows {
                let (id, incoming) = row.map_err(failed)?;
                taken.rows.push((Leased { id, fence }, incoming));
            }
            if taken.rows.len() == max {
                break;
            }
        }
        let mut lease = self.connection.prepare_cached(LEASE.of(dead)).map_err(failed)?;
        for (row, _) in &taken.rows {
            lease.execute(params![row.id, micros(until), fence]).map_err(failed)?;
        }
        if taken.rows.is_empty() {
            taken.next_at = self.next_at(dead, queue, urgent)?;
        }
        Ok(taken)
    }

    /// Returns the time at which the next message becomes ready or the next lease ends.
    fn next_at(&self, dead: bool, queue: i64, urgent: u8) -> Result<Option<Timestamp>, Error> {
        let failed = |error: rusqlite::Error| open::failed(&error);
        let mut next = self.connection.prepare_cached(NEXT.of(dead)).map_err(failed)?;
        let mut first: Option<i64> = None;
        for priority in 0..=urgent.min(Message::PRIORITY_MAX) {
            let at: Option<i64> =
                next.query_row(params![queue, priority], |row| row.get(0)).map_err(failed)?;
            first = first.into_iter().chain(at).min();
        }
        Ok(first.map(timestamp))
    }

    pub(super) fn ack(&mut self, place: &Place, leased: Leased) -> Result<(), Error> {
        let dead = is_dead(place);
        self.settle(DELETE.of(dead), params![leased.id, leased.fence])?;
        self.execute(DELETE_CONTENT.of(dead), params![leased.id]).map(drop)
    }

    /// Acknowledges a message and inserts its successor atomically: the message is never missing
    /// and never duplicated.
    pub(super) fn relay(
        &mut self,
        (from, leased): (&Place, Leased),
        to: &Place,
        next: &Outgoing,
        now: Timestamp,
    ) -> Result<(), Error> {
        self.whole(|work| {
            work.ack(from, leased)?;
            work.inserting(to)?.insert(next, now)
        })
    }

    /// Runs several statements in a savepoint: all or none. A failure does not affect other
    /// operations of the same transaction.
    fn whole<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.execute("SAVEPOINT job", params![])?;
        let outcome = job(self);
        if outcome.is_err() {
            self.execute("ROLLBACK TO job", params![])?;
        }
        self.execute("RELEASE job", params![])?;
        outcome
    }

    pub(super) fn give_back(&mut self, place: &Place, leased: Leased) -> Result<(), Error> {
        self.arrived = true;
        self.settle(GIVE_BACK.of(is_dead(place)), params![leased.id, leased.fence])
    }

    pub(super) fn extend(
        &mut self,
        place: &Place,
        leased: Leased,
        until: Timestamp,
    ) -> Result<(), Error> {
        // A lease that is shortened may end before the instant that consumers wait for.
        self.arrived = true;
        let arguments = params![leased.id, leased.fence, micros(until)];
        self.settle(EXTEND.of(is_dead(place)), arguments)
    }

    pub(super) fn purge(&mut self, place: &Place, now: Timestamp) -> Result<u64, Error> {
        let (queue, dead) = (self.number(place)?, is_dead(place));
        let those = "queue = ?1 AND NOT (leased AND ready_at > ?2)";
        let content =
            format!("DELETE FROM $t_content WHERE id IN (SELECT id FROM $t WHERE {those})");
        let rows = format!("DELETE FROM $t WHERE {those}");
        self.whole(|work| {
            work.execute(&sql(dead, &content), params![queue, micros(now)])?;
            let purged = work.execute(&sql(dead, &rows), params![queue, micros(now)])?;
            Ok(purged as u64)
        })
    }

    /// Prepares the statements that insert messages into a queue.
    fn inserting(&mut self, place: &Place) -> Result<Insert<'_>, Error> {
        self.arrived = true;
        let (queue, dead) = (self.number(place)?, is_dead(place));
        let prepare = |sql| self.connection.prepare_cached(sql).map_err(|e| open::failed(&e));
        Ok(Insert {
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

    fn number(&mut self, place: &Place) -> Result<i64, Error> {
        if let Some(number) = self.numbers.get(place) {
            return Ok(*number);
        }
        let number = number(self.connection, place)?;
        self.numbers.insert(place.clone(), number);
        Ok(number)
    }
}

/// The statements that insert messages into one queue.
struct Insert<'c> {
    queue: i64,
    content: CachedStatement<'c>,
    row: CachedStatement<'c>,
}

impl Insert<'_> {
    fn insert(
        &mut self,
        Outgoing { message, delay }: &Outgoing,
        now: Timestamp,
    ) -> Result<(), Error> {
        let written = Written::of(message);
        let size = written.size(message);
        if size > SIZE_MAX {
            return Err(Error::TooLarge { broker: NAME, size, max: SIZE_MAX });
        }
        let failed = |error: rusqlite::Error| open::failed(&error);
        let due = micros(message.meta.not_before.unwrap_or_else(|| now + delay.span()).max(now));
        let Written { envelope, headers } = &written;
        let (content_type, body) = (&message.content_type, message.body.as_ref());
        // The row last, so that a reader never finds a row without content.
        let content = params![envelope, content_type, headers, body];
        let id = self.content.insert(content).map_err(failed)?;
        let priority = message.priority.min(Message::PRIORITY_MAX);
        self.row.execute(params![id, self.queue, priority, due]).map_err(failed).map(drop)
    }
}

/// Returns the row id of a queue, or an error if it does not exist.
pub(super) fn number(connection: &Connection, place: &Place) -> Result<i64, Error> {
    let sql = "SELECT id FROM queue WHERE name = ?1 AND dead = ?2";
    let found = connection
        .prepare_cached(sql)
        .and_then(|mut s| {
            s.query_row(params![place.name(), is_dead(place)], |row| row.get(0)).optional()
        })
        .map_err(|error| open::failed(&error))?;
    found.ok_or_else(|| Error::NoQueue { queue: place.name().to_owned() })
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
) -> rusqlite::Result<Vec<(u64, Incoming)>> {
    // By row id and not by the index, which would require sorting for every page.
    let text = format!("{SELECT} WHERE +queue = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
    let mut statement = reader.prepare_cached(&sql(dead, &text))?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![queue, after, max], row::read)?;
    rows.map(|row| row.map(|(id, incoming)| (id.unsigned_abs(), incoming))).collect()
}

/// Returns a random number that identifies a lease across all processes.
fn fence() -> i64 {
    (uuid::Uuid::new_v4().as_u64_pair().1 >> 1) as i64
}

pub(super) const fn is_dead(place: &Place) -> bool {
    matches!(place, Place::Dead(_))
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

//! SQLite: one table, and one transaction to send, lease or delete a batch, as durable as ours.

use std::path::Path;

use rusqlite::{Connection, params};

use crate::turns::{Case, Subject};

/// The current time of the table. Leased and delayed jobs have a later `ready_at`.
const NOW: i64 = 1_000;
const LATER: i64 = 2_000;

pub(crate) struct Sqlite {
    connection: Connection,
    body: Vec<u8>,
    batch: usize,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, case: &Case) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 4000; PRAGMA cache_size = -65536;
             CREATE TABLE job (id INTEGER PRIMARY KEY, ready_at INTEGER NOT NULL, body BLOB NOT NULL);
             CREATE INDEX job_ready ON job (ready_at);",
        )?;
        Ok(Self { connection, body: case.body.clone().into_bytes(), batch: case.batch })
    }

    fn insert(&mut self, jobs: usize, ready_at: i64) -> anyhow::Result<()> {
        for _ in 0..jobs / self.batch {
            let batch = self.connection.transaction()?;
            let mut insert =
                batch.prepare_cached("INSERT INTO job (ready_at, body) VALUES (?1, ?2)")?;
            for _ in 0..self.batch {
                insert.execute(params![ready_at, self.body])?;
            }
            drop(insert);
            batch.commit()?;
        }
        Ok(())
    }

    fn take(&mut self) -> anyhow::Result<usize> {
        let lease = self.connection.transaction()?;
        let mut select = lease.prepare_cached(
            "SELECT id, body FROM job WHERE ready_at <= ?1 ORDER BY ready_at, id LIMIT ?2",
        )?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let rows = select.query_map(params![NOW, self.batch], read)?;
        let jobs = rows.collect::<Result<Vec<(i64, Vec<u8>)>, _>>()?;
        drop(select);
        let mut hide = lease.prepare_cached("UPDATE job SET ready_at = ?2 WHERE id = ?1")?;
        for (id, _) in &jobs {
            hide.execute(params![id, LATER])?;
        }
        drop(hide);
        lease.commit()?;
        let done = self.connection.transaction()?;
        let mut delete = done.prepare_cached("DELETE FROM job WHERE id = ?1")?;
        for (id, _) in &jobs {
            delete.execute([id])?;
        }
        drop(delete);
        done.commit()?;
        Ok(jobs.len())
    }
}

impl Subject for Sqlite {
    async fn send(&mut self, jobs: usize) -> anyhow::Result<()> {
        self.insert(jobs, NOW)
    }

    async fn receive(&mut self, jobs: usize) -> anyhow::Result<()> {
        let mut left = jobs;
        while left > 0 {
            left -= self.take()?;
        }
        Ok(())
    }

    async fn delay(&mut self, jobs: usize) -> anyhow::Result<()> {
        self.insert(jobs, LATER)
    }

    async fn clear(&mut self) -> anyhow::Result<()> {
        self.connection.execute("DELETE FROM job", [])?;
        Ok(())
    }
}

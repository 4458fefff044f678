//! [`FileOverrideStore`]: the overrides of a single process, in memory or in a file that survives a
//! restart.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sluicegate_core::override_store::{
    OVERRIDES_MAX, OverrideFuture, OverrideStore, OverridesVersion, StoredOverrides,
};
use sluicegate_core::store::Error;
use sluicegate_core::time::Clock;
use sluicegate_core::{Id, Span, Timestamp};

use crate::clock::MonotonicClock;
use crate::file;

/// Keeps the overrides of this process.
#[derive(Debug)]
pub struct FileOverrideStore<C = MonotonicClock> {
    path: Option<PathBuf>,
    state: Mutex<OverrideTable>,
    clock: C,
}

/// The overrides and their version.
#[derive(Debug, Default)]
struct OverrideTable {
    version: u64,
    texts: BTreeMap<Id, OverrideEntry>,
}

/// One override.
#[derive(Clone, Debug)]
struct OverrideEntry {
    ends: Option<Timestamp>,
    text: String,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct OverrideLine {
    name: String,
    /// Expiry in microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends: Option<u64>,
    text: String,
}

/// A reason why a file of overrides can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file can't be read.
    #[error("can't read the file of overrides")]
    Read(#[from] io::Error),
    /// A line is not a valid override.
    #[error("line {0} is not a valid override: repair or delete it")]
    Line(usize),
}

impl FileOverrideStore {
    /// Returns an empty store that keeps its overrides in memory only.
    pub fn in_memory() -> Self {
        Self { path: None, state: Mutex::default(), clock: MonotonicClock::new() }
    }

    /// Opens the store in a file, which need not exist yet.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with_clock(path, MonotonicClock::new())
    }
}

impl<C: Clock> FileOverrideStore<C> {
    /// Opens the store in a file and reads the time from `clock`.
    pub fn open_with_clock(path: &Path, clock: C) -> Result<Self, OpenError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let mut texts = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let damaged = || OpenError::Line(number + 1);
            let line: OverrideLine = serde_json::from_str(line).map_err(|_| damaged())?;
            let name: Id = line.name.parse().map_err(|_| damaged())?;
            let ends = line.ends.map(Timestamp::from_micros);
            texts.insert(name, OverrideEntry { ends, text: line.text });
        }
        let state = Mutex::new(OverrideTable { version: 1, texts });
        Ok(Self { path: Some(path.to_owned()), state, clock })
    }

    /// Locks the overrides and removes those that have expired.
    fn lock(&self) -> (MutexGuard<'_, OverrideTable>, Timestamp) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let before = state.texts.len();
        state.texts.retain(|_, entry| entry.ends.is_none_or(|ends| ends > now));
        state.version += u64::from(state.texts.len() < before);
        (state, now)
    }

    /// Changes the overrides. Writes the file first, so that a change that can't be saved has no
    /// effect.
    fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<Id, OverrideEntry>, Timestamp) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let (mut state, now) = self.lock();
        let mut texts = state.texts.clone();
        let changed = change(&mut texts, now)?;
        if changed {
            self.save(&texts).map_err(|problem| {
                let path = self.path.as_deref().unwrap_or(Path::new("")).display();
                Error::Unavailable(format!("can't write {path}: {problem}").into())
            })?;
            state.texts = texts;
            state.version += 1;
        }
        Ok(changed)
    }

    fn save(&self, texts: &BTreeMap<Id, OverrideEntry>) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        file::replace(path, |out| {
            let mut out = io::BufWriter::new(out);
            for (name, OverrideEntry { ends, text }) in texts {
                let ends = ends.map(Timestamp::as_micros);
                let line = OverrideLine { name: name.to_string(), ends, text: text.clone() };
                serde_json::to_writer(&mut out, &line)?;
                out.write_all(b"\n")?;
            }
            out.flush()
        })
    }
}

impl<C: Clock> OverrideStore for FileOverrideStore<C> {
    fn read(&self, known: Option<OverridesVersion>) -> OverrideFuture<'_, Option<StoredOverrides>> {
        Box::pin(async move {
            let (state, at) = self.lock();
            let version = OverridesVersion(state.version);
            let texts = || state.texts.values().map(|entry| entry.text.clone()).collect();
            Ok((known != Some(version)).then(|| StoredOverrides { at, version, texts: texts() }))
        })
    }

    fn put<'a>(&'a self, name: Id, text: &'a str, lasts: Option<Span>) -> OverrideFuture<'a, ()> {
        Box::pin(async move {
            self.change(|texts, now| {
                if !texts.contains_key(&name) && texts.len() >= OVERRIDES_MAX {
                    return Err(Error::Full);
                }
                let ends = lasts.map(|lasts| now + lasts);
                texts.insert(name, OverrideEntry { ends, text: text.to_owned() });
                Ok(true)
            })
            .map(drop)
        })
    }

    fn remove(&self, name: Id) -> OverrideFuture<'_, bool> {
        Box::pin(async move { self.change(|texts, _| Ok(texts.remove(&name).is_some())) })
    }
}

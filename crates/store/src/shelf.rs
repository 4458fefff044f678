//! A shelf for one process: in memory, and in a file if it is to survive a restart.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sluicegate_core::shelf::{Contents, Pending, Shelf, TEXTS_MAX, Version};
use sluicegate_core::store::Error;
use sluicegate_core::time::Clock;
use sluicegate_core::{Id, Span, Timestamp};

use crate::clock::MonotonicClock;
use crate::file;

/// Texts of this process.
#[derive(Debug)]
pub struct LocalShelf<C = MonotonicClock> {
    path: Option<PathBuf>,
    state: Mutex<State>,
    clock: C,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    texts: BTreeMap<Id, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    ends: Option<Timestamp>,
    text: String,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    name: String,
    /// In microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends: Option<u64>,
    text: String,
}

/// Why a file can't be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It can't be read at all.
    #[error("it can't be read")]
    Read(#[from] io::Error),
    /// A line is not one of ours.
    #[error("line {0} is damaged: repair or remove it")]
    Line(usize),
}

impl LocalShelf {
    /// An empty shelf that is gone with the process.
    pub fn in_memory() -> Self {
        Self { path: None, state: Mutex::default(), clock: MonotonicClock::new() }
    }

    /// The shelf in a file, which need not be there yet.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with_clock(path, MonotonicClock::new())
    }
}

impl<C: Clock> LocalShelf<C> {
    /// The same on another clock.
    pub fn open_with_clock(path: &Path, clock: C) -> Result<Self, OpenError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let mut texts = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let damaged = || OpenError::Line(number + 1);
            let line: Line = serde_json::from_str(line).map_err(|_| damaged())?;
            let name: Id = line.name.parse().map_err(|_| damaged())?;
            let ends = line.ends.map(Timestamp::from_micros);
            texts.insert(name, Entry { ends, text: line.text });
        }
        let state = Mutex::new(State { version: 1, texts });
        Ok(Self { path: Some(path.to_owned()), state, clock })
    }

    /// The state without what has ended.
    fn lock(&self) -> (MutexGuard<'_, State>, Timestamp) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let before = state.texts.len();
        state.texts.retain(|_, entry| entry.ends.is_none_or(|ends| ends > now));
        state.version += u64::from(state.texts.len() < before);
        (state, now)
    }

    /// Changes the texts, in the file first: what could not be written does not apply.
    fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<Id, Entry>, Timestamp) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let (mut state, now) = self.lock();
        let mut texts = state.texts.clone();
        let changed = change(&mut texts, now)?;
        if changed {
            self.save(&texts).map_err(|problem| {
                let path = self.path.as_deref().unwrap_or(Path::new("")).display();
                Error::Unavailable(format!("{path} can't be written: {problem}").into())
            })?;
            state.texts = texts;
            state.version += 1;
        }
        Ok(changed)
    }

    fn save(&self, texts: &BTreeMap<Id, Entry>) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        file::replace(path, |out| {
            let mut out = io::BufWriter::new(out);
            for (name, Entry { ends, text }) in texts {
                let ends = ends.map(Timestamp::as_micros);
                let line = Line { name: name.to_string(), ends, text: text.clone() };
                serde_json::to_writer(&mut out, &line)?;
                out.write_all(b"\n")?;
            }
            out.flush()
        })
    }
}

impl<C: Clock> Shelf for LocalShelf<C> {
    fn read(&self, known: Option<Version>) -> Pending<'_, Option<Contents>> {
        Box::pin(async move {
            let (state, at) = self.lock();
            let version = Version(state.version);
            let texts = || state.texts.values().map(|entry| entry.text.clone()).collect();
            Ok((known != Some(version)).then(|| Contents { at, version, texts: texts() }))
        })
    }

    fn put<'a>(&'a self, name: Id, text: &'a str, lasts: Option<Span>) -> Pending<'a, ()> {
        Box::pin(async move {
            self.change(|texts, now| {
                if !texts.contains_key(&name) && texts.len() >= TEXTS_MAX {
                    return Err(Error::Full);
                }
                let ends = lasts.map(|lasts| now + lasts);
                texts.insert(name, Entry { ends, text: text.to_owned() });
                Ok(true)
            })
            .map(drop)
        })
    }

    fn remove(&self, name: Id) -> Pending<'_, bool> {
        Box::pin(async move { self.change(|texts, _| Ok(texts.remove(&name).is_some())) })
    }
}

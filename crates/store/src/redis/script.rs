//! The scripts, put together from their pieces.
//!
//! There are two: a small one that admits plans of exact logs by the dozen, and one that knows
//! everything. Redis runs a script from its first line each time, so what the small one does not
//! need would be paid for by every decision.

use redis::Script as Hashed;

macro_rules! lua {
    ($($piece:literal)*) => { &[$(include_str!(concat!("lua/", $piece, ".lua"))),*] };
}

const FAST: &[&str] = lua!("common" "fence" "fast");
const FULL: &[&str] = lua!("common" "fence" "log" "slices" "bucket" "charges" "records" "operations" "reserve" "shelf" "main");

/// How calls are written: what they begin with, and what each operation has behind it. A script reads
/// the calls and the records of this version and of the one before.
pub(super) const VERSION: &str = "v2";

const HEARTBEAT: &[&str] = lua!("clock" "common" "heartbeat");

/// Where a script gets the time from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// Redis: nodes whose clocks disagree still count in one window.
    Server,
    /// A key, which a test sets.
    #[cfg(feature = "test-clock")]
    Key(String),
}

impl Clock {
    fn text(&self) -> String {
        match self {
            Self::Server => include_str!("lua/clock.lua").to_owned(),
            #[cfg(feature = "test-clock")]
            Self::Key(name) => {
                let text = format!("local now_text = redis.call('GET', '{name}')\n");
                text + "local now = tonumber(now_text)\n"
            }
        }
    }
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Plans of exact logs that leave no record.
    Fast,
    /// Everything.
    Full,
}

/// Both, as one server wants them.
#[derive(Debug)]
pub(super) struct Scripts {
    fast: Script,
    full: Script,
}

/// A script and the hash that Redis knows it by.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// What a script begins with. From 7 on, a script that says what it is fails before its first
/// write, not after, where memory is short or a key was not declared. Before 7 it is a syntax error.
const fn head(version: u64) -> &'static str {
    if version >= 7 { "#!lua\n" } else { "" }
}

/// The script that counts heartbeats, for a server of this major version. It goes by the clock of
/// the server, always.
pub(super) fn heartbeat(version: u64) -> String {
    std::iter::once(head(version)).chain(HEARTBEAT.iter().copied()).collect()
}

impl Scripts {
    /// The scripts for a server of this major version.
    pub(super) fn new(clock: &Clock, version: u64) -> Self {
        let script = |pieces: &[&str]| {
            let time = clock.text();
            let text = [head(version), &time].into_iter().chain(pieces.iter().copied());
            let text: String = text.collect();
            let hash = Hashed::new(&text).get_hash().to_owned();
            Script { text, hash }
        };
        Self { fast: script(FAST), full: script(FULL) }
    }

    pub(super) const fn get(&self, which: Which) -> &Script {
        match which {
            Which::Fast => &self.fast,
            Which::Full => &self.full,
        }
    }
}

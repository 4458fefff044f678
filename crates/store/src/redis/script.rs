//! The Lua scripts, assembled from the files in `lua/`.
//!
//! There are two: a small one that admits plans of exact logs, many per call, and one for
//! everything else. Redis runs a script from its first line on every call, so code that the small
//! one does not need would slow down every decision.

use std::time::Duration;

use redis::Script as Hashed;

macro_rules! lua {
    ($($piece:literal)*) => { &[$(include_str!(concat!("lua/", $piece, ".lua"))),*] };
}

const FAST: &[&str] = lua!("common" "fence" "fast");
const FULL: &[&str] = lua!("common" "fence" "log" "slices" "bucket" "charges" "records" "operations" "reserve" "overrides" "reservations" "backlogs" "main");

/// Version of the call format: the header and the arguments of each operation. A script reads calls
/// and records of this version and of the previous one.
pub(super) const VERSION: &str = "v2";

const HEARTBEAT: &[&str] = lua!("clock" "common" "heartbeat");

/// The first lines of a script: its clock and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScriptHead {
    /// Source of the time.
    pub(super) clock: ScriptClock,
    /// Minimum lifetime of a counter.
    pub(super) ttl_min: Duration,
}

impl ScriptHead {
    /// Returns the head of scripts without options.
    #[cfg(any(test, feature = "test-clock"))]
    pub(super) const fn of(clock: ScriptClock) -> Self {
        Self { clock, ttl_min: Duration::ZERO }
    }

    fn text(&self) -> String {
        format!("{}{}", self.clock.text(), ttl_line(self.ttl_min))
    }
}

fn ttl_line(ttl_min: Duration) -> String {
    format!("local TTL_MIN_MS = {}\n", ttl_min.as_millis())
}

/// Source of the time that a script uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptClock {
    /// The clock of Redis: nodes whose clocks differ still count in one window.
    Server,
    /// A key that a test sets.
    #[cfg(feature = "test-clock")]
    Key(String),
}

impl ScriptClock {
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

/// Selects one of the two scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptKind {
    /// Decides plans of exact logs that leave no record.
    Fast,
    /// Runs every operation.
    Full,
}

/// Both scripts, for one server version.
#[derive(Debug)]
pub(super) struct Scripts {
    fast: Script,
    full: Script,
}

/// A script and the hash under which Redis stores it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// Returns the first line of a script. With `#!lua`, Redis 7 rejects a script before its first
/// write, not after it, if memory is short or a key was not declared. Before Redis 7 the line is a
/// syntax error.
const fn head(version: u64) -> &'static str {
    if version >= 7 { "#!lua\n" } else { "" }
}

/// Returns the script that counts heartbeats, for a server of this major version. It always uses
/// the clock of the server.
pub(super) fn heartbeat(version: u64) -> String {
    let ttl = ttl_line(Duration::ZERO);
    [head(version), &ttl].into_iter().chain(HEARTBEAT.iter().copied()).collect()
}

impl Scripts {
    /// Returns the scripts for a server of this major version.
    pub(super) fn new(first_lines: &ScriptHead, version: u64) -> Self {
        let script = |pieces: &[&str]| {
            let first_lines = first_lines.text();
            let text = [head(version), &first_lines].into_iter().chain(pieces.iter().copied());
            let text: String = text.collect();
            let hash = Hashed::new(&text).get_hash().to_owned();
            Script { text, hash }
        };
        Self { fast: script(FAST), full: script(FULL) }
    }

    pub(super) const fn get(&self, which: ScriptKind) -> &Script {
        match which {
            ScriptKind::Fast => &self.fast,
            ScriptKind::Full => &self.full,
        }
    }
}

//! What one process takes on, logs and measures.

use std::fmt;
use std::str::FromStr;

use sluicegate_core::Span;

use super::Address;

/// What one process takes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The most connections at the same time on each listener. Default: 10000, so that a flood
    /// of connections does not use up file descriptors and memory.
    pub connections_max: usize,
    /// How long a client may take to send the head of a request. Default: 5s, so that slow
    /// clients do not hold connections.
    pub header_timeout: Span,
    /// The longest body of a request. Default: 64KB; a question is a few hundred bytes.
    pub body_limit: ByteSize,
    /// How long requests under way may take after the process was asked to stop. Default: 10s.
    pub shutdown_grace: Span,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            header_timeout: Span::from_secs(5),
            body_limit: ByteSize(64 << 10),
            shutdown_grace: Span::from_secs(10),
        }
    }
}

/// A number of bytes, written as `64KB` or `1MB`; a KB is 1,024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let bytes: u64 = match unit.trim_start() {
            "B" => 1,
            "KB" | "KiB" => 1 << 10,
            "MB" | "MiB" => 1 << 20,
            "GB" | "GiB" => 1 << 30,
            _ => return Err(()),
        };
        let number: u64 = number.parse().map_err(|_| ())?;
        number.checked_mul(bytes).map(Self).ok_or(())
    }
}

/// What is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The least severe messages that are logged. Default: info.
    pub level: LogLevel,
    /// How. Default: auto.
    pub format: LogFormat,
    /// Which decisions are logged.
    pub decisions: Decisions,
}

/// How severe a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something was not done.
    Error,
    /// Something will go wrong unless somebody looks.
    Warn,
    /// What happens once in a while.
    #[default]
    Info,
    /// What happens with every request.
    Debug,
    /// Everything.
    Trace,
}

/// What a line of the log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// The share of decisions that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decisions {
    /// Of those that let work through. Default: 1.0; lower it where the log costs more than the
    /// work.
    pub allowed: Share,
    /// Of those that did not. Default: 1.0; they are what somebody will ask about.
    pub denied: Share,
}

impl Default for Decisions {
    fn default() -> Self {
        Self { allowed: Share::ALL, denied: Share::ALL }
    }
}

/// A part of a whole, from 0.0 to 1.0, exact to a millionth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// The whole.
    pub const ALL: Self = Self(1_000_000);

    /// Millionths.
    pub const fn parts_per_million(self) -> u32 {
        self.0
    }
}

impl FromStr for Share {
    type Err = ();

    /// Reads a plain decimal such as `0.25`, with at most 6 decimals.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 6 {
            return Err(());
        }
        let millionths: u32 = format!("{fraction:0<6}").parse().map_err(|_| ())?;
        match (whole.parse::<u32>(), millionths) {
            (Ok(0), millionths) => Ok(Self(millionths)),
            (Ok(1), 0) => Ok(Self::ALL),
            _ => Err(()),
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({}.{:06})", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// The most values of one label; further ones are counted together. Default: 100, so that
    /// clients can't fill the memory of whoever collects the metrics.
    pub label_values_max: usize,
    /// Where metrics are pushed to, besides being served. Default: nowhere.
    pub statsd: Option<Address>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { label_values_max: 100, statsd: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact() {
        for (text, millionths) in
            [("0", 0), ("1", 1_000_000), ("1.0", 1_000_000), ("0.25", 250_000), ("0.000001", 1)]
        {
            assert_eq!(text.parse::<Share>().map(Share::parts_per_million), Ok(millionths));
        }
        for text in ["", ".5", "1.", "1.1", "2", "-0.5", "1e-3", "25%", "0.0000001", "NaN"] {
            assert_eq!(text.parse::<Share>(), Err(()), "{text}");
        }
    }

    #[test]
    fn sizes_count_in_powers_of_1024() {
        for (text, bytes) in [("1B", 1), ("64KB", 65_536), ("1 MB", 1_048_576), ("2GiB", 2 << 30)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }
        for text in ["", "64", "KB", "64kb", "1.5MB", "-1KB", "99999999999999999999B"] {
            assert_eq!(text.parse::<ByteSize>(), Err(()), "{text}");
        }
    }
}

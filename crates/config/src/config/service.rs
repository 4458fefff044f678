//! Options of one process: [`ServerOptions`] (resource limits), [`LogOptions`] and
//! [`MetricsOptions`].

use std::fmt;
use std::str::FromStr;

use sluicegate_core::Span;

use super::Address;

/// Resource limits of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Maximum number of connections on each listener. Default: 10000, so that a flood of
    /// connections does not exhaust file descriptors and memory.
    pub connections_max: usize,
    /// Maximum time for the TLS handshake and for the head of the first request of a connection.
    /// Default: 5s, so that slow clients do not hold connections.
    pub header_timeout: Span,
    /// Maximum size of a request body. Default: 64KB; a rate limit request has a few hundred bytes.
    pub body_limit: ByteSize,
    /// Maximum time for requests in progress after the process was asked to stop. Default: 10s.
    pub shutdown_grace: Span,
    /// Maximum time for jobs in progress after the process was asked to stop. Default: the longest
    /// `timeout` of its workers and `shutdown_grace`.
    pub drain_timeout: Option<Span>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            header_timeout: Span::from_secs(5),
            body_limit: ByteSize(64 << 10),
            shutdown_grace: Span::from_secs(10),
            drain_timeout: None,
        }
    }
}

/// A number of bytes, written as `64KB` or `1MB`; a KB is 1,024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Returns the number as a length in memory.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

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

/// Logging options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Minimum severity that is logged. Default: info.
    pub level: LogLevel,
    /// Format of a log line. Default: auto.
    pub format: LogFormat,
    /// Sampling of logged decisions.
    pub decisions: DecisionSampling,
}

/// The severity of a log message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something will fail unless an operator acts.
    Warn,
    /// Occasional events.
    #[default]
    Info,
    /// Events of every request.
    Debug,
    /// Everything.
    Trace,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object per line.
    Json,
    /// Text for people.
    Text,
}

/// Sampling rates of logged decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionSampling {
    /// Share of allowed requests that is logged. Default: 1.0; lower it where the log costs
    /// more than the work.
    pub allowed: SampleRate,
    /// Share of denied requests that is logged. Default: 1.0, because denials are what users
    /// ask about.
    pub denied: SampleRate,
}

impl Default for DecisionSampling {
    fn default() -> Self {
        Self { allowed: SampleRate::ALL, denied: SampleRate::ALL }
    }
}

/// A share from 0.0 to 1.0, exact to a millionth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampleRate(u32);

impl SampleRate {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The whole.
    pub const ALL: Self = Self(1_000_000);

    /// Returns the share in millionths.
    pub const fn parts_per_million(self) -> u32 {
        self.0
    }
}

impl FromStr for SampleRate {
    type Err = ();

    /// Parses a plain decimal such as `0.25`, with at most 6 decimals.
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

impl fmt::Debug for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SampleRate({}.{:06})", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Metrics options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsOptions {
    /// Maximum number of values of one label; further values are counted together. Default: 100, so
    /// that clients can't fill the memory of the metrics server.
    pub label_values_max: usize,
    /// StatsD address that metrics are pushed to as well. Default: none.
    pub statsd: Option<Address>,
}

impl Default for MetricsOptions {
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
            assert_eq!(
                text.parse::<SampleRate>().map(SampleRate::parts_per_million),
                Ok(millionths)
            );
        }
        for text in ["", ".5", "1.", "1.1", "2", "-0.5", "1e-3", "25%", "0.0000001", "NaN"] {
            assert_eq!(text.parse::<SampleRate>(), Err(()), "{text}");
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

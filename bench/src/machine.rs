//! The machine that the benchmark runs on, and its load.

use std::fmt;
use std::fs;
use std::thread;

/// The properties of the machine that a report states.
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    /// Average number of runnable threads over the last minute.
    load: Option<f64>,
}

impl Machine {
    /// Reads the properties from `/proc`. They are unknown on other systems than Linux.
    pub(crate) fn now() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.map(|rest| rest.trim_start_matches(['\t', ' ', ':']));
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cpu: model.unwrap_or("unknown processor").to_owned(),
            cores: thread::available_parallelism().map_or(1, Into::into),
            load: load.split(' ').next().and_then(|load| load.parse().ok()),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores", self.cpu, self.cores)?;
        match self.load {
            Some(load) if load > 0.5 => {
                write!(f, ", load {load}: other programs run too, so times are too high")
            }
            Some(load) => write!(f, ", load {load}"),
            None => Ok(()),
        }
    }
}

//! [`SeriesTable`]: all time series of a process, in two resolutions.

use std::collections::BTreeMap;

use super::SeriesRing;

/// A distance between two values of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// One value per second, for 15 minutes.
    Seconds,
    /// One value per 10 seconds, for 24 hours.
    TenSeconds,
}

impl Resolution {
    /// Returns the length of a step in seconds.
    pub const fn step_secs(self) -> u64 {
        match self {
            Self::Seconds => 1,
            Self::TenSeconds => 10,
        }
    }

    /// Returns the number of steps that are kept.
    pub const fn steps(self) -> usize {
        match self {
            Self::Seconds => 900,
            Self::TenSeconds => 8_640,
        }
    }
}

/// Time series by name. Each takes 38 KB, and their number has a maximum.
#[derive(Clone, Debug)]
pub struct SeriesTable {
    series: BTreeMap<String, Rings>,
    series_max: usize,
    /// The second of the newest values.
    now: u64,
}

#[derive(Clone, Debug)]
struct Rings {
    seconds: SeriesRing,
    ten_seconds: SeriesRing,
    /// Step of ten seconds that is being averaged, with the sum and number of its values.
    open: (u64, f64, u32),
}

impl SeriesTable {
    /// Creates an empty table for at most `series_max` series.
    pub const fn new(series_max: usize) -> Self {
        Self { series: BTreeMap::new(), series_max, now: 0 }
    }

    /// Records the value of a series in one second. The value of ten seconds is the mean of these
    /// values. Returns false if the table is full and has no such series.
    pub fn record(&mut self, second: u64, name: &str, value: f64) -> bool {
        let Some(rings) = self.rings(second, name) else { return false };
        rings.seconds.set(second, value as f32);
        let step = second / Resolution::TenSeconds.step_secs();
        let (open, sum, count) = &mut rings.open;
        if *open != step {
            (*open, *sum, *count) = (step, 0.0, 0);
        }
        *sum += value;
        *count += 1;
        let mean = (*sum / f64::from(*count)) as f32;
        rings.ten_seconds.set(step, mean);
        true
    }

    /// Records a value in one resolution only, for values that can't be averaged, such as a
    /// quantile.
    pub fn record_in(
        &mut self,
        resolution: Resolution,
        second: u64,
        name: &str,
        value: f64,
    ) -> bool {
        let Some(rings) = self.rings(second, name) else { return false };
        match resolution {
            Resolution::Seconds => rings.seconds.set(second, value as f32),
            Resolution::TenSeconds => {
                rings.ten_seconds.set(second / resolution.step_secs(), value as f32);
            }
        }
        true
    }

    fn rings(&mut self, second: u64, name: &str) -> Option<&mut Rings> {
        self.now = self.now.max(second);
        if !self.series.contains_key(name) {
            if self.series.len() == self.series_max {
                return None;
            }
            let rings = Rings {
                seconds: SeriesRing::new(Resolution::Seconds.steps()),
                ten_seconds: SeriesRing::new(Resolution::TenSeconds.steps()),
                open: (0, 0.0, 0),
            };
            self.series.insert(name.to_owned(), rings);
        }
        self.series.get_mut(name)
    }

    /// Returns the second of the newest value.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// Returns the values of each selected series, oldest first, up to the newest second.
    pub fn read(
        &self,
        resolution: Resolution,
        steps: usize,
        selects: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = (&str, Vec<Option<f32>>)> {
        let last = self.now / resolution.step_secs();
        let selected = self.series.iter().filter(move |(name, _)| selects(name));
        selected.map(move |(name, rings)| {
            let ring = match resolution {
                Resolution::Seconds => &rings.seconds,
                Resolution::TenSeconds => &rings.ten_seconds,
            };
            (name.as_str(), ring.until(last, steps).collect())
        })
    }

    /// Returns the value of each series in the newest second, without those that have none.
    pub fn newest(&self) -> impl Iterator<Item = (&str, f32)> {
        self.series.iter().filter_map(|(name, rings)| {
            rings.seconds.get(self.now).map(|value| (name.as_str(), value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(table: &SeriesTable, resolution: Resolution, steps: usize) -> Vec<Option<f32>> {
        let mut read = table.read(resolution, steps, |name| name == "a");
        read.next().map(|(_, values)| values).unwrap_or_default()
    }

    #[test]
    fn ten_seconds_have_the_mean_of_their_values() {
        let mut table = SeriesTable::new(2);
        for second in 1_000..1_020 {
            assert!(table.record(second, "a", if second < 1_010 { 2.0 } else { 4.0 }));
        }
        assert_eq!(read(&table, Resolution::TenSeconds, 3), [None, Some(2.0), Some(4.0)]);
        assert_eq!(read(&table, Resolution::Seconds, 2), [Some(4.0), Some(4.0)]);
    }

    #[test]
    fn quantiles_are_recorded_in_each_resolution() {
        let mut table = SeriesTable::new(2);
        assert!(table.record_in(Resolution::Seconds, 1_009, "a", 1.0));
        assert!(table.record_in(Resolution::TenSeconds, 1_009, "a", 9.0));
        assert_eq!(read(&table, Resolution::Seconds, 1), [Some(1.0)]);
        assert_eq!(read(&table, Resolution::TenSeconds, 1), [Some(9.0)]);
    }

    #[test]
    fn a_full_table_keeps_its_series_and_takes_no_other() {
        let mut table = SeriesTable::new(1);
        assert!(table.record(5, "a", 1.0));
        assert!(!table.record(5, "b", 1.0));
        assert!(table.record(6, "a", 2.0));
        assert_eq!(table.newest().collect::<Vec<_>>(), [("a", 2.0)]);
    }

    #[test]
    fn a_series_without_a_value_in_the_newest_second_is_left_out() {
        let mut table = SeriesTable::new(9);
        table.record(5, "a", 1.0);
        table.record(6, "b", 1.0);
        assert_eq!(table.newest().collect::<Vec<_>>(), [("b", 1.0)]);
    }
}

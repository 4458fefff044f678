//! [`Calendar`]: windows that are days, weeks or months of a time zone, or fixed intervals.

use std::fmt;

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{ToSpan, Zoned};

use super::Window;
use crate::time::{Span, Timestamp};

/// A calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first day of a month to the first day of the next.
    Month,
    /// Intervals of this length since 1970. A limit writes them as `fixed`.
    Fixed(Window),
}

impl Period {
    /// Every calendar period.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// Returns its name in a limit.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Fixed(_) => "fixed",
        }
    }

    /// Returns the longest possible length of a period, including a clock change.
    pub const fn longest(self) -> Span {
        match self {
            Self::Day => Span::from_secs(25 * 3_600),
            Self::Week => Span::from_secs(7 * 86_400 + 3_600),
            Self::Month => Span::from_secs(31 * 86_400 + 3_600),
            Self::Fixed(window) => window.span(),
        }
    }
}

/// Three consecutive starts of periods, around the boundary nearest to now. A store only knows the
/// two periods between them.
///
/// A store whose clock is outside of them reports different clocks, instead of counting in the
/// wrong period. The tolerance is half a period in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Boundaries(pub [Timestamp; 3]);

impl Boundaries {
    /// Returns start and end of the period that contains `at`.
    pub fn period(self, at: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let [first, second, third] = self.0;
        if first <= at && at < second {
            Some((first, second))
        } else if second <= at && at < third {
            Some((second, third))
        } else {
            None
        }
    }
}

/// Periods in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// Length of the periods.
    pub period: Period,
    /// Time zone in which days begin.
    zone: TimeZone,
}

impl Calendar {
    /// Creates periods in UTC.
    pub const fn utc(period: Period) -> Self {
        Self { period, zone: TimeZone::UTC }
    }

    /// Creates periods in the time zone with this IANA name, or `None` if there is none.
    ///
    /// Time zones are compiled in: the time zone files of the machine are not used.
    pub fn named(period: Period, zone: &str) -> Option<Self> {
        if zone == "UTC" {
            return Some(Self::utc(period));
        }
        let zone = jiff::tz::TimeZoneDatabase::bundled().get(zone).ok()?;
        Some(Self { period, zone })
    }

    /// Returns the IANA name of the time zone.
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Returns the boundaries around `now`, by the clock of the caller.
    pub fn boundaries(&self, now: Timestamp) -> Boundaries {
        if let Period::Fixed(window) = self.period {
            return fixed(window, now);
        }
        let micros = i64::try_from(now.as_micros()).expect("EXACT_MAX fits in an i64");
        let at = jiff::Timestamp::from_microsecond(micros)
            .expect("a clock that counts from 1970 stays below the year 9999");
        let start = self.start_of(&at.to_zoned(self.zone.clone()));
        let end = self.shifted(&start, 1);
        let since = now.as_micros().saturating_sub(stamp(&start).as_micros());
        let until = stamp(&end).as_micros().saturating_sub(now.as_micros());
        Boundaries(if since < until {
            [stamp(&self.shifted(&start, -1)), stamp(&start), stamp(&end)]
        } else {
            [stamp(&start), stamp(&end), stamp(&self.shifted(&end, 1))]
        })
    }

    /// Returns the start of the period that contains `at`.
    fn start_of(&self, at: &Zoned) -> Zoned {
        let date = match self.period {
            Period::Day => at.date(),
            Period::Week => {
                at.date().saturating_sub(i64::from(at.weekday().to_monday_zero_offset()).days())
            }
            Period::Month => at.date().first_of_month(),
            Period::Fixed(_) => unreachable!("its boundaries need no calendar"),
        };
        self.midnight(date)
    }

    /// Returns the start of the period that is `by` periods after the one that starts at `start`.
    fn shifted(&self, start: &Zoned, by: i64) -> Zoned {
        let step = match self.period {
            Period::Day => by.days(),
            Period::Week => by.weeks(),
            Period::Month => by.months(),
            Period::Fixed(_) => unreachable!("its boundaries need no calendar"),
        };
        self.midnight(start.date().saturating_add(step))
    }

    /// Returns the first instant of a day; if a clock change skips midnight, the first that exists.
    fn midnight(&self, date: jiff::civil::Date) -> Zoned {
        date.to_datetime(Time::midnight())
            .to_zoned(self.zone.clone())
            .expect("days between 1970 and 2255 exist in every zone")
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Period::Fixed(window) = self.period {
            return write!(f, "fixed {window}");
        }
        write!(f, "calendar {}", self.period.name())?;
        match self.zone_name() {
            "UTC" => Ok(()),
            zone => write!(f, " {zone}"),
        }
    }
}

/// Returns the boundaries around `now` of fixed windows since 1970.
fn fixed(window: Window, now: Timestamp) -> Boundaries {
    let (length, micros) = (window.span().as_micros(), now.as_micros());
    let nearest = (micros + length / 2) / length * length;
    let before = nearest.saturating_sub(length);
    // There is nothing before the epoch.
    let after = if nearest == 0 { [length, 2 * length] } else { [nearest, nearest + length] };
    Boundaries([before, after[0], after[1]].map(Timestamp::from_micros))
}

fn stamp(at: &Zoned) -> Timestamp {
    Timestamp::from_micros(u64::try_from(at.timestamp().as_microsecond()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let at: jiff::Timestamp = text.parse().expect(text);
        Timestamp::from_micros(u64::try_from(at.as_microsecond()).expect("after 1970"))
    }

    fn check(calendar: Calendar, now: &str, expected: [&str; 3]) {
        let boundaries = calendar.boundaries(at(now));
        assert_eq!(boundaries.0.map(|b| b.to_string()), expected.map(str::to_owned), "{now}");
        assert!(boundaries.period(at(now)).is_some());
    }

    #[test]
    fn the_nearest_boundary_is_in_the_middle() {
        let day = Calendar::utc(Period::Day);
        let one = ["2026-01-30T00:00:00Z", "2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z"];
        check(day.clone(), "2026-01-31T11:59:59Z", one);
        check(day.clone(), "2026-01-30T12:00:00Z", one);
        check(day, "2026-01-31T00:00:00Z", one);
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first() {
        check(
            Calendar::utc(Period::Week),
            "2026-11-15T19:00:00Z",
            ["2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"],
        );
        check(
            Calendar::utc(Period::Month),
            "2026-02-01T00:00:00Z",
            ["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"],
        );
    }

    #[test]
    fn a_zone_moves_midnight_and_summer_time_shortens_a_day() {
        let berlin = Calendar::named(Period::Day, "Europe/Berlin").expect("bundled");
        check(
            berlin,
            "2026-03-29T08:00:00Z",
            ["2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"],
        );
    }

    #[test]
    fn fixed_windows_follow_one_another() {
        let minute = Window::new(Span::from_secs(60)).expect("a window");
        check(
            Calendar::utc(Period::Fixed(minute)),
            "2026-11-15T19:00:59Z",
            ["2026-11-15T19:00:00Z", "2026-11-15T19:01:00Z", "2026-11-15T19:02:00Z"],
        );
        check(
            Calendar::utc(Period::Fixed(minute)),
            "2026-11-15T19:00:00Z",
            ["2026-11-15T18:59:00Z", "2026-11-15T19:00:00Z", "2026-11-15T19:01:00Z"],
        );
        let epoch = Calendar::utc(Period::Fixed(minute)).boundaries(Timestamp::ZERO);
        assert_eq!(epoch.0, [0, 60, 120].map(Timestamp::from_secs));
    }

    #[test]
    fn the_epoch_itself_has_boundaries() {
        for period in Period::ALL {
            let boundaries = Calendar::utc(period).boundaries(Timestamp::ZERO);
            assert!(boundaries.period(Timestamp::ZERO).is_some(), "{period:?} {boundaries:?}");
        }
        let west = Calendar::named(Period::Month, "America/Los_Angeles").expect("bundled");
        assert!(west.boundaries(Timestamp::ZERO).period(Timestamp::ZERO).is_some());
        let last = west.boundaries(Timestamp::MAX);
        assert!(last.0[0] <= Timestamp::MAX);
    }

    #[test]
    fn an_unknown_zone_is_none() {
        assert_eq!(Calendar::named(Period::Day, "Mars/Olympus"), None);
    }
}

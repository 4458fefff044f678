//! Bugs in the start of a day.

use jiff::tz::{self, TimeZone};

use crate::harness::{Ask, DAY, HOUR, MINUTE, Traffic, Uses, at_once, check, scope};

/// About three weeks, including a clock change.
const WEEKS: Traffic =
    Traffic { asks: 8_000, gap: 2 * MINUTE, phase_max: 6 * HOUR, amount_max: 1, nodes: 1 };

/// Creates a limiter with one counter per period.
fn counted<P: PartialEq>(limit: u64, period: impl Fn(u64) -> P) -> impl FnMut(Ask, &mut Uses) {
    let (mut current, mut used) = (None, 0);
    at_once(move |ask| {
        let now = Some(period(ask.at));
        if now != current {
            (current, used) = (now, 0);
        }
        used += 1;
        used <= limit
    })
}

fn zoned(at: u64, zone: TimeZone) -> jiff::Zoned {
    let at = jiff::Timestamp::from_microsecond(at as i64).expect("this century");
    at.to_zoned(zone)
}

fn berlin() -> TimeZone {
    jiff::tz::TimeZoneDatabase::bundled().get("Europe/Berlin").expect("bundled")
}

#[test]
fn a_day_that_begins_at_midnight_utc_instead_of_the_zones_is_caught() {
    check(
        &[scope("250/calendar day Europe/Berlin")],
        WEEKS,
        || counted(250, |at| zoned(at, berlin()).date()),
        || counted(250, |at| at / DAY),
    );
}

#[test]
fn a_day_that_does_not_follow_the_change_of_the_clocks_is_caught() {
    check(
        &[scope("250/calendar day Europe/Berlin")],
        WEEKS,
        || counted(250, |at| zoned(at, berlin()).date()),
        || counted(250, |at| zoned(at, tz::offset(1).to_time_zone()).date()),
    );
}

#[test]
fn a_month_that_has_thirty_days_is_caught() {
    let months = Traffic { gap: 30 * MINUTE, phase_max: 4 * DAY, ..WEEKS };
    check(
        &[scope("450/calendar month")],
        months,
        || counted(450, |at| zoned(at, TimeZone::UTC).date().first_of_month()),
        || counted(450, |at| at / (30 * DAY)),
    );
}

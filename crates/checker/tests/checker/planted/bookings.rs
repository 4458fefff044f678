//! Bugs with bookings, and with work that is recorded at its upstream.

use sluicegate_core::Span;

use crate::harness::{Ask, MS, RUSH, SECOND, Sliding, Uses, check, judge, scope, uses};

/// The scores of a log of 100/s with bookings.
#[derive(Default)]
struct Bookings(Vec<u64>);

impl Bookings {
    /// Returns the time at which the 100th newest has expired, but not before `now`.
    fn earliest(&mut self, now: u64) -> u64 {
        self.0.sort_unstable();
        let blocking = self.0.len().checked_sub(100).map(|place| self.0[place]);
        blocking.map_or(now, |score| now.max(score + SECOND))
    }

    fn write(&mut self, at: u64) {
        self.0.push(at);
        let horizon = at.saturating_sub(10 * SECOND);
        self.0.retain(|&score| score > horizon);
    }
}

/// Creates a limiter that books a tenth of the requests for a time in the next second and decides
/// the others now.
fn acquires_and_books(
    mut fits_now: impl FnMut(&mut Bookings, u64) -> bool,
) -> impl FnMut(Ask, &mut Uses) {
    let mut log = Bookings::default();
    move |ask, uses| {
        let books = ask.dice.is_multiple_of(10);
        let start = log.earliest(ask.at + ask.dice % SECOND);
        if books && start <= ask.at + 2 * SECOND {
            log.write(start);
            uses.push((start, 1));
        } else if !books && fits_now(&mut log, ask.at) {
            log.write(ask.at);
            uses.push((ask.at, 1));
        }
    }
}

#[test]
fn an_acquire_that_does_not_see_the_bookings_is_caught() {
    check(
        &[scope("100/s")],
        RUSH,
        || acquires_and_books(|log, now| log.earliest(now) == now),
        || {
            acquires_and_books(|log, now| {
                let window = |score: u64| score <= now && score + SECOND > now;
                log.0.iter().filter(|&&score| window(score)).count() < 100
            })
        },
    );
}

#[test]
fn a_booking_that_is_used_late_is_caught() {
    let books = |late_max: u64| {
        let mut log = Bookings::default();
        move |ask: Ask, uses: &mut Uses| {
            let start = log.earliest(ask.at);
            if start <= ask.at + 2 * SECOND {
                log.write(start);
                uses.push((start + ask.dice % late_max, 1));
            }
        }
    };
    check(&[scope("100/s")], RUSH, || books(1), || books(100 * MS));
}

#[test]
fn an_upstream_sees_the_limit_only_in_windows_that_are_shorter_by_the_spread() {
    // The way to the upstream takes from 30 to 50 ms.
    let arrival = |ask: Ask| ask.at + 30 * MS + ask.dice % (20 * MS + 1);
    let correct = || {
        let mut log = Sliding::new(100, SECOND);
        move |ask: Ask, uses: &mut Uses| {
            if log.admit(ask.at, 1) {
                uses.push((arrival(ask), 1));
            }
        }
    };
    let faulty = || {
        let (mut window, mut used) = (0, 0);
        move |ask: Ask, uses: &mut Uses| {
            if window != ask.at / SECOND {
                (window, used) = (ask.at / SECOND, 0);
            }
            used += 1;
            if used <= 100 {
                uses.push((arrival(ask), 1));
            }
        }
    };
    let spread = scope("100/s").spread(Span::from_millis(20));
    check(&[spread], RUSH, correct, faulty);
    // Without the spread, the delays alone would look like a violation.
    let drifted = uses(&RUSH.asks(0), correct());
    assert!(judge(&[scope("100/s")], &drifted).proven().is_err());
}

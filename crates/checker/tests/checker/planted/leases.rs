//! Bugs in counting concurrent work.

use sluicegate_checker::{Checker, Event};
use sluicegate_core::Id;

use crate::harness::{Ask, MS, RUSH, SECOND, Traffic, at, scope};

/// A holder that works from `from` until `until`, and stops renewing if `dies`.
#[derive(Clone, Copy)]
struct Holder {
    id: u64,
    from: u64,
    until: u64,
    dies: bool,
}

/// Lifetime of a lease without renewal.
const LEASE: u64 = 3 * SECOND;
/// Interval between renewals.
const RENEW: u64 = SECOND;

impl Holder {
    fn new(ask: Ask) -> Self {
        Self {
            id: ask.id,
            from: ask.at,
            until: ask.at + ask.dice % (8 * SECOND),
            dies: ask.dice.is_multiple_of(7),
        }
    }

    /// Returns the time of its last renewal up to `now`.
    fn last_renewal(self, now: u64) -> u64 {
        let last = now.min(self.until.max(self.from + 1) - 1);
        last - (last - self.from) % RENEW
    }

    /// Returns true if a limiter with leases of this length counts it.
    fn is_counted(self, now: u64, lease: u64) -> bool {
        let ended = self.until <= now && !self.dies;
        !ended && now < self.last_renewal(now) + lease
    }
}

const SLOTS: Traffic = Traffic { asks: 2_000, gap: 50 * MS, phase_max: 5 * SECOND, ..RUSH };

fn judged(holders: &[Holder]) -> Result<(), String> {
    let mut checker = Checker::new();
    checker.scope("K", scope("20 concurrent")).expect("a scope");
    for holder in holders {
        let id = Id::from_bits(holder.id.into());
        let start = Event::Start {
            at: at(holder.from),
            id,
            slots: 1,
            until: Some(at(holder.from + LEASE)),
        };
        let last = if holder.dies {
            let until = at(holder.last_renewal(u64::MAX) + LEASE);
            Event::Renew { id, until }
        } else {
            let at = at(holder.until);
            Event::End { at, id }
        };
        // Several logs, one after the other, so the end may come first.
        for event in [last, start] {
            checker.record("K", event).expect("a good log");
        }
    }
    let report = checker.check().expect("a good log");
    let worst = report.verdicts[0].worst().expect("somebody worked");
    assert!(worst.sum >= 20, "never full: {}", worst.sum);
    report.proven().map(drop).map_err(|v| v.to_string())
}

/// Sends holders to a limiter that admits some of them.
fn run(seed: u64, mut admits: impl FnMut(Holder, &[Holder]) -> bool) -> Vec<Holder> {
    let mut admitted = Vec::new();
    for ask in SLOTS.asks(seed) {
        let holder = Holder::new(ask);
        if admits(holder, &admitted) {
            admitted.push(holder);
        }
    }
    admitted
}

fn check<F>(faulty: impl Fn() -> F)
where
    F: FnMut(Holder, &[Holder]) -> bool,
{
    for seed in 0..8 {
        let correct = run(seed, |new, others| {
            let held = others.iter().filter(|h| h.is_counted(new.from, LEASE));
            held.count() < 20
        });
        judged(&correct).unwrap_or_else(|violation| panic!("seed {seed}: invented: {violation}"));
        let caught = judged(&run(seed, faulty())).is_err();
        assert!(caught, "seed {seed}: missed");
    }
}

#[test]
fn a_lease_that_expires_before_it_is_renewed_is_caught() {
    check(|| {
        |new: Holder, others: &[Holder]| {
            let lease = RENEW * 8 / 10;
            let held = others.iter().filter(|h| h.is_counted(new.from, lease));
            held.count() < 20
        }
    });
}

#[test]
fn a_lease_that_is_never_renewed_is_caught() {
    check(|| {
        |new: Holder, others: &[Holder]| {
            let now = new.from;
            let held = others.iter().filter(|h| h.is_counted(now, LEASE) && now < h.from + LEASE);
            held.count() < 20
        }
    });
}

#[test]
fn a_slot_that_is_freed_twice_is_caught() {
    check(|| {
        // A plain counter, and every fifth holder repeats its release.
        let (mut counter, mut open) = (0_usize, Vec::<Holder>::new());
        move |new: Holder, _: &[Holder]| {
            open.retain(|holder| {
                let counts = holder.is_counted(new.from, LEASE);
                if !counts {
                    let times = if holder.id.is_multiple_of(5) { 2 } else { 1 };
                    counter = counter.saturating_sub(times);
                }
                counts
            });
            let fits = counter < 20;
            if fits {
                counter += 1;
                open.push(new);
            }
            fits
        }
    });
}

#[test]
fn one_slot_too_many_is_caught() {
    check(|| {
        |new: Holder, others: &[Holder]| {
            let held = others.iter().filter(|h| h.is_counted(new.from, LEASE));
            held.count() <= 20
        }
    });
}

#[test]
fn a_holder_that_is_believed_dead_while_it_works_is_caught() {
    check(|| {
        |new: Holder, others: &[Holder]| {
            // The limiter assumes that a holder without a connection is dead, but every ninth goes
            // on working.
            let believed = |h: &&Holder| !h.id.is_multiple_of(9) && h.is_counted(new.from, LEASE);
            others.iter().filter(believed).count() < 20
        }
    });
}

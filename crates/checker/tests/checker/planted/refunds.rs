//! Bugs with repeated requests and with amounts that are given back.

use std::collections::HashSet;

use crate::harness::{Ask, MS, RUSH, SECOND, Sliding, Traffic, Uses, check, scope};

const ESTIMATES: Traffic = Traffic { amount_max: 40, ..RUSH };

/// Returns the actual usage: the rest of an estimate.
const fn actual(ask: Ask) -> u64 {
    ask.amount - ask.amount / 2
}

#[test]
fn a_retry_that_goes_again_without_being_counted_is_caught() {
    let retries = |counts: bool| {
        let mut log = Sliding::new(100, SECOND);
        let mut admitted = HashSet::new();
        move |ask: Ask, uses: &mut Uses| {
            let id = ask.id / 2;
            if admitted.contains(&id) && !counts {
                uses.push((ask.at, 1));
            } else if log.admit(ask.at, 1) {
                admitted.insert(id);
                uses.push((ask.at, 1));
            }
        }
    };
    check(&[scope("100/s")], RUSH, || retries(true), || retries(false));
}

#[test]
fn a_refund_that_is_given_twice_is_caught() {
    let settles = |times: u64| {
        let mut log = Sliding::new(1_000, SECOND);
        let mut open: Vec<(u64, u64, u64)> = Vec::new();
        move |ask: Ask, uses: &mut Uses| {
            open.retain(|&(due, at, refund)| {
                let entry = log.entries.iter_mut().find(|entry| entry.0 == at);
                match entry {
                    Some(entry) if due <= ask.at => {
                        entry.1 = entry.1.saturating_sub(refund * times);
                        false
                    }
                    Some(_) => true,
                    None => false,
                }
            });
            let fresh = log.entries.back().is_none_or(|&(at, _)| at < ask.at);
            if fresh && log.admit(ask.at, ask.amount) {
                open.push((ask.at + 20 * MS, ask.at, ask.amount - actual(ask)));
                uses.push((ask.at, actual(ask)));
            }
        }
    };
    check(&[scope("1000 tokens/s")], ESTIMATES, || settles(1), || settles(2));
}

#[test]
fn a_refund_of_what_has_left_that_is_credited_to_others_is_caught() {
    // Settled half a window after everything about it has expired.
    let settles = |credits: bool| {
        let mut log = Sliding::new(1_000, SECOND);
        let mut credit = 0;
        let mut open: Vec<(u64, u64)> = Vec::new();
        move |ask: Ask, uses: &mut Uses| {
            open.retain(|&(due, refund)| {
                if due <= ask.at && credits {
                    credit += refund;
                }
                due > ask.at
            });
            let used = log.used(ask.at).saturating_sub(credit);
            if used + ask.amount <= log.limit {
                log.write(ask.at, ask.amount);
                open.push((ask.at + SECOND * 3 / 2, ask.amount / 2));
                // Nothing is given back before it expires, so all of it counts.
                uses.push((ask.at, ask.amount));
            }
        }
    };
    check(&[scope("1000 tokens/s")], ESTIMATES, || settles(false), || settles(true));
}

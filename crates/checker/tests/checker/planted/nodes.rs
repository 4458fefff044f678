//! Bugs that need several nodes, an outage or a reload.

use sluicegate_checker::{Bound, CheckedScope};

use crate::harness::{
    Ask, MS, RUSH, SECOND, Sliding, Traffic, Uses, at_once, check, judge, scope, sliding, uses,
};

const NODES: Traffic = Traffic { nodes: 4, ..RUSH };

#[test]
fn nodes_that_each_count_for_themselves_are_caught() {
    check(
        &[scope("100/s")],
        NODES,
        || sliding(100, SECOND),
        || {
            let mut logs = vec![Sliding::new(100, SECOND); 4];
            at_once(move |ask| logs[ask.node].admit(ask.at, 1))
        },
    );
}

#[test]
fn nodes_that_look_first_and_write_later_are_caught() {
    check(
        &[scope("100/s")],
        NODES,
        || sliding(100, SECOND),
        || {
            let mut log = Sliding::new(100, SECOND);
            let mut on_its_way: Vec<u64> = Vec::new();
            at_once(move |ask| {
                // A write is visible to the other nodes after two milliseconds.
                on_its_way.retain(|&at| {
                    let arrived = at + 2 * MS <= ask.at;
                    if arrived {
                        log.write(at, 1);
                    }
                    !arrived
                });
                let fits = log.used(ask.at) < log.limit;
                if fits {
                    on_its_way.push(ask.at);
                }
                fits
            })
        },
    );
}

#[test]
fn nodes_whose_clocks_are_300_ms_apart_are_caught() {
    check(
        &[scope("100/s")],
        NODES,
        || sliding(100, SECOND),
        || {
            let mut scores: Vec<u64> = Vec::new();
            at_once(move |ask| {
                let now = ask.at + [0, 300 * MS, 100 * MS, 0][ask.node];
                scores.retain(|&score| score + SECOND > now);
                let fits = scores.len() < 100;
                if fits {
                    scores.push(now);
                }
                fits
            })
        },
    );
}

#[test]
fn an_allow_that_is_cached_whatever_the_amount_is_caught() {
    let amounts = Traffic { amount_max: 20, ..NODES };
    check(
        &[scope("1000 tokens/s")],
        amounts,
        || sliding(1_000, SECOND),
        || {
            let mut log = Sliding::new(1_000, SECOND);
            // For 5 ms a node assumes that there is room for all requests if there was room for
            // one.
            let mut trusted = [0; 4];
            at_once(move |ask| {
                if ask.at < trusted[ask.node] {
                    log.write(ask.at, ask.amount);
                    return true;
                }
                let fits = log.admit(ask.at, ask.amount);
                if fits {
                    trusted[ask.node] = ask.at + 5 * MS;
                }
                fits
            })
        },
    );
}

#[test]
fn usage_that_is_dropped_when_a_reload_lowers_the_limit_is_caught() {
    // Every 300 ms the limit changes between 100 and 60; the larger one is never exceeded.
    let reloaded = |keeps_usage: bool| {
        let mut log = Sliding::new(100, SECOND);
        at_once(move |ask| {
            let limit = [100, 60][(ask.at / (300 * MS) % 2) as usize];
            if log.limit != limit {
                log.limit = limit;
                if !keeps_usage {
                    log.entries.clear();
                }
            }
            log.admit(ask.at, 1)
        })
    };
    check(&[scope("100/s")], RUSH, || reloaded(true), || reloaded(false));
}

/// Creates a limiter with an outage in every second tenth of a second, during which a node counts
/// by itself.
fn outages(share: u64, forgets: bool) -> impl FnMut(Ask, &mut Uses) {
    let mut store = Sliding::new(96, SECOND);
    let mut local = vec![(0, Sliding::new(share, SECOND)); 4];
    at_once(move |ask| {
        let tenth = ask.at / (SECOND / 10);
        if tenth.is_multiple_of(2) {
            return store.admit(ask.at, 1);
        }
        let (last, log) = &mut local[ask.node];
        if forgets && *last != tenth {
            log.entries.clear();
        }
        *last = tenth;
        log.admit(ask.at, 1)
    })
}

#[test]
fn a_share_that_is_not_divided_among_the_nodes_is_caught() {
    check(&[times(3, 2)], NODES, || outages(48 / 4, false), || outages(48, false));
}

#[test]
fn a_share_that_starts_anew_with_every_outage_is_caught() {
    check(&[times(3, 2)], NODES, || outages(48 / 4, false), || outages(48 / 4, true));
}

/// Creates a limiter that loses its data now and then, at most once per interval.
fn fail_overs(every: u64) -> impl FnMut(Ask, &mut Uses) {
    let mut log = Sliding::new(96, SECOND);
    let mut next = 0;
    at_once(move |ask| {
        if ask.at >= next {
            log.entries.clear();
            next = ask.at + every + ask.dice % every;
        }
        log.admit(ask.at, 1)
    })
}

#[test]
fn a_fail_over_that_loses_writes_is_inside_twice_the_limit_and_not_inside_the_limit() {
    for seed in 0..8 {
        let asks = RUSH.asks(seed);
        let once = uses(&asks, fail_overs(SECOND));
        judge(&[times(2, 1)], &once).proven().expect("one in a window");
        assert!(judge(&[times(1, 1)], &once).proven().is_err());
        let often = uses(&asks, fail_overs(SECOND / 10));
        assert!(judge(&[times(2, 1)], &often).proven().is_err());
    }
}

fn times(numerator: u32, denominator: u32) -> CheckedScope {
    scope("96/s").bound(Bound::new(numerator, denominator).expect("a ratio"))
}

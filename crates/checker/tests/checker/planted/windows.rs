//! Bugs of a single limiter in counting a window.

use std::collections::{BTreeSet, VecDeque};

use crate::harness::{
    Ask, MS, RUSH, SECOND, Sliding, Traffic, Uses, at_once, check, scope, sliding,
};

#[test]
fn a_fixed_window_instead_of_a_sliding_one_is_caught() {
    check(
        &[scope("100/s")],
        RUSH,
        || sliding(100, SECOND),
        || {
            let (mut window, mut used) = (0, 0);
            at_once(move |ask| {
                if window != ask.at / SECOND {
                    (window, used) = (ask.at / SECOND, 0);
                }
                used += 1;
                used <= 100
            })
        },
    );
}

#[test]
fn the_weighted_mean_of_two_fixed_windows_is_caught() {
    check(
        &[scope("100/s")],
        RUSH,
        || sliding(100, SECOND),
        || {
            let (mut window, mut before, mut used) = (0, 0, 0);
            at_once(move |ask| {
                let now = ask.at / SECOND;
                if now != window {
                    before = if now == window + 1 { used } else { 0 };
                    (window, used) = (now, 0);
                }
                let left = SECOND - ask.at % SECOND;
                let fits = before * left / SECOND + used < 100;
                used += u64::from(fits);
                fits
            })
        },
    );
}

#[test]
fn one_too_many_is_caught() {
    check(
        &[scope("100/s")],
        RUSH,
        || sliding(100, SECOND),
        || {
            let mut log = Sliding::new(100, SECOND);
            at_once(move |ask| {
                let fits = log.used(ask.at) <= log.limit;
                if fits {
                    log.write(ask.at, 1);
                }
                fits
            })
        },
    );
}

#[test]
fn an_entry_that_leaves_a_microsecond_early_is_caught() {
    // On a grid, so that requests come exactly one window, and one microsecond less, after others.
    let on_a_grid = |window| {
        let mut log = Sliding::new(10, window);
        move |ask: Ask, uses: &mut Uses| {
            let at = ask.at.next_multiple_of(MS) - ask.id % 2;
            let in_order = log.entries.back().is_none_or(|&(last, _)| last <= at);
            if in_order && log.admit(at, 1) {
                uses.push((at, 1));
            }
        }
    };
    check(&[scope("10/100ms")], RUSH, || on_a_grid(100 * MS), || on_a_grid(100 * MS - 1));
}

#[test]
fn time_in_whole_milliseconds_is_caught() {
    let rush = Traffic { gap: 200, ..RUSH };
    check(
        &[scope("100/50ms")],
        rush,
        || sliding(100, 50 * MS),
        || {
            let mut log = Sliding::new(100, 50);
            at_once(move |ask| log.admit(ask.at / MS, 1))
        },
    );
}

#[test]
fn a_key_that_expires_before_its_entries_is_caught() {
    check(
        &[scope("100/s")],
        RUSH,
        || sliding(100, SECOND),
        || {
            let mut log = Sliding::new(100, SECOND);
            let mut expires = 0;
            at_once(move |ask| {
                if ask.at >= expires {
                    log.entries.clear();
                }
                // The first write sets the expiry, and later ones do not move it.
                if log.entries.is_empty() {
                    expires = ask.at + SECOND;
                }
                log.admit(ask.at, 1)
            })
        },
    );
}

#[test]
fn several_windows_of_which_only_the_longest_is_checked_are_caught() {
    let limits = [(20, SECOND / 10), (60, SECOND), (200, 10 * SECOND)];
    let all = move |count: usize| {
        let mut logs: Vec<Sliding> = limits.map(|(n, w)| Sliding::new(n, w)).into();
        at_once(move |ask| {
            let checked = &mut logs[3 - count..];
            let fits = checked.iter_mut().all(|log| log.used(ask.at) < log.limit);
            if fits {
                checked.iter_mut().for_each(|log| log.write(ask.at, 1));
            }
            fits
        })
    };
    check(&[scope("20/100ms"), scope("60/s"), scope("200/10s")], RUSH, || all(3), || all(1));
}

#[test]
fn an_amount_that_counts_as_one_is_caught() {
    let amounts = Traffic { amount_max: 7, ..RUSH };
    check(
        &[scope("100 tokens/s")],
        amounts,
        || sliding(100, SECOND),
        || {
            let mut log = Sliding::new(100, SECOND);
            at_once(move |ask| log.admit(ask.at, 1))
        },
    );
}

#[test]
fn entries_that_are_one_because_their_instants_are_equal_are_caught() {
    check(
        &[scope("100/s")],
        RUSH,
        || sliding(100, SECOND),
        || {
            // A sorted set with the millisecond as member.
            let mut members = BTreeSet::new();
            at_once(move |ask| {
                members.retain(|&at| at * MS + SECOND > ask.at);
                let fits = members.len() < 100;
                if fits {
                    members.insert(ask.at / MS + 1);
                }
                fits
            })
        },
    );
}

#[test]
fn live_entries_that_are_evicted_to_save_memory_are_caught() {
    check(
        &[scope("100/s")],
        RUSH,
        || sliding(100, SECOND),
        || {
            let mut log = Sliding::new(100, SECOND);
            at_once(move |ask| {
                if log.entries.len() > 80 {
                    log.entries.pop_front();
                }
                log.admit(ask.at, 1)
            })
        },
    );
}

#[test]
fn a_sum_that_wraps_around_is_caught() {
    let amounts = Traffic { amount_max: 50, ..RUSH };
    check(
        &[scope("250 tokens/s")],
        amounts,
        || sliding(250, SECOND),
        || {
            let mut log = Sliding::new(250, SECOND);
            at_once(move |ask| {
                let fits = (log.used(ask.at) + ask.amount) as u8 <= 250;
                if fits {
                    log.write(ask.at, ask.amount);
                }
                fits
            })
        },
    );
}

#[test]
fn slices_that_count_from_their_start_are_caught() {
    let slices = |edge: fn(u64) -> u64| {
        let mut slices: VecDeque<(u64, u64)> = VecDeque::new();
        at_once(move |ask| {
            slices.retain(|&(edge, _)| edge + SECOND > ask.at);
            let fits = slices.iter().map(|(_, sum)| sum).sum::<u64>() + ask.amount <= 1_000;
            if fits {
                slices.push_back((edge(ask.at), ask.amount));
            }
            fits
        })
    };
    let amounts = Traffic { amount_max: 20, ..RUSH };
    check(
        &[scope("1000 tokens/s")],
        amounts,
        || slices(|at| at.next_multiple_of(SECOND / 100)),
        || slices(|at| at - at % (SECOND / 100)),
    );
}

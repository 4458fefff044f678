//! Bugs in refilling a bucket.

use crate::harness::{Ask, BEGIN, RUSH, SECOND, Traffic, Uses, at_once, check, scope};

/// Creates an exact bucket of 70/s burst 30, in millionths of a request.
fn exact(capacity_kept: bool) -> impl FnMut(Ask, &mut Uses) {
    let full = 30 * SECOND;
    let (mut level, mut last) = (full, BEGIN);
    at_once(move |ask| {
        level += 70 * (ask.at - last);
        last = ask.at;
        if capacity_kept {
            level = level.min(full);
        }
        let fits = level >= ask.amount * SECOND;
        if fits {
            level -= ask.amount * SECOND;
        }
        fits
    })
}

#[test]
fn a_bucket_that_fills_above_its_capacity_is_caught() {
    check(&[scope("70/s burst 30")], RUSH, || exact(true), || exact(false));
}

#[test]
fn a_refill_that_is_rounded_up_each_time_is_caught() {
    check(
        &[scope("70/s burst 30")],
        RUSH,
        || exact(true),
        || {
            let (mut tokens, mut last) = (30, BEGIN);
            at_once(move |ask| {
                tokens = (tokens + (70 * (ask.at - last)).div_ceil(SECOND)).min(30);
                last = ask.at;
                let fits = tokens > 0;
                tokens -= u64::from(fits);
                fits
            })
        },
    );
}

#[test]
fn a_last_refill_that_is_kept_as_a_float_is_caught() {
    check(
        &[scope("70/s burst 30")],
        RUSH,
        || exact(true),
        || {
            // 24 bits of seconds since 1970: the same instant for two minutes.
            let (mut tokens, mut last) = (30.0, (BEGIN / SECOND) as f32);
            at_once(move |ask| {
                let now = ask.at as f64 / SECOND as f64;
                tokens = (tokens + (now - f64::from(last)) * 70.0).min(30.0);
                last = now as f32;
                let fits = tokens >= 1.0;
                if fits {
                    tokens -= 1.0;
                }
                fits
            })
        },
    );
}

#[test]
fn a_refill_that_drifts_up_by_a_thousandth_is_caught() {
    let long = Traffic { asks: 60_000, phase_max: 300 * SECOND, gap: 4_000, ..RUSH };
    check(
        &[scope("70/s burst 30")],
        long,
        || exact(true),
        || {
            let full = 30_000 * SECOND;
            let (mut level, mut last) = (full, BEGIN);
            at_once(move |ask| {
                level = (level + 70_070 * (ask.at - last)).min(full);
                last = ask.at;
                let fits = level >= 1_000 * SECOND;
                if fits {
                    level -= 1_000 * SECOND;
                }
                fits
            })
        },
    );
}

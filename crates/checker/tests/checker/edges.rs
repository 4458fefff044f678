//! Edge cases: exactly the allowed amount is accepted, and one more is reported.

use sluicegate_checker::{Bound, CheckedScope, Checker, Event};
use sluicegate_core::{Id, Span, Timestamp};

use crate::harness::{BEGIN, DAY, HOUR, MINUTE, MS, SECOND, at, judge, scope};

/// Checks the report; an empty message means that everything is proven.
fn check(scope: CheckedScope, uses: &[(u64, u64)], message: &str) {
    let found = match judge(&[scope], uses).proven() {
        Ok(_) => String::new(),
        Err(violation) => violation.to_string(),
    };
    assert_eq!(found, message);
}

#[test]
fn two_admits_exactly_a_window_apart_are_not_in_one_window() {
    check(scope("1/h"), &[(BEGIN, 1), (BEGIN + HOUR, 1)], "");
    check(
        scope("1/h"),
        &[(BEGIN, 1), (BEGIN + HOUR - 1, 1)],
        "K: 2 admitted in (2026-03-19T23:59:59.999999Z, 2026-03-20T00:59:59.999999Z] \
         where 1/h allows 1",
    );
}

#[test]
fn a_whole_limit_may_go_in_one_instant() {
    check(scope("100/h"), &[(BEGIN + 12 * HOUR, 1); 100], "");
    check(
        scope("100/h"),
        &[(BEGIN + 12 * HOUR, 1); 101],
        "K: 101 admitted in (2026-03-20T11:00:00Z, 2026-03-20T12:00:00Z] where 100/h allows 100",
    );
}

#[test]
fn a_clock_may_start_at_zero() {
    check(scope("1/s"), &[(0, 1), (SECOND, 1)], "");
    check(
        scope("1/s"),
        &[(0, 1), (MS, 1)],
        "K: 2 admitted in (1969-12-31T23:59:59.001Z, 1970-01-01T00:00:00.001Z] where 1/s allows 1",
    );
}

#[test]
fn amounts_are_printed_in_their_unit() {
    check(
        scope("5.00 USD/day"),
        &[(DAY, 5_000_000_000), (DAY, 10_000_001)],
        "K: 5.010000001 USD admitted in (1970-01-01T00:00:00Z, 1970-01-02T00:00:00Z] \
         where 5.00 USD/day allows 5.00",
    );
    check(
        scope("9 tokens/min"),
        &[(MINUTE, 10)],
        "K: 10 tokens admitted in (1970-01-01T00:00:00Z, 1970-01-01T00:01:00Z] \
         where 9 tokens/min allows 9",
    );
}

#[test]
fn a_bucket_gives_its_burst_and_then_one_at_a_time() {
    let burst = [(BEGIN, 10), (BEGIN + 100 * MS, 1), (BEGIN + 200 * MS, 1)];
    check(scope("10/s burst 10"), &burst, "");
    check(
        scope("10/s burst 10"),
        &[(BEGIN, 10), (BEGIN + 100 * MS - 1, 1)],
        "K: 11 admitted in [2026-03-20T00:00:00Z, 2026-03-20T00:00:00.099999Z] \
         where 10/s burst 10 allows 10",
    );
}

#[test]
fn a_rate_that_does_not_divide_is_not_rounded() {
    // A third of a second is 333,333.3 microseconds.
    check(scope("3/s smooth"), &[(0, 1), (333_334, 1), (666_668, 1)], "");
    check(
        scope("3/s smooth"),
        &[(0, 1), (333_334, 1), (666_667, 1)],
        "K: 2 admitted in [1970-01-01T00:00:00.333334Z, 1970-01-01T00:00:00.666667Z] \
         where 3/s smooth allows 1",
    );
    // Exact to the microsecond, even after years.
    let year = 366 * DAY;
    let thirds: Vec<(u64, u64)> =
        (0..=year / SECOND).step_by(1_000_000).map(|second| (second * SECOND, 3_000_000)).collect();
    check(scope("3/s burst 3000000"), &thirds, "");
    let (last, _) = thirds[thirds.len() - 1];
    let one_more = [&thirds[..], &[(last + 333_333, 1)]].concat();
    assert!(judge(&[scope("3/s burst 3000000")], &one_more).proven().is_err());
    let one_more = [&thirds[..], &[(last + 333_334, 1)]].concat();
    check(scope("3/s burst 3000000"), &one_more, "");
}

#[test]
fn a_day_may_end_full_and_the_next_begin_full() {
    // Midnight in Berlin, in winter.
    let midnight = BEGIN + 23 * HOUR;
    let day = "5/calendar day Europe/Berlin";
    check(scope(day), &[(midnight - 1, 5), (midnight, 5)], "");
    check(
        scope(day),
        &[(midnight, 5), (midnight + DAY - 1, 1)],
        "K: 6 admitted in [2026-03-20T23:00:00Z, 2026-03-21T23:00:00Z) \
         where 5/calendar day Europe/Berlin allows 5",
    );
}

#[test]
fn a_bound_is_an_exact_ratio() {
    let times = |n, d| scope("5/s").bound(Bound::new(n, d).expect("a ratio"));
    check(times(3, 2), &[(BEGIN, 7)], "");
    check(
        times(3, 2),
        &[(BEGIN, 8)],
        "K: 8 admitted in (2026-03-19T23:59:59Z, 2026-03-20T00:00:00Z] where 3/2 of 5/s allows 7",
    );
    check(times(0, 1), &[], "");
    assert!(judge(&[times(0, 1)], &[(BEGIN, 1)]).proven().is_err());
    assert_eq!(Bound::new(1, 0), None);
    assert_eq!(Bound::new(Bound::PART_MAX + 1, 1), None);
}

#[test]
fn a_spread_shortens_the_window_and_refills_a_bucket() {
    let spread = |limit| scope(limit).spread(Span::from_millis(20));
    check(spread("1/s"), &[(BEGIN, 1), (BEGIN + 980 * MS, 1)], "");
    check(
        spread("1/s"),
        &[(BEGIN, 1), (BEGIN + 980 * MS - 1, 1)],
        "K: 2 admitted in (2026-03-19T23:59:59.999999Z, 2026-03-20T00:00:00.979999Z] \
         where 1/s with a spread of 20ms allows 1",
    );
    let bucket = "1/s smooth";
    check(spread(bucket), &[(BEGIN, 1), (BEGIN + 980 * MS, 1)], "");
    let early = [(BEGIN, 1), (BEGIN + 980 * MS - 1, 1)];
    assert!(judge(&[spread(bucket)], &early).proven().is_err());
}

#[test]
fn sums_may_be_larger_than_any_number_in_the_log() {
    check(
        scope("9007199254740991/s"),
        &[(BEGIN, u64::MAX); 3],
        "K: 55340232221128654845 admitted in (2026-03-19T23:59:59Z, 2026-03-20T00:00:00Z] \
         where 9007199254740991/s allows 9007199254740991",
    );
    let last = Timestamp::MAX.as_micros() - 1;
    for limit in ["1/366d burst 9007199254740991", "1000000/s smooth", "5/calendar month"] {
        let found = judge(&[scope(limit)], &[(0, u64::MAX), (last, u64::MAX)]);
        assert_eq!(found.verdicts[0].exceeded, 2, "{found}");
    }
}

/// Checks leases written as `from-until` in seconds; `from+lease` expires, `from` alone never ends.
fn leases(limit: &str, text: &str) -> String {
    let seconds = |text: &str| at(text.parse::<u64>().expect(text) * SECOND);
    let mut checker = Checker::new();
    checker.scope("K", scope(limit)).expect("a scope");
    for (n, lease) in (0..).zip(text.split(' ')) {
        let id = Id::from_bits(n);
        let (from, expiry) = lease.split_once('+').unwrap_or((lease, ""));
        let (from, end) = from.split_once('-').unwrap_or((from, ""));
        let from = seconds(from);
        let until = (!expiry.is_empty()).then(|| from + seconds(expiry).since(Timestamp::ZERO));
        let start = Event::Start { at: from, id, slots: 1, until };
        checker.record("K", start).expect("a start");
        if !end.is_empty() {
            let at = seconds(end);
            checker.record("K", Event::End { at, id }).expect("an end");
        }
    }
    match checker.check().expect("a good log").proven() {
        Ok(_) => String::new(),
        Err(violation) => violation.to_string(),
    }
}

#[test]
fn a_slot_is_free_at_the_instant_at_which_its_lease_ends() {
    assert_eq!(leases("1 concurrent", "0-5 5-9 9-9 9-10"), "");
    assert_eq!(
        leases("1 concurrent", "0-5 4-9"),
        "K: 2 held at 1970-01-01T00:00:04Z where 1 concurrent allows 1"
    );
}

#[test]
fn a_crashed_holder_keeps_its_slot_until_its_lease_expires() {
    assert_eq!(leases("1 concurrent", "0+30 30-40"), "");
    assert_ne!(leases("1 concurrent", "0+30 29-40"), "");
    assert_ne!(leases("1 concurrent", "0 3000-4000"), "");
}

#[test]
fn a_holder_that_works_on_after_its_lease_still_holds_its_slot() {
    assert_ne!(leases("1 concurrent", "0-40+30 35-36"), "");
    assert_eq!(leases("1 concurrent", "0-10+30 15-16"), "");
}

#[test]
fn a_report_has_a_line_for_every_scope() {
    let mut checker = Checker::new();
    checker.scope("A", scope("5/s")).expect("a scope");
    checker.scope("A", scope("6/min")).expect("a scope");
    checker.scope("A", scope("5/s")).expect("the same again");
    checker.scope("B", scope("2 concurrent")).expect("a scope");
    for second in 0..7 {
        let at = at(BEGIN + second * SECOND);
        checker.admit("A", at, 1).expect("an admit");
    }
    assert_eq!(
        checker.check().expect("a good log").to_string(),
        "A: proven: 7 events, at most 1 admitted in \
         (2026-03-19T23:59:59Z, 2026-03-20T00:00:00Z] where 5/s allows 5\n\
         A: 7 admitted in (2026-03-19T23:59:06Z, 2026-03-20T00:00:06Z] where 6/min allows 6, \
         the first of 1\n\
         B: proven: no events under 2 concurrent\n"
    );
}

#[test]
fn more_can_be_recorded_after_a_check() {
    let mut checker = Checker::new();
    checker.scope("K", scope("1/s")).expect("a scope");
    for (millis, proven) in [(5_000, true), (1_000, true), (1_500, false)] {
        let at = Timestamp::from_millis(millis);
        checker.admit("K", at, 1).expect("an admit");
        let report = checker.check().expect("a good log");
        assert_eq!(report.proven().is_ok(), proven, "{millis}");
    }
}

#[test]
fn a_million_admits_on_a_thousand_keys_are_no_trouble() {
    let mut checker = Checker::new();
    let keys: Vec<String> = (0..1_000).map(|n| format!("USER_MODEL:u{n}:gpt4")).collect();
    for key in &keys {
        checker.scope(key, scope("100/s")).expect("a scope");
        checker.scope(key, scope("100/s burst 1")).expect("a scope");
    }
    for n in (0..1_000).rev() {
        for key in &keys {
            let at = at(BEGIN + n * 10 * MS);
            checker.admit(key, at, 1).expect("an admit");
        }
    }
    let report = checker.check().expect("a good log");
    assert_eq!(report.verdicts.len(), 2_000);
    report.proven().expect("exactly as many as allowed");
}

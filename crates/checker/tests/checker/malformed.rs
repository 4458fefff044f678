//! A log with errors is refused, and the message names the error.

use sluicegate_checker::{Checker, Event, LogError};
use sluicegate_core::{Id, Span, Timestamp};

use crate::harness::{SECOND, at, scope};

fn checker() -> Checker {
    let mut checker = Checker::new();
    checker.scope("R", scope("5/s")).expect("a scope");
    checker.scope("C", scope("5 concurrent")).expect("a scope");
    checker
}

fn start(n: u128, second: u64, until: Option<u64>) -> Event {
    Event::Start {
        at: at(second * SECOND),
        id: Id::from_bits(n),
        slots: 1,
        until: until.map(|until| at(until * SECOND)),
    }
}

fn renew(n: u128, second: u64) -> Event {
    let (id, until) = (Id::from_bits(n), at(second * SECOND));
    Event::Renew { id, until }
}

fn end(n: u128, second: u64) -> Event {
    let (id, at) = (Id::from_bits(n), at(second * SECOND));
    Event::End { at, id }
}

fn check(key: &str, events: &[Event], message: &str) {
    let mut checker = checker();
    let recorded = events.iter().try_for_each(|&event| checker.record(key, event));
    let error = match recorded {
        Ok(()) => checker.check().expect_err(message),
        Err(error) => error,
    };
    assert_eq!(error.to_string(), message);
}

#[test]
fn events_without_a_limit_are_refused() {
    let admit = Event::Admit { at: at(0), amount: 1 };
    check("X", &[admit], "X: no limit is known for this key: give its scopes before its events");
    check(
        "C",
        &[admit],
        "C: an admission, but the only limits of this key are concurrent: record starts and ends",
    );
    check(
        "R",
        &[end(1, 1)],
        "R: a lease, but no limit of this key is concurrent: record admissions",
    );
}

#[test]
fn an_instant_outside_of_every_calendar_is_refused() {
    let mut checker = Checker::new();
    let day = scope("5/calendar day");
    checker.scope("D", day).expect("a scope");
    checker.admit("D", Timestamp::MAX, 1).expect("an instant");
    assert_eq!(
        checker.check().expect_err("the last day").to_string(),
        "D: 5/calendar day has no period at 2255-06-05T23:47:34.740991Z"
    );
}

#[test]
fn leases_that_do_not_add_up_are_refused() {
    check(
        "C",
        &[start(1, 1, None), end(1, 2), start(1, 3, None)],
        "C: lease 00000000000000000000000000000001 starts twice: give each lease an id of its own",
    );
    check(
        "C",
        &[start(1, 1, None), end(1, 2), end(1, 2)],
        "C: lease 00000000000000000000000000000001 ends twice: \
         one of them freed a slot of another lease",
    );
    for stray in [end(1, 1), end(3, 1), renew(1, 1), renew(3, 1)] {
        let mut checker = checker();
        for event in [start(2, 1, None), stray] {
            checker.record("C", event).expect("known only at the end");
        }
        let error = checker.check().expect_err("a stray end");
        assert!(matches!(error, LogError::Unstarted { .. }), "{error}");
        assert!(error.to_string().contains("a part of the log is missing"));
    }
    for backwards in [
        &[start(1, 2, None), end(1, 1)][..],
        &[start(1, 2, Some(1))],
        &[start(1, 2, Some(0)), renew(1, 1)],
    ] {
        check(
            "C",
            backwards,
            "C: lease 00000000000000000000000000000001 ends at 1970-01-01T00:00:01Z, \
             before it starts at 1970-01-01T00:00:02Z",
        );
    }
}

#[test]
fn scopes_that_can_not_be_proven_are_refused() {
    for (key, scope, message) in [
        (
            "R",
            scope("5 tokens/s"),
            "R: counts requests, so it can't count tokens too: give tokens a key of its own",
        ),
        (
            "X",
            scope("5/s").spread(Span::from_secs(1)),
            "X: a spread of 1s leaves nothing of the window of 5/s: \
             use a spread shorter than the window",
        ),
        (
            "X",
            scope("5/calendar day").spread(Span::from_millis(1)),
            "X: 5/calendar day can't be proven with a spread: \
             use the times of the store",
        ),
        (
            "X",
            scope("5 concurrent").spread(Span::from_millis(1)),
            "X: 5 concurrent can't be proven with a spread: use the times of the store",
        ),
    ] {
        let error = checker().scope(key, scope).map(drop).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn a_key_can_have_rates_and_slots() {
    let mut checker = checker();
    checker.scope("R", scope("5 concurrent")).expect("both");
    checker.record("R", start(1, 1, None)).expect("a lease");
    checker.admit("R", at(1), 1).expect("an admit");
    let report = checker.check().expect("a good log");
    let events: Vec<usize> = report.verdicts.iter().map(|v| v.events).collect();
    assert_eq!(events, [1, 1, 0]);
}

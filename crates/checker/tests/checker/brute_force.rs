//! Compares the checker with literal, slow implementations of the definitions: it must not miss a
//! violation or report a false one.

use jiff::tz::TimeZoneDatabase;
use proptest::collection::vec;
use proptest::prelude::*;
use sluicegate_checker::{
    Bound, CheckedScope, Checker, Event, Finding, Interval, Report, ScopeVerdict,
};
use sluicegate_core::limit::{Amount, Calendar, Limit, Period, Rate, Unit, Window};
use sluicegate_core::{Id, Span, Timestamp};

use crate::harness::{DAY, at, judge};

type Uses = Vec<(u64, u64)>;

fn amount(n: u64) -> Amount {
    Amount::new(n).expect("an amount")
}

fn rate(n: u64, window: u64) -> Rate {
    Rate {
        amount: amount(n),
        unit: Unit::Requests,
        window: Window::new(Span::from_micros(window)).expect("a window"),
    }
}

/// Factors of a limit.
fn ratio() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![Just((1, 1)), (0..5_u32, 1..5_u32)]
}

fn bound((numerator, denominator): (u32, u32)) -> Bound {
    Bound::new(numerator, denominator).expect("a ratio")
}

/// Generates uses, many of them at equal times or about half a window apart.
fn uses(window: u64) -> impl Strategy<Value = Uses> {
    let instant = prop_oneof![
        0..4 * window,
        (1..8_u64, 0..3_u64).prop_map(move |(half, off)| half * window / 2 + off - 1),
    ];
    vec((instant, 0..4_u64), 0..24)
}

/// Returns the only verdict, and checks that it does not depend on the order of the log.
fn verdict(scope: CheckedScope, uses: &[(u64, u64)]) -> ScopeVerdict {
    let report = judge(std::slice::from_ref(&scope), uses);
    let backwards: Uses = uses.iter().rev().copied().collect();
    assert_eq!(report, judge(&[scope], &backwards));
    only(report)
}

fn only(mut report: Report) -> ScopeVerdict {
    report.verdicts.remove(0)
}

/// Returns the end of the interval of a finding.
fn end(finding: Finding) -> u64 {
    match finding.interval {
        Interval::Window { until, .. } | Interval::Stretch { until, .. } => until.as_micros(),
        Interval::Period { from, .. } => from.as_micros(),
        Interval::Instant(at) => at.as_micros(),
    }
}

fn sum(uses: &[(u64, u64)], inside: impl Fn(u64) -> bool) -> u64 {
    let inside = uses.iter().filter(|(at, _)| inside(*at));
    inside.map(|(_, amount)| amount).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_window_is_exceeded_exactly_if_the_sum_of_one_is_too_large(
        (window, spread, uses) in (1_000..1_200_u64).prop_flat_map(|window| {
            (Just(window), prop_oneof![Just(0), 0..window], uses(window))
        }),
        limit in 1..9_u64,
        windowed: bool,
        (numerator, denominator) in ratio(),
    ) {
        let rate = rate(limit, window);
        let limited = if windowed { Limit::Windowed(rate) } else { Limit::Exact(rate) };
        let scope = CheckedScope::new(limited)
            .bound(bound((numerator, denominator)))
            .spread(Span::from_micros(spread));
        let found = verdict(scope, &uses);

        let length = window - spread;
        // Every instant, also those without events.
        let sums: Vec<u64> = (0..6 * window)
            .map(|t| sum(&uses, |at| at <= t && at + length > t))
            .collect();
        let exceeds = |sum: u64| sum * u64::from(denominator) > limit * u64::from(numerator);
        let first = sums.iter().position(|&sum| exceeds(sum));

        prop_assert_eq!(found.first.map(|f| end(f) as usize), first);
        prop_assert_eq!(found.exceeded > 0, first.is_some());
        let worst = found.worst().map_or(0, |worst| worst.sum);
        prop_assert_eq!(worst, u128::from(*sums.iter().max().expect("instants")));
        for finding in found.first.into_iter().chain(found.worst()) {
            prop_assert_eq!(finding.sum, u128::from(sums[end(finding) as usize]));
        }
    }

    #[test]
    fn a_bucket_is_exceeded_exactly_if_the_sum_of_a_stretch_is_too_large(
        (window, spread, uses) in (1_000..1_200_u64).prop_flat_map(|window| {
            (Just(window), prop_oneof![Just(0), 0..2 * window], uses(window))
        }),
        (limit, capacity) in (1..9_u64, 1..9_u64),
        (numerator, denominator) in ratio(),
    ) {
        let limited = Limit::Bucket { rate: rate(limit, window), capacity: amount(capacity) };
        let scope = CheckedScope::new(limited)
            .bound(bound((numerator, denominator)))
            .spread(Span::from_micros(spread));
        let found = verdict(scope, &uses);

        let (numerator, denominator) = (u64::from(numerator), u64::from(denominator));
        let allowed = |a: u64, b: u64| numerator * (capacity * window + limit * (b - a + spread));
        let taken = |a: u64, b: u64| sum(&uses, |at| a <= at && at <= b);
        // An interval that does not begin and end with a use is longer for the same sum.
        let mut instants: Vec<u64> = uses.iter().map(|(at, _)| *at).collect();
        instants.sort_unstable();
        instants.dedup();
        let exceeded = |&b: &u64| {
            let mut stretches = instants.iter().filter(|&&a| a <= b);
            stretches.any(|&a| taken(a, b) * denominator * window > allowed(a, b))
        };
        let ends: Vec<u64> = instants.iter().copied().filter(exceeded).collect();

        prop_assert_eq!(found.first.map(end), ends.first().copied());
        prop_assert_eq!(found.exceeded, ends.len() as u64);
        prop_assert_eq!(found.worst().is_some(), !uses.is_empty());
        for finding in found.first.into_iter().chain(found.worst()) {
            let Interval::Stretch { from, until } = finding.interval else {
                return Err(TestCaseError::fail("not a stretch"));
            };
            let (a, b) = (from.as_micros(), until.as_micros());
            prop_assert_eq!(finding.sum, u128::from(taken(a, b)));
            prop_assert_eq!(finding.allowed, u128::from(allowed(a, b) / (denominator * window)));
        }
    }

    #[test]
    fn a_period_is_exceeded_exactly_if_its_sum_is_too_large(
        // From 1996 to 2029, around clock changes, often near midnight.
        first_day in 9_500..21_700_u64,
        uses in vec(((0..40_u64, 0..28_u64, 0..3_u64), 1..4_u64), 0..24),
        limit in 1..9_u64,
        period in proptest::sample::select(&Period::ALL[..]),
        zone in proptest::sample::select(vec![
            "UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/Havana",
            "Asia/Kathmandu", "Pacific/Apia", "Pacific/Kiritimati",
        ]),
        (numerator, denominator) in ratio(),
    ) {
        let uses: Uses = uses
            .into_iter()
            .map(|((day, hour, off), n)| {
                ((first_day + day) * DAY + hour * DAY / 24 + off - 1, n)
            })
            .collect();
        let calendar = Calendar::named(period, zone).expect("bundled");
        let limited = Limit::Calendar { amount: amount(limit), unit: Unit::Requests, calendar };
        let found = verdict(CheckedScope::new(limited).bound(bound((numerator, denominator))), &uses);

        // By the local date.
        let zone = TimeZoneDatabase::bundled().get(zone).expect("bundled");
        let page = |at: u64| {
            let at = jiff::Timestamp::from_microsecond(at as i64).expect("this century");
            let date = at.to_zoned(zone.clone()).date();
            match period {
                Period::Day => (date.year(), date.day_of_year()),
                Period::Week => (date.iso_week_date().year(), date.iso_week_date().week().into()),
                Period::Month => (date.year(), date.month().into()),
                Period::Fixed(_) => unreachable!("not one of the calendar's"),
            }
        };
        let mut sums = std::collections::BTreeMap::new();
        for &(at, amount) in &uses {
            *sums.entry(page(at)).or_insert(0) += amount;
        }
        let exceeds = |sum: u64| sum * u64::from(denominator) > limit * u64::from(numerator);
        let exceeded = sums.iter().filter(|&(_, &sum)| exceeds(sum));
        let pages: Vec<_> = exceeded.map(|(page, _)| *page).collect();

        prop_assert_eq!(found.exceeded, pages.len() as u64);
        prop_assert_eq!(found.first.map(|f| page(end(f))), pages.first().copied());
        let worst = sums.values().max().copied().unwrap_or(0);
        prop_assert_eq!(found.worst().map_or(0, |worst| worst.sum), u128::from(worst));
    }

    #[test]
    fn slots_are_exceeded_exactly_if_too_many_are_held_at_an_instant(
        leases in vec((0..40_u64, 0..15_u64, 0..4_u64, 0..5_u8), 0..24),
        limit in 1..12_u64,
        (numerator, denominator) in ratio(),
    ) {
        let mut events = Vec::new();
        let mut held = Vec::new();
        for (n, &(from, long, slots, kind)) in (0..).zip(&leases) {
            let id = Id::from_bits(n);
            let until = from + long;
            let start = |until| Event::Start { at: at(from), id, slots, until };
            let (known, last, until) = match kind {
                0 => (start(None), Some(Event::End { at: at(until), id }), until),
                // It counts while it works, even after its lease has expired.
                1 => (start(Some(at(from))), Some(Event::End { at: at(until), id }), until),
                2 => (start(Some(at(until))), None, until),
                3 => (start(Some(at(from))), Some(Event::Renew { id, until: at(until) }), until),
                _ => (start(None), None, u64::MAX),
            };
            events.extend([Some(known), last].into_iter().flatten());
            held.push((from, until, slots));
        }
        let judged = |events: &mut dyn Iterator<Item = &Event>| {
            let mut checker = Checker::new();
            let scope = CheckedScope::new(Limit::Concurrent(amount(limit)));
            let scope = scope.bound(bound((numerator, denominator)));
            checker.scope("K", scope).expect("a scope");
            for event in events {
                checker.record("K", *event).expect("a good log");
            }
            only(checker.check().expect("a good log"))
        };
        let found = judged(&mut events.iter());
        prop_assert_eq!(&found, &judged(&mut events.iter().rev()));

        let sums: Vec<u64> = (0..60)
            .map(|t| {
                let now = held.iter().filter(|(from, until, _)| *from <= t && t < *until);
                now.map(|(_, _, slots)| slots).sum()
            })
            .collect();
        let exceeds = |sum: u64| sum * u64::from(denominator) > limit * u64::from(numerator);
        let first = sums.iter().position(|&sum| exceeds(sum));
        prop_assert_eq!(found.first.map(|f| end(f) as usize), first);
        prop_assert_eq!(found.exceeded > 0, first.is_some());
        let worst = found.worst().map_or(0, |worst| worst.sum);
        prop_assert_eq!(worst, u128::from(*sums.iter().max().expect("instants")));
    }
}

/// Creates a timestamp as another program may write it: any number.
fn unchecked(micros: u64) -> Timestamp {
    use serde::Deserialize;
    use serde::de::value::{Error, SeqDeserializer};
    let read = SeqDeserializer::<_, Error>::new(std::iter::once(micros));
    Timestamp::deserialize(read).unwrap_or(Timestamp::MAX)
}

fn any_number() -> impl Strategy<Value = u64> {
    let edges = [0, 1, (1 << 53) - 1, 1 << 53, 1 << 63, u64::MAX];
    prop_oneof![any::<u64>(), 0..10_u64, proptest::sample::select(edges.to_vec())]
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let text = proptest::sample::select(vec![
        "1/1ms",
        "9007199254740991/366d",
        "7/s",
        "9 tokens/min",
        "9007199.254740991 USD/day",
        "1/366d burst 9007199254740991",
        "1000000/s smooth",
        "9 USD/s burst 9007199",
        "5/calendar day",
        "5/calendar week America/Los_Angeles",
        "5/calendar month Pacific/Apia",
        "1 concurrent",
        "9007199254740991 concurrent",
    ]);
    text.prop_map(|text| text.parse().expect(text))
}

fn any_event() -> impl Strategy<Value = Event> {
    let parts = (any_number(), any_number(), any_number(), 0..6_u128, 0..5_u8);
    parts.prop_map(|(at, amount, until, id, kind)| {
        let (at, until, id) = (unchecked(at), unchecked(until), Id::from_bits(id));
        match kind {
            0 => Event::Start { at, id, slots: amount, until: None },
            1 => Event::Start { at, id, slots: amount, until: Some(until) },
            2 => Event::Renew { id, until },
            3 => Event::End { at, id },
            _ => Event::Admit { at, amount },
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_048))]

    #[test]
    fn nothing_panics_whatever_is_logged(
        scopes in vec((any_limit(), any::<u32>(), any::<u32>(), any_number(), 0..3_u8), 0..6),
        events in vec((0..4_u8, any_event()), 0..20),
    ) {
        let mut checker = Checker::new();
        for (limit, numerator, denominator, spread, key) in scopes {
            let part = |n: u32| n % (Bound::PART_MAX + 2);
            let bound = Bound::new(part(numerator), part(denominator)).unwrap_or(Bound::WHOLE);
            let scope = CheckedScope::new(limit).bound(bound);
            // Most scopes can't have a spread, so half of them have none.
            let scope = match spread % 2 {
                0 => scope,
                _ => scope.spread(Span::from_micros(spread)),
            };
            let _ = checker.scope(&key.to_string(), scope);
        }
        for (key, event) in events {
            let _ = checker.record(&key.to_string(), event);
        }
        match checker.check() {
            Ok(report) => {
                let _ = (report.to_string(), report.proven().map_err(|v| v.to_string()));
            }
            Err(malformed) => {
                let _ = malformed.to_string();
            }
        }
    }
}

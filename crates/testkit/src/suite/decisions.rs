//! Tests of acquire, peek, usage, refund and reset.

use sluicegate_core::limit::Unit;
use sluicegate_core::rule::Rule;
use sluicegate_core::store::Error;
use sluicegate_core::{Decision, Span, Store};

use super::script::check;
use super::{StoreBench, StoreSubject, TestRequest, ask, millis, rule, rules};

pub fn limits_decide_as_they_are_written<S: StoreSubject>() {
    check::<S>(&["3/10s"], "0ms×4 → AAAD(10000ms)  9999ms → D(10000ms)  10000ms×4 → AAAD(20000ms)");
    check::<S>(
        &["2/10s"],
        "0ms → A  6000ms → A  9000ms → D(10000ms)  10000ms → A  15999ms → D(16000ms)",
    );
    check::<S>(&["10/s burst 3"], "0ms×4 → AAAD(100ms)  100ms → A  1000ms×4 → AAAD(1100ms)");
    check::<S>(&["25/s smooth"], "0ms×2 → AD(40ms)  39ms → D(40ms)  40ms×2 → AD(80ms)");
    check::<S>(&["2/10s windowed"], "0ms×3 → AAD(10000ms)  10000ms → A");
    check::<S>(&["2/10s windowed"], "1ms×3 → AAD(10100ms)  10099ms → D(10100ms)  10100ms → A");
    check::<S>(
        &["1/s", "2/min"],
        "0ms×2 → AD(1000ms)  1000ms×2 → AD(60000ms)  59999ms → D(60000ms)  60000ms → A",
    );
    check::<S>(&["3 concurrent"], "0ms×4 → AAAD(30000ms)  30000ms → A");
}

pub fn all_windows_of_a_rule_must_pass<S: StoreSubject>() {
    check::<S>(
        &["2/s", "3/10s"],
        "0ms×3 → AAD(1000ms)  1000ms×2 → AD(10000ms)  10000ms×3 → AAD(11000ms)",
    );
    check::<S>(
        &["5/10s", "10/s burst 2"],
        "0ms×3 → AAD(100ms)  1000ms×3 → AAD(1100ms)  2000ms×2 → AD(10000ms)",
    );
}

pub fn a_denial_leaves_every_other_scope_untouched<S: StoreSubject>() {
    let all = |name: &str, limit: &str| Rule { per: Vec::new(), ..rule(name, &[limit]) };
    let mut bench = StoreBench::<S>::new([
        rule("USER", &["5/h"]),
        all("TENANT", "2/h"),
        rule("TOKENS", &["90 tokens/h"]),
        rule("BUCKET", &["9/min burst 9"]),
        rule("SLOTS", &["9 concurrent"]),
    ]);
    bench.at_ms(0);
    assert_eq!(bench.admitted((1..=2).map(|id| ask(id).tokens(10))), 2);
    let before = bench.used(&ask(0));
    for id in 3..20 {
        let Decision::Deny(deny) = bench.acquire(&ask(id).tokens(10)) else {
            panic!("the tenant has used its two");
        };
        assert_eq!((deny.hit.charge, millis(deny.start)), (1, 3_600_000));
    }
    assert_eq!(bench.used(&ask(0)), before);
    assert_eq!(before, [2, 2, 20, 2, 2]);
}

pub fn the_earliest_start_is_true<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::new([rule("A", &["2/10s"]), rule("B", &["3/min windowed"])]);
    let mut id = 0;
    let mut at = 0;
    for _ in 0..30 {
        bench.at_ms(at);
        id += 1;
        if let Decision::Deny(deny) = bench.acquire(&ask(id)) {
            let start = millis(deny.start);
            assert!(start > at, "a denial tells a later time");
            bench.at_ms(start - 1);
            id += 1;
            assert!(!bench.acquire(&ask(id)).is_allowed(), "not a millisecond before {start}");
            bench.at_ms(start);
            id += 1;
            assert!(bench.acquire(&ask(id)).is_allowed(), "at {start}");
            at = start;
        }
    }
}

pub fn users_do_not_share_a_counter<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["2/h"]);
    bench.at_ms(0);
    let users = ["ann", "bob", "a:b", "a%3Ab", "é", "{x}"];
    for (n, user) in (0..).zip(users) {
        assert_eq!(bench.admitted((0..5).map(|id| ask(n * 10 + id).by(user))), 2, "{user}");
    }
}

pub fn what_can_never_fit_is_told_apart<S: StoreSubject>() {
    let mut bench =
        StoreBench::<S>::new([rule("A", &["9/h"]), rule("B", &["5/s burst 3", "100 tokens/h"])]);
    bench.at_ms(0);
    let Decision::Never(never) = bench.acquire(&ask(1).requests(4)) else {
        panic!("four never fit into a bucket of three");
    };
    assert_eq!((never.hit.charge, never.hit.limit), (1, 0));
    let Decision::Never(never) = bench.acquire(&ask(2).tokens(101)) else {
        panic!("101 tokens never fit into 100");
    };
    assert_eq!(never.hit.charge, 2);
    assert_eq!(bench.used(&ask(0)), [0, 0, 0]);
}

pub fn several_requests_at_once_count_as_many<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["10/10s"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).requests(4)).is_allowed());
    bench.at_ms(1_000);
    assert!(bench.acquire(&ask(2).requests(4)).is_allowed());
    let Decision::Deny(deny) = bench.acquire(&ask(3).requests(3)) else { panic!("two are left") };
    assert_eq!(millis(deny.start), 10_000);
    assert!(bench.acquire(&ask(4).requests(2)).is_allowed());
    assert_eq!(bench.used(&ask(0)), [10]);
}

pub fn tokens_and_requests_are_charged_together<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["10/min", "100 tokens/min", "0.01 USD/day"]);
    bench.at_ms(0);
    let mut request = ask(1).tokens(60);
    request.cost.output_tokens = Some(30);
    request.cost.money = Some("0.0042".parse().expect("money"));
    assert!(bench.acquire(&request).is_allowed());
    assert_eq!(bench.used(&ask(0)), [1, 90, 4_200_000]);
    assert!(!bench.acquire(&ask(2).tokens(11)).is_allowed());
    assert!(bench.acquire(&ask(3).tokens(10)).is_allowed());
}

pub fn calendar_windows_start_again_at_their_boundary<S: StoreSubject>() {
    // The tests start at 2027-01-15 08:00 UTC; midnight is 16 hours away, in Berlin 15.
    check::<S>(
        &["2/calendar day"],
        "0ms×3 → AAD(57600000ms)  57599999ms → D(57600000ms)  57600000ms×3 → AAD(144000000ms)",
    );
    check::<S>(&["1/calendar day Europe/Berlin"], "0ms×2 → AD(54000000ms)  54000000ms → A");
}

pub fn a_node_whose_clock_is_a_day_off_is_told_so<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["2/calendar day"]);
    let day = 86_400_000;
    for (node, store) in [(0, 3 * day), (3 * day, 0)] {
        bench.at_ms(node.max(store));
        bench.now = super::EPOCH + Span::from_millis(node);
        bench.subject = S::fresh();
        bench.subject.set_now(super::EPOCH + Span::from_millis(store));
        let decision = bench.with(&ask(1), async |s, plan| s.acquire(plan).await);
        assert_eq!(decision, Err(Error::ClockSkew), "node at {node} ms, store at {store} ms");
    }
}

pub fn a_shadow_rule_counts_but_never_denies<S: StoreSubject>() {
    let shadow = Rule { shadow: true, ..rule("SHADOW", &["2/h"]) };
    let mut bench = StoreBench::<S>::new([shadow, rule("REAL", &["4/h"])]);
    bench.at_ms(0);
    let shadowed: Vec<_> = (1..=5)
        .map(|id| match bench.acquire(&ask(id)) {
            Decision::Allow(allow) => Some(allow.shadowed.len()),
            _ => None,
        })
        .collect();
    assert_eq!(shadowed, [Some(0), Some(0), Some(1), Some(1), None]);
    assert_eq!(bench.used(&ask(0)), [2, 4]);
}

pub fn a_ban_admits_nothing_and_a_shadow_ban_everything<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::new([rule("USER", &["5/h"]), rule("BANNED", &["0"])]);
    bench.at_ms(0);
    for id in 1..=3 {
        let Decision::Never(never) = bench.acquire(&ask(id)) else { panic!("it is banned") };
        assert_eq!((never.hit.charge, never.hit.limit), (1, 0));
    }
    assert_eq!(bench.used(&ask(0)), [0, 0]);

    let shadow = Rule { shadow: true, ..rule("BANNED", &["0"]) };
    let mut bench = StoreBench::<S>::new([rule("USER", &["5/h"]), shadow]);
    bench.at_ms(0);
    for id in 1..=3 {
        let Decision::Allow(allow) = bench.acquire(&ask(id)) else {
            panic!("a shadow never denies")
        };
        assert_eq!(allow.shadowed.as_slice(), [1]);
    }
    assert_eq!(bench.used(&ask(0))[0], 3);
}

pub fn peeking_and_reading_usage_consume_nothing<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["2/h", "50 tokens/h", "2 concurrent"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).tokens(20)).is_allowed());
    for id in 2..30 {
        let peek = bench.with(&ask(id).tokens(20), async |s, plan| s.peek(plan).await);
        assert!(peek.expect("a decision").is_allowed());
        assert_eq!(bench.used(&ask(id)), [1, 20, 1]);
    }
    let peek = bench.with(&ask(30).tokens(31), async |s, plan| s.peek(plan).await);
    assert!(!peek.expect("a decision").is_allowed());
    assert!(bench.acquire(&ask(31).tokens(30)).is_allowed());
}

pub fn a_reset_forgets_usage<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["2/h", "50 tokens/h", "5/min burst 5", "2 concurrent"]);
    bench.at_ms(0);
    assert_eq!(bench.admitted((1..=2).map(|id| ask(id).tokens(20))), 2);
    assert!(bench.acquire(&ask(5).by("bob")).is_allowed());
    bench.with(&ask(0), async |store, plan| store.reset(plan).await).expect("reset");
    assert_eq!(bench.used(&ask(0)), [0, 0, 0, 0]);
    assert_eq!(bench.used(&ask(0).by("bob")), [1, 0, 1, 1]);
    bench.at_ms(1);
    assert_eq!(bench.admitted((11..=13).map(ask)), 2);
}

pub fn usage_carries_over_when_a_limit_changes_its_shape<S: StoreSubject>() {
    const SHAPES: [&str; 3] = ["20/h", "20/h windowed", "20/h burst 20"];
    let pairs = SHAPES.iter().flat_map(|from| SHAPES.iter().map(move |to| (*from, *to)));
    for (from, to) in pairs.filter(|(from, to)| from != to) {
        for literal in [false, true].into_iter().filter(|literal| S::LITERAL_KEYS || !literal) {
            let key = literal.then(|| "sg:tests:<user>".to_owned());
            let shaped = |limit| Rule { key: key.clone(), ..rule("LIMIT", &[limit]) };
            let mut bench = StoreBench::<S>::new([shaped(from)]);
            bench.at_ms(0);
            assert_eq!(bench.admitted((0..15).map(ask)), 15);
            bench.reload([shaped(to)]);
            bench.at_ms(1);
            assert_eq!(bench.admitted((20..40).map(ask)), 5, "{from} → {to}, literal: {literal}");
            assert_eq!(bench.used(&ask(0)), [5, 20], "{from} → {to}: new and former counter");
            // A second change, back to the first shape, still has all usage.
            bench.reload([shaped(from)]);
            assert_eq!(bench.admitted((40..60).map(ask)), 0, "{from} → {to} → {from}");
            bench.reload([shaped(to)]);
            // By then all usage has left, and so has the former counter.
            bench.at_ms(2 * 3_600_000);
            assert_eq!(bench.used(&ask(0)), [0], "{from} → {to}: the transition has ended");
            assert_eq!(bench.admitted((60..90).map(ask)), 20, "{from} → {to}");
        }
    }
}

pub fn a_changed_amount_applies_at_once_to_usage_that_carries_over<S: StoreSubject>() {
    for (limit, more) in [("30/h windowed", 15), ("17/h windowed", 2), ("10/h windowed", 0)] {
        let mut bench = StoreBench::<S>::of(&["5/s", "20/h"]);
        for second in 0..3 {
            bench.at_ms(second * 1_000);
            assert_eq!(bench.admitted((0..5).map(|id| ask(u128::from(second) * 10 + id))), 5);
        }
        // The log continues for the other window, which admits five in this second.
        bench.reload([rule("LIMIT", &["5/s", limit])]);
        let mut admitted = 0;
        for second in 3..9 {
            bench.at_ms(second * 1_000);
            admitted += bench.admitted((0..9).map(|id| ask(u128::from(second) * 10 + id)));
        }
        assert_eq!(admitted, more, "{limit}");
    }
}

pub fn what_is_settled_after_a_change_of_shape_counts_in_both_counters<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["100 tokens/h"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).tokens(40)).is_allowed());
    bench.reload([rule("LIMIT", &["100 tokens/h burst 100"])]);
    let estimate = ask(2).tokens(50).hold(60);
    assert!(bench.acquire(&estimate).is_allowed());
    assert_eq!(bench.used(&ask(0)), [50, 90]);
    let actual = ask(0).tokens(10).cost;
    bench
        .with(&estimate, async |store, plan| store.settle(&plan.handle(), &actual).await)
        .expect("settled");
    assert_eq!(bench.used(&ask(0)), [10, 50]);
    assert!(!bench.acquire(&ask(3).tokens(51)).is_allowed());
    assert!(bench.acquire(&ask(4).tokens(50)).is_allowed());
}

pub fn a_refund_gives_back_the_oldest_and_never_more_than_there_is<S: StoreSubject>() {
    let limits = ["9/min", "90 tokens/min", "90 tokens/h burst 90", "90 tokens/calendar day"];
    let mut bench = StoreBench::<S>::of(&limits);
    for (second, id) in [(0, 1), (10, 2), (20, 3)] {
        bench.at_ms(second * 1_000);
        assert!(bench.acquire(&ask(id).requests(2).tokens(30)).is_allowed());
    }
    let refund = |bench: &StoreBench<S>, ask: &TestRequest| {
        let usage = bench.with(ask, async |store, plan| store.refund(plan).await).expect("refund");
        usage
            .readings
            .iter()
            .map(|reading| (reading.used, millis(reading.reset)))
            .collect::<Vec<_>>()
    };
    let shown = refund(&bench, &ask(4).requests(3).tokens(40));
    // Two of the second charge are left and expire after a minute; slices are a bit longer.
    assert_eq!(shown[0], (3, 70_000));
    assert_eq!((shown[1].0, shown[2].0, shown[3].0), (50, 50, 50));
    assert!((70_000..=70_600).contains(&shown[1].1), "{shown:?}");
    assert_eq!(refund(&bench, &ask(5).by("bob")).iter().map(|(used, _)| used).max(), Some(&0));
    let shown = refund(&bench, &ask(6).requests(9).tokens(1_000));
    assert!(shown.iter().all(|(used, _)| *used == 0), "{shown:?}");
    assert!(bench.acquire(&ask(7).requests(9).tokens(90)).is_allowed());
}

pub fn what_was_refunded_is_not_given_back_again<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["9/min", "90 tokens/min", "90 tokens/h burst 90"]);
    bench.at_ms(0);
    assert_eq!(bench.admitted([ask(1).requests(2).tokens(20).named()]), 1);
    bench.at_ms(1_000);
    assert_eq!(bench.admitted([ask(2).requests(3).tokens(30)]), 1);
    let all = ask(3).requests(2).tokens(20);
    bench.with(&all, async |store, plan| store.refund(plan).await).expect("refund");
    let before = bench.used(&ask(0));
    assert_eq!(before[..2], [3, 30]);
    let cancelled = ask(1).requests(2).tokens(20).named();
    let ended = bench.with(&cancelled, async |store, plan| store.cancel(&plan.handle()).await);
    assert!(!ended.expect("cancelled").replayed);
    assert_eq!(bench.used(&ask(0))[..2], [3, 30], "that was the first one's already");
}

pub fn a_denial_says_what_would_fit<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["9/h", "100 tokens/h", "60 tokens/min"]);
    bench.at_ms(0);
    assert!(bench.acquire(&ask(1).tokens(50)).is_allowed());
    let fits = bench.with(&ask(2).tokens(51), async |store, plan| {
        let decision = store.acquire(plan).await.expect("a decision");
        assert!(!decision.is_allowed());
        [Unit::Tokens, Unit::Requests, Unit::Usd].map(|unit| decision.fits(plan, unit))
    });
    assert_eq!(fits, [Some(10), Some(8), None]);
}

pub fn an_empty_plan_is_allowed<S: StoreSubject>() {
    let bench = StoreBench::<S>::new([rule("OTHER", &["1/h"]).per(&["tenant"])]);
    assert_eq!(bench.admitted((1..=5).map(ask)), 5);
}

pub fn usage_is_kept_when_a_limit_changes<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/h"]);
    bench.at_ms(0);
    assert_eq!(bench.admitted((1..=4).map(ask)), 4);
    bench.rules = rules([rule("LIMIT", &["6/h", "9/10s"])]);
    assert_eq!(bench.admitted((11..=19).map(ask)), 2);
    bench.rules = rules([rule("LIMIT", &["2/h"])]);
    let Decision::Deny(deny) = bench.acquire(&ask(20)) else { panic!("six are more than two") };
    assert_eq!(deny.start, super::EPOCH + Span::from_secs(3_600));
}

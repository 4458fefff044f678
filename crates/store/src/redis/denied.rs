//! What was denied lately, so that a flood of denials is not a flood of questions.
//!
//! A limit that is full stays full until its earliest start, unless something is given back. So a
//! plan that was denied is denied again without asking, for [`Options::deny_cache`] at most and
//! never past that start, while everything that the answer shows is known: what was denied is kept by
//! counter, for its limits and for amounts not below the denied one. Limits that a reload or an
//! override changes are others. It errs on the strict side only: capacity that another node gives
//! back is seen that much later. What this node gives back or resets is forgotten at once.
//!
//! Not for plans that leave a record, because an id that was admitted stays so; and not for charges of
//! which somebody may settle a part, as tokens, money and leases are.
//!
//! [`Options::deny_cache`]: super::Options::deny_cache

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sluicegate_core::algorithm::Reading;
use sluicegate_core::decision::{Deny, Hit, Readings};
use sluicegate_core::limit::Unit;
use sluicegate_core::time::{Clock as _, Span, Timestamp};
use sluicegate_core::{Charge, Plan};
use smallvec::SmallVec;

use super::keys::Names;
use crate::clock::MonotonicClock;

const SLOTS: usize = 1 << 14;

/// A bounded memory: a counter that collides with another is forgotten.
#[derive(Debug)]
pub(super) struct Denied {
    /// For how long a denial is taken to stand; none if that is nothing.
    lasts: Span,
    slots: Box<[Mutex<Slot>]>,
    hasher: RandomState,
    clock: MonotonicClock,
    /// When the last of them is over: before anything is looked up.
    until: AtomicU64,
    answered: AtomicU64,
}

/// What is known of one counter.
#[derive(Debug, Default)]
struct Slot {
    /// Of the key, and of the limits.
    names: (u64, u64),
    /// When Redis was asked and when it was heard, by the clock of this node, and what the time in
    /// Redis was in between. Counted from when it was heard, time in Redis is never taken to be ahead
    /// of what it is: a caller that waits as long as it is told is not too early.
    asked: Timestamp,
    heard: Timestamp,
    at: Timestamp,
    readings: SmallVec<[Reading; 2]>,
    /// What did not fit, under which limit, and when it will.
    denied: Option<(u64, usize, Timestamp)>,
    /// When something was given back or reset.
    forgotten: Timestamp,
}

impl Denied {
    pub(super) fn new(lasts: Span, clock: MonotonicClock) -> Self {
        let slots = if lasts == Span::ZERO { 0 } else { SLOTS };
        Self {
            lasts,
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            clock,
            until: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// How many denials were answered without asking.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// The time of this node, to be told to [`Denied::learn`].
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The denial of a plan, if it is known.
    pub(super) fn of(&self, plan: &Plan<'_>, names: &Names, now: Timestamp) -> Option<Deny> {
        if now.as_micros() >= self.until.load(Ordering::Relaxed) || !is_plain(plan) {
            return None;
        }
        let mut deny: Option<(Timestamp, Hit)> = None;
        let (mut at, mut readings) = (Timestamp::ZERO, Readings::new());
        for (place, charge) in plan.charges().iter().enumerate() {
            self.with(charge, names, |slot, of| {
                let known = slot.names == of && now < slot.asked + self.lasts;
                let then = slot.at + now.since(slot.heard);
                let moved = |reading: &Reading| reading.used > 0 && reading.reset <= then;
                if !known || slot.readings.iter().any(moved) {
                    return None;
                }
                at = at.max(then);
                readings.extend(slot.readings.iter().copied());
                if let Some((need, limit, start)) = slot.denied
                    && need <= charge.need
                    && deny.is_none_or(|(other, _)| other < start)
                {
                    deny = Some((start, Hit { charge: place, limit }));
                }
                Some(())
            })?;
        }
        let (start, hit) = deny.filter(|(start, _)| *start > at)?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        Some(Deny { at, start, hit, readings })
    }

    /// Remembers a denial that Redis was asked for at `asked`, and that was heard at `heard`.
    pub(super) fn learn(
        &self,
        plan: &Plan<'_>,
        names: &Names,
        (asked, heard): (Timestamp, Timestamp),
        deny: &Deny,
    ) {
        if self.lasts == Span::ZERO || !is_plain(plan) {
            return;
        }
        let mut readings = deny.readings.iter().copied();
        for (place, charge) in plan.charges().iter().enumerate() {
            let readings = readings.by_ref().take(charge.meter.len()).collect();
            self.with(charge, names, |slot, of| {
                // Given back since: what was read may have been before.
                if slot.forgotten >= asked {
                    return;
                }
                let before =
                    slot.denied.filter(|(_, _, start)| slot.names == of && *start > deny.at);
                let denied = match deny.hit {
                    hit if hit.charge == place => Some((charge.need, hit.limit, deny.start)),
                    _ => before,
                };
                let (at, forgotten) = (deny.at, slot.forgotten);
                *slot = Slot { names: of, asked, heard, at, readings, denied, forgotten };
            });
        }
        self.until.fetch_max((asked + self.lasts).as_micros(), Ordering::Relaxed);
    }

    /// Forgets what is known of the counters under a key: something of them was given back. Called
    /// when that was answered, so that nothing stays known from before.
    pub(super) fn forget(&self, log: &[u8]) {
        let now = self.clock.now();
        if self.lasts > Span::ZERO {
            let mut slot = self.slot(self.hasher.hash_one(log));
            *slot = Slot { forgotten: now, ..Slot::default() };
        }
    }

    fn with<T>(
        &self,
        charge: &Charge<'_>,
        names: &Names,
        run: impl FnOnce(&mut Slot, (u64, u64)) -> T,
    ) -> T {
        let name = self.hasher.hash_one(&names.log(&charge.key)[..]);
        let amounts: SmallVec<[u64; 4]> =
            (0..charge.meter.len()).map(|limit| charge.meter.limit(limit)).collect();
        let terms = self.hasher.hash_one((charge.meter.kind(), amounts, charge.texts()));
        run(&mut self.slot(name), (name, terms))
    }

    fn slot(&self, name: u64) -> std::sync::MutexGuard<'_, Slot> {
        self.slots[name as usize % SLOTS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether what is denied to a plan is so until somebody gives something back.
fn is_plain(plan: &Plan<'_>) -> bool {
    let plain = |charge: &Charge<'_>| {
        charge.unit() == Unit::Requests && charge.need == charge.take && !charge.refunds()
    };
    !plan.recorded() && !plan.charges().is_empty() && plan.charges().iter().all(plain)
}

#[cfg(test)]
mod tests {
    use sluicegate_core::query::{Cost, Query, RequestId};
    use sluicegate_core::rule::{Group, Rule};
    use sluicegate_core::ruleset::{Ruleset, Settings};
    use sluicegate_core::{Id, Limit};

    use super::*;
    use crate::redis::keys::Layout;

    const SECOND: Span = Span::from_secs(1);
    const MINUTE: Span = Span::from_secs(60);

    struct Bench {
        denied: Denied,
        names: Names,
        began: Timestamp,
    }

    fn rules(limits: &[&str]) -> Ruleset {
        let group = |(name, limit): (&str, &&str)| {
            Group::new(name, [Rule::new(name, [limit.parse::<Limit>().expect("a limit")])])
        };
        let groups = ["A", "B"].into_iter().zip(limits).map(group).collect();
        Ruleset::new(groups, Settings::default()).expect("rules")
    }

    fn query(requests: u64) -> Query<'static> {
        let mut query = Query::new(RequestId::ours(Id::from_bits(1)));
        query.cost = Cost { requests: Some(requests), ..Cost::default() };
        query
    }

    impl Bench {
        fn new() -> Self {
            let clock = MonotonicClock::new();
            let denied = Denied::new(SECOND, clock);
            Self { denied, names: Names::new("sg:", Layout::Together), began: clock.now() }
        }

        /// Redis denies so many, until then, by the first limit.
        fn learn(&self, rules: &Ruleset, requests: u64, start: Span) {
            let query = query(requests);
            let plan = rules.plan(&query, self.began).expect("a plan");
            let reading = Reading::new(3, at(start));
            let deny = Deny {
                at: at(Span::ZERO),
                start: at(start),
                hit: Hit { charge: 0, limit: 0 },
                readings: plan.scopes().map(|_| reading).collect(),
            };
            self.denied.learn(&plan, &self.names, (self.began, self.began), &deny);
        }

        /// When so many may start, if that is known a while later.
        fn start(&self, rules: &Ruleset, requests: u64, later: Span) -> Option<Timestamp> {
            let query = query(requests);
            let plan = rules.plan(&query, self.began).expect("a plan");
            let deny = self.denied.of(&plan, &self.names, self.began + later)?;
            assert_eq!((deny.at, deny.hit.charge), (at(later), 0));
            assert_eq!(deny.readings.len(), plan.scopes().count());
            Some(deny.start)
        }
    }

    /// The clock of Redis, which is another.
    fn at(later: Span) -> Timestamp {
        Timestamp::from_secs(1_000) + later
    }

    #[test]
    fn a_denial_stands_for_a_second_but_not_past_its_start() {
        let (bench, rules) = (Bench::new(), rules(&["3/min", "9/min"]));
        assert_eq!(bench.start(&rules, 1, Span::ZERO), None);
        bench.learn(&rules, 1, MINUTE);
        assert_eq!(bench.start(&rules, 1, Span::ZERO), Some(at(MINUTE)));
        assert_eq!(bench.start(&rules, 1, Span::from_millis(999)), Some(at(MINUTE)));
        assert_eq!(bench.start(&rules, 1, SECOND), None);
        bench.learn(&rules, 1, Span::from_millis(40));
        assert!(bench.start(&rules, 1, Span::from_millis(39)).is_some());
        assert_eq!(bench.start(&rules, 1, Span::from_millis(40)), None);
        assert_eq!(bench.denied.answered(), 3);
    }

    #[test]
    fn only_amounts_that_are_not_smaller_are_denied() {
        let (bench, rules) = (Bench::new(), rules(&["9/min"]));
        bench.learn(&rules, 3, MINUTE);
        assert_eq!(bench.start(&rules, 2, Span::ZERO), None);
        assert!(bench.start(&rules, 3, Span::ZERO).is_some());
        assert!(bench.start(&rules, 4, Span::ZERO).is_some());
    }

    #[test]
    fn another_limit_is_another_counter() {
        let bench = Bench::new();
        bench.learn(&rules(&["3/min"]), 1, MINUTE);
        for limit in ["4/min", "3/h", "3/min windowed", "3/min burst 3"] {
            assert_eq!(bench.start(&rules(&[limit]), 1, Span::ZERO), None, "{limit}");
        }
        // Nothing is known of what the second one shows.
        assert_eq!(bench.start(&rules(&["3/min", "9/min"]), 1, Span::ZERO), None);
    }

    #[test]
    fn what_is_given_back_is_forgotten_also_by_those_who_asked_before() {
        let (bench, rules) = (Bench::new(), rules(&["3/min"]));
        bench.learn(&rules, 1, MINUTE);
        let query = query(1);
        let plan = rules.plan(&query, bench.began).expect("a plan");
        bench.denied.forget(&bench.names.log(&plan.charges()[0].key));
        assert_eq!(bench.start(&rules, 1, Span::ZERO), None);
        bench.learn(&rules, 1, MINUTE);
        assert_eq!(bench.start(&rules, 1, Span::ZERO), None, "that was asked before");
    }

    #[test]
    fn what_can_be_settled_or_replayed_is_asked_for() {
        let bench = Bench::new();
        for limit in ["3 tokens/min", "0.1 USD/min", "3 concurrent"] {
            let rules = rules(&[limit]);
            bench.learn(&rules, 1, MINUTE);
            assert_eq!(bench.start(&rules, 1, Span::ZERO), None, "{limit}");
        }
        let rules = rules(&["3/min"]);
        bench.learn(&rules, 1, MINUTE);
        let mut query = query(1);
        query.id.keep = Some(RequestId::KEEP);
        let plan = rules.plan(&query, bench.began).expect("a plan");
        assert_eq!(bench.denied.of(&plan, &bench.names, bench.began), None);
    }
}

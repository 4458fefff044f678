//! What a decision means to whoever asked: the same words at every front door.

use std::{fmt, ptr};

use sluicegate_core::algorithm::Reading;
use sluicegate_core::decision::{Allow, Closed, Hit};
use sluicegate_core::limit::Unit;
use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::predict::{self, ExpectedUsage, Forecast};
use sluicegate_core::query::Query;
use sluicegate_core::rule::Mode;
use sluicegate_core::ruleset::Ruleset;
use sluicegate_core::store::Usage;
use sluicegate_core::{Charge, Decision, Limit, Plan, Span, Timestamp};

/// A decision beside the plan that it is about.
#[derive(Clone, Copy)]
pub struct Answer<'a, 'p> {
    rules: &'a Ruleset,
    plan: &'a Plan<'p>,
    decision: &'a Decision,
    outage: Option<OutagePolicy>,
    /// The limit beyond which something was counted, if that is a reason to say no.
    over: Option<Hit>,
    asked: Asked<'a>,
}

/// What has to be known of whoever asked, to tell them more than the decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The model that all queries name; empty if they don't.
    model: &'a str,
    /// What the only query expects.
    expected: Option<ExpectedUsage<'a>>,
}

impl<'a> Asked<'a> {
    /// What is of interest of the queries of a call.
    pub fn by(queries: &'a [Query<'_>]) -> Self {
        let mut models = queries.iter().map(Query::model);
        let first = models.next().unwrap_or_default();
        let model = if models.all(|other| other == first) { first } else { "" };
        let expected = match queries {
            [query] => ExpectedUsage::of(query),
            _ => None,
        };
        Self { model, expected }
    }
}

/// Usage in the form of a decision, for those who tell decisions.
pub fn shown(usage: Usage) -> Decision {
    Decision::Allow(Allow {
        at: usage.at,
        start: usage.at,
        until: None,
        replayed: false,
        shadowed: Default::default(),
        readings: usage.readings,
        charged_at: Vec::new(),
    })
}

/// One limit, and how far it is used.
#[derive(Clone, Copy)]
pub struct Scope<'a, 'p> {
    /// What was to be charged.
    pub charge: &'a Charge<'p>,
    /// The limit.
    pub limit: &'a Limit,
    /// The limit as it is written.
    pub text: &'a str,
    /// What it shows.
    pub reading: Reading,
    /// The number of the charge.
    index: usize,
}

impl Scope<'_, '_> {
    /// The most that the limit gives.
    pub const fn amount(&self) -> u64 {
        self.limit.amount().get()
    }

    /// What is left of it.
    pub const fn remaining(&self) -> u64 {
        self.amount().saturating_sub(self.reading.used)
    }

    /// The place of its charge in the plan.
    pub const fn place(&self) -> usize {
        self.index
    }

    /// The name of the rule.
    pub fn name(&self) -> &str {
        &self.charge.rule().name
    }
}

impl<'a, 'p> Answer<'a, 'p> {
    /// Puts a decision beside its plan.
    pub const fn new(rules: &'a Ruleset, plan: &'a Plan<'p>, decision: &'a Decision) -> Self {
        let asked = Asked { model: "", expected: None };
        Self { rules, plan, decision, outage: None, over: None, asked }
    }

    /// The same, to whoever asked.
    #[must_use]
    pub const fn to(self, asked: Asked<'a>) -> Self {
        Self { asked, ..self }
    }

    /// The same as a no, if something was counted beyond its limit. Some rules count what does not
    /// fit, because it may tell of work that is done, and leave the verdict to the front door.
    #[must_use]
    pub fn tallied(self) -> Self {
        if !self.decision.is_allowed() {
            return self;
        }
        let over = self.refusing().map(|scope| {
            let limits = scope.charge.limits().iter();
            let limit = limits.take_while(|limit| !ptr::eq(*limit, scope.limit)).count();
            Hit { charge: scope.index, limit }
        });
        Self { over, ..self }
    }

    /// The limit because of which what was counted is told no: one that is exceeded and no quota, or
    /// else a quota, if all of them are.
    fn refusing(&self) -> Option<Scope<'a, 'p>> {
        let over = || self.scopes().filter(|scope| self.is_over(scope));
        let is_quota = |scope: &Scope<'_, '_>| scope.charge.rule().quota;
        let limit = over().find(|scope| !is_quota(scope));
        limit.or_else(|| {
            let is_exceeded = |place: usize| over().any(|scope| scope.index == place);
            let mut charges = self.plan.charges().iter().enumerate();
            let is_left = charges.any(|(place, charge)| charge.rule().quota && !is_exceeded(place));
            over().next().filter(|_| !is_left)
        })
    }

    /// Whether a limit is a reason to say no to what was counted or refused.
    pub fn is_over(&self, scope: &Scope<'_, '_>) -> bool {
        let charge = scope.charge;
        if charge.rule().shadow {
            return false;
        }
        match self.decision {
            Decision::Allow(allow) => {
                let is_this = |&place: &u16| usize::from(place) == scope.index;
                let did_not_fit = charge.take > 0 && allow.shadowed.iter().any(is_this);
                // There was room for a part of it only.
                let is_exceeded =
                    charge.rule().mode == Mode::Optimistic && scope.reading.used > scope.amount();
                charge.rule().tally && did_not_fit || is_exceeded
            }
            Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => {
                let hit = self.hit().is_some_and(|hit| hit.index == scope.index);
                hit || scope.remaining() < charge.need
            }
        }
    }

    /// Whether the caller is told yes.
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed() && self.over.is_none()
    }

    /// The limit beyond which something was counted, if that is why the caller is told no.
    pub const fn over(&self) -> Option<Hit> {
        self.over
    }

    /// The same, decided by a policy because the store did not answer.
    #[must_use]
    pub const fn by_policy(self, outage: Option<OutagePolicy>) -> Self {
        Self { outage, ..self }
    }

    /// The policy that decided, if the store did not answer.
    pub const fn outage(&self) -> Option<OutagePolicy> {
        self.outage
    }

    /// The decision.
    pub const fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The plan.
    pub const fn plan(&self) -> &'a Plan<'p> {
        self.plan
    }

    /// Every limit that was checked.
    pub fn scopes(&self) -> impl Iterator<Item = Scope<'a, 'p>> + use<'a, 'p> {
        self.checked().filter(|scope| !scope.charge.is_gate())
    }

    /// Every limit and every gate.
    fn checked(&self) -> impl Iterator<Item = Scope<'a, 'p>> + use<'a, 'p> {
        let limits = self.plan.charges().iter().enumerate().flat_map(|(index, charge)| {
            let limits = charge.limits().iter().zip(charge.texts());
            limits.map(move |(limit, text)| (index, charge, limit, text))
        });
        let readings = self.decision.readings();
        limits.zip(readings).map(|((index, charge, limit, text), reading)| Scope {
            charge,
            limit,
            text,
            reading: *reading,
            index,
        })
    }

    /// Every limit that can be a reason to say no.
    pub fn binding(&self) -> impl Iterator<Item = Scope<'a, 'p>> + use<'a, 'p> {
        self.scopes().filter(|scope| !scope.charge.rule().shadow)
    }

    /// The limit that leaves least to the caller: of those that count requests if there are any,
    /// because that is what a caller sends more of.
    pub fn tightest(&self) -> Option<Scope<'a, 'p>> {
        self.binding().min_by_key(|scope| {
            let unit = scope.limit.unit();
            (unit != Unit::Requests, unit, scope.remaining())
        })
    }

    /// The limit that the caller goes by: of the effective group, with the longest window.
    pub fn effective(&self) -> Option<Scope<'a, 'p>> {
        let effective = self.binding().filter(|scope| self.rules.is_effective(scope.charge));
        effective.max_by_key(|scope| scope.limit.window())
    }

    /// The limit that stands in the way.
    pub fn hit(&self) -> Option<Scope<'a, 'p>> {
        let Hit { charge, limit } = match self.decision {
            Decision::Allow(_) => self.over?,
            Decision::Closed(_) => return None,
            Decision::Deny(deny) => deny.hit,
            Decision::Never(never) => never.hit,
        };
        self.checked().filter(|scope| scope.index == charge).nth(limit)
    }

    /// Why not, as one word: `HIT_USER_MODEL_LIMIT`, `EXCEEDS_…` for what never fits,
    /// `BANNED` for a limit of 0, `UPSTREAM_CLOSED` if the upstream refuses work for a time,
    /// `STORE_FULL` if the limit was used up by several keys together, `STORE_UNAVAILABLE`, or
    /// `STORE_LOST_MEMORY` for what is closed until its window is over.
    pub fn reason(&self) -> Option<impl fmt::Display + use<'a, 'p>> {
        let verb = match self.decision {
            Decision::Allow(_) if self.over.is_none() => return None,
            Decision::Allow(_) | Decision::Deny(_) => Some("HIT"),
            Decision::Never(_) => Some("EXCEEDS"),
            Decision::Closed(_) => None,
        };
        let full = self.is_full();
        let charge = self.hit().map(|hit| hit.charge);
        let lost = matches!(self.decision, Decision::Closed(Closed { until: Some(_), .. }));
        Some(fmt::from_fn(move |f| match (verb, charge) {
            (Some(_), Some(charge)) if charge.is_gate() => f.write_str("UPSTREAM_CLOSED"),
            (Some(_), Some(charge)) if charge.bans() => f.write_str("BANNED"),
            _ if full => f.write_str("STORE_FULL"),
            (Some(verb), Some(charge)) => write!(f, "{verb}_{}_LIMIT", charge.rule().name),
            _ if lost => f.write_str("STORE_LOST_MEMORY"),
            _ => f.write_str("STORE_UNAVAILABLE"),
        }))
    }

    /// Whether a limit of 0 is the reason to say no.
    pub fn is_banned(&self) -> bool {
        self.hit().is_some_and(|hit| hit.charge.bans())
    }

    /// Whether it is denied by a counter that several keys share, because the store had no room for
    /// one each: nobody knows how much of it is this key's.
    pub fn is_full(&self) -> bool {
        matches!(self.decision, Decision::Deny(_))
            && self.hit().is_some_and(|hit| hit.reading.shared)
    }

    /// The rule of a limit that was counted together with other keys, because the store had no room
    /// for a counter of each.
    pub fn shared(&self) -> Option<&'a str> {
        if !self.decision.readings().iter().any(|reading| reading.shared) {
            return None;
        }
        let scope = self.scopes().find(|scope| scope.reading.shared)?;
        Some(&scope.charge.rule().name)
    }

    /// The model that all queries name; empty if they don't.
    pub const fn model(&self) -> &'a str {
        self.asked.model
    }

    /// Of a denial for tokens or money, the longest answer that would have been admitted: a shorter
    /// one does not help against any other limit.
    pub fn forecast(&self) -> Option<Forecast> {
        let expected = self.asked.expected?;
        let unit = self.hit()?.limit.unit();
        if !matches!(unit, Unit::Tokens | Unit::InputTokens | Unit::OutputTokens | Unit::Usd) {
            return None;
        }
        predict::forecast(expected, self.plan, self.decision, self.rules.prices())
    }

    /// Of a denial, what to do about it in words.
    pub fn advice(&self) -> Option<String> {
        let forecast = self.forecast()?;
        let wait = self.retry_after().map(Span::as_secs_ceil);
        Some(match (forecast, wait) {
            (Forecast { now: 0, ever: 0 }, None) => {
                "no answer would ever fit beside what is sent: send less".to_owned()
            }
            (Forecast { now: 0, ever }, None) => {
                format!("an answer of at most {ever} tokens can fit, though none does now")
            }
            (Forecast { now: 0, .. }, Some(wait)) => {
                format!("nothing of it fits now: all of it would in {wait} s")
            }
            (Forecast { now, .. }, None) => {
                format!("it will never fit: an answer of at most {now} tokens would now")
            }
            (Forecast { now, .. }, Some(wait)) => {
                format!("an answer of at most {now} tokens would fit now, all of it in {wait} s")
            }
        })
    }

    /// When it was decided.
    pub const fn at(&self) -> Timestamp {
        self.decision.at()
    }

    /// How long to wait before it would fit.
    pub const fn retry_after(&self) -> Option<Span> {
        match self.decision {
            Decision::Deny(deny) => Some(deny.start.since(deny.at)),
            Decision::Closed(Closed { at, until: Some(until), .. }) => Some(until.since(*at)),
            Decision::Allow(_) | Decision::Never(_) | Decision::Closed(_) => None,
        }
    }
}

//! [`Answer`]: a decision together with its plan, for the encoders. It gives every protocol the
//! same reasons, limits and wait times.

use std::{fmt, ptr};

use sluicegate_core::algorithm::Reading;
use sluicegate_core::decision::{Allow, Closed, Hit};
use sluicegate_core::limit::Unit;
use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::predict::{self, ExpectedUsage, Forecast};
use sluicegate_core::query::Query;
use sluicegate_core::rule::EstimateMode;
use sluicegate_core::ruleset::Ruleset;
use sluicegate_core::store::Usage;
use sluicegate_core::{Charge, Decision, Limit, Plan, Span, Timestamp};

/// First word of the reason of a denial by a limit that has no room now.
const HIT: &str = "HIT";

/// A decision together with the plan that it belongs to.
#[derive(Clone, Copy)]
pub struct Answer<'a, 'p> {
    rules: &'a Ruleset,
    plan: &'a Plan<'p>,
    decision: &'a Decision,
    outage: Option<OutagePolicy>,
    /// Number of nodes that the outage policy divided the limits by.
    nodes: u32,
    /// The exceeded limit, if usage counted beyond a limit turns the answer into a denial.
    over: Option<Hit>,
    context: AnswerContext<'a>,
}

/// Facts about the queries of a call that an answer repeats: the model, and the token estimate for
/// forecasts.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerContext<'a> {
    /// The model that all queries name; empty if they name none or different ones.
    model: &'a str,
    /// The expected tokens of the call, if it has a single query.
    expected: Option<ExpectedUsage<'a>>,
}

impl<'a> AnswerContext<'a> {
    /// Collects the facts from the queries of a call.
    pub fn of(queries: &'a [Query<'_>]) -> Self {
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

/// Reasons of denials for which the store is responsible, in words for the caller.
pub mod store_refusal {
    /// The store did not answer, and the outage policy denies.
    pub const UNAVAILABLE: &str =
        "STORE_UNAVAILABLE: the store of the limits does not answer: retry later";
    /// Several keys together used up a limit, because the store has no room for a counter of each.
    pub const FULL: &str = "STORE_FULL: the store has no room for another counter, and the counter \
                            that new keys share is at its limit: raise store.keys_max";
    /// The store lost its data, so that rules are closed until the lost usage has left their
    /// windows.
    pub const LOST_MEMORY: &str = "STORE_LOST_MEMORY: the store of the limits lost its data, and the \
                                   rule is closed for the length of its window";
}

/// Converts usage into the form of a decision, for code that encodes decisions.
pub fn usage_as_decision(usage: Usage) -> Decision {
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

/// A limit that was checked, with its current usage.
#[derive(Clone, Copy)]
pub struct Scope<'a, 'p> {
    /// The charge that the limit belongs to.
    pub charge: &'a Charge<'p>,
    /// The limit.
    pub limit: &'a Limit,
    /// The limit as written in the configuration.
    pub text: &'a str,
    /// The usage of the limit's counter.
    pub reading: Reading,
    /// Position of the charge in the plan.
    index: usize,
    /// The part of the limit that this node may use while the store does not answer.
    share: Option<u64>,
}

impl Scope<'_, '_> {
    /// Returns the maximum of the limit.
    pub const fn amount(&self) -> u64 {
        self.limit.amount().get()
    }

    /// Returns the part of the limit that is not used; while the store does not answer, the part of
    /// this node's share.
    pub const fn remaining(&self) -> u64 {
        let amount = match self.share {
            Some(share) => share,
            None => self.amount(),
        };
        amount.saturating_sub(self.reading.used)
    }

    /// Returns the position of its charge in the plan.
    pub const fn charge_index(&self) -> usize {
        self.index
    }

    /// Returns the name of the rule.
    pub fn name(&self) -> &str {
        &self.charge.rule().name
    }
}

impl<'a, 'p> Answer<'a, 'p> {
    /// Combines a decision with its plan.
    pub const fn new(rules: &'a Ruleset, plan: &'a Plan<'p>, decision: &'a Decision) -> Self {
        let context = AnswerContext { model: "", expected: None };
        Self { rules, plan, decision, outage: None, nodes: 0, over: None, context }
    }

    /// Adds the facts about the queries of the call.
    #[must_use]
    pub const fn with_context(self, context: AnswerContext<'a>) -> Self {
        Self { context, ..self }
    }

    /// Turns the answer into a denial if a charge was counted beyond its limit. Some rules count
    /// charges that do not fit, because they report work that is already done; the protocol server
    /// then decides whether to answer with a denial.
    #[must_use]
    pub fn deny_if_exceeded(self) -> Self {
        if !self.decision.is_allowed() {
            return self;
        }
        let over = self.denying_limit().map(|scope| {
            let limits = scope.charge.limits().iter();
            let limit = limits.take_while(|limit| !ptr::eq(*limit, scope.limit)).count();
            Hit { charge: scope.index, limit }
        });
        Self { over, ..self }
    }

    /// Returns the limit that denies a counted request: an exceeded limit that is not a quota, or
    /// else an exceeded quota if all quotas are exceeded.
    fn denying_limit(&self) -> Option<Scope<'a, 'p>> {
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

    /// Returns true if the limit is a reason to deny the request.
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
                let is_exceeded = charge.rule().mode == EstimateMode::Optimistic
                    && scope.reading.used > scope.amount();
                charge.rule().counts_only && did_not_fit || is_exceeded
            }
            Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => {
                let hit = self.hit().is_some_and(|hit| hit.index == scope.index);
                hit || scope.remaining() < charge.need
            }
        }
    }

    /// Returns true if the caller may proceed.
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed() && self.over.is_none()
    }

    /// Returns the exceeded limit, if usage counted beyond a limit denies the request.
    pub const fn over(&self) -> Option<Hit> {
        self.over
    }

    /// Marks the decision as made by an outage policy because the store did not answer.
    #[must_use]
    pub const fn by_policy(self, outage: Option<OutagePolicy>, nodes: u32) -> Self {
        Self { outage, nodes, ..self }
    }

    /// Returns the policy that decided, if the store did not answer.
    pub const fn outage(&self) -> Option<OutagePolicy> {
        self.outage
    }

    /// Returns the decision.
    pub const fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// Returns the plan.
    pub const fn plan(&self) -> &'a Plan<'p> {
        self.plan
    }

    /// Returns every limit that was checked.
    pub fn scopes(&self) -> impl Iterator<Item = Scope<'a, 'p>> + use<'a, 'p> {
        self.limits_and_gates().filter(|scope| !scope.charge.is_gate())
    }

    /// Returns every limit and every gate.
    fn limits_and_gates(&self) -> impl Iterator<Item = Scope<'a, 'p>> + use<'a, 'p> {
        let limits = self.plan.charges().iter().enumerate().flat_map(|(index, charge)| {
            let limits = charge.limits().iter().zip(charge.texts());
            limits.map(move |(limit, text)| (index, charge, limit, text))
        });
        let readings = self.decision.readings();
        let (outage, nodes) = (self.outage, self.nodes);
        limits.zip(readings).map(move |((index, charge, limit, text), reading)| Scope {
            charge,
            limit,
            text,
            reading: *reading,
            index,
            share: outage.and_then(|policy| policy.share(limit, nodes)),
        })
    }

    /// Returns every limit that can deny the request.
    pub fn binding(&self) -> impl Iterator<Item = Scope<'a, 'p>> + use<'a, 'p> {
        self.scopes().filter(|scope| !scope.charge.rule().shadow)
    }

    /// Returns the limit with the least remaining for the caller. Limits that count requests come
    /// first, because a caller decides how many requests it sends.
    pub fn tightest(&self) -> Option<Scope<'a, 'p>> {
        self.binding().min_by_key(|scope| {
            let unit = scope.limit.unit();
            (unit != Unit::Requests, unit, scope.remaining())
        })
    }

    /// Returns the limit that applies to the caller in the effective group: the one with the
    /// longest window.
    pub fn effective(&self) -> Option<Scope<'a, 'p>> {
        let effective = self.binding().filter(|scope| self.rules.is_effective(scope.charge));
        effective.max_by_key(|scope| scope.limit.window())
    }

    /// Returns the limit that denies the request.
    pub fn hit(&self) -> Option<Scope<'a, 'p>> {
        let Hit { charge, limit } = match self.decision {
            Decision::Allow(_) => self.over?,
            Decision::Closed(_) => return None,
            Decision::Deny(deny) => deny.hit,
            Decision::Never(never) => never.hit,
        };
        self.limits_and_gates().filter(|scope| scope.index == charge).nth(limit)
    }

    /// Returns the reason of a denial as one word: `HIT_USER_MODEL_LIMIT` or the `reason` of the
    /// rule, `EXCEEDS_…` if the cost is larger than the limit, `BANNED` for a limit of 0,
    /// `UPSTREAM_CLOSED` if the upstream asked for a pause, `STORE_FULL` if several keys share the
    /// exhausted counter, `STORE_UNAVAILABLE`, or `STORE_LOST_MEMORY` for a limit that stays closed
    /// until its window is over.
    pub fn reason(&self) -> Option<impl fmt::Display + use<'a, 'p>> {
        let verb = match self.decision {
            Decision::Allow(_) if self.over.is_none() => return None,
            Decision::Allow(_) | Decision::Deny(_) => Some(HIT),
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
            (Some(verb), Some(charge)) => match &charge.rule().reason {
                Some(reason) if verb == HIT => f.write_str(reason),
                _ => write!(f, "{verb}_{}_LIMIT", charge.rule().name),
            },
            _ if lost => f.write_str("STORE_LOST_MEMORY"),
            _ => f.write_str("STORE_UNAVAILABLE"),
        }))
    }

    /// Returns true if a limit of 0 denies the request.
    pub fn is_banned(&self) -> bool {
        self.hit().is_some_and(|hit| hit.charge.bans())
    }

    /// Returns true if the request is denied by a counter that several keys share because the store
    /// had no room for one each. The share of this key is then unknown.
    pub fn is_full(&self) -> bool {
        matches!(self.decision, Decision::Deny(_))
            && self.hit().is_some_and(|hit| hit.reading.shared)
    }

    /// Returns the rule of a limit whose counter several keys share, because the store had no room
    /// for one each.
    pub fn shared(&self) -> Option<&'a str> {
        if !self.decision.readings().iter().any(|reading| reading.shared) {
            return None;
        }
        let scope = self.scopes().find(|scope| scope.reading.shared)?;
        Some(&scope.charge.rule().name)
    }

    /// Returns the model that all queries name; empty if they name none or different ones.
    pub const fn model(&self) -> &'a str {
        self.context.model
    }

    /// Returns the largest output cap that would be admitted, for a denial by tokens or money. A
    /// smaller cap does not help against any other limit.
    pub fn forecast(&self) -> Option<Forecast> {
        let expected = self.context.expected?;
        let unit = self.hit()?.limit.unit();
        if !matches!(unit, Unit::Tokens | Unit::InputTokens | Unit::OutputTokens | Unit::Usd) {
            return None;
        }
        predict::forecast(expected, self.plan, self.decision, self.rules.prices())
    }

    /// Returns advice for the caller of a denied request.
    pub fn advice(&self) -> Option<String> {
        let forecast = self.forecast()?;
        let wait = self.retry_after().map(Span::as_secs_ceil);
        Some(match (forecast, wait) {
            (Forecast { now: 0, ever: 0 }, None) => {
                "the input alone is larger than the limit: send a smaller input".to_owned()
            }
            (Forecast { now: 0, ever }, None) => {
                format!("an output of at most {ever} tokens can fit later; none fits now")
            }
            (Forecast { now: 0, .. }, Some(wait)) => {
                format!("no output fits now; the whole request fits in {wait} s")
            }
            (Forecast { now, .. }, None) => {
                format!("the request never fits; an output of at most {now} tokens fits now")
            }
            (Forecast { now, .. }, Some(wait)) => {
                format!(
                    "an output of at most {now} tokens fits now; the whole request fits in {wait} s"
                )
            }
        })
    }

    /// Returns a denial in words: the limit that was hit, and advice if there is any.
    pub fn detail(&self) -> String {
        match self.hit() {
            Some(hit) if hit.charge.bans() => format!("Banned by the rule {}", hit.name()),
            hit => {
                let limit = hit.map(|hit| hit.limit.in_words()).unwrap_or_default();
                let advice = self.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
                format!("Rate limit exceeded: {limit}{advice}")
            }
        }
    }

    /// Returns the time of the decision.
    pub const fn at(&self) -> Timestamp {
        self.decision.at()
    }

    /// Returns the time until the request would fit.
    pub const fn retry_after(&self) -> Option<Span> {
        match self.decision {
            Decision::Deny(deny) => Some(deny.start.since(deny.at)),
            Decision::Closed(Closed { at, until: Some(until), .. }) => Some(until.since(*at)),
            Decision::Allow(_) | Decision::Never(_) | Decision::Closed(_) => None,
        }
    }
}

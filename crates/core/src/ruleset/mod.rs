//! The compiled, immutable configuration that turns a Query into a Plan.
//!
//! Every limit of the product becomes a rule here, wherever it was written, so that metrics,
//! explanations and overrides treat all alike. A reload swaps the whole; a decision sees one.

mod carried;
mod cells;
mod compile;
pub mod explain;
mod index;
mod needs;
mod problem;

use std::sync::Arc;

pub use carried::FormerLimit;
pub(crate) use cells::CellSpec;
pub(crate) use compile::Compiled;
use index::Index;
pub use needs::{Bypass, Need, bypassed, is_set_for_callers, needs};
pub use problem::{Problem, RulesetError};

use crate::id::Id;
use crate::key::Part;
use crate::limit::Limit;
use crate::outage::{Outage, OutagePolicy};
use crate::overrides::Override;
use crate::plan::{Charge, Plan};
use crate::price::{PriceBook, Unpriced};
use crate::query::{Query, Subject};
use crate::rule::{Group, Rule};
use crate::time::{Clock, Span};

/// Everything about a ruleset besides its groups.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Dimensions that every query has to name.
    pub required: Vec<String>,
    /// Further dimensions that a query has to name, by the groups that have no rule for it
    /// otherwise: what [`needs`] finds, unless nothing is to be asked for.
    pub needs: Vec<Need>,
    /// Dimensions that a query may leave out although a group then has no rule for it.
    pub optional: Vec<String>,
    /// Dimensions whose values are hashed before they become part of a key.
    pub secret: Vec<String>,
    /// The key of that hash; the same on every node that shares a store.
    pub hash_key: [u8; 32],
    /// The dimension whose value is in braces in the keys of rules that count by it: what a store
    /// of many servers goes by to keep them together.
    pub partition: Option<String>,
    /// How much later than its start a booking may be used; 1 % of the shortest window (at least
    /// 10 ms) if not set.
    pub slack: Option<Span>,
    /// How far ahead a booking may start.
    pub horizon: Span,
    /// What holds while the store does not answer.
    pub outage: Outage,
    /// What tokens cost.
    pub prices: Arc<PriceBook>,
}

impl Settings {
    /// The least time that a holder gets to use its booking unless configured otherwise.
    pub const SLACK_MIN: Span = Span::from_millis(10);
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            required: Vec::new(),
            needs: Vec::new(),
            optional: Vec::new(),
            secret: vec!["apiKey".to_owned()],
            hash_key: *blake3::hash(b"sluicegate").as_bytes(),
            partition: None,
            slack: None,
            horizon: Span::from_secs(3_600),
            outage: Outage::default(),
            prices: Arc::default(),
        }
    }
}

/// Groups of rules, ready to plan.
#[derive(Clone, Debug)]
pub struct Ruleset {
    /// The dimensions that rules speak of: a rule knows a dimension by its place in here.
    dimensions: Vec<String>,
    groups: Vec<CompiledGroup>,
    effective: usize,
    needs: Vec<CompiledNeed>,
    settings: Settings,
    overrides: Vec<Override>,
    /// The overrides that fit no rule, and why.
    misfits: Vec<(Id, RulesetError)>,
    /// Limits that rules had before, while usage under them may count.
    formers: Vec<FormerLimit>,
}

#[derive(Clone, Debug)]
struct CompiledGroup {
    name: String,
    rules: Vec<Compiled>,
    index: Index,
}

/// What a query has to name for a group, with the dimensions of each set as places.
#[derive(Clone, Debug)]
struct CompiledNeed {
    need: Need,
    sets: Vec<Vec<usize>>,
}

/// The values of a query by the place of their dimension in the ruleset.
struct Values<'a> {
    first: [Option<Part<'a>>; 8],
    /// Of dimensions past the first ones.
    more: Vec<Option<Part<'a>>>,
}

impl<'a> Values<'a> {
    fn new(dimensions: usize) -> Self {
        let first = [None; 8];
        let more = dimensions.saturating_sub(first.len());
        Self { first, more: if more == 0 { Vec::new() } else { vec![None; more] } }
    }

    fn set(&mut self, dimension: usize, part: Part<'a>) {
        match dimension.checked_sub(self.first.len()) {
            None => self.first[dimension] = Some(part),
            Some(place) => self.more[place] = Some(part),
        }
    }

    fn get(&self, dimension: usize) -> Option<Part<'a>> {
        match dimension.checked_sub(self.first.len()) {
            None => self.first[dimension],
            Some(place) => self.more[place],
        }
    }
}

impl Ruleset {
    /// Compiles groups, or says everything that is wrong with them.
    pub fn new(groups: Vec<Group>, settings: Settings) -> Result<Self, Vec<RulesetError>> {
        compile::ruleset(groups, settings)
    }

    /// The same rules, with these overrides and no others.
    #[must_use]
    pub fn with_overrides(&self, overrides: &[Override]) -> Self {
        let mut rules = Self { overrides: overrides.to_vec(), ..self.clone() };
        rules.misfits = compile::overridden(&mut rules, overrides);
        rules.set_transitions();
        rules
    }

    /// The overrides.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// The overrides that fit no rule of these and have no effect, and why.
    pub fn misfits(&self) -> &[(Id, RulesetError)] {
        &self.misfits
    }

    /// What applies when nothing is configured: 100 requests per hour, user and model.
    pub fn default_rules() -> Self {
        let limit = "100/h".parse::<Limit>().expect("the default limit is a limit");
        let rule = Rule::new("USER_MODEL", [limit]).per(&["userId", "modelId"]);
        let required = ["userId", "modelId"].map(str::to_owned).into();
        let settings = Settings { required, ..Settings::default() };
        Self::new(vec![Group::new("caller", [rule])], settings)
            .expect("the default ruleset compiles")
    }

    /// What a query has to be charged, by every group.
    ///
    /// `clock` is that of whoever asks; only calendar windows look at it. Costs O(rules that can
    /// match): rules for other values of a dimension are never looked at.
    pub fn plan<'a>(
        &'a self,
        query: &'a Query<'_>,
        clock: impl Clock,
    ) -> Result<Plan<'a>, PlanError> {
        let mut plan = Plan::new(query, self.settings.horizon);
        self.charge(query, &clock, &mut plan)?;
        plan.keep_if_unknown(query.settle_within);
        plan.set_slack(self.settings.slack);
        Ok(plan)
    }

    /// One plan for several queries, under the id of the first. A rule that replaces others does so
    /// for all of them.
    pub fn plan_together<'a, 'q>(
        &'a self,
        first: &'a Query<'q>,
        rest: &'a [Query<'q>],
        clock: impl Clock,
    ) -> Result<Plan<'a>, PlanError> {
        if rest.is_empty() {
            return self.plan(first, clock);
        }
        let mut plan = Plan::new(first, self.settings.horizon);
        for query in std::iter::once(first).chain(rest) {
            plan.next_part(query);
            self.charge(query, &clock, &mut plan)?;
        }
        plan.replace();
        plan.set_slack(self.settings.slack);
        Ok(plan)
    }

    /// Adds what a query has to be charged.
    fn charge<'a>(
        &'a self,
        query: &'a Query<'_>,
        clock: &impl Clock,
        plan: &mut Plan<'a>,
    ) -> Result<(), PlanError> {
        let values = self.values(query);
        if query.subject == Subject::Whole {
            self.check_complete(query, &values)?;
        }
        plan.of_client = self.policy_for(query);
        let groups = match query.subject {
            Subject::Inline => &[],
            _ => self.groups.as_slice(),
        };
        for (number, group) in groups.iter().enumerate() {
            let mut applies = false;
            for rule in group.index.candidates(&values) {
                let rule = &group.rules[rule];
                if rule.applies_to(query.subject) && rule.matches(&values) {
                    let rule = rule.in_force(&values);
                    rule.charge(number, &values, query, clock, &self.settings, plan)?;
                    if !rule.rule.shadow {
                        applies = true;
                        break;
                    }
                }
            }
            if !applies && query.subject == Subject::Whole {
                self.check_not_avoided(group, &values)?;
            }
        }
        for rule in &query.inline {
            let group = self.groups.len();
            rule.0.charge(group, &values, query, clock, &self.settings, plan)?;
        }
        Ok(())
    }

    /// Refuses a query that leaves out what it has to name.
    fn check_complete(&self, query: &Query<'_>, values: &Values<'_>) -> Result<(), PlanError> {
        let missing = |name: &&String| query.get(name).is_none();
        if let Some(dimension) = self.settings.required.iter().find(missing) {
            return Err(PlanError::Missing { dimension: dimension.clone(), need: None });
        }
        let present = |&place: &usize| values.get(place).is_some();
        let complete = |need: &&CompiledNeed| need.sets.iter().any(|set| set.iter().all(present));
        let Some(CompiledNeed { need, .. }) = self.needs.iter().find(|need| !complete(need)) else {
            return Ok(());
        };
        let nearest = need.sets.iter().min_by_key(|set| set.iter().filter(missing).count());
        let dimension = nearest.and_then(|set| set.iter().find(missing)).cloned();
        Err(PlanError::Missing {
            dimension: dimension.unwrap_or_default(),
            need: Some(need.clone()),
        })
    }

    /// Refuses a query to which no rule of the group applies, although one would if the query named
    /// more dimensions.
    ///
    /// [`Self::check_complete`] looks at names only: where a group has rules for `apiKey: K1` and per
    /// `userId`, any value of `apiKey` would make a query without `userId` complete.
    fn check_not_avoided(
        &self,
        group: &CompiledGroup,
        values: &Values<'_>,
    ) -> Result<(), PlanError> {
        let Some(need) = self.needs.iter().find(|need| need.need.group == group.name) else {
            return Ok(());
        };
        let is_optional = |dimension: usize| {
            self.settings.optional.iter().any(|name| *name == self.dimensions[dimension])
        };
        let mut candidates = group.index.candidates(values).map(|place| &group.rules[place]);
        match candidates.find_map(|rule| rule.avoided_by(values, is_optional)) {
            None => Ok(()),
            Some(dimension) => Err(PlanError::Missing {
                dimension: self.dimensions[dimension].clone(),
                need: Some(need.need.clone()),
            }),
        }
    }

    /// Whether there is no group at all, so that nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The policy of whoever asks, for rules that have none of their own.
    fn policy_for(&self, query: &Query<'_>) -> OutagePolicy {
        let outage = &self.settings.outage;
        if outage.by_client_type.is_empty() {
            return outage.default;
        }
        outage.policy(query.get(Outage::CLIENT_TYPE))
    }

    /// What holds while the store does not answer.
    pub const fn outage(&self) -> &Outage {
        &self.settings.outage
    }

    /// What tokens cost.
    pub fn prices(&self) -> &PriceBook {
        &self.settings.prices
    }

    /// Whether some policy lets something through while the store does not answer.
    pub fn answers_alone(&self) -> bool {
        let outage = &self.settings.outage;
        let of_clients = outage.by_client_type.values().copied().chain([outage.default]);
        let rules = self.groups.iter().flat_map(|group| &group.rules);
        let of_rules = rules.filter_map(|compiled| compiled.rule.outage);
        of_clients.chain(of_rules).any(|policy| policy != OutagePolicy::Closed)
    }

    fn values<'a>(&self, query: &'a Query<'_>) -> Values<'a> {
        let mut values = Values::new(self.dimensions.len());
        for (name, part) in query.parts() {
            if let Some(place) = self.dimensions.iter().position(|other| other == name) {
                values.set(place, part);
            }
        }
        values
    }

    /// Whether a charge belongs to the group that `effectiveLimit` speaks of.
    pub fn is_effective(&self, charge: &Charge<'_>) -> bool {
        charge.group == self.effective
    }

    /// The groups by name, each with its rules in their order.
    pub fn groups(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &Rule>)> {
        self.groups
            .iter()
            .map(|group| (group.name.as_str(), group.rules.iter().map(|compiled| &compiled.rule)))
    }
}

/// Why a query can't be planned; nothing was consumed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A required dimension was left out.
    #[error("{dimension}: {}", missing(dimension, need.as_ref()))]
    Missing {
        /// The dimension to name.
        dimension: String,
        /// The group that has no rule for the query without it; `None` if the configuration
        /// requires the dimension by name.
        need: Option<Need>,
    },
    /// More requests at once than an exact log takes.
    #[error(
        "requests: rule {rule} keeps each request apart and takes at most 1000 at once, not {requests}"
    )]
    TooMany {
        /// The rule that keeps the log.
        rule: String,
        /// How many were asked for.
        requests: u64,
    },
    /// Money is limited, and nobody knows what it costs.
    #[error("modelId: {0}")]
    Unpriced(#[from] Unpriced),
    /// Two literal keys came out the same, for counters of different kinds.
    #[error("rules {rules:?} count under the same key {key} with different limits: change a key")]
    SharedKey {
        /// The key.
        key: String,
        /// The rules.
        rules: [String; 2],
    },
}

/// Says why a dimension is required, and what to do.
fn missing(dimension: &str, need: Option<&Need>) -> String {
    match need {
        None => "is required: name it in the request".to_owned(),
        Some(need @ Need { group, sets }) if sets.len() > 1 => {
            format!("is required: group {group} has no rule for this request: name {need}")
        }
        Some(Need { group, .. }) => format!(
            "is required: group {group} has no rule for a request without it: name it in the \
             request, or declare it optional in the configuration (dimensions: {{{dimension}: \
             optional}})"
        ),
    }
}

#[cfg(test)]
mod tests;

//! [`Ruleset`]: the compiled, immutable rules that turn a query into a plan.
//!
//! Every limit becomes a rule here, independent of where it is configured, so metrics, explanations
//! and overrides treat all alike. A reload replaces the whole ruleset; a decision uses one ruleset
//! from start to end.

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
pub(crate) use compile::CompiledRule;
use index::Index;
pub use needs::{Bypass, Need, bypassed, is_set_for_callers, needs};
pub use problem::{RulesetError, RulesetProblem};

use crate::id::Id;
use crate::key::KeyPart;
use crate::limit::Limit;
use crate::outage::{OutagePolicies, OutagePolicy};
use crate::overrides::Override;
use crate::plan::{Charge, Plan};
use crate::price::{PriceBook, UnknownPrice};
use crate::query::{Query, RuleScope};
use crate::rule::{Group, Rule};
use crate::time::{Clock, Span};

/// All settings of a ruleset besides its groups.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Dimensions that every query must have.
    pub required: Vec<String>,
    /// Further dimensions that a query must have, because some group has no rule for it otherwise:
    /// the result of [`needs`], or empty to require none.
    pub needs: Vec<Need>,
    /// Dimensions that a query may leave out although a group then has no rule for it.
    pub optional: Vec<String>,
    /// Dimensions whose values are hashed in keys.
    pub secret: Vec<String>,
    /// Key of that hash; the same on every node that shares a store.
    pub hash_key: [u8; 32],
    /// Dimension whose value is put in braces in the keys of rules that count by it. A Redis
    /// Cluster keeps keys with the same value in braces in one slot.
    pub partition: Option<String>,
    /// Time after its start within which a booking may be used. Default: 1 % of the shortest
    /// window, at least 10 ms.
    pub slack: Option<Span>,
    /// Maximum time from now to the start of a booking.
    pub horizon: Span,
    /// Outage policies.
    pub outage: OutagePolicies,
    /// Prices of tokens.
    pub prices: Arc<PriceBook>,
}

impl Settings {
    /// Shortest default time within which a booking may be used.
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
            outage: OutagePolicies::default(),
            prices: Arc::default(),
        }
    }
}

/// Compiled groups of rules.
#[derive(Clone, Debug)]
pub struct Ruleset {
    /// Names of all dimensions in rules. Rules refer to a dimension by its index here.
    dimensions: Vec<String>,
    groups: Vec<CompiledGroup>,
    effective: usize,
    needs: Vec<CompiledNeed>,
    settings: Settings,
    overrides: Vec<Override>,
    /// Overrides of unknown rules or with invalid limits, with the error.
    ineffective_overrides: Vec<(Id, RulesetError)>,
    /// Limits that rules had before, while usage under them may still count.
    formers: Vec<FormerLimit>,
}

#[derive(Clone, Debug)]
struct CompiledGroup {
    name: String,
    rules: Vec<CompiledRule>,
    index: Index,
}

/// A need, with the dimensions of each set as indexes.
#[derive(Clone, Debug)]
struct CompiledNeed {
    need: Need,
    sets: Vec<Vec<usize>>,
}

/// Values of a query by the index of their dimension in the ruleset.
struct Values<'a> {
    first: [Option<KeyPart<'a>>; 8],
    /// Values of further dimensions.
    more: Vec<Option<KeyPart<'a>>>,
}

impl<'a> Values<'a> {
    fn new(dimensions: usize) -> Self {
        let first = [None; 8];
        let more = dimensions.saturating_sub(first.len());
        Self { first, more: if more == 0 { Vec::new() } else { vec![None; more] } }
    }

    fn set(&mut self, dimension: usize, part: KeyPart<'a>) {
        match dimension.checked_sub(self.first.len()) {
            None => self.first[dimension] = Some(part),
            Some(place) => self.more[place] = Some(part),
        }
    }

    fn get(&self, dimension: usize) -> Option<KeyPart<'a>> {
        match dimension.checked_sub(self.first.len()) {
            None => self.first[dimension],
            Some(place) => self.more[place],
        }
    }
}

impl Ruleset {
    /// Compiles groups, or returns every error in them.
    pub fn new(groups: Vec<Group>, settings: Settings) -> Result<Self, Vec<RulesetError>> {
        compile::ruleset(groups, settings)
    }

    /// Returns the same rules with these overrides and no others.
    #[must_use]
    pub fn with_overrides(&self, overrides: &[Override]) -> Self {
        let mut rules = Self { overrides: overrides.to_vec(), ..self.clone() };
        rules.ineffective_overrides = compile::set_overrides(&mut rules, overrides);
        rules.set_transitions();
        rules
    }

    /// Returns the overrides.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// Returns the overrides that have no effect, because their rule is unknown or their limits are
    /// invalid for it, with the error.
    pub fn ineffective_overrides(&self) -> &[(Id, RulesetError)] {
        &self.ineffective_overrides
    }

    /// Returns the rules of an empty configuration: 100 requests per hour, user and model.
    pub fn default_rules() -> Self {
        let limit = "100/h".parse::<Limit>().expect("the default limit is a limit");
        let rule = Rule::new("USER_MODEL", [limit]).per(&["userId", "modelId"]);
        let required = ["userId", "modelId"].map(str::to_owned).into();
        let settings = Settings { required, ..Settings::default() };
        Self::new(vec![Group::new("caller", [rule])], settings)
            .expect("the default ruleset compiles")
    }

    /// Returns the charges of a query in all groups.
    ///
    /// `clock` is the caller's; only calendar windows use it. Costs O(rules that can match): rules
    /// for other values of a dimension are skipped.
    pub fn plan<'a>(
        &'a self,
        query: &'a Query<'_>,
        clock: impl Clock,
    ) -> Result<Plan<'a>, PlanError> {
        let mut plan = Plan::new(query, self.settings.horizon);
        self.charge(query, &clock, &mut plan)?;
        plan.keep_if_unknown(query.settle_within);
        plan.set_slack(self.settings.slack, query.pacing);
        Ok(plan)
    }

    /// Returns one plan for several queries, under the id of the first. A rule that replaces others
    /// does so for all queries.
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
            plan.begin_query(query);
            self.charge(query, &clock, &mut plan)?;
        }
        plan.remove_replaced();
        plan.set_slack(self.settings.slack, first.pacing);
        Ok(plan)
    }

    /// Adds the charges of a query.
    fn charge<'a>(
        &'a self,
        query: &'a Query<'_>,
        clock: &impl Clock,
        plan: &mut Plan<'a>,
    ) -> Result<(), PlanError> {
        let values = self.values(query);
        if query.rule_scope == RuleScope::Whole {
            self.check_complete(query, &values)?;
        }
        plan.of_client = self.policy_for(query);
        let groups = match query.rule_scope {
            RuleScope::Inline => &[],
            _ => self.groups.as_slice(),
        };
        for (number, group) in groups.iter().enumerate() {
            let mut applies = false;
            for rule in group.index.candidates(&values) {
                let rule = &group.rules[rule];
                if rule.applies_to(query.rule_scope) && rule.matches(&values) {
                    let rule = rule.in_force(&values);
                    rule.charge(number, &values, query, clock, &self.settings, plan)?;
                    if !rule.rule.shadow {
                        applies = true;
                        break;
                    }
                }
            }
            if !applies && query.rule_scope == RuleScope::Whole {
                self.check_not_avoided(group, &values)?;
            }
        }
        for rule in &query.inline {
            let group = self.groups.len();
            rule.0.charge(group, &values, query, clock, &self.settings, plan)?;
        }
        Ok(())
    }

    /// Returns an error if a query lacks a required dimension.
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

    /// Returns an error if no rule of the group applies to the query, although one would if the
    /// query had more dimensions.
    ///
    /// [`Self::check_complete`] only checks names: if a group has rules for `apiKey: K1` and per
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

    /// Returns true if there are no groups, so nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the outage policy of the client, for rules that have none of their own.
    fn policy_for(&self, query: &Query<'_>) -> OutagePolicy {
        let outage = &self.settings.outage;
        if outage.by_client_type.is_empty() {
            return outage.default;
        }
        outage.policy(query.get(OutagePolicies::CLIENT_TYPE))
    }

    /// Returns the outage policies.
    pub const fn outage(&self) -> &OutagePolicies {
        &self.settings.outage
    }

    /// Returns the settings that the rules were compiled with.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the prices of tokens.
    pub fn prices(&self) -> &PriceBook {
        &self.settings.prices
    }

    /// Returns the prices of tokens, to change them.
    pub fn prices_mut(&mut self) -> &mut PriceBook {
        Arc::make_mut(&mut self.settings.prices)
    }

    /// Returns true if some outage policy admits requests while the store does not answer.
    pub fn admits_during_outage(&self) -> bool {
        let outage = &self.settings.outage;
        let of_clients = outage.by_client_type.values().copied().chain([outage.default]);
        let rules = self.groups.iter().flat_map(|group| &group.rules);
        let of_rules = rules.filter_map(|compiled| compiled.rule.outage);
        of_clients.chain(of_rules).any(|policy| policy != OutagePolicy::Closed)
    }

    fn values<'a>(&self, query: &'a Query<'_>) -> Values<'a> {
        let mut values = Values::new(self.dimensions.len());
        for (name, part) in query.key_parts() {
            if let Some(place) = self.dimensions.iter().position(|other| other == name) {
                values.set(place, part);
            }
        }
        values
    }

    /// Returns true if a charge belongs to the group that `effectiveLimit` refers to.
    pub fn is_effective(&self, charge: &Charge<'_>) -> bool {
        charge.group == self.effective
    }

    /// Returns the groups by name, each with its rules in their order.
    pub fn groups(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &Rule>)> {
        self.groups
            .iter()
            .map(|group| (group.name.as_str(), group.rules.iter().map(|compiled| &compiled.rule)))
    }
}

/// Error of planning a query. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A required dimension is missing.
    #[error("{dimension}: {}", missing(dimension, need.as_ref()))]
    Missing {
        /// The missing dimension.
        dimension: String,
        /// The group that has no rule for the query without it; `None` if the configuration
        /// requires the dimension.
        need: Option<Need>,
    },
    /// More requests at once than an exact log accepts.
    #[error("requests: rule {rule} counts exactly and allows at most 1000 at once, not {requests}")]
    TooMany {
        /// The rule with the log.
        rule: String,
        /// Number of requests.
        requests: u64,
    },
    /// Money is limited, and the price is unknown.
    #[error("modelId: {0}")]
    UnknownPrice(#[from] UnknownPrice),
    /// Two rules have the same literal key, but different limits.
    #[error("rules {rules:?} count under the same key {key} with different limits: change a key")]
    SharedKey {
        /// The key.
        key: String,
        /// The rules.
        rules: [String; 2],
    },
}

/// Returns why a dimension is required and how to fix it.
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

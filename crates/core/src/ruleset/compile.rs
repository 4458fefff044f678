//! Compiles rules as written in a configuration to [`CompiledRule`] rules, which create charges.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::carried::Transition;
use super::cells::{CellSpec, MeterSpec, cells};
use super::problem::{RulesetError, RulesetProblem};
use super::{
    CompiledGroup, CompiledNeed, Index, PlanError, Ruleset, Settings, Values, is_set_for_callers,
};
use crate::algorithm::log;
use crate::id::Id;
use crate::key::{Key, KeyPart};
use crate::limit::Unit;
use crate::money::Money;
use crate::overrides::Override;
use crate::plan::{Charge, Plan};
use crate::price::TokenCounts;
use crate::query::{OWN, Query, RuleScope};
use crate::rule::{EstimateMode, Group, InlineRule, Pattern, Rule, SecretHasher};
use crate::time::Clock;

/// A rule with indexes for its dimensions and with the counters that it charges.
#[derive(Clone, Debug)]
pub(crate) struct CompiledRule {
    pub(crate) rule: Rule,
    pub(super) when: Vec<(usize, Pattern)>,
    key: Vec<KeyPiece>,
    required: Vec<usize>,
    pub(crate) cells: Vec<CellSpec>,
    /// Counters that replace `cells` while usage of former limits counts.
    pub(super) transition: Option<Box<Transition>>,
    /// The same rule with the limits of its overrides.
    overrides: Option<Box<CompiledOverrides>>,
    /// Id of the override that made this rule, if one did.
    override_id: Option<Id>,
}

/// The overrides of a rule, newest first.
#[derive(Clone, Debug)]
struct CompiledOverrides {
    rules: Vec<CompiledRule>,
    index: Index,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyPiece {
    Text(String),
    Value { dimension: usize, secret: bool },
}

/// Compiles all groups, or returns all errors.
pub(super) fn ruleset(
    groups: Vec<Group>,
    settings: Settings,
) -> Result<Ruleset, Vec<RulesetError>> {
    let mut errors = Vec::new();
    check_names(&groups, &mut errors);
    check_templates(&groups, &mut errors);
    let effective = check_effective(&groups, &mut errors);
    let mut dimensions = Vec::new();
    let mut compiled = Vec::new();
    for group in groups {
        if group.rules.is_empty() {
            let place = format!("group {}", group.name);
            errors.push(RulesetError { place, problem: RulesetProblem::NoRules });
        }
        let mut rules = Vec::new();
        for rule in group.rules {
            match CompiledRule::new(rule, &mut dimensions, &settings) {
                Ok(rule) => rules.push(rule),
                Err(error) => errors.push(error),
            }
        }
        let index = Index::new(&rules);
        compiled.push(CompiledGroup { name: group.name, rules, index });
    }
    if errors.is_empty() {
        let needs = needs(&settings, &mut dimensions);
        Ok(Ruleset {
            dimensions,
            groups: compiled,
            effective,
            needs,
            settings,
            overrides: Vec::new(),
            ineffective_overrides: Vec::new(),
            formers: Vec::new(),
        })
    } else {
        Err(errors)
    }
}

/// Compiles the needs of the settings.
fn needs(settings: &Settings, dimensions: &mut Vec<String>) -> Vec<CompiledNeed> {
    let compiled = settings.needs.iter().map(|need| {
        let sets = need.sets.iter();
        let sets = sets.map(|set| set.iter().map(|name| place(dimensions, name)).collect());
        CompiledNeed { need: need.clone(), sets: sets.collect() }
    });
    compiled.collect()
}

/// Returns the index of a dimension, which is added if it is new.
fn place(dimensions: &mut Vec<String>, name: &str) -> usize {
    dimensions.iter().position(|other| other == name).unwrap_or_else(|| {
        dimensions.push(name.to_owned());
        dimensions.len() - 1
    })
}

/// Replaces all overrides. Returns those that have no effect, with the error.
pub(super) fn set_overrides(
    ruleset: &mut Ruleset,
    overrides: &[Override],
) -> Vec<(Id, RulesetError)> {
    let mut ineffective_overrides = Vec::new();
    let mut newest_first: Vec<&Override> = overrides.iter().collect();
    newest_first.sort_by_key(|one| (Reverse(one.since), one.id));
    let Ruleset { dimensions, groups, settings, .. } = ruleset;
    let mut places = HashMap::new();
    for (group, CompiledGroup { rules, .. }) in groups.iter_mut().enumerate() {
        for (place, rule) in rules.iter_mut().enumerate() {
            rule.overrides = None;
            places.insert(rule.rule.name.clone(), (group, place));
        }
    }
    let mut compiled: HashMap<(usize, usize), Vec<CompiledRule>> = HashMap::new();
    for one in newest_first {
        let Some(&place) = places.get(&one.rule) else {
            let place = format!("rule {}", one.rule);
            ineffective_overrides
                .push((one.id, RulesetError { place, problem: RulesetProblem::NoSuchRule }));
            continue;
        };
        let rule = one.apply(&groups[place.0].rules[place.1].rule);
        match CompiledRule::new(rule, dimensions, settings) {
            Ok(rule) => {
                let rule = CompiledRule { override_id: Some(one.id), ..rule };
                compiled.entry(place).or_default().push(rule);
            }
            Err(error) => ineffective_overrides.push((one.id, error)),
        }
    }
    for ((group, place), rules) in compiled {
        let index = Index::new(&rules);
        groups[group].rules[place].overrides = Some(Box::new(CompiledOverrides { rules, index }));
    }
    ineffective_overrides
}

fn check_names(groups: &[Group], errors: &mut Vec<RulesetError>) {
    let mut seen = HashMap::new();
    let rules = groups.iter().flat_map(|group| &group.rules).map(|rule| ("rule", &rule.name));
    for (kind, name) in groups.iter().map(|group| ("group", &group.name)).chain(rules) {
        let mut fail = |problem| {
            errors.push(RulesetError { place: format!("{kind} {name}"), problem });
        };
        if name.is_empty() || name.len() > 64 {
            fail(RulesetProblem::Name);
        } else if seen.insert((kind, name), ()).is_some() {
            fail(RulesetProblem::Duplicate);
        }
    }
}

fn check_effective(groups: &[Group], errors: &mut Vec<RulesetError>) -> usize {
    let mut marked = groups.iter().enumerate().filter(|(_, group)| group.effective);
    let first = marked.next();
    for (_, group) in marked {
        let other = first.map(|(_, group)| group.name.clone()).unwrap_or_default();
        let place = format!("group {}", group.name);
        errors.push(RulesetError { place, problem: RulesetProblem::Effective(other) });
    }
    first.map_or(0, |(place, _)| place)
}

/// Checks that rules with the same literal key, which share a counter, have the same limits.
fn check_templates(groups: &[Group], errors: &mut Vec<RulesetError>) {
    let mut seen: HashMap<&str, &Rule> = HashMap::new();
    for rule in groups.iter().flat_map(|group| &group.rules) {
        let Some(key) = &rule.key else { continue };
        let first = *seen.entry(key).or_insert(rule);
        if first.limits != rule.limits {
            let problem =
                RulesetProblem::TemplateShared { key: key.clone(), other: first.name.clone() };
            errors.push(RulesetError { place: format!("rule {}", rule.name), problem });
        }
    }
}

impl CompiledRule {
    fn new(
        rule: Rule,
        dimensions: &mut Vec<String>,
        settings: &Settings,
    ) -> Result<Self, RulesetError> {
        let mut place = |name: &str| place(dimensions, name);
        let when = rule.when.iter().map(|(name, pattern)| (place(name), pattern.clone()));
        let when: Vec<_> = when.collect();
        let mut required: Vec<_> = rule.per.iter().map(|name| place(name)).collect();
        let mut value = |name: &str| KeyPiece::Value {
            dimension: place(name),
            secret: settings.secret.iter().any(|other| other == name),
        };
        let key = match &rule.key {
            Some(template) => pieces(&rule, template, &mut value)?,
            None => {
                let mut prefix = Key::start("");
                prefix.push_value(&rule.name);
                let mut text = prefix.as_str().to_owned();
                let mut key = Vec::new();
                let partition = partition(&rule, settings);
                for name in &rule.per {
                    let together = partition == Some(name);
                    text.push_str(if together { ":{" } else { ":" });
                    key.push(KeyPiece::Text(std::mem::take(&mut text)));
                    key.push(value(name));
                    text.push_str(if together { "}" } else { "" });
                }
                if !text.is_empty() {
                    key.push(KeyPiece::Text(text));
                }
                key
            }
        };
        for piece in &key {
            if let KeyPiece::Value { dimension, .. } = piece
                && !required.contains(dimension)
            {
                required.push(*dimension);
            }
        }
        let cells = cells(&rule)?;
        Ok(Self {
            rule,
            when,
            key,
            required,
            cells,
            transition: None,
            overrides: None,
            override_id: None,
        })
    }

    /// Creates a rule under a key of the caller's choice.
    pub(crate) fn inline(rule: Rule, key: &str) -> Result<Self, RulesetError> {
        // No rule of a configuration has a key with this start: `~` is escaped there.
        let mut text = Key::start(InlineRule::KEY_START);
        text.push_value(key);
        let cells = cells(&rule)?;
        let key = vec![KeyPiece::Text(text.as_str().to_owned())];
        Ok(Self {
            rule,
            when: Vec::new(),
            key,
            required: Vec::new(),
            cells,
            transition: None,
            overrides: None,
            override_id: None,
        })
    }

    /// Returns the overrides of this rule.
    pub(super) fn overriding(&self) -> &[Self] {
        self.overrides.as_ref().map_or(&[], |overrides| &overrides.rules)
    }

    /// Returns the overrides of this rule, to change them.
    pub(super) fn overriding_mut(&mut self) -> &mut [Self] {
        self.overrides.as_mut().map_or(&mut [], |overrides| &mut overrides.rules)
    }

    /// Returns the counters that it charges at the time of `clock`.
    fn cells_at(&self, clock: &impl Clock) -> &[CellSpec] {
        match &self.transition {
            Some(transition) if clock.now() < transition.until => &transition.cells,
            _ => &self.cells,
        }
    }

    /// Returns the newest override that matches these values, or the rule itself if none does.
    #[inline]
    pub(super) fn in_force(&self, values: &Values<'_>) -> &Self {
        let Some(overrides) = &self.overrides else { return self };
        let mut fitting = overrides.index.candidates(values).map(|place| &overrides.rules[place]);
        fitting.find(|rule| rule.matches(values)).unwrap_or(self)
    }

    /// Returns true if the rule applies to queries of this kind.
    pub(super) fn applies_to(&self, rule_scope: RuleScope) -> bool {
        match rule_scope {
            RuleScope::Own => self.rule.is_own(),
            RuleScope::Common => !self.rule.is_own(),
            RuleScope::Whole | RuleScope::View | RuleScope::Inline => true,
        }
    }

    /// Returns the first missing dimension of a rule that would match if the query had more
    /// dimensions. Returns `None` for rules that a query may avoid: shadow rules, rules that
    /// callers never match, and rules for which an optional dimension is missing.
    pub(super) fn avoided_by(
        &self,
        values: &Values<'_>,
        is_optional: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if self.rule.shadow || self.rule.dimensions().any(is_set_for_callers) {
            return None;
        }
        let holds = |(dimension, pattern): &(usize, Pattern)| {
            values.get(*dimension).is_none_or(|value| pattern.matches(value.text))
        };
        if !self.when.iter().all(holds) {
            return None;
        }
        let conditions = self.when.iter().map(|(dimension, _)| dimension);
        let needed = self.required.iter().chain(conditions).copied();
        let mut missing = needed.filter(|&dimension| values.get(dimension).is_none()).peekable();
        let first = missing.peek().copied();
        first.filter(|_| !missing.any(is_optional))
    }

    /// Returns the id of the override that made this rule, if one did.
    pub(super) const fn override_id(&self) -> Option<Id> {
        self.override_id
    }

    /// Returns the first dimension that prevents a match: a missing one, or one with another value.
    pub(super) fn mismatch<'v>(
        &self,
        values: &Values<'v>,
    ) -> Option<(usize, Option<(&'v str, &Pattern)>)> {
        let missing = self.required.iter().find(|&&dimension| values.get(dimension).is_none());
        if let Some(&dimension) = missing {
            return Some((dimension, None));
        }
        self.when.iter().find_map(|(dimension, pattern)| match values.get(*dimension) {
            None => Some((*dimension, None)),
            Some(value) if fits(pattern, value) => None,
            Some(value) => Some((*dimension, Some((value.text, pattern)))),
        })
    }

    pub(super) fn matches(&self, values: &Values<'_>) -> bool {
        self.required.iter().all(|&dimension| values.get(dimension).is_some())
            && self.when.iter().all(|(dimension, pattern)| {
                values.get(*dimension).is_some_and(|value| fits(pattern, value))
            })
    }

    /// Adds the charges of the query under this rule to the plan.
    pub(super) fn charge<'a>(
        &'a self,
        group: usize,
        values: &Values<'_>,
        query: &Query<'_>,
        clock: &impl Clock,
        settings: &Settings,
        plan: &mut Plan<'a>,
    ) -> Result<(), PlanError> {
        if self.rule.unlimited {
            plan.set_unlimited(&self.rule);
        }
        for cell in self.cells_at(clock) {
            let take = match cell.unit {
                _ if cell.gate => 0,
                Unit::Slots => 1,
                Unit::Requests => query.cost.of(Unit::Requests).unwrap_or(1),
                Unit::Usd => money(query, settings)?,
                unit => query.cost.of(unit).unwrap_or(0),
            };
            let identity = match cell.unit {
                Unit::Usd if !cell.gate && query.cost.money.is_none() => {
                    TokenCounts::expected(query).identity()
                }
                _ => take,
            };
            let need = match self.rule.mode {
                EstimateMode::Strict => take.max(1),
                EstimateMode::Optimistic => 1,
            };
            // The log of a former limit never denies what the current limit admits.
            let is_former_log = cell.carried && matches!(cell.spec, MeterSpec::Log(_));
            let entries_max = if is_former_log { log::ENTRIES_PER_CHARGE_MAX } else { u64::MAX };
            let (take, need) = (take.min(entries_max), need.min(entries_max));
            // An amount that can never fit is never written, so it may exceed the number of
            // entries.
            if let MeterSpec::Log(quotas) = &cell.spec
                && take > log::ENTRIES_PER_CHARGE_MAX
                && quotas.iter().all(|quota| need <= quota.limit)
            {
                let rule = self.rule.name.clone();
                return Err(PlanError::TooMany { rule, requests: take });
            }
            let charge = Charge {
                key: Key::start(""),
                meter: cell.spec.meter(clock),
                need,
                take,
                identity,
                group,
                rule: &self.rule,
                cell,
            };
            plan.push(charge, |key| self.write_key(key, cell, values, settings))?;
        }
        Ok(())
    }

    /// Appends the values by which this rule counts to a key.
    fn write_key(&self, key: &mut Key, cell: &CellSpec, values: &Values<'_>, settings: &Settings) {
        key.push_literal(cell.prefix);
        for piece in &self.key {
            match piece {
                KeyPiece::Text(text) => key.push_literal(text),
                KeyPiece::Value { dimension, secret } => {
                    let value =
                        values.get(*dimension).expect("a rule that matches has its dimensions");
                    if *secret {
                        key.push_literal(&SecretHasher::new(settings.hash_key).hash(value.text));
                    } else {
                        key.push_part(value);
                    }
                }
            }
        }
        key.push_literal(&cell.suffix);
    }
}

/// Returns true if a value matches a pattern. A pattern with stars is compared with the full text
/// of a long value.
fn fits(pattern: &Pattern, value: KeyPart<'_>) -> bool {
    match pattern {
        Pattern::Stars(_) => pattern.matches(value.whole),
        Pattern::OneOf(_) | Pattern::Glob(_) | Pattern::Hashed(..) => pattern.matches(value.text),
    }
}

/// Returns the cost of a query in nano-dollars, as stated or computed from its tokens.
///
/// A view of work that another query pays for has no tokens, so its price is not needed.
fn money(query: &Query<'_>, settings: &Settings) -> Result<u64, PlanError> {
    let stated = query.cost.of(Unit::Usd);
    if stated.is_some() || query.rule_scope != RuleScope::Whole {
        return Ok(stated.unwrap_or(0));
    }
    Ok(settings.prices.expect(query)?.map_or(0, Money::as_nanos))
}

/// Splits a template such as `ziraai:worker:ratelimit:<provider>` into pieces.
fn pieces(
    rule: &Rule,
    template: &str,
    value: &mut impl FnMut(&str) -> KeyPiece,
) -> Result<Vec<KeyPiece>, RulesetError> {
    let fail = |problem| RulesetError { place: format!("rule {}", rule.name), problem };
    let malformed = || fail(RulesetProblem::Template(template.to_owned()));
    let mut pieces = Vec::new();
    let mut names = Vec::new();
    let mut rest = template;
    while let Some((text, after)) = rest.split_once('<') {
        let (name, after) = after.split_once('>').ok_or_else(malformed)?;
        if name.is_empty() {
            return Err(malformed());
        }
        names.push(name);
        pieces.push(KeyPiece::Text(text.to_owned()));
        pieces.push(value(name));
        rest = after;
    }
    pieces.push(KeyPiece::Text(rest.to_owned()));
    if template.is_empty() {
        return Err(malformed());
    }
    if template.contains('#') {
        return Err(fail(RulesetProblem::TemplateMark(template.to_owned())));
    }
    for dimension in &rule.per {
        if !names.contains(&dimension.as_str()) {
            let (key, dimension) = (template.to_owned(), dimension.clone());
            return Err(fail(RulesetProblem::TemplateDimension { key, dimension }));
        }
    }
    Ok(pieces)
}

/// Returns the dimension that keeps the counters of a rule in one cluster slot. One of our own
/// dimensions comes first, because bookings for an upstream have to be in one slot.
fn partition<'r>(rule: &'r Rule, settings: &'r Settings) -> Option<&'r String> {
    let own = rule.per.iter().find(|name| name.starts_with(OWN));
    own.or(settings.partition.as_ref())
}

//! From rules as they are written to rules that can be charged.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use super::{CompiledGroup, Index, PlanError, Ruleset, Settings, Values};
use crate::algorithm::{Meter, bucket, concurrency, log, window};
use crate::id::Id;
use crate::key::Key;
use crate::limit::{Calendar, Limit, Unit};
use crate::money::Money;
use crate::overrides::Override;
use crate::plan::{Charge, Plan};
use crate::price::Tokens;
use crate::query::{OWN, Query, Subject};
use crate::rule::{Group, InlineRule, Mode, Pattern, Rule};
use crate::time::{Clock, Span};

/// A rule whose dimensions are places, with the cells that it charges.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub(crate) rule: Rule,
    pub(super) when: Vec<(usize, Pattern)>,
    key: Vec<Piece>,
    required: Vec<usize>,
    pub(crate) cells: Vec<CellSpec>,
    /// The same rule with other limits for some.
    overrides: Option<Box<Overrides>>,
}

/// The overrides of a rule, newest first.
#[derive(Clone, Debug)]
struct Overrides {
    rules: Vec<Compiled>,
    index: Index,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Value { dimension: usize, secret: bool },
}

/// One state that a rule charges: all exact windows of a rule together, or one other limit.
#[derive(Clone, Debug)]
pub(crate) struct CellSpec {
    pub(crate) unit: Unit,
    pub(crate) limits: Vec<Limit>,
    /// A hundredth of its shortest window: how late a booking may be used unless configured
    /// otherwise. `None` if it can't be booked.
    pub(crate) slack: Option<Span>,
    /// The limits as they are written: every answer repeats them.
    pub(crate) texts: Vec<Box<str>>,
    /// What its key begins with, beside what the rule counts by; only a gate's does.
    prefix: &'static str,
    /// What tells the cells of one rule apart; empty for a literal key.
    suffix: String,
    /// It is not charged: it only has to be open.
    pub(crate) gate: bool,
    /// The name of the cell that takes what no longer has room for a key of its own.
    pub(crate) overflow: String,
    spec: Spec,
}

#[derive(Clone, Debug)]
pub(crate) enum Spec {
    Log(Vec<log::Quota>),
    Windowed(window::Quota),
    Calendar(u64, Calendar),
    Bucket(bucket::Quota),
    Leases(concurrency::Quota),
}

/// What is wrong with a rule or a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct RulesetError {
    /// `rule NAME` or `group NAME`.
    pub place: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a rule or a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The name is missing or long.
    #[error("a name has 1 to 64 bytes")]
    Name,
    /// The name is taken.
    #[error("this name is taken: counters are kept by it, give each its own")]
    Duplicate,
    /// A rule without limits.
    #[error("has no limit: write at least one, such as limit: 100/h")]
    NoLimits,
    /// A group without rules.
    #[error("has no rules: write at least one, or leave the group out")]
    NoRules,
    /// Two groups claim `effectiveLimit`.
    #[error("only one group can be effective, and {0} already is")]
    Effective(String),
    /// Two limits of which one can never bind.
    #[error("{0} and {1} limit the same window: keep the smaller one")]
    SameWindow(String, String),
    /// A lease of no length.
    #[error("lease: a slot that is held for no time limits nothing: write at least 1s")]
    Lease,
    /// `<` without `>` or without a name.
    #[error("key: {0:?} is not a template: write dimensions as <name>")]
    Template(String),
    /// What the keys of rules without a template have, and only they.
    #[error("key: {0:?} contains #, which marks keys that are not literal: choose another sign")]
    TemplateMark(String),
    /// The template would merge counters that `per` keeps apart.
    #[error("key: {key:?} leaves out {dimension}, by which the rule counts: add <{dimension}>")]
    TemplateDimension {
        /// The template.
        key: String,
        /// What it leaves out.
        dimension: String,
    },
    /// A literal key can hold one counter.
    #[error("key: a literal key holds one counter, but these limits need {0}: split the rule")]
    TemplateCells(usize),
    /// Two rules count under one literal key, differently.
    #[error("key: {key:?} is the key of rule {other} too, which has other limits")]
    TemplateShared {
        /// The template.
        key: String,
        /// The other rule.
        other: String,
    },
    /// An override of a rule that there isn't.
    #[error("there is no rule of this name: see the rules of the configuration")]
    NoSuchRule,
    /// A condition that nothing can fulfil.
    #[error("when {0}: an empty list matches nothing")]
    NoValues(String),
}

/// Compiles everything, or reports everything.
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
            errors.push(RulesetError { place, problem: Problem::NoRules });
        }
        let mut rules = Vec::new();
        for rule in group.rules {
            match Compiled::new(rule, &mut dimensions, &settings) {
                Ok(rule) => rules.push(rule),
                Err(error) => errors.push(error),
            }
        }
        let index = Index::new(&rules);
        compiled.push(CompiledGroup { name: group.name, rules, index });
    }
    if errors.is_empty() {
        let (overrides, misfits) = (Vec::new(), Vec::new());
        Ok(Ruleset { dimensions, groups: compiled, effective, settings, overrides, misfits })
    } else {
        Err(errors)
    }
}

/// Puts overrides in the place of those that there are. Returns what does not fit, and why.
pub(super) fn overridden(ruleset: &mut Ruleset, overrides: &[Override]) -> Vec<(Id, RulesetError)> {
    let mut misfits = Vec::new();
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
    let mut compiled: HashMap<(usize, usize), Vec<Compiled>> = HashMap::new();
    for one in newest_first {
        let Some(&place) = places.get(&one.rule) else {
            let place = format!("rule {}", one.rule);
            misfits.push((one.id, RulesetError { place, problem: Problem::NoSuchRule }));
            continue;
        };
        let rule = one.apply(&groups[place.0].rules[place.1].rule);
        match Compiled::new(rule, dimensions, settings) {
            Ok(rule) => compiled.entry(place).or_default().push(rule),
            Err(error) => misfits.push((one.id, error)),
        }
    }
    for ((group, place), rules) in compiled {
        let index = Index::new(&rules);
        groups[group].rules[place].overrides = Some(Box::new(Overrides { rules, index }));
    }
    misfits
}

fn check_names(groups: &[Group], errors: &mut Vec<RulesetError>) {
    let mut seen = HashMap::new();
    let rules = groups.iter().flat_map(|group| &group.rules).map(|rule| ("rule", &rule.name));
    for (kind, name) in groups.iter().map(|group| ("group", &group.name)).chain(rules) {
        let mut fail = |problem| {
            errors.push(RulesetError { place: format!("{kind} {name}"), problem });
        };
        if name.is_empty() || name.len() > 64 {
            fail(Problem::Name);
        } else if seen.insert((kind, name), ()).is_some() {
            fail(Problem::Duplicate);
        }
    }
}

fn check_effective(groups: &[Group], errors: &mut Vec<RulesetError>) -> usize {
    let mut marked = groups.iter().enumerate().filter(|(_, group)| group.effective);
    let first = marked.next();
    for (_, group) in marked {
        let other = first.map(|(_, group)| group.name.clone()).unwrap_or_default();
        let place = format!("group {}", group.name);
        errors.push(RulesetError { place, problem: Problem::Effective(other) });
    }
    first.map_or(0, |(place, _)| place)
}

/// Rules that share a literal key share a counter, which can't have two sets of limits.
fn check_templates(groups: &[Group], errors: &mut Vec<RulesetError>) {
    let mut seen: HashMap<&str, &Rule> = HashMap::new();
    for rule in groups.iter().flat_map(|group| &group.rules) {
        let Some(key) = &rule.key else { continue };
        let first = *seen.entry(key).or_insert(rule);
        if first.limits != rule.limits {
            let problem = Problem::TemplateShared { key: key.clone(), other: first.name.clone() };
            errors.push(RulesetError { place: format!("rule {}", rule.name), problem });
        }
    }
}

impl Compiled {
    fn new(
        rule: Rule,
        dimensions: &mut Vec<String>,
        settings: &Settings,
    ) -> Result<Self, RulesetError> {
        let mut place = |name: &str| {
            dimensions.iter().position(|other| other == name).unwrap_or_else(|| {
                dimensions.push(name.to_owned());
                dimensions.len() - 1
            })
        };
        let when = rule.when.iter().map(|(name, pattern)| (place(name), pattern.clone()));
        let when: Vec<_> = when.collect();
        let mut required: Vec<_> = rule.per.iter().map(|name| place(name)).collect();
        let mut value = |name: &str| Piece::Value {
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
                    key.push(Piece::Text(std::mem::take(&mut text)));
                    key.push(value(name));
                    text.push_str(if together { "}" } else { "" });
                }
                if !text.is_empty() {
                    key.push(Piece::Text(text));
                }
                key
            }
        };
        for piece in &key {
            if let Piece::Value { dimension, .. } = piece
                && !required.contains(dimension)
            {
                required.push(*dimension);
            }
        }
        let cells = cells(&rule)?;
        Ok(Self { rule, when, key, required, cells, overrides: None })
    }

    /// A rule under a key of the caller's choice.
    pub(crate) fn inline(rule: Rule, key: &str) -> Result<Self, RulesetError> {
        // No rule of a configuration makes a key that begins like this: `~` is escaped there.
        let mut text = Key::start(InlineRule::KEY_START);
        text.push_value(key);
        let cells = cells(&rule)?;
        let key = vec![Piece::Text(text.as_str().to_owned())];
        let (when, required, overrides) = (Vec::new(), Vec::new(), None);
        Ok(Self { rule, when, key, required, cells, overrides })
    }

    /// Itself as it is for these values: the newest override that fits, if one does.
    #[inline]
    pub(super) fn in_force(&self, values: &Values<'_>) -> &Self {
        let Some(overrides) = &self.overrides else { return self };
        let mut fitting = overrides.index.candidates(values).map(|place| &overrides.rules[place]);
        fitting.find(|rule| rule.matches(values)).unwrap_or(self)
    }

    /// Whether queries of this kind are asked about.
    pub(super) fn applies_to(&self, subject: Subject) -> bool {
        match subject {
            Subject::Own => self.rule.is_own(),
            Subject::Common => !self.rule.is_own(),
            Subject::Whole | Subject::View | Subject::Inline => true,
        }
    }

    pub(super) fn matches(&self, values: &Values<'_>) -> bool {
        self.required.iter().all(|&dimension| values.get(dimension).is_some())
            && self.when.iter().all(|(dimension, pattern)| {
                values.get(*dimension).is_some_and(|value| pattern.matches(value.text))
            })
    }

    /// Adds to the plan what the query has to pay under this rule.
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
            plan.unlimited = Some(&self.rule);
        }
        for cell in &self.cells {
            let take = match cell.unit {
                _ if cell.gate => 0,
                Unit::Slots => 1,
                Unit::Requests => query.cost.of(Unit::Requests).unwrap_or(1),
                Unit::Usd => money(query, settings)?,
                unit => query.cost.of(unit).unwrap_or(0),
            };
            let identity = match cell.unit {
                Unit::Usd if !cell.gate && query.cost.money.is_none() => {
                    Tokens::expected(query).identity()
                }
                _ => take,
            };
            let need = match self.rule.mode {
                Mode::Strict => take.max(1),
                Mode::Optimistic => 1,
            };
            // What can never fit is never written.
            if let Spec::Log(quotas) = &cell.spec
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
            plan.push(charge, |key| self.name(key, cell, values, settings))?;
        }
        Ok(())
    }

    /// Adds to a key what this rule counts by.
    fn name(&self, key: &mut Key, cell: &CellSpec, values: &Values<'_>, settings: &Settings) {
        key.push_literal(cell.prefix);
        for piece in &self.key {
            match piece {
                Piece::Text(text) => key.push_literal(text),
                Piece::Value { dimension, secret } => {
                    let value =
                        values.get(*dimension).expect("a rule that matches has its dimensions");
                    if *secret {
                        key.push_literal(&hashed(&settings.hash_key, value.text));
                    } else {
                        key.push_part(value);
                    }
                }
            }
        }
        key.push_literal(&cell.suffix);
    }
}

/// What a query costs, as it says itself or as its tokens do, in nano-dollars.
///
/// A view on work that others charge for brings no tokens, and is not asked for its price.
fn money(query: &Query<'_>, settings: &Settings) -> Result<u64, PlanError> {
    let stated = query.cost.of(Unit::Usd);
    if stated.is_some() || query.subject != Subject::Whole {
        return Ok(stated.unwrap_or(0));
    }
    Ok(settings.prices.expect(query)?.map_or(0, Money::as_nanos))
}

/// The keyed hash that stands for a secret value.
fn hashed(key: &[u8; 32], value: &str) -> String {
    let hash = blake3::keyed_hash(key, value.as_bytes());
    hash.to_hex()[..32].to_owned()
}

/// `ziraai:worker:ratelimit:<provider>` as pieces.
fn pieces(
    rule: &Rule,
    template: &str,
    value: &mut impl FnMut(&str) -> Piece,
) -> Result<Vec<Piece>, RulesetError> {
    let fail = |problem| RulesetError { place: format!("rule {}", rule.name), problem };
    let malformed = || fail(Problem::Template(template.to_owned()));
    let mut pieces = Vec::new();
    let mut names = Vec::new();
    let mut rest = template;
    while let Some((text, after)) = rest.split_once('<') {
        let (name, after) = after.split_once('>').ok_or_else(malformed)?;
        if name.is_empty() {
            return Err(malformed());
        }
        names.push(name);
        pieces.push(Piece::Text(text.to_owned()));
        pieces.push(value(name));
        rest = after;
    }
    pieces.push(Piece::Text(rest.to_owned()));
    if template.is_empty() {
        return Err(malformed());
    }
    if template.contains('#') {
        return Err(fail(Problem::TemplateMark(template.to_owned())));
    }
    for dimension in &rule.per {
        if !names.contains(&dimension.as_str()) {
            let (key, dimension) = (template.to_owned(), dimension.clone());
            return Err(fail(Problem::TemplateDimension { key, dimension }));
        }
    }
    Ok(pieces)
}

/// The cells of a rule: one log for all exact windows of a unit, one cell for any other limit.
fn cells(rule: &Rule) -> Result<Vec<CellSpec>, RulesetError> {
    let fail = |problem| Err(RulesetError { place: format!("rule {}", rule.name), problem });
    if rule.limits.is_empty() && !rule.unlimited {
        return fail(Problem::NoLimits);
    }
    if let Some((name, _)) = rule.when.iter().find(|(_, pattern)| match pattern {
        Pattern::OneOf(values) => values.is_empty(),
        Pattern::Glob(_) => false,
    }) {
        return fail(Problem::NoValues(name.clone()));
    }
    let mut cells: Vec<CellSpec> = Vec::new();
    for limit in &rule.limits {
        let unit = limit.unit();
        let spec = Spec::new(limit, rule);
        if let Spec::Leases(quota) = &spec
            && quota.lease.as_micros() == 0
        {
            return fail(Problem::Lease);
        }
        if let Spec::Log(quotas) = &spec
            && let Some(log) = cells.iter_mut().find(|cell| matches!(cell.spec, Spec::Log(_)))
        {
            if let Some(twin) = log.limits.iter().find(|l| l.window() == limit.window()) {
                return fail(Problem::SameWindow(twin.to_string(), limit.to_string()));
            }
            log.limits.push(limit.clone());
            log.texts.push(limit.to_string().into());
            if let Spec::Log(known) = &mut log.spec {
                known.extend(quotas);
            }
            continue;
        }
        let suffix = match (&rule.key, limit) {
            (Some(_), _) => String::new(),
            (None, Limit::Exact(_)) => format!("#{unit}"),
            (None, Limit::Windowed(rate)) => format!("#{unit}/{}", rate.window),
            (None, Limit::Calendar { calendar, .. }) => format!("#{unit}/{calendar}"),
            (None, Limit::Bucket { rate, .. }) => format!("#{unit}~{}", rate.window),
            (None, Limit::Concurrent(_)) => format!("#{unit}"),
        };
        if rule.key.is_none()
            && let Some(twin) = cells.iter().find(|cell| cell.suffix == suffix)
        {
            return fail(Problem::SameWindow(twin.limits[0].to_string(), limit.to_string()));
        }
        let overflow = format!("{}#overflow{suffix}", rule.name);
        let (limits, texts) = (vec![limit.clone()], vec![limit.to_string().into()]);
        let slack = None;
        let (prefix, gate) = ("", false);
        cells.push(CellSpec { unit, limits, slack, texts, prefix, suffix, gate, overflow, spec });
    }
    if rule.key.is_some() && cells.len() > 1 {
        return fail(Problem::TemplateCells(cells.len()));
    }
    if rule.gate {
        cells.push(CellSpec::gate(rule));
    }
    for cell in cells.iter_mut().filter(|cell| !cell.gate && !matches!(cell.spec, Spec::Leases(_)))
    {
        let shortest = cell.limits.iter().map(Limit::window).min().unwrap_or_default();
        cell.slack = Some(Span::from_micros(shortest.as_micros() / 100));
    }
    Ok(cells)
}

impl CellSpec {
    /// What has to be open for the work of a rule. It lies where the counter of the rule lies: a
    /// literal key has no braces around what Redis hashes, so the gate's has.
    fn gate(rule: &Rule) -> Self {
        let braces = rule.key.as_ref().is_some_and(|key| !key.contains('{'));
        let (prefix, suffix) = if braces { ("{", "}#closed") } else { ("", "#closed") };
        Self {
            unit: Limit::GATE.unit(),
            limits: vec![Limit::GATE],
            slack: None,
            texts: vec!["closed".into()],
            prefix,
            suffix: suffix.to_owned(),
            gate: true,
            overflow: format!("{}#overflow{suffix}", rule.name),
            spec: Spec::new(&Limit::GATE, rule),
        }
    }
}

/// The dimension by which the counters of a rule are kept together: one of our own if there is
/// one, because what is paced has to be booked in one place.
fn partition<'r>(rule: &'r Rule, settings: &'r Settings) -> Option<&'r String> {
    let own = rule.per.iter().find(|name| name.starts_with(OWN));
    own.or(settings.partition.as_ref())
}

impl Spec {
    fn new(limit: &Limit, rule: &Rule) -> Self {
        match limit {
            Limit::Exact(rate) => {
                Self::Log(vec![log::Quota { limit: rate.amount.get(), window: rate.window.span() }])
            }
            Limit::Windowed(rate) => Self::Windowed(window::Quota {
                limit: rate.amount.get(),
                window: rate.window.span(),
            }),
            Limit::Calendar { amount, calendar, .. } => {
                Self::Calendar(amount.get(), calendar.clone())
            }
            Limit::Bucket { rate, capacity } => Self::Bucket(
                bucket::Quota::new(*rate, *capacity)
                    .expect("a limit that can't be metered is refused by its parser"),
            ),
            Limit::Concurrent(amount) => {
                Self::Leases(concurrency::Quota { limit: amount.get(), lease: rule.lease })
            }
        }
    }

    fn meter(&self, clock: &impl Clock) -> Meter<'_> {
        match self {
            Self::Log(quotas) => Meter::Log(Cow::Borrowed(quotas)),
            Self::Windowed(quota) => Meter::Windowed(*quota),
            Self::Calendar(limit, calendar) => Meter::Calendar(window::CalendarQuota {
                limit: *limit,
                boundaries: calendar.boundaries(clock.now()),
            }),
            Self::Bucket(quota) => Meter::Bucket(*quota),
            Self::Leases(quota) => Meter::Leases(*quota),
        }
    }
}

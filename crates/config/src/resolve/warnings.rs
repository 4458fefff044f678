//! Warnings about rules that are valid but probably mistakes.

use std::collections::HashSet;

use sluicegate_core::Limit;
use sluicegate_core::limit::Unit;
use sluicegate_core::query::DIMENSIONS_MAX;
use sluicegate_core::ruleset::is_set_for_callers;

use super::dimensions::Dimensions;
use super::gateway::NamedDimensions;
use super::item::{Item, nearest};
use super::limits::{DraftGroup, option};
use super::outage::CLIENT_TYPES;
use super::rule::DraftRule;
use crate::config::{OutagePolicies, OutagePolicy, RedisTopology, StoreOptions};
use crate::location::Location;
use crate::raw::Value;
use crate::report::Report;

/// Number of entries above which an exact log takes megabytes for every key.
const LOG_ENTRIES_MAX: u64 = 100_000;

/// Model tiers that every part of the product knows by name.
const MODEL_TIERS: [&str; 3] = ["PREMIUM", "STANDARD", "INTERNAL"];

/// The parts of the configuration that warnings depend on.
pub(super) struct Context<'c> {
    pub(super) dimensions: &'c Dimensions,
    pub(super) outage: &'c OutagePolicies,
    pub(super) store: &'c StoreOptions,
    /// The option `store.partition`, if the file sets it.
    pub(super) partition: Option<Item<'c>>,
    pub(super) gateways: NamedDimensions<'c>,
}

/// Adds all warnings about rules to the report.
pub(super) fn add_warnings(groups: &[DraftGroup<'_>], context: &Context<'_>, report: &mut Report) {
    partition(groups, context, report);
    slots(groups, context, report);
    for group in groups {
        idle_groups(group, context.dimensions, report);
    }
    for draft in groups.iter().flat_map(|group| &group.rules).filter(|draft| !draft.has_errors) {
        misspelled_dimensions(draft, context, report);
        costs_at_gateways(draft, &context.gateways, report);
        misspelled_values(draft, report);
        long_logs(draft, report);
        outage_shares(draft, context, report);
    }
}

/// Warns if no rule counts by the dimension of `store.partition`.
fn partition(groups: &[DraftGroup<'_>], context: &Context<'_>, report: &mut Report) {
    let (StoreOptions::Redis(redis), Some(item)) = (context.store, &context.partition) else {
        return;
    };
    let Some(partition) = &redis.partition else { return };
    let mut rules = groups.iter().flat_map(|group| &group.rules);
    if rules.all(|draft| !draft.rule.per.contains(partition)) {
        let message = "no rule counts by this dimension, so it has no effect";
        report.warning(&item.location(), message, "write a dimension that rules list in per");
    }
}

/// Warns about rules that apply to the same request but keep their counters in different cluster
/// slots.
fn slots(groups: &[DraftGroup<'_>], context: &Context<'_>, report: &mut Report) {
    let StoreOptions::Redis(redis) = context.store else { return };
    if !matches!(redis.topology, RedisTopology::Cluster(_)) {
        return;
    }
    let drafts = groups
        .iter()
        .enumerate()
        .flat_map(|(group, drafts)| drafts.rules.iter().map(move |draft| (group, draft)));
    let mut first: Option<(usize, &DraftRule<'_>)> = None;
    for (group, draft) in drafts.filter(|(_, draft)| !draft.has_errors && !draft.rule.unlimited) {
        let slot_of = |draft| SlotChoice::of(draft, redis.partition.as_deref());
        let other = match first {
            None => {
                first = Some((group, draft));
                let apart = slot_of(draft) == SlotChoice::WholeKey && counters(draft) > 1;
                apart.then(|| "each other".to_owned())
            }
            // Rules of one group never apply together: the first that matches is used.
            Some((of, _)) if of == group => None,
            Some((_, other)) => {
                let together =
                    slot_of(draft) == slot_of(other) && slot_of(draft) != SlotChoice::WholeKey;
                (!together).then(|| format!("those of {}", other.item.path))
            }
        };
        let Some(other) = other else { continue };
        let message = format!(
            "its counters are in other Redis Cluster slots than {other}: a request that matches \
             both is reserved slot by slot, and can't be booked"
        );
        let remedy = "add a common dimension to per, and set store.partition to it";
        report.warning(&draft.location_of("name"), message, remedy);
        return;
    }
}

/// The part of a counter's key that decides its cluster slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotChoice<'d> {
    /// The value of the dimension `store.partition`.
    Partition,
    /// The literal `key` of the rule.
    Literal(&'d str),
    /// The whole key, so that every counter may be in another slot.
    WholeKey,
}

impl<'d> SlotChoice<'d> {
    fn of(draft: &'d DraftRule<'_>, partition: Option<&str>) -> Self {
        let rule = &draft.rule;
        match &rule.key {
            Some(key) => Self::Literal(key),
            None if rule.per.iter().any(|name| Some(name.as_str()) == partition) => Self::Partition,
            None => Self::WholeKey,
        }
    }
}

/// Returns the number of counters that the limits of a rule need: limits of one unit and kind share
/// one.
fn counters(draft: &DraftRule<'_>) -> usize {
    let kind = |limit: &Limit| (std::mem::discriminant(limit), limit.unit());
    draft.rule.limits.iter().map(kind).collect::<HashSet<_>>().len()
}

/// Warns about groups that can never deny anything.
fn idle_groups(group: &DraftGroup<'_>, dimensions: &Dimensions, report: &mut Report) {
    if group.incomplete
        || group.rules.is_empty()
        || group.rules.iter().any(|draft| draft.has_errors)
    {
        return;
    }
    let location = || group.location_of("name");
    if group.rules.iter().all(|draft| needs(draft, dimensions) > DIMENSIONS_MAX) {
        let message = format!(
            "the group never matches: each of its rules needs more than the {DIMENSIONS_MAX} \
             dimensions that a request may have"
        );
        report.warning(&location(), message, "use fewer dimensions in when and per");
    } else if group.rules.iter().all(|draft| draft.rule.shadow) {
        let message = "the group never denies: all its rules are shadow rules";
        report.warning(
            &location(),
            message,
            "remove shadow from a rule once you have checked its effect",
        );
    }
}

/// Returns the minimum number of dimensions of a request that the rule matches.
fn needs(draft: &DraftRule<'_>, dimensions: &Dimensions) -> usize {
    let required = dimensions.required.iter().map(String::as_str);
    draft.rule.dimensions().chain(required).collect::<HashSet<_>>().len()
}

/// Warns about values that are misspellings of well-known values.
fn misspelled_values(draft: &DraftRule<'_>, report: &mut Report) {
    let Some(when) = option(&draft.item, "when") else { return };
    for (dimension, known) in [("clientType", CLIENT_TYPES), ("modelTier", MODEL_TIERS)] {
        let values = option(&when, dimension).map(|item| item.one_or_more()).unwrap_or_default();
        for item in values {
            // A suggestion would reveal the value of a variable.
            let Value::Scalar(scalar) = &item.node.value else { continue };
            let word = scalar.text();
            if !scalar.is_literal() || word.contains(['*', '?']) || known.contains(&word) {
                continue;
            }
            if let Some(near) = nearest(word, known.into_iter()) {
                let message = "unusual value, and values are case-sensitive";
                report.warning(&item.location(), message, &format!("did you mean {near}?"));
            }
        }
    }
}

/// Warns about names that are misspellings of known dimensions.
fn misspelled_dimensions(draft: &DraftRule<'_>, context: &Context<'_>, report: &mut Report) {
    let mut check = |name: &str, location: Location| {
        if let Some(meant) = context.dimensions.suggestion_for(name) {
            let message = "unknown dimension";
            report.warning(&location, message, &format!("did you mean {meant}?"));
        } else if let Some(meant) = context.gateways.suggestion_for(name)
            && !context.dimensions.is_known(name)
            && !is_set_for_callers(name)
        {
            let message = "no gateway provides this dimension, so the rule never applies to requests \
                           through gateways";
            report.warning(&location, message, &format!("did you mean {meant}?"));
        }
    };
    if let Some(per) = option(&draft.item, "per") {
        for item in per.one_or_more() {
            // A suggestion would reveal the value of a variable.
            if let Value::Scalar(scalar) = &item.node.value
                && scalar.is_literal()
            {
                check(scalar.text(), item.location());
            }
        }
    }
    if let Some(when) = option(&draft.item, "when")
        && let Value::Map(entries) = &when.node.value
    {
        for (key, _) in entries {
            check(&key.text, Location { position: key.at, path: when.path.key(&key.text) });
        }
    }
}

/// Warns about limits on tokens or money that apply to requests through gateways, which do not know
/// the cost of a request.
fn costs_at_gateways(draft: &DraftRule<'_>, gateways: &NamedDimensions<'_>, report: &mut Report) {
    if !gateways.include(&draft.rule.dimensions().collect::<Vec<_>>()) {
        return;
    }
    for (limit, item) in limits(draft) {
        if !limit.is_ban() && !matches!(limit.unit(), Unit::Requests | Unit::Slots) {
            let message = "a gateway can't count tokens or money, so requests through gateways are \
                           not counted here";
            let remedy = "limit requests, or add a dimension to when that only other callers send";
            item.warn(report, message, remedy);
        }
    }
}

/// Warns about exact limits that take much memory.
fn long_logs(draft: &DraftRule<'_>, report: &mut Report) {
    for (limit, item) in limits(draft) {
        if let Limit::Exact(rate) = limit
            && rate.amount.get() > LOG_ENTRIES_MAX
        {
            let message = "an exact limit above 100,000 takes megabytes of memory for every key";
            let remedy = "append windowed, which counts in hundredths of the window";
            report.warning(&item.location(), message, remedy);
        }
    }
}

/// Warns about limits whose share per node is 0 while Redis is unavailable.
fn outage_shares(draft: &DraftRule<'_>, context: &Context<'_>, report: &mut Report) {
    let limits: Vec<_> = limits(draft).collect();
    warn_of_zero_shares(&limits, draft.rule.outage, context.outage, context.store, report);
}

/// Warns about limits whose share per node is 0 while Redis is unavailable. `own` is the outage
/// policy of their rule, if it has one.
pub(super) fn warn_of_zero_shares(
    limits: &[(&Limit, Item<'_>)],
    own: Option<OutagePolicy>,
    outage: &OutagePolicies,
    store: &StoreOptions,
    report: &mut Report,
) {
    let StoreOptions::Redis(redis) = store else { return };
    let policies = match own {
        Some(policy) => vec![policy],
        None => outage.by_client_type.values().chain([&outage.default]).copied().collect(),
    };
    let counted = [OutagePolicy::Local, OutagePolicy::Open].into_iter();
    for policy in counted.filter(|policy| policies.contains(policy)) {
        let nothing = |(limit, _): &&(&Limit, Item<'_>)| {
            policy.share(limit, redis.nodes_max) == Some(0) && !limit.is_ban()
        };
        let Some((_, item)) = limits.iter().find(nothing) else { continue };
        let word = policy.word();
        let message = format!(
            "while Redis is unavailable, the share of one node is 0, so {word} denies everything"
        );
        let remedy = "raise the limit, lower store.nodes_max, or write outage: closed";
        item.warn(report, message, remedy);
        return;
    }
}

/// Returns the limits of a valid rule with their locations.
fn limits<'d, 'n>(draft: &'d DraftRule<'n>) -> impl Iterator<Item = (&'d Limit, Item<'n>)> {
    let items = option(&draft.item, "limit").map(|item| item.one_or_more()).unwrap_or_default();
    draft.rule.limits.iter().zip(items)
}

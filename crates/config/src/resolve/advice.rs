//! What is allowed but probably not meant.

use std::collections::HashSet;

use sluicegate_core::Limit;
use sluicegate_core::query::DIMENSIONS_MAX;

use super::dimensions::Dimensions;
use super::item::{Item, nearest};
use super::limits::{DraftGroup, option};
use super::outage::CLIENT_TYPES;
use super::rule::Draft;
use crate::config::{Outage, OutagePolicy, RedisTopology, Store};
use crate::place::Place;
use crate::raw::Value;
use crate::report::Report;

/// An exact log above this takes megabytes for every key.
const LOG_ENTRIES_MAX: u64 = 100_000;

/// The model tiers that every part of the product knows by name.
const MODEL_TIERS: [&str; 3] = ["PREMIUM", "STANDARD", "INTERNAL"];

/// Everything that advice depends on.
pub(super) struct Context<'c> {
    pub(super) dimensions: &'c Dimensions,
    pub(super) outage: &'c Outage,
    pub(super) store: &'c Store,
    /// The dimension of `store.partition`, where it is written.
    pub(super) partition: Option<Item<'c>>,
}

pub(super) fn advise(groups: &[DraftGroup<'_>], context: &Context<'_>, report: &mut Report) {
    partition(groups, context, report);
    slots(groups, context, report);
    for group in groups {
        idle_groups(group, context.dimensions, report);
    }
    for draft in groups.iter().flat_map(|group| &group.rules).filter(|draft| !draft.broken) {
        dimensions(draft, context.dimensions, report);
        words(draft, report);
        long_logs(draft, report);
        outage_shares(draft, context, report);
    }
}

fn partition(groups: &[DraftGroup<'_>], context: &Context<'_>, report: &mut Report) {
    let (Store::Redis(redis), Some(item)) = (context.store, &context.partition) else { return };
    let Some(partition) = &redis.partition else { return };
    let mut rules = groups.iter().flat_map(|group| &group.rules);
    if rules.all(|draft| !draft.rule.per.contains(partition)) {
        let message = "no rule counts by it, so it keeps nothing together";
        report.warning(&item.place(), message, "name a dimension that rules have in per");
    }
}

/// Counters that lie in different slots of a cluster although a request meets them together.
fn slots(groups: &[DraftGroup<'_>], context: &Context<'_>, report: &mut Report) {
    let Store::Redis(redis) = context.store else { return };
    if !matches!(redis.topology, RedisTopology::Cluster(_)) {
        return;
    }
    let drafts = groups
        .iter()
        .enumerate()
        .flat_map(|(group, drafts)| drafts.rules.iter().map(move |draft| (group, draft)));
    let mut first: Option<(usize, &Draft<'_>)> = None;
    for (group, draft) in drafts.filter(|(_, draft)| !draft.broken && !draft.rule.unlimited) {
        let lies = |draft| Lies::of(draft, redis.partition.as_deref());
        let other = match first {
            None => {
                first = Some((group, draft));
                let apart = lies(draft) == Lies::Apart && counters(draft) > 1;
                apart.then(|| "one another".to_owned())
            }
            // Those of one group are not met together: the first that matches applies.
            Some((of, _)) if of == group => None,
            Some((_, other)) => {
                let together = lies(draft) == lies(other) && lies(draft) != Lies::Apart;
                (!together).then(|| format!("those of {}", other.item.path))
            }
        };
        let Some(other) = other else { continue };
        let message = format!(
            "its counters lie in other slots of the cluster than {other}: what meets both is \
             reserved slot by slot, and can't be booked"
        );
        let remedy = "let them count by one dimension, and name it in store.partition";
        report.warning(&draft.place_of("name"), message, remedy);
        return;
    }
}

/// What decides in which slot the counters of a rule lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lies<'d> {
    /// The dimension of `store.partition`.
    Partition,
    /// A key as it is written.
    Literal(&'d str),
    /// Each by its own name.
    Apart,
}

impl<'d> Lies<'d> {
    fn of(draft: &'d Draft<'_>, partition: Option<&str>) -> Self {
        let rule = &draft.rule;
        match &rule.key {
            Some(key) => Self::Literal(key),
            None if rule.per.iter().any(|name| Some(name.as_str()) == partition) => Self::Partition,
            None => Self::Apart,
        }
    }
}

/// How many counters the limits of a rule need: those of one unit and kind share one.
fn counters(draft: &Draft<'_>) -> usize {
    let kind = |limit: &Limit| (std::mem::discriminant(limit), limit.unit());
    draft.rule.limits.iter().map(kind).collect::<HashSet<_>>().len()
}

/// Groups of which no rule can ever deny anything.
fn idle_groups(group: &DraftGroup<'_>, dimensions: &Dimensions, report: &mut Report) {
    if group.lost || group.rules.is_empty() || group.rules.iter().any(|draft| draft.broken) {
        return;
    }
    let place = || group.place_of("name");
    if group.rules.iter().all(|draft| needs(draft, dimensions) > DIMENSIONS_MAX) {
        let message = format!(
            "matches nothing: every rule of it needs more than the {DIMENSIONS_MAX} dimensions \
             that a query may name"
        );
        report.warning(&place(), message, "ask for fewer in when and per");
    } else if group.rules.iter().all(|draft| draft.rule.shadow) {
        let message = "denies nothing: every rule of it is a shadow rule";
        report.warning(
            &place(),
            message,
            "remove shadow from one of them once it has been watched",
        );
    }
}

/// How many dimensions a query names at least where the rule matches.
fn needs(draft: &Draft<'_>, dimensions: &Dimensions) -> usize {
    let required = dimensions.required.iter().map(String::as_str);
    draft.rule.dimensions().chain(required).collect::<HashSet<_>>().len()
}

/// Values that differ from one that every part knows by a slip of the pen.
fn words(draft: &Draft<'_>, report: &mut Report) {
    let Some(when) = option(&draft.item, "when") else { return };
    for (dimension, known) in [("clientType", CLIENT_TYPES), ("modelTier", MODEL_TIERS)] {
        let values = option(&when, dimension).map(|item| item.one_or_more()).unwrap_or_default();
        for item in values {
            // What is near a value of a variable would give the value away.
            let Value::Scalar(scalar) = &item.node.value else { continue };
            let word = scalar.text();
            if !scalar.is_literal() || word.contains(['*', '?']) || known.contains(&word) {
                continue;
            }
            if let Some(near) = nearest(word, known.into_iter()) {
                let message = "values are compared letter by letter";
                report.warning(&item.place(), message, &format!("did you mean {near}?"));
            }
        }
    }
}

/// Names that differ from a known dimension by a slip of the pen.
fn dimensions(draft: &Draft<'_>, known: &Dimensions, report: &mut Report) {
    let mut check = |name: &str, place: Place| {
        if let Some(meant) = known.meant_by(name) {
            let message = "no other part knows this dimension";
            report.warning(&place, message, &format!("did you mean {meant}?"));
        }
    };
    if let Some(per) = option(&draft.item, "per") {
        for item in per.one_or_more() {
            // What is near a value of a variable would give the value away.
            if let Value::Scalar(scalar) = &item.node.value
                && scalar.is_literal()
            {
                check(scalar.text(), item.place());
            }
        }
    }
    if let Some(when) = option(&draft.item, "when")
        && let Value::Map(entries) = &when.node.value
    {
        for (key, _) in entries {
            check(&key.text, Place { mark: key.at, path: when.path.key(&key.text) });
        }
    }
}

fn long_logs(draft: &Draft<'_>, report: &mut Report) {
    for (limit, item) in limits(draft) {
        if let Limit::Exact(rate) = limit
            && rate.amount.get() > LOG_ENTRIES_MAX
        {
            let message = "an exact log of more than 100,000 entries takes megabytes for every key";
            let remedy = "write windowed behind it, which counts in hundredths of the window";
            report.warning(&item.place(), message, remedy);
        }
    }
}

/// Shares that come to nothing while the store does not answer.
fn outage_shares(draft: &Draft<'_>, context: &Context<'_>, report: &mut Report) {
    let Store::Redis(redis) = context.store else { return };
    let by_client_type = context.outage.by_client_type.values();
    let policies = match draft.rule.outage {
        Some(policy) => vec![policy],
        None => by_client_type.chain([&context.outage.default]).copied().collect(),
    };
    let counted = [OutagePolicy::Local, OutagePolicy::Open].into_iter();
    for policy in counted.filter(|policy| policies.contains(policy)) {
        let nothing = |(limit, _): &(&Limit, Item<'_>)| {
            policy.share(limit, redis.nodes_max) == Some(0) && !limit.is_ban()
        };
        let Some((_, item)) = limits(draft).find(nothing) else { continue };
        let word = policy.word();
        let message = format!(
            "while Redis does not answer, the share of one node is 0: {word} means closed here"
        );
        let remedy = "raise the limit, lower store.nodes_max, or write outage: closed";
        report.warning(&item.place(), message, remedy);
        return;
    }
}

/// The limits of a sound rule with their places.
fn limits<'d, 'n>(draft: &'d Draft<'n>) -> impl Iterator<Item = (&'d Limit, Item<'n>)> {
    let items = option(&draft.item, "limit").map(|item| item.one_or_more()).unwrap_or_default();
    draft.rule.limits.iter().zip(items)
}

//! Dispatchers and workers, and the rules that the limits of providers become.
//!
//! A provider has up to three groups of rules: what the dispatcher keeps, what the worker keeps, and,
//! where moments are booked, how evenly they are spread. All go by the names of provider and tier,
//! which nobody who asks from outside can name.

mod tier;

use std::collections::HashSet;

use sluicegate_core::{Group, Span};

use self::tier::{Asked, Tier, estimate, limits, spread};
use super::item::{Fields, Item};
use super::{gateway, handler, scalar};
use crate::config::{
    Delay, Dispatch, OutagePolicy, Provider, RedisTopology, Store, Strategy, Worker,
};
use crate::raw::Value;
use crate::report::Report;

const DISPATCH: [&str; 14] = [
    "id",
    "enabled",
    "source",
    "dead_letter",
    "strategy",
    "field",
    "fixed",
    "priority",
    "available",
    "delay",
    "burst",
    "prefetch",
    "outage",
    "providers",
];
const PROVIDER: [&str; 8] =
    ["queue", "limit", "estimate", "key", "cost", "quality", "weight", "outage"];
const WORKER: [&str; 16] = [
    "provider",
    "queue",
    "dead_letter",
    "results",
    "enabled",
    "limit",
    "estimate",
    "key",
    "outage",
    "concurrency",
    "prefetch",
    "attempts",
    "backoff",
    "timeout",
    "learn",
    "handler",
];
/// What a provider has whose limit nobody wrote.
const LIMIT: &str = "1000/min";

/// The dispatcher of a file, and the groups of rules that its providers are limited by.
pub(super) fn dispatch(
    item: &Item<'_>,
    store: &Store,
    workers: Option<&Item<'_>>,
    report: &mut Report,
) -> Option<(Dispatch, Vec<Group>)> {
    let fields = Fields::open(item.clone(), &DISPATCH, report)?;
    let remedy = "write the queue that messages come from, such as source: raw-queue";
    let source = fields.require("source", remedy, report);
    let source = source.and_then(|item| scalar::text(&item, report));
    let delay = fields.read("delay", Delay::Fixed(Span::from_secs(30)), report, delay);
    let outage = fields.read_some("outage", report, scalar::outage);
    let burst = fields.read_some("burst", report, |item, report| {
        if delay != Delay::Booked {
            item.fail(report, "says how moments are spread that are booked", "write delay: booked");
        }
        scalar::whole(item, report, 1..=1_000_000)
    });
    // As much at once as there are hands, where they are in the same file.
    let burst = burst.unwrap_or_else(|| workers.map_or(1, hands));
    let form = "write a map of providers, such as gemini: {queue: gemini-queue, limit: 500/min}";
    let listed = fields.require("providers", form, report);
    let listed = listed.and_then(|item| item.names(report, form)).unwrap_or_default();
    let (mut providers, mut groups) = (Vec::new(), Vec::new());
    for (key, item) in listed {
        let Some((provider, tier)) = provider(&key.text, &item, outage, report) else { continue };
        if delay == Delay::Booked {
            if tier.key.is_some() && is_cluster(store) {
                let message = "a key that is written lies in a slot of its own, and then nothing \
                               can be booked on a Redis Cluster";
                item.fail(report, message, "remove key, or write a delay that is fixed");
            }
            groups.extend(spread(&provider, burst, tier.outage));
        }
        groups.push(tier.group());
        providers.push(provider);
    }
    if providers.is_empty() {
        fields.get("providers").unwrap_or_else(|| item.clone()).fail(
            report,
            "has no provider",
            form,
        );
    }
    let names: HashSet<String> = providers.iter().map(|provider| provider.name.clone()).collect();
    let mut known = |key: &str| -> Vec<String> {
        let items = fields.get(key).map(|item| words(&item, report)).unwrap_or_default();
        let unknown = items.iter().any(|name| !names.contains(name));
        if let Some(item) = fields.get(key).filter(|_| unknown) {
            item.fail(report, "names a provider that there is not", "write names of providers");
        }
        items
    };
    let (priority, available) = (known("priority"), known("available"));
    let fixed = known("fixed").pop();
    if !available.is_empty() {
        providers.retain(|provider| available.contains(&provider.name));
        providers.sort_by_key(|p| available.iter().position(|name| *name == p.name));
    }
    let dispatch = Dispatch {
        id: fields.read("id", "dispatcher-001".to_owned(), report, scalar::text),
        enabled: fields.get("enabled").is_none_or(|item| is_on(&item, report)),
        source: source.unwrap_or_default(),
        dead_letter: fields.read_some("dead_letter", report, scalar::text),
        strategy: strategy(&fields, report),
        fixed,
        priority,
        delay,
        prefetch: fields.read("prefetch", 100, report, |item, report| {
            scalar::whole(item, report, 1..=10_000).and_then(|count| u16::try_from(count).ok())
        }),
        providers,
    };
    Some((dispatch, groups))
}

/// The workers of a file, and the groups of rules that they keep.
pub(super) fn workers(
    item: &Item<'_>,
    dispatch: Option<&Dispatch>,
    report: &mut Report,
) -> (Vec<Worker>, Vec<Group>) {
    let form = "write a list of workers, each with a provider, a queue and a handler";
    let items = item.list(report, form).unwrap_or_default();
    let (mut workers, mut groups) = (Vec::<Worker>::new(), Vec::<Group>::new());
    for item in items {
        let Some((worker, group)) = worker(&item, dispatch, report) else { continue };
        let twin = workers.iter().any(|other| other.provider == worker.provider);
        if twin && !worker.limits.is_empty() {
            let message = "has a limit, and so may another worker of the same provider";
            item.fail(report, message, "write it once, at the first of them");
        }
        if !twin {
            groups.push(group);
        }
        advise(&item, &worker, dispatch, report);
        workers.push(worker);
    }
    (workers, groups)
}

fn provider<'k>(
    name: &'k str,
    item: &Item<'_>,
    outage: Option<OutagePolicy>,
    report: &mut Report,
) -> Option<(Provider, Tier<'k>)> {
    if name.is_empty() || name.len() > 30 || name.contains(['/', ',', '<']) || name.trim() != name {
        let remedy = "write up to 30 characters without / , and <";
        item.fail(report, "has a name that can't be used", remedy);
        return None;
    }
    let fields = Fields::open(item.clone(), &PROVIDER, report)?;
    let estimate = fields.get("estimate").and_then(|item| estimate(&item, report));
    let limits = match fields.get("limit") {
        Some(item) => limits(&item, &estimate.unwrap_or_default(), report),
        None => vec![LIMIT.parse().expect("this is a limit")],
    };
    let before = report.errors();
    let own = fields.read_some("outage", report, scalar::outage);
    let key = fields.read_some("key", report, scalar::text);
    let tier = Tier {
        name: format!("dispatch/{name}"),
        provider: name,
        asked: Asked::Dispatch,
        limits: limits.clone(),
        key,
        outage: own.or(outage),
        gated: true,
    };
    let tier = tier.checked(item, before, report);
    let provider = Provider {
        name: name.to_owned(),
        queue: fields.read("queue", format!("{name}-queue"), report, scalar::text),
        limits,
        estimate: estimate.unwrap_or_default(),
        cost: fields.read("cost", 1.0, report, score),
        quality: fields.read("quality", 1.0, report, score),
        weight: fields.read("weight", 1, report, |item, report| {
            scalar::whole(item, report, 0..=1_000_000).and_then(|weight| u32::try_from(weight).ok())
        }),
    };
    Some((provider, tier))
}

fn worker(
    item: &Item<'_>,
    dispatch: Option<&Dispatch>,
    report: &mut Report,
) -> Option<(Worker, Group)> {
    let before = report.errors();
    let fields = Fields::open(item.clone(), &WORKER, report)?;
    let remedy = "write whom the work is for, such as provider: github";
    let provider = fields.require("provider", remedy, report);
    let provider = provider.and_then(|item| gateway::name_of(&item, report)).unwrap_or_default();
    let known = dispatch.and_then(|dispatch| {
        dispatch.providers.iter().find(|candidate| candidate.name == provider)
    });
    let queue = match (fields.get("queue"), known) {
        (Some(item), _) => scalar::text(&item, report),
        (None, Some(known)) => Some(known.queue.clone()),
        (None, None) => {
            let remedy = "write the queue of its work, such as queue: jobs";
            // Says that there is none.
            let _ = fields.require("queue", remedy, report);
            None
        }
    };
    let estimate = match fields.get("estimate") {
        Some(item) => estimate(&item, report),
        None => known.map(|known| known.estimate),
    };
    let estimate = estimate.unwrap_or_default();
    let limits = fields.get("limit").map(|item| limits(&item, &estimate, report));
    let limits = limits.unwrap_or_default();
    let tier = Tier {
        name: format!("worker/{provider}"),
        provider: &provider,
        asked: Asked::Worker,
        limits: limits.clone(),
        key: fields.read_some("key", report, scalar::text),
        outage: fields.read_some("outage", report, scalar::outage),
        gated: true,
    };
    let group = tier.checked(item, before, report).group();
    let count = |item: &Item<'_>, report: &mut Report, range| {
        scalar::whole(item, report, range).and_then(|count| u16::try_from(count).ok())
    };
    let (backoff_from, backoff_to) =
        fields.get("backoff").and_then(|item| backoff(item, report)).unwrap_or(BACKOFF);
    let least = |item: &Item<'_>, report: &mut Report| {
        scalar::span_from(item, report, Span::from_millis(1), "nothing is done in less")
    };
    let enabled = fields.get("enabled").map(|item| is_on(&item, report));
    let remedy = "write what is done with a message, such as handler: {http: {url: …}}";
    let handler = fields.require("handler", remedy, report);
    let handler = handler.and_then(|item| handler::handler(&item, report));
    let worker = Worker {
        queue: queue.unwrap_or_default(),
        dead_letter: fields.read_some("dead_letter", report, scalar::text),
        results: fields.read_some("results", report, scalar::text),
        enabled: enabled.unwrap_or_else(|| dispatch.is_none_or(|dispatch| dispatch.enabled)),
        limits,
        estimate,
        concurrency: fields.read("concurrency", 5, report, |i, r| count(i, r, 1..=10_000)),
        prefetch: fields.read("prefetch", 1, report, |i, r| count(i, r, 0..=10_000)),
        attempts: fields.read("attempts", 3, report, |item, report| {
            scalar::whole(item, report, 1..=1_000).and_then(|count| u32::try_from(count).ok())
        }),
        backoff_from,
        backoff_to,
        timeout: fields.read("timeout", Span::from_secs(60), report, least),
        learn: gateway::learn(&fields, true, report),
        provider,
        handler: handler?,
    };
    Some((worker, group))
}

const BACKOFF: (Span, Span) = (Span::from_secs(1), Span::from_secs(60));

/// Tiers of one provider that differ: what one lets through the other holds up.
fn advise(item: &Item<'_>, worker: &Worker, dispatch: Option<&Dispatch>, report: &mut Report) {
    let providers = dispatch.iter().flat_map(|dispatch| &dispatch.providers);
    let Some(tier) = providers.into_iter().find(|other| other.name == worker.provider) else {
        return;
    };
    if worker.queue != tier.queue {
        let message = "takes from another queue than the one that this provider's work is sent to";
        report.warning(&item.place(), message, "write the same in both");
    }
    if !worker.limits.is_empty() && worker.limits != tier.limits {
        let message = "its limit is not that of the same provider in dispatch: what one tier lets \
                       through, the other holds up";
        report.warning(&item.place(), message, "write the same in both");
    }
    if worker.estimate != tier.estimate {
        let message = "takes a message for something else than dispatch does";
        report.warning(&item.place(), message, "write `estimate` once, in dispatch");
    }
}

/// How many jobs the workers of the file do at the same time, at least one.
fn hands(workers: &Item<'_>) -> u64 {
    let Value::List(items) = &workers.node.value else { return 1 };
    let of = |node: &crate::raw::Node| {
        let Value::Map(entries) = &node.value else { return None };
        let (_, node) = entries.iter().find(|(key, _)| key.text == "concurrency")?;
        let Value::Scalar(scalar) = &node.value else { return None };
        scalar.text().trim().parse::<u64>().ok()
    };
    items.iter().map(|node| of(node).unwrap_or(5)).max().unwrap_or(1).max(1)
}

fn strategy(fields: &Fields<'_>, report: &mut Report) -> Strategy {
    let field = fields.get("field");
    let name = field.as_ref().and_then(|item| scalar::text(item, report));
    let words = [
        ("FIXED", 0),
        ("ROUND_ROBIN", 1),
        ("WEIGHTED", 2),
        ("COST_OPTIMIZED", 3),
        ("QUALITY_FIRST", 4),
        ("PRIORITY_ORDER", 5),
        ("MESSAGE_BASED", 6),
        ("HEADROOM", 7),
    ];
    match fields.read("strategy", 0, report, |item, report| scalar::word(item, report, &words)) {
        0 => Strategy::Fixed,
        1 => Strategy::RoundRobin,
        2 => Strategy::Weighted,
        3 => Strategy::CostOptimized,
        4 => Strategy::QualityFirst,
        5 => Strategy::PriorityOrder,
        6 => Strategy::MessageBased { field: name.unwrap_or_else(|| "provider".to_owned()) },
        _ => Strategy::Headroom,
    }
}

fn delay(item: &Item<'_>, report: &mut Report) -> Option<Delay> {
    let scalar = item.scalar(report, "write a time span, such as 30s, or booked")?;
    if scalar.text() == "booked" {
        return Some(Delay::Booked);
    }
    let remedy = "write at least 1ms, or booked";
    scalar::span_from(item, report, Span::from_millis(1), remedy).map(Delay::Fixed)
}

/// On, unless it is literally `false`.
fn is_on(item: &Item<'_>, report: &mut Report) -> bool {
    let Some(scalar) = item.scalar(report, "write true or false") else { return true };
    if !["true", "false"].contains(&scalar.text()) {
        let message = "is not false, so limits are asked";
        report.warning(&item.place(), message, "write true or false");
    }
    scalar.text() != "false"
}

/// Words in a list, or in one text with commas.
fn words(item: &Item<'_>, report: &mut Report) -> Vec<String> {
    let texts = item.one_or_more();
    let texts = texts.iter().filter_map(|item| item.scalar(report, "write names"));
    let words = texts.flat_map(|scalar| scalar.text().split(','));
    words.map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn score(item: &Item<'_>, report: &mut Report) -> Option<f64> {
    let form = "write a number, such as 7 or 0.5";
    let number = item.scalar(report, form)?.text().trim().parse::<f64>().ok();
    let number = number.filter(|number| number.is_finite() && *number >= 0.0);
    if number.is_none() {
        item.fail(report, "is not a number from 0", form);
    }
    number
}

fn backoff(item: Item<'_>, report: &mut Report) -> Option<(Span, Span)> {
    let fields = Fields::open(item.clone(), &["from", "to"], report)?;
    let from = fields.read("from", BACKOFF.0, report, scalar::span);
    let to = fields.read("to", BACKOFF.1.max(from), report, scalar::span);
    if to < from {
        item.fail(report, "ends below its beginning", "write a `to` that is not below `from`");
    }
    Some((from, to))
}

fn is_cluster(store: &Store) -> bool {
    matches!(store, Store::Redis(redis) if matches!(redis.topology, RedisTopology::Cluster(_)))
}

//! Reads `dispatch` and `workers`, and builds the rules for the limits of providers.
//!
//! A provider has up to three groups of rules: the limits of the dispatcher, the limits of the
//! worker, and, for booked delays, a rule that spreads start times evenly. All of them match by
//! provider and tier, in dimensions that external requests can't set.

mod tier;

use sluicegate_core::{Group, Span};
use sluicegate_template::Text;

use self::tier::{Tier, TierScope, estimate, limits, spread};
use super::item::{Fields, Item};
use super::{gateway, handler, scalar};
use crate::config::{
    DelayMode, Dispatch, HandlerAction, HandlerOptions, HttpOptions, OutagePolicy, Provider,
    RedisTopology, StoreOptions, Strategy, WorkerOptions,
};
use crate::location::shorten;
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
/// Limit of a provider without one.
const LIMIT: &str = "1000/min";

/// Reads the section `dispatch`. Also returns the groups of rules that limit its providers.
pub(super) fn dispatch(
    item: &Item<'_>,
    store: &StoreOptions,
    workers: Option<&Item<'_>>,
    report: &mut Report,
) -> Option<(Dispatch, Vec<Group>)> {
    let fields = Fields::open(item.clone(), &DISPATCH, report)?;
    let remedy = "write the queue to read messages from, such as source: raw-queue";
    let source = fields.require("source", remedy, report);
    let source = source.and_then(|item| scalar::text(&item, report));
    let delay = fields.read("delay", DelayMode::Fixed(DelayMode::FIXED), report, delay);
    let outage = fields.read_some("outage", report, scalar::outage);
    let burst = fields.read_some("burst", report, |item, report| {
        if delay != DelayMode::Booked {
            item.fail(report, "applies to booked delays only", "write delay: booked, or remove it");
        }
        scalar::whole(item, report, 1..=1_000_000)
    });
    // If the workers are in the same file, a burst is as large as their concurrency.
    let burst = burst.unwrap_or_else(|| workers.map_or(1, worker_concurrency));
    let form = "write a map from provider names to options, such as gemini: {queue: gemini-queue, \
                limit: 500/min}";
    let listed = fields.require("providers", form, report);
    let listed = listed.and_then(|item| item.entries(report, form)).unwrap_or_default();
    let (mut providers, mut groups) = (Vec::new(), Vec::new());
    for (key, item) in listed {
        let Some((provider, tier)) = provider(&key.text, &item, outage, report) else { continue };
        if delay == DelayMode::Booked {
            if tier.key.is_some() && is_cluster(store) {
                let message = "a literal key is in a cluster slot of its own, so nothing can \
                               be booked on a Redis Cluster";
                item.fail(report, message, "remove key, or write a fixed delay such as 30s");
            }
            groups.extend(spread(&provider, burst, tier.outage));
        }
        groups.push(tier.group());
        providers.push(provider);
    }
    if providers.is_empty() {
        fields.get("providers").unwrap_or_else(|| item.clone()).fail(report, "no provider", form);
    }
    let names: Vec<String> = providers.iter().map(|provider| provider.name.clone()).collect();
    let mut known = |key: &str| -> Vec<String> {
        let Some(item) = fields.get(key) else { return Vec::new() };
        let items = words(&item, report);
        if let Some(unknown) = items.iter().find(|name| !names.contains(name)) {
            report_unknown_provider(&item, unknown, &names, report);
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

/// Reads the section `workers`. Also returns the groups of rules that limit them.
pub(super) fn workers(
    item: &Item<'_>,
    dispatch: Option<&Dispatch>,
    report: &mut Report,
) -> (Vec<WorkerOptions>, Vec<Group>) {
    let form = "write a list of workers, each with provider, queue and handler";
    let items = item.list(report, form).unwrap_or_default();
    let (mut workers, mut groups) = (Vec::<WorkerOptions>::new(), Vec::<Group>::new());
    for item in items {
        let Some((worker, group)) = worker(&item, dispatch, report) else { continue };
        let twin = workers.iter().any(|other| other.provider == worker.provider);
        if twin && !worker.limits.is_empty() {
            let message =
                "another worker of the same provider comes first, and the limit belongs there";
            item.fail(report, message, "write the limit once, at the first worker of the provider");
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
        let remedy = "write 1 to 30 characters other than / , and <, without spaces around them";
        item.fail(report, "invalid provider name", remedy);
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
        scope: TierScope::Dispatch,
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
) -> Option<(WorkerOptions, Group)> {
    let before = report.errors();
    let fields = Fields::open(item.clone(), &WORKER, report)?;
    let remedy = "write the provider that the work is for, such as provider: github";
    let provider = fields.require("provider", remedy, report);
    let provider = provider.and_then(|item| gateway::name_of(&item, report)).unwrap_or_default();
    let known = dispatch.and_then(|dispatch| {
        dispatch.providers.iter().find(|candidate| candidate.name == provider)
    });
    let queue = match (fields.get("queue"), known) {
        (Some(item), _) => scalar::text(&item, report),
        (None, Some(known)) => Some(known.queue.clone()),
        (None, None) => {
            let remedy = "write the queue to read messages from, such as queue: jobs";
            // Reports that the queue is missing.
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
        scope: TierScope::Worker,
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
        scalar::span_from(item, report, Span::from_millis(1), "write at least 1ms")
    };
    let enabled = fields.get("enabled").map(|item| is_on(&item, report));
    let remedy = "write a handler, such as handler: {http: {url: …}}";
    let handler = fields.require("handler", remedy, report);
    let handler = handler.and_then(|item| handler::handler(&item, report));
    let worker = WorkerOptions {
        queue: queue.unwrap_or_default(),
        dead_letter: fields.read_some("dead_letter", report, scalar::text),
        results: fields.read_some("results", report, scalar::text),
        enabled: enabled.unwrap_or_else(|| dispatch.is_none_or(|dispatch| dispatch.enabled)),
        limits,
        estimate,
        concurrency: fields.read("concurrency", 5, report, |i, r| count(i, r, 1..=10_000)),
        prefetch: fields.read_some("prefetch", report, |i, r| count(i, r, 0..=10_000)),
        attempts: fields.read("attempts", 3, report, |item, report| {
            scalar::whole(item, report, 1..=1_000).and_then(|count| u32::try_from(count).ok())
        }),
        backoff_from,
        backoff_to,
        timeout: fields.read("timeout", Span::from_secs(60), report, least),
        learn: gateway::learn(&fields, true, report),
        provider,
        handler: handler.unwrap_or_else(unusable_handler),
    };
    Some((worker, group))
}

/// Placeholder for a handler with an error, so that its worker can still be compared with the
/// others.
fn unusable_handler() -> HandlerOptions {
    let call = HttpOptions::to(Text::from(String::new()));
    HandlerOptions { action: HandlerAction::Http(Box::new(call)), emit: Vec::new() }
}

const BACKOFF: (Span, Span) = (Span::from_secs(1), Span::from_secs(60));

/// Warns if the tiers of one provider differ: messages that pass one tier would wait in the other.
fn advise(
    item: &Item<'_>,
    worker: &WorkerOptions,
    dispatch: Option<&Dispatch>,
    report: &mut Report,
) {
    let providers = dispatch.iter().flat_map(|dispatch| &dispatch.providers);
    let Some(tier) = providers.into_iter().find(|other| other.name == worker.provider) else {
        return;
    };
    if worker.queue != tier.queue {
        let message =
            "reads from another queue than the one that dispatch sends this provider's messages to";
        report.warning(&item.location(), message, "write the same value in both");
    }
    if !worker.limits.is_empty() && worker.limits != tier.limits {
        let message = "the limit differs from that of the same provider in dispatch, so messages \
                       that one tier lets through wait in the other";
        report.warning(&item.location(), message, "write the same value in both");
    }
    if worker.estimate != tier.estimate {
        let message = "the estimate differs from that of the same provider in dispatch";
        report.warning(&item.location(), message, "write estimate once, in dispatch");
    }
}

/// Returns the highest concurrency of the workers in the file, at least 1.
fn worker_concurrency(workers: &Item<'_>) -> u64 {
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
    let field = name.unwrap_or_else(|| "provider".to_owned());
    let words = [
        ("FIXED", Strategy::Fixed),
        ("ROUND_ROBIN", Strategy::RoundRobin),
        ("WEIGHTED", Strategy::Weighted),
        ("COST_OPTIMIZED", Strategy::CostOptimized),
        ("QUALITY_FIRST", Strategy::QualityFirst),
        ("PRIORITY_ORDER", Strategy::PriorityOrder),
        ("MESSAGE_BASED", Strategy::MessageBased { field }),
        ("HEADROOM", Strategy::Headroom),
    ];
    let read = |item: &Item<'_>, report: &mut Report| scalar::word(item, report, &words);
    fields.read("strategy", Strategy::Fixed, report, read)
}

fn delay(item: &Item<'_>, report: &mut Report) -> Option<DelayMode> {
    let scalar = item.scalar(report, "write a time span, such as 30s, or booked")?;
    if scalar.text() == "booked" {
        return Some(DelayMode::Booked);
    }
    let remedy = "write at least 1ms, or booked";
    scalar::span_from(item, report, Span::from_millis(1), remedy).map(DelayMode::Fixed)
}

/// Returns true unless the value is literally `false`.
fn is_on(item: &Item<'_>, report: &mut Report) -> bool {
    let Some(scalar) = item.scalar(report, "write true or false") else { return true };
    if !["true", "false"].contains(&scalar.text()) {
        let message = "only the word false turns limits off, so they apply";
        report.warning(&item.location(), message, "write true or false");
    }
    scalar.text() != "false"
}

/// Reports a provider that is not in `providers`. A name that came from a variable is not repeated.
fn report_unknown_provider(item: &Item<'_>, unknown: &str, known: &[String], report: &mut Report) {
    let is_literal =
        |item: &Item<'_>| matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_literal());
    let message = match item.one_or_more().iter().all(is_literal) {
        true => format!("unknown provider {:?}", shorten(unknown)),
        false => "unknown provider".to_owned(),
    };
    item.fail(report, message, &format!("known providers: {}", shorten(&known.join(", "))));
}

/// Reads a list of words, or one text with commas.
fn words(item: &Item<'_>, report: &mut Report) -> Vec<String> {
    let texts = item.one_or_more();
    let texts = texts.iter().filter_map(|item| item.scalar(report, "write provider names"));
    let words = texts.flat_map(|scalar| scalar.text().split(','));
    words.map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn score(item: &Item<'_>, report: &mut Report) -> Option<f64> {
    let form = "write a number, such as 7 or 0.5";
    let number = item.scalar(report, form)?.text().trim().parse::<f64>().ok();
    let number = number.filter(|number| number.is_finite() && *number >= 0.0);
    if number.is_none() {
        item.fail(report, "not a number, or negative", form);
    }
    number
}

fn backoff(item: Item<'_>, report: &mut Report) -> Option<(Span, Span)> {
    let fields = Fields::open(item.clone(), &["from", "to"], report)?;
    let from = fields.read("from", BACKOFF.0, report, scalar::span);
    let to = fields.read("to", BACKOFF.1.max(from), report, scalar::span);
    if to < from {
        item.fail(report, "to is less than from", "write a value of to that is at least from");
    }
    Some((from, to))
}

fn is_cluster(store: &StoreOptions) -> bool {
    let StoreOptions::Redis(redis) = store else { return false };
    matches!(redis.topology, RedisTopology::Cluster(_))
}

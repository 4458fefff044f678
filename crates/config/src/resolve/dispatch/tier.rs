//! The rules of one provider: what a tier keeps, and what a message is taken for.

use sluicegate_core::limit::Unit;
use sluicegate_core::query::Cost;
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Group, Limit, Rule, Ruleset};

use crate::config::{OutagePolicy, Provider};
use crate::report::Report;
use crate::resolve::item::{Fields, Item};
use crate::resolve::{rule, scalar};

/// The dimensions by which these rules are found.
const BY_PROVIDER: &str = "@provider";
const BY_TIER: &str = "@tier";
/// Which questions a rule answers.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    Dispatch,
    Worker,
    Booked,
}

impl Asked {
    fn tiers(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Dispatch => &["dispatch", "booked"],
            Self::Worker => &["worker", "booked"],
            Self::Booked => &["booked"],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }
}

/// The rules of a tier of a provider.
#[derive(Clone)]
pub(super) struct Tier<'a> {
    pub(super) name: String,
    pub(super) provider: &'a str,
    pub(super) asked: Asked,
    pub(super) limits: Vec<Limit>,
    pub(super) key: Option<String>,
    pub(super) outage: Option<OutagePolicy>,
    pub(super) gated: bool,
}

impl Tier<'_> {
    pub(super) fn group(self) -> Group {
        let Self { name, provider, asked, limits, key, outage, gated } = self;
        let mut rule = match limits.is_empty() {
            true => Rule::unlimited(name.clone()),
            false => Rule::new(name.clone(), limits),
        };
        rule.outage = outage;
        rule.gate = gated;
        // A key that is written is the same for whatever the rule counts by.
        let per: &[&str] = if key.is_some() { &[] } else { &[BY_PROVIDER] };
        rule.key = key.map(|key| key.replace("<provider>", provider));
        let rule = rule
            .per(per)
            .when(BY_PROVIDER, Pattern::exactly(provider))
            .when(BY_TIER, Pattern::OneOf(asked.tiers()));
        Group::new(name, [rule])
    }

    /// Says what is wrong with its limits, on their own.
    pub(super) fn checked(self, item: &Item<'_>, before: usize, report: &mut Report) -> Self {
        if report.errors() == before {
            let group = self.clone().group();
            if let Err(errors) = Ruleset::new(vec![group], Settings::default()) {
                for error in errors {
                    item.fail(report, error.problem.to_string(), "");
                }
            }
        }
        self
    }
}

const ESTIMATE: [&str; 4] = ["tokens", "input_tokens", "output_tokens", "usd"];

/// What a message is taken for, where more than messages is limited.
pub(super) fn estimate(item: &Item<'_>, report: &mut Report) -> Option<Cost> {
    let fields = Fields::open(item.clone(), &ESTIMATE, report)?;
    let mut tokens = |key| {
        fields.read_some(key, report, |item, report| scalar::whole(item, report, 0..=TOKENS_MAX))
    };
    let (all, input, output) = (tokens("tokens"), tokens("input_tokens"), tokens("output_tokens"));
    if all.is_some() && (input.is_some() || output.is_some()) {
        let remedy = "write tokens, or input_tokens and output_tokens";
        item.fail(report, "says twice how many tokens a message takes", remedy);
    }
    let money = fields.read_some("usd", report, scalar::money);
    Some(Cost { requests: None, input_tokens: all.or(input), output_tokens: output, money })
}

const TOKENS_MAX: u64 = 1_000_000_000;

/// The limits of a tier. A message is one request; what else it takes is estimated.
pub(super) fn limits(item: &Item<'_>, estimate: &Cost, report: &mut Report) -> Vec<Limit> {
    let limits = rule::limits(item, report);
    for limit in &limits {
        let (unit, amount) = (limit.unit(), limit.amount().get());
        match unit {
            Unit::Requests => {}
            Unit::Slots => {
                let message = "counts what is under way, which the queue does not know";
                item.fail(report, message, "write `concurrency` at the worker");
            }
            _ => match estimate.of(unit) {
                None => {
                    let message = format!("{limit}: nobody says how much of it a message takes");
                    item.fail(report, message, remedy(unit));
                }
                Some(each) if each > amount => {
                    let message = format!("{limit}: a single message is taken for more than that");
                    item.fail(report, message, "raise the limit, or lower `estimate`");
                }
                Some(_) => {}
            },
        }
    }
    limits
}

const fn remedy(unit: Unit) -> &'static str {
    match unit {
        Unit::InputTokens => "write it beside the limit, such as estimate: {input_tokens: 500}",
        Unit::OutputTokens => "write it beside the limit, such as estimate: {output_tokens: 300}",
        Unit::Usd => "write it beside the limit, such as estimate: {usd: 0.02}",
        _ => "write it beside the limit, such as estimate: {tokens: 800}",
    }
}

/// How evenly booked moments are spread: an exact window that was used at once is free at once, and
/// workers that can't take so much together would be late for most of it.
pub(super) fn spread(
    provider: &Provider,
    burst: u64,
    outage: Option<OutagePolicy>,
) -> Option<Group> {
    let exact = provider.limits.iter().filter(|limit| matches!(limit, Limit::Exact(_)));
    let spread = exact.filter_map(|limit| {
        let each = match limit.unit() {
            Unit::Requests => 1,
            // Dollars are limited by the day rather than by the minute.
            Unit::Usd => return None,
            unit => provider.estimate.of(unit)?,
        };
        let burst = each.saturating_mul(burst);
        let spread = format!("{limit} burst {burst}");
        (limit.amount().get() > burst).then(|| spread.parse().ok())?
    });
    let spread: Vec<Limit> = spread.collect();
    if spread.is_empty() {
        return None;
    }
    let tier = Tier {
        name: format!("dispatch/{}/spread", provider.name),
        provider: &provider.name,
        asked: Asked::Booked,
        limits: spread,
        key: None,
        outage,
        gated: false,
    };
    Some(tier.group())
}

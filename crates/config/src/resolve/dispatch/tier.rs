//! [`Tier`]: the limits of one provider in the dispatcher or in its workers, and the estimated cost
//! of a message.

use sluicegate_core::limit::Unit;
use sluicegate_core::query::Cost;
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Group, Limit, Rule, Ruleset};

use crate::config::{OutagePolicy, Provider};
use crate::report::Report;
use crate::resolve::item::{Fields, Item};
use crate::resolve::{rule, scalar};

/// Dimensions by which these rules match.
const BY_PROVIDER: &str = "@provider";
const BY_TIER: &str = "@tier";

/// The tiers whose queries a rule applies to.
#[derive(Clone, Copy)]
pub(super) enum TierScope {
    Dispatch,
    Worker,
    Booked,
}

impl TierScope {
    fn tiers(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Dispatch => &["dispatch", "booked"],
            Self::Worker => &["worker", "booked"],
            Self::Booked => &["booked"],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }
}

/// The limits of a provider in one tier.
#[derive(Clone)]
pub(super) struct Tier<'a> {
    pub(super) name: String,
    pub(super) provider: &'a str,
    pub(super) scope: TierScope,
    pub(super) limits: Vec<Limit>,
    pub(super) key: Option<String>,
    pub(super) outage: Option<OutagePolicy>,
    pub(super) gated: bool,
}

impl Tier<'_> {
    /// Builds the group of rules.
    pub(super) fn group(self) -> Group {
        let Self { name, provider, scope, limits, key, outage, gated } = self;
        let mut rule = match limits.is_empty() {
            true => Rule::unlimited(name.clone()),
            false => Rule::new(name.clone(), limits),
        };
        rule.outage = outage;
        rule.gate = gated;
        // A literal key is the same for all values that the rule counts by.
        let per: &[&str] = if key.is_some() { &[] } else { &[BY_PROVIDER] };
        rule.key = key.map(|key| key.replace("<provider>", provider));
        let rule = rule
            .per(per)
            .when(BY_PROVIDER, Pattern::exactly(provider))
            .when(BY_TIER, Pattern::OneOf(scope.tiers()));
        Group::new(name, [rule])
    }

    /// Compiles the limits on their own, and reports errors.
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

/// Reads the estimated cost of a message, for limits on tokens or money.
pub(super) fn estimate(item: &Item<'_>, report: &mut Report) -> Option<Cost> {
    let fields = Fields::open(item.clone(), &ESTIMATE, report)?;
    let mut tokens = |key| {
        fields.read_some(key, report, |item, report| scalar::whole(item, report, 0..=TOKENS_MAX))
    };
    let (all, input, output) = (tokens("tokens"), tokens("input_tokens"), tokens("output_tokens"));
    if all.is_some() && (input.is_some() || output.is_some()) {
        let remedy = "write either tokens, or input_tokens and output_tokens";
        item.fail(report, "tokens can't be combined with input_tokens or output_tokens", remedy);
    }
    let money = fields.read_some("usd", report, scalar::money);
    Some(Cost { requests: None, input_tokens: all.or(input), output_tokens: output, money })
}

const TOKENS_MAX: u64 = 1_000_000_000;

/// Reads the limits of a tier. A message is one request; its other costs are estimated.
pub(super) fn limits(item: &Item<'_>, estimate: &Cost, report: &mut Report) -> Vec<Limit> {
    let limits = rule::limits(item, report);
    for limit in &limits {
        let (unit, amount) = (limit.unit(), limit.amount().get());
        match unit {
            Unit::Requests => {}
            Unit::Slots => {
                let message = "concurrent limits are not supported here";
                item.fail(report, message, "write concurrency at the worker");
            }
            _ => match estimate.of(unit) {
                None => {
                    let message = format!("{limit}: the cost of a message is unknown");
                    item.fail(report, message, remedy(unit));
                }
                Some(each) if each > amount => {
                    let message = format!(
                        "{limit}: the estimate of a single message is higher than the limit"
                    );
                    item.fail(report, message, "raise the limit, or lower estimate");
                }
                Some(_) => {}
            },
        }
    }
    limits
}

const fn remedy(unit: Unit) -> &'static str {
    match unit {
        Unit::InputTokens => {
            "add an estimate next to the limit, such as estimate: {input_tokens: 500}"
        }
        Unit::OutputTokens => {
            "add an estimate next to the limit, such as estimate: {output_tokens: 300}"
        }
        Unit::Usd => "add an estimate next to the limit, such as estimate: {usd: 0.02}",
        _ => "add an estimate next to the limit, such as estimate: {tokens: 800}",
    }
}

/// Builds the rule that spreads booked start times evenly. Without it, an exact window that was
/// used up at once is also free again at once. Workers that can't process so many messages together
/// would then be late for most of them.
pub(super) fn spread(
    provider: &Provider,
    burst: u64,
    outage: Option<OutagePolicy>,
) -> Option<Group> {
    let exact = || provider.limits.iter().filter(|limit| matches!(limit, Limit::Exact(_)));
    // Only the shortest window of each unit: it spreads the starts for the longer ones, too.
    let is_shortest = |limit: &&Limit| {
        exact().all(|other| other.unit() != limit.unit() || other.window() >= limit.window())
    };
    let spread = exact().filter(is_shortest).filter_map(|limit| {
        let each = match limit.unit() {
            Unit::Requests => 1,
            // Limits on money have windows of days rather than minutes.
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
        scope: TierScope::Booked,
        limits: spread,
        key: None,
        outage,
        gated: false,
    };
    let mut group = tier.group();
    group.rules.iter_mut().for_each(|rule| rule.spreads = true);
    Some(group)
}

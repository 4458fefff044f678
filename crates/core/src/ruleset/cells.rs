//! [`CellSpec`]: the counters that a rule charges. These are one log for all its exact windows, one
//! counter for each other limit, and its gate.

use std::borrow::Cow;

use super::problem::{RulesetError, RulesetProblem};
use crate::algorithm::{Meter, bucket, concurrency, log, window};
use crate::limit::{Calendar, Limit, Unit};
use crate::rule::{Pattern, Rule};
use crate::time::{Clock, Span};

/// One counter of a rule: all exact windows of the rule together, or one other limit.
#[derive(Clone, Debug)]
pub(crate) struct CellSpec {
    pub(crate) unit: Unit,
    pub(crate) limits: Vec<Limit>,
    /// A hundredth of its shortest window: the default time within which a booking may be used.
    /// `None` if it can't be booked.
    pub(crate) slack: Option<Span>,
    /// The limits as text, because every response contains them.
    pub(crate) texts: Vec<Box<str>>,
    /// Start of its key, before the part of the rule. Only gates have one.
    pub(super) prefix: &'static str,
    /// End of its key, which is different for each counter of the rule; empty for a literal key.
    pub(super) suffix: String,
    /// True for a gate, which is not charged but has to be open.
    pub(crate) gate: bool,
    /// True if it counts for a former limit of the rule: see [`super::carried`].
    pub(crate) carried: bool,
    /// Name of the shared counter that is used if there is no space for a counter per key.
    pub(crate) overflow: String,
    pub(super) spec: MeterSpec,
}

#[derive(Clone, Debug)]
pub(crate) enum MeterSpec {
    Log(Vec<log::LogQuota>),
    Windowed(window::WindowQuota),
    Calendar(u64, Calendar),
    Bucket(bucket::BucketQuota),
    Leases(concurrency::SlotQuota),
}

/// Returns the counters of a rule: one log for all exact windows of a unit, one counter for each
/// other limit.
pub(super) fn cells(rule: &Rule) -> Result<Vec<CellSpec>, RulesetError> {
    cells_with(rule, &[])
}

/// Returns the counters of a rule, including those of former limits that are still charged.
pub(super) fn cells_with(rule: &Rule, carried: &[Limit]) -> Result<Vec<CellSpec>, RulesetError> {
    let fail = |problem| Err(RulesetError { place: format!("rule {}", rule.name), problem });
    if rule.limits.is_empty() && !rule.unlimited {
        return fail(RulesetProblem::NoLimits);
    }
    if let Some((name, _)) = rule.when.iter().find(|(_, pattern)| match pattern {
        Pattern::OneOf(values) | Pattern::Hashed(_, values) => values.is_empty(),
        Pattern::Glob(_) | Pattern::Stars(_) => false,
    }) {
        return fail(RulesetProblem::NoValues(name.clone()));
    }
    if rule.limits.len() > 1 && rule.limits.iter().any(Limit::is_ban) {
        return fail(RulesetProblem::BanBesideLimits);
    }
    let mut cells: Vec<CellSpec> = Vec::new();
    let current = rule.limits.iter().map(|limit| (limit, false));
    for (limit, carried) in current.chain(carried.iter().map(|limit| (limit, true))) {
        let unit = limit.unit();
        let spec = MeterSpec::new(limit, rule);
        if let MeterSpec::Leases(quota) = &spec
            && quota.lease.as_micros() == 0
        {
            return fail(RulesetProblem::Lease);
        }
        if let MeterSpec::Log(quotas) = &spec
            && let Some(log) = cells.iter_mut().find(|cell| matches!(cell.spec, MeterSpec::Log(_)))
        {
            if let Some(twin) = log.limits.iter().find(|l| l.window() == limit.window()) {
                return fail(RulesetProblem::SameWindow(twin.to_string(), limit.to_string()));
            }
            log.limits.push(limit.clone());
            log.texts.push(limit.to_string().into());
            if let MeterSpec::Log(known) = &mut log.spec {
                known.extend(quotas);
            }
            continue;
        }
        let suffix = match (&rule.key, limit) {
            // Never under a literal key, because the counter there may use another algorithm.
            (_, Limit::Banned { .. }) => "#banned".to_owned(),
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
            return fail(RulesetProblem::SameWindow(twin.limits[0].to_string(), limit.to_string()));
        }
        let overflow = format!("{}#overflow{suffix}", rule.name);
        let (limits, texts) = (vec![limit.clone()], vec![limit.to_string().into()]);
        let slack = None;
        let (prefix, gate) = ("", false);
        cells.push(CellSpec {
            unit,
            limits,
            slack,
            texts,
            prefix,
            suffix,
            gate,
            carried,
            overflow,
            spec,
        });
    }
    let own = cells.iter().filter(|cell| !cell.carried).count();
    if rule.key.is_some() && own > 1 {
        return fail(RulesetProblem::TemplateCells(own));
    }
    if rule.gate {
        cells.push(CellSpec::gate(rule));
    }
    for cell in
        cells.iter_mut().filter(|cell| !cell.gate && !matches!(cell.spec, MeterSpec::Leases(_)))
    {
        let shortest = cell.limits.iter().map(Limit::window).min().unwrap_or_default();
        cell.slack = Some(Span::from_micros(shortest.as_micros() / 100));
    }
    Ok(cells)
}

impl CellSpec {
    /// Creates the gate of a rule. It has to be on the same server as the counter of the rule: a
    /// literal key has no braces for Redis to hash, so the key of the gate puts it in braces.
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
            carried: false,
            overflow: format!("{}#overflow{suffix}", rule.name),
            spec: MeterSpec::new(&Limit::GATE, rule),
        }
    }
}

impl MeterSpec {
    fn new(limit: &Limit, rule: &Rule) -> Self {
        match limit {
            Limit::Exact(rate) => Self::Log(vec![log::LogQuota {
                limit: rate.amount.get(),
                window: rate.window.span(),
            }]),
            Limit::Windowed(rate) => Self::Windowed(window::WindowQuota {
                limit: rate.amount.get(),
                window: rate.window.span(),
            }),
            Limit::Calendar { amount, calendar, .. } => {
                Self::Calendar(amount.get(), calendar.clone())
            }
            Limit::Banned { .. } => Self::Windowed(window::WindowQuota {
                limit: Limit::BAN.amount.get(),
                window: Limit::BAN.window.span(),
            }),
            Limit::Bucket { rate, capacity } => Self::Bucket(
                bucket::BucketQuota::new(*rate, *capacity)
                    .expect("a limit that can't be metered is refused by its parser"),
            ),
            Limit::Concurrent(amount) => {
                Self::Leases(concurrency::SlotQuota { limit: amount.get(), lease: rule.lease })
            }
        }
    }

    pub(super) fn meter(&self, clock: &impl Clock) -> Meter<'_> {
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

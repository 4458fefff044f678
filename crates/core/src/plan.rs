//! [`Plan`]: the charges of one or more queries, which a store admits together or not at all.

use smallvec::SmallVec;

use crate::algorithm::{EarliestStart, Meter, Reading, Slack};
use crate::decision::{Decision, Deny, Hit, Never, Readings};
use crate::id::Id;
use crate::key::Key;
use crate::limit::{Limit, Unit};
use crate::outage::OutagePolicy;
use crate::query::{self, Pacing, Query, RequestId, Statement};
use crate::rule::{OnExpiry, Rule};
use crate::ruleset::{CellSpec, PlanError, Settings};
use crate::time::{Span, Timestamp};

/// An amount to charge on one counter.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    /// Key of the counter.
    pub key: Key,
    /// Algorithm and limits.
    pub meter: Meter<'a>,
    /// Amount that has to fit: at least 1.
    pub need: u64,
    /// Amount that is written.
    pub take: u64,
    /// Amount compared when a request id is replayed: the amount written, or a hash of the tokens
    /// that it was computed from, because prices may change in between.
    pub(crate) identity: u64,
    pub(crate) group: usize,
    pub(crate) rule: &'a Rule,
    pub(crate) cell: &'a CellSpec,
}

impl<'a> Charge<'a> {
    /// Returns the rule of the charge.
    pub const fn rule(&self) -> &'a Rule {
        self.rule
    }

    /// Returns the index of the rule's group in its ruleset; for an inline limit, the number of
    /// groups.
    pub const fn group(&self) -> usize {
        self.group
    }

    /// Returns the limits, in the order of the meter.
    pub fn limits(&self) -> &'a [Limit] {
        &self.cell.limits
    }

    /// Returns the limits as written in the configuration, in the same order.
    pub fn texts(&self) -> &'a [Box<str>] {
        &self.cell.texts
    }

    /// Returns the unit that it counts.
    pub const fn unit(&self) -> Unit {
        self.cell.unit
    }

    /// Returns true if it is evaluated but never denies.
    pub const fn shadow(&self) -> bool {
        self.rule.shadow || self.rule.counts_only
    }

    /// Returns true if its limit is 0, so that nothing fits: see [`Plan::ban`].
    pub fn bans(&self) -> bool {
        self.cell.limits.first().is_some_and(Limit::is_ban)
    }

    /// Returns true if this is a gate: it charges nothing, and only has to be open. See
    /// [`crate::Store::close`].
    pub const fn is_gate(&self) -> bool {
        self.cell.gate
    }

    /// Returns true if it is written when its plan is booked.
    pub fn is_booked(&self) -> bool {
        self.meter.is_bookable() && !self.is_gate()
    }

    /// Returns true if it is given back when its hold expires without a settlement.
    pub fn refunds(&self) -> bool {
        self.rule.on_expiry == OnExpiry::Refund && self.meter.is_bookable()
    }

    /// Returns the name of the shared counter that is used if there is no space for a counter per
    /// key.
    pub fn overflow(&self) -> &'a str {
        &self.cell.overflow
    }
}

/// Charges that are admitted together or not at all.
///
/// Each is on a different key. A plan without charges is not limited.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Id of the work.
    pub id: RequestId,
    /// Time for which the charges are held as an estimate.
    pub hold: Option<Span>,
    /// Time after its start within which a booking may be used.
    pub slack: Span,
    /// Time before its start at which paced work may be admitted or claimed; `None` if the work is
    /// not paced. Paced work is charged at the end of its slack, also when it is acquired.
    pub lead: Option<Span>,
    /// True if the store may take longer to answer than a decision is allowed to.
    pub patient: bool,
    /// The pacer that starts the work, if it spaces its real starts: [`Slack`].
    pub owner: Option<Id>,
    /// Maximum time from now to the start of a booking.
    pub horizon: Span,
    /// Outage policy: the strictest of its charges.
    pub outage: OutagePolicy,
    /// Outage policy of the client, for rules without a policy of their own.
    pub(crate) of_client: OutagePolicy,
    charges: SmallVec<[Charge<'a>; 4]>,
    /// The rule without limits that matches the only query, if there is one.
    unlimited: Option<&'a Rule>,
    /// The parts of the queries, if there are several.
    by_query: Vec<QueryCharges<'a>>,
    /// The queries that made the plan.
    stated: SmallVec<[&'a dyn Statement; 1]>,
}

/// The part of a plan that belongs to one of several queries.
#[derive(Clone, Debug, Default)]
pub struct QueryCharges<'a> {
    /// Indexes of its charges in the plan.
    pub charges: SmallVec<[usize; 4]>,
    /// The rule without limits that matches it, if there is one.
    pub unlimited: Option<&'a Rule>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(query: &'a Query<'_>, horizon: Span) -> Self {
        Self {
            id: query.id,
            hold: query.hold,
            slack: Settings::SLACK_MIN,
            lead: query.pacing.map(|pacing| pacing.lead),
            patient: query.patient || query.pacing.is_some(),
            owner: query.pacing.and_then(|pacing| pacing.owner),
            horizon,
            outage: OutagePolicy::Unlimited,
            of_client: OutagePolicy::Unlimited,
            charges: SmallVec::new(),
            unlimited: None,
            by_query: Vec::new(),
            stated: SmallVec::from_buf([query as &dyn Statement]),
        }
    }

    /// Returns the number of queries.
    pub fn queries(&self) -> usize {
        self.by_query.len().max(1)
    }

    /// Returns the part of the query with this index.
    pub fn query_charges(&self, query: usize) -> QueryCharges<'a> {
        match self.by_query.get(query) {
            Some(part) => part.clone(),
            None => QueryCharges {
                charges: (0..self.charges.len()).collect(),
                unlimited: self.unlimited,
            },
        }
    }

    /// Returns the charges.
    pub fn charges(&self) -> &[Charge<'a>] {
        &self.charges
    }

    /// Returns the ban that denies the plan, if there is one: a plan with only that charge, and the
    /// decision.
    ///
    /// This needs no store, so a ban also holds during an outage. A ban without an end is
    /// [`Decision::Never`]; one with an end is a denial until then. Of several bans, the longest
    /// counts.
    pub fn ban(&self, now: Timestamp) -> Option<(Self, Decision)> {
        let until = |charge: &Charge<'_>| match charge.limits() {
            [Limit::Banned { until }] => *until,
            _ => None,
        };
        let bans =
            self.charges.iter().enumerate().filter(|(_, charge)| charge.bans() && !charge.shadow());
        let (place, charge) = bans.max_by_key(|(_, charge)| match until(charge) {
            None => (true, now),
            Some(end) => (false, end),
        })?;
        let end = until(charge).map(|end| end.max(now + Span::from_millis(1)));
        let readings = Readings::from_elem(Reading::new(0, end.unwrap_or(now)), 1);
        let hit = Hit { charge: 0, limit: 0 };
        let decision = match end {
            None => Decision::Never(Never { at: now, hit, readings }),
            Some(start) => Decision::Deny(Deny { at: now, start, hit, readings }),
        };
        let part = |part: &QueryCharges<'a>| {
            let banned = part.charges.contains(&place);
            let charges = if banned { SmallVec::from_elem(0, 1) } else { SmallVec::new() };
            QueryCharges { charges, unlimited: part.unlimited }
        };
        let by_query = self.by_query.iter().map(part).collect();
        Some((Self { by_query, ..self.with_only(&[place]) }, decision))
    }

    /// Returns the gates, with their indexes.
    pub fn gates(&self) -> impl Iterator<Item = (usize, &Charge<'a>)> {
        self.charges.iter().enumerate().filter(|(_, charge)| charge.is_gate())
    }

    /// Returns every limit that is checked, in the order of the readings of a decision.
    pub fn scopes(&self) -> impl Iterator<Item = (&Charge<'a>, &'a Limit)> {
        self.charges.iter().flat_map(|c| c.limits().iter().map(move |limit| (c, limit)))
    }

    /// Returns true if the store has to keep a record of it: because the id may be repeated, or
    /// because a settlement or release will follow.
    pub fn needs_record(&self) -> bool {
        self.id.keep.is_some()
            || self.hold.is_some()
            || self.lead.is_some()
            || self.charges.iter().any(|charge| !charge.meter.is_bookable())
    }

    /// Returns the longest time for which a charge counts.
    pub fn window(&self) -> Span {
        self.charges.iter().map(|charge| charge.meter.window()).max().unwrap_or_default()
    }

    /// Returns the fingerprint by which a replay is recognised. It covers counters and amounts. It
    /// does not cover limits and prices, which a reload may change between an attempt and its
    /// retry, nor the counters of former limits, which are left out after a while.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        for charge in self.charges.iter().filter(|charge| !charge.cell.carried) {
            hasher.update(&(charge.key.as_bytes().len() as u64).to_le_bytes());
            hasher.update(charge.key.as_bytes());
            hasher.update(&charge.identity.to_le_bytes());
        }
        let mut bits = [0; 8];
        hasher.finalize_xof().fill(&mut bits);
        u64::from_le_bytes(bits)
    }

    /// Returns the fingerprint of the caller's statement: dimensions and cost. A claim has to state
    /// the same as its booking. A reload of the rules changes the plan, but not this.
    pub fn statement_fingerprint(&self) -> u64 {
        query::fingerprint(&self.stated)
    }

    /// Returns the same plan with only the charges at these indexes, for a store that keeps the
    /// others on other servers.
    #[must_use]
    pub fn with_only(&self, places: &[usize]) -> Self {
        let charges = places.iter().map(|&place| self.charges[place].clone()).collect();
        Self { charges, by_query: Vec::new(), stated: self.stated.clone(), ..*self }
    }

    /// Returns the same plan without charges, held for the longest of its leases. Its record allows
    /// work that an outage policy admits without counting to be settled, released and renewed.
    pub(crate) fn uncharged(&self) -> Self {
        let leases = self.charges.iter().filter(|charge| !charge.meter.is_bookable());
        let lease = leases.map(|charge| charge.rule.lease).max();
        Self { hold: self.hold.max(lease), ..self.with_only(&[]) }
    }

    /// Returns the handle for later operations on the plan.
    pub fn handle(&self) -> Handle {
        let keys = self.charges.iter().map(|charge| charge.key.clone()).collect();
        Handle { id: self.id.id, claimant: None, keys }
    }

    /// Adds a charge and calls `name` to complete its key. A second charge on the same key is
    /// merged with the first.
    ///
    /// The key is written in its final position, because moving it would be the largest part of the
    /// cost of planning. The plan gets the strictest outage policy of its charges.
    pub(crate) fn push(
        &mut self,
        charge: Charge<'a>,
        name: impl FnOnce(&mut Key),
    ) -> Result<(), PlanError> {
        if !charge.shadow() {
            self.outage = self.outage.min(charge.rule.outage.unwrap_or(self.of_client));
        }
        self.charges.push(charge);
        let place = self.charges.len() - 1;
        let (others, added) = self.charges.split_at_mut(place);
        let [added] = added else { unreachable!("one was just added") };
        name(&mut added.key);
        // Under a literal key, the counter of a former limit has the same key and another
        // algorithm.
        let same = |other: &Charge<'_>| {
            let carried = other.cell.carried || added.cell.carried;
            other.key == added.key && (!carried || other.meter.kind() == added.meter.kind())
        };
        let known = others.iter().position(same);
        if let Some(part) = self.by_query.last_mut() {
            let place = known.unwrap_or(place);
            if !part.charges.contains(&place) {
                part.charges.push(place);
            }
        }
        let Some(known) = known else { return Ok(()) };
        let added = self.charges.pop().expect("one was just added");
        let charge = &mut self.charges[known];
        if charge.meter != added.meter {
            let rules = [charge.rule.name.clone(), added.rule.name.clone()];
            return Err(PlanError::SharedKey { key: added.key.to_string(), rules });
        }
        charge.take = charge.take.saturating_add(added.take);
        charge.identity = charge.identity.wrapping_add(added.identity);
        charge.need = charge.need.saturating_add(added.need);
        Ok(())
    }

    /// Starts the part of the next one of several queries.
    pub(crate) fn begin_query(&mut self, query: &'a Query<'_>) {
        // The constructor has added the first query.
        if !self.by_query.is_empty() {
            self.stated.push(query);
        }
        self.hold = self.hold.max(query.hold);
        self.by_query.push(QueryCharges::default());
    }

    /// Marks the current query as unlimited because of a rule.
    pub(crate) fn set_unlimited(&mut self, rule: &'a Rule) {
        match self.by_query.last_mut() {
            Some(part) => part.unlimited = Some(rule),
            None => self.unlimited = Some(rule),
        }
    }

    /// Removes the charges of rules that another rule in this plan replaces.
    pub(crate) fn remove_replaced(&mut self) {
        let charged = self.charges.iter().map(|charge| charge.rule);
        let free = self.by_query.iter().filter_map(|part| part.unlimited);
        let replaced: Vec<&str> =
            charged.chain(free).flat_map(|rule| rule.replaces.iter().map(String::as_str)).collect();
        let is_replaced = |charge: &Charge<'_>| replaced.contains(&charge.rule.name.as_str());
        for place in (0..self.charges.len()).rev() {
            if !is_replaced(&self.charges[place]) {
                continue;
            }
            self.charges.remove(place);
            for part in &mut self.by_query {
                part.charges.retain(|other| *other != place);
                part.charges.iter_mut().filter(|other| **other > place).for_each(|p| *p -= 1);
            }
        }
    }

    /// Makes the store remember the plan for `span` if an amount is still unknown, because a
    /// settlement needs a record.
    pub(crate) fn keep_if_unknown(&mut self, span: Option<Span>) {
        let unknown = |charge: &Charge<'_>| charge.take == 0 && !charge.is_gate();
        if self.id.keep.is_none() && self.charges.iter().any(unknown) {
            self.id.keep = span;
        }
    }

    /// Sets the slack: the configured one, or else 1 % of the shortest window, but at least as long
    /// as a pacer needs, and at least 10 ms without a pacer.
    pub(crate) fn set_slack(&mut self, configured: Option<Span>, pacing: Option<Pacing>) {
        let charges = self.charges.iter().filter(|charge| !charge.rule.spreads);
        let shortest = charges.filter_map(|charge| charge.cell.slack).min();
        let needed = pacing.map_or(Settings::SLACK_MIN, |pacing| pacing.slack);
        self.slack = configured.unwrap_or(shortest.unwrap_or_default().max(needed));
    }

    /// Returns the time after `start` at which a charge of booked or paced work is written: the
    /// slack, during which the work may begin. A rule that only spreads starts is charged at the
    /// start.
    pub fn slack_of(&self, charge: &Charge<'_>) -> Slack {
        if charge.rule.spreads {
            return Slack::NONE;
        }
        Slack { span: self.slack, owner: self.owner }
    }

    /// Returns `now` plus the lead; `now` itself if the work is not paced.
    pub fn after_lead(&self, now: Timestamp) -> Timestamp {
        now + self.lead.unwrap_or_default()
    }

    /// Returns the same plan with other meters, or `None` if a charge that can deny has no meter.
    pub(crate) fn with_meters(
        &self,
        meter: impl Fn(&Charge<'a>) -> Option<Meter<'a>>,
    ) -> Option<Self> {
        let mut plan = Self { charges: SmallVec::new(), ..self.clone() };
        for charge in &self.charges {
            if charge.is_gate() || charge.rule.spreads {
                // Neither is a limit that nodes could share.
                plan.charges.push(charge.clone());
                continue;
            }
            match meter(charge) {
                Some(meter) => plan.charges.push(Charge { meter, ..charge.clone() }),
                None if charge.shadow() => plan.charges.push(charge.clone()),
                None => return None,
            }
        }
        Some(plan)
    }

    /// Returns true if a booking may start at `start`: within the horizon, and in a known calendar
    /// period.
    pub fn can_start_at(&self, now: Timestamp, start: Timestamp) -> bool {
        start <= now + self.horizon && self.is_in_known_periods(start)
    }

    /// Returns true if `at` is in one of the two known periods of every calendar charge.
    fn is_in_known_periods(&self, at: Timestamp) -> bool {
        self.charges.iter().all(|charge| match &charge.meter {
            Meter::Calendar(quota) => quota.boundaries.period(at).is_some(),
            _ => true,
        })
    }

    /// Returns the first instant from `now` on at which every charge fits.
    ///
    /// Each round moves the start to the latest result of all charges; the search ends when a round
    /// changes nothing. Only a fully booked calendar period can make a second round differ from the
    /// first. `earliest` returns the result of one charge, by its index, from an instant on. If
    /// `booking` is true, charges that can't be booked are skipped.
    pub fn start(
        &self,
        now: Timestamp,
        booking: bool,
        mut earliest: impl FnMut(usize, Timestamp) -> EarliestStart,
    ) -> PlanStart {
        if !self.is_in_known_periods(now) {
            return PlanStart::Skew;
        }
        let mut start = now;
        let mut hit = None;
        loop {
            let before = start;
            for (index, charge) in self.charges.iter().enumerate() {
                if charge.shadow() || (booking && !charge.meter.is_bookable()) {
                    continue;
                }
                match earliest(index, start) {
                    EarliestStart::At { start: at, limit } if at > start => {
                        start = at;
                        hit = Some(Hit { charge: index, limit });
                    }
                    EarliestStart::At { .. } => {}
                    EarliestStart::Never { limit } => {
                        return PlanStart::Never(Hit { charge: index, limit });
                    }
                }
            }
            if start == before {
                break;
            }
        }
        match hit {
            None => PlanStart::Now,
            Some(hit) => PlanStart::Later(start, hit),
        }
    }
}

/// Time at which a plan can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStart {
    /// Now.
    Now,
    /// At this time, because of this limit.
    Later(Timestamp, Hit),
    /// Never: the amount is larger than this limit.
    Never(Hit),
    /// The clocks of the node and of the store are in different calendar periods.
    Skew,
}

/// Reference to an admitted plan. With it, any node can settle, release, renew or cancel the plan,
/// without knowing its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Id of the work.
    pub id: Id,
    /// The claimant that got [`crate::store::Claim::Go`], if the plan was booked.
    pub claimant: Option<Id>,
    /// Keys of the counters that were charged.
    pub keys: Vec<Key>,
}

impl Handle {
    /// Returns the handle of a claimant that got [`crate::store::Claim::Go`].
    #[must_use]
    pub fn claimed_by(self, claimant: Id) -> Self {
        Self { claimant: Some(claimant), ..self }
    }
}

//! What a query has to be charged: all of it, or nothing.

use smallvec::SmallVec;

use crate::algorithm::{Earliest, Meter, Reading};
use crate::decision::{Decision, Deny, Hit, Never, Readings};
use crate::id::Id;
use crate::key::Key;
use crate::limit::{Limit, Unit};
use crate::outage::OutagePolicy;
use crate::query::{self, Query, RequestId, Statement};
use crate::rule::{OnExpiry, Rule};
use crate::ruleset::{CellSpec, PlanError, Settings};
use crate::time::{Span, Timestamp};

/// One amount on one counter.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    /// The counter.
    pub key: Key,
    /// How it is measured, under which limits.
    pub meter: Meter<'a>,
    /// What has to fit: at least 1.
    pub need: u64,
    /// What is written.
    pub take: u64,
    /// What has to be the same when it comes again: what is written, or the tokens that it was
    /// computed from, because prices may change in between.
    pub(crate) identity: u64,
    pub(crate) group: usize,
    pub(crate) rule: &'a Rule,
    pub(crate) cell: &'a CellSpec,
}

impl<'a> Charge<'a> {
    /// The rule that asks for it.
    pub const fn rule(&self) -> &'a Rule {
        self.rule
    }

    /// The number of the rule's group in its ruleset; one past the last for a limit of the query.
    pub const fn group(&self) -> usize {
        self.group
    }

    /// The limits, in the order of the meter.
    pub fn limits(&self) -> &'a [Limit] {
        &self.cell.limits
    }

    /// The limits as they are written, in the same order.
    pub fn texts(&self) -> &'a [Box<str>] {
        &self.cell.texts
    }

    /// What it counts.
    pub const fn unit(&self) -> Unit {
        self.cell.unit
    }

    /// Evaluated, but never a reason to deny.
    pub const fn shadow(&self) -> bool {
        self.rule.shadow || self.rule.tally
    }

    /// Its limit is 0, so that nothing fits: see [`Plan::ban`].
    pub fn bans(&self) -> bool {
        self.cell.limits.first().is_some_and(Limit::is_ban)
    }

    /// Not charged at all: it only has to be open. See [`crate::Store::close`].
    pub const fn is_gate(&self) -> bool {
        self.cell.gate
    }

    /// Written when its plan is booked.
    pub fn is_booked(&self) -> bool {
        self.meter.bookable() && !self.is_gate()
    }

    /// Given back by itself if it is held and nobody settles it.
    pub fn refunds(&self) -> bool {
        self.rule.on_expiry == OnExpiry::Refund && self.meter.bookable()
    }

    /// The name of the counter that takes what no longer has room for a key of its own.
    pub fn overflow(&self) -> &'a str {
        &self.cell.overflow
    }
}

/// Charges that are admitted together or not at all.
///
/// No two of them are on the same key. There may be none: then nothing limits the query.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The name of the work.
    pub id: RequestId,
    /// Hold the charges as an estimate for so long.
    pub hold: Option<Span>,
    /// How much later than its start a booking may be used.
    pub slack: Span,
    /// How far ahead a booking may start.
    pub horizon: Span,
    /// What holds while the store does not answer: the strictest of its charges.
    pub outage: OutagePolicy,
    /// What holds for rules without a policy of their own: that of whoever asks.
    pub(crate) of_client: OutagePolicy,
    charges: SmallVec<[Charge<'a>; 4]>,
    /// The rule that sets the only query free, if one does.
    unlimited: Option<&'a Rule>,
    /// What each query asked for, where there are several.
    parts: Vec<Part<'a>>,
    /// The queries that it was made of.
    stated: SmallVec<[&'a dyn Statement; 1]>,
}

/// What one of several queries asked for.
#[derive(Clone, Debug, Default)]
pub struct Part<'a> {
    /// The places of its charges among those of the plan.
    pub charges: SmallVec<[usize; 4]>,
    /// The rule that sets it free, if one does.
    pub unlimited: Option<&'a Rule>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(query: &'a Query<'_>, horizon: Span) -> Self {
        Self {
            id: query.id,
            hold: query.hold,
            slack: Settings::SLACK_MIN,
            horizon,
            outage: OutagePolicy::Unlimited,
            of_client: OutagePolicy::Unlimited,
            charges: SmallVec::new(),
            unlimited: None,
            parts: Vec::new(),
            stated: SmallVec::from_buf([query as &dyn Statement]),
        }
    }

    /// How many queries are in it.
    pub fn queries(&self) -> usize {
        self.parts.len().max(1)
    }

    /// What the query with this number asked for.
    pub fn part(&self, query: usize) -> Part<'a> {
        match self.parts.get(query) {
            Some(part) => part.clone(),
            None => Part { charges: (0..self.charges.len()).collect(), unlimited: self.unlimited },
        }
    }

    /// The charges.
    pub fn charges(&self) -> &[Charge<'a>] {
        &self.charges
    }

    /// The ban that refuses the plan, if one does: that charge alone, and the decision.
    ///
    /// No store is asked, so a ban holds while there is none. A ban without an end is
    /// [`Decision::Never`]; one with an end is a denial until then. Of several, the longest counts.
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
        let part = |part: &Part<'a>| {
            let banned = part.charges.contains(&place);
            let charges = if banned { SmallVec::from_elem(0, 1) } else { SmallVec::new() };
            Part { charges, unlimited: part.unlimited }
        };
        let parts = self.parts.iter().map(part).collect();
        Some((Self { parts, ..self.only(&[place]) }, decision))
    }

    /// The charges that only have to be open, with their places.
    pub fn gates(&self) -> impl Iterator<Item = (usize, &Charge<'a>)> {
        self.charges.iter().enumerate().filter(|(_, charge)| charge.is_gate())
    }

    /// Every limit that is checked, in the order in which a decision reads them.
    pub fn scopes(&self) -> impl Iterator<Item = (&Charge<'a>, &'a Limit)> {
        self.charges.iter().flat_map(|c| c.limits().iter().map(move |limit| (c, limit)))
    }

    /// Whether the store has to remember it: because it may be asked again under the same id, or
    /// because something about it remains to be done.
    pub fn recorded(&self) -> bool {
        self.id.keep.is_some()
            || self.hold.is_some()
            || self.charges.iter().any(|charge| !charge.meter.bookable())
    }

    /// The longest time that anything in it counts.
    pub fn window(&self) -> Span {
        self.charges.iter().map(|charge| charge.meter.window()).max().unwrap_or_default()
    }

    /// What makes it the same plan when it comes again: counters and amounts, but not limits and
    /// prices, which a reload may change between an attempt and its retry, nor the counters of former
    /// limits, which are left out when their time is over.
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

    /// Returns the fingerprint of what the caller stated: dimensions and cost. A claim has to state
    /// what its booking did; a reload of the rules changes the plan, but not this.
    pub fn stated(&self) -> u64 {
        query::fingerprint(&self.stated)
    }

    /// The same plan with only the charges at these places, for a store that keeps the others
    /// elsewhere.
    #[must_use]
    pub fn only(&self, places: &[usize]) -> Self {
        let charges = places.iter().map(|&place| self.charges[place].clone()).collect();
        Self { charges, parts: Vec::new(), stated: self.stated.clone(), ..*self }
    }

    /// The same plan without charges, held for as long as its leases would last: a record by which
    /// work that an outage policy admits uncounted is settled, released and renewed.
    pub(crate) fn uncharged(&self) -> Self {
        let leases = self.charges.iter().filter(|charge| !charge.meter.bookable());
        let lease = leases.map(|charge| charge.rule.lease).max();
        Self { hold: self.hold.max(lease), ..self.only(&[]) }
    }

    /// What names it to the store afterwards.
    pub fn handle(&self) -> Handle {
        let keys = self.charges.iter().map(|charge| charge.key.clone()).collect();
        Handle { id: self.id.id, claimant: None, keys }
    }

    /// Adds a charge whose key `name` completes; a second one on the same key becomes one with the
    /// first.
    ///
    /// The key is written where it stays: moving bytes that were just written is what costs most
    /// in planning. The plan takes the strictest outage policy of what is charged.
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
        // Under a literal key, the counter of a former limit is told apart by its kind.
        let same = |other: &Charge<'_>| {
            let carried = other.cell.carried || added.cell.carried;
            other.key == added.key && (!carried || other.meter.kind() == added.meter.kind())
        };
        let known = others.iter().position(same);
        if let Some(part) = self.parts.last_mut() {
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

    /// What is added from here on is for the next one of several queries.
    pub(crate) fn next_part(&mut self, query: &'a Query<'_>) {
        // The first one is in it already.
        if !self.parts.is_empty() {
            self.stated.push(query);
        }
        self.hold = self.hold.max(query.hold);
        self.parts.push(Part::default());
    }

    /// A rule sets the query free.
    pub(crate) fn set_free(&mut self, rule: &'a Rule) {
        match self.parts.last_mut() {
            Some(part) => part.unlimited = Some(rule),
            None => self.unlimited = Some(rule),
        }
    }

    /// Drops the charges of rules that another rule in this plan replaces.
    pub(crate) fn replace(&mut self) {
        let charged = self.charges.iter().map(|charge| charge.rule);
        let free = self.parts.iter().filter_map(|part| part.unlimited);
        let replaced: Vec<&str> =
            charged.chain(free).flat_map(|rule| rule.replaces.iter().map(String::as_str)).collect();
        let is_replaced = |charge: &Charge<'_>| replaced.contains(&charge.rule.name.as_str());
        for place in (0..self.charges.len()).rev() {
            if !is_replaced(&self.charges[place]) {
                continue;
            }
            self.charges.remove(place);
            for part in &mut self.parts {
                part.charges.retain(|other| *other != place);
                part.charges.iter_mut().filter(|other| **other > place).for_each(|p| *p -= 1);
            }
        }
    }

    /// Has the store remember the plan for so long if something is to be charged that is not known
    /// yet: what is not remembered can't be settled.
    pub(crate) fn keep_if_unknown(&mut self, span: Option<Span>) {
        let unknown = |charge: &Charge<'_>| charge.take == 0 && !charge.is_gate();
        if self.id.keep.is_none() && self.charges.iter().any(unknown) {
            self.id.keep = span;
        }
    }

    pub(crate) fn set_slack(&mut self, configured: Option<Span>) {
        let shortest = self.charges.iter().filter_map(|charge| charge.cell.slack).min();
        self.slack = configured.unwrap_or(shortest.unwrap_or_default().max(Settings::SLACK_MIN));
    }

    /// The same plan under other meters, unless a charge that can deny it has none.
    pub(crate) fn with_meters(
        &self,
        meter: impl Fn(&Charge<'a>) -> Option<Meter<'a>>,
    ) -> Option<Self> {
        let mut plan = Self { charges: SmallVec::new(), ..self.clone() };
        for charge in &self.charges {
            if charge.is_gate() {
                // Closed or not, whoever else there is.
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

    /// Whether a booking may start at `start`: inside the horizon, and in a period that is known.
    pub fn reaches(&self, now: Timestamp, start: Timestamp) -> bool {
        start <= now + self.horizon && self.calendars_know(start)
    }

    /// Whether `at` lies in one of the two periods that each calendar charge can tell apart.
    fn calendars_know(&self, at: Timestamp) -> bool {
        self.charges.iter().all(|charge| match &charge.meter {
            Meter::Calendar(quota) => quota.boundaries.period(at).is_some(),
            _ => true,
        })
    }

    /// The first instant from `now` on at which every charge fits, asked of the cells in turn.
    ///
    /// It is the latest of the charges' own, asked again from there until none moves: only a
    /// calendar period that is booked full makes a second round differ from the first.
    /// `earliest` answers for the charge with a number, from an instant on; `booking` leaves out
    /// what can't be booked.
    pub fn start(
        &self,
        now: Timestamp,
        booking: bool,
        mut earliest: impl FnMut(usize, Timestamp) -> Earliest,
    ) -> Start {
        if !self.calendars_know(now) {
            return Start::Skew;
        }
        let mut start = now;
        let mut hit = None;
        loop {
            let before = start;
            for (index, charge) in self.charges.iter().enumerate() {
                if charge.shadow() || (booking && !charge.meter.bookable()) {
                    continue;
                }
                match earliest(index, start) {
                    Earliest::At { start: at, limit } if at > start => {
                        start = at;
                        hit = Some(Hit { charge: index, limit });
                    }
                    Earliest::At { .. } => {}
                    Earliest::Never { limit } => {
                        return Start::Never(Hit { charge: index, limit });
                    }
                }
            }
            if start == before {
                break;
            }
        }
        match hit {
            None => Start::Now,
            Some(hit) => Start::Later(start, hit),
        }
    }
}

/// When a plan can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At once.
    Now,
    /// At this instant, because of this limit.
    Later(Timestamp, Hit),
    /// It is more than this limit ever gives.
    Never(Hit),
    /// The clocks of the node and of the store are in different calendar periods.
    Skew,
}

/// What names an admitted plan to its store: any node can settle, release, renew or cancel it,
/// without knowing the rules by which it was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The name of the work.
    pub id: Id,
    /// Who was told to go, if it was booked before.
    pub claimant: Option<Id>,
    /// The counters that it was charged on.
    pub keys: Vec<Key>,
}

impl Handle {
    /// The handle of a claimant that was told to go.
    #[must_use]
    pub fn claimed_by(self, claimant: Id) -> Self {
        Self { claimant: Some(claimant), ..self }
    }
}

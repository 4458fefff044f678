//! [`Counter`]: one counter of the model, with every use and the definition of each limit over
//! them.

use std::collections::BTreeMap;

use super::ChargeParams;
use sluicegate_core::algorithm::bucket::BucketQuota;
use sluicegate_core::algorithm::{EarliestStart, Meter, Reading, Slack};
use sluicegate_core::id::Id;
use sluicegate_core::limit::Boundaries;
use sluicegate_core::time::{Span, Timestamp};

#[derive(Clone, Debug, Default)]
pub(super) struct Counter {
    uses: Vec<Use>,
    /// Amount refunded at each time without naming a use; never more than the uses at that time.
    refunded: BTreeMap<Timestamp, u64>,
    /// For a bucket: time at which everything has drained.
    empty_at_ns: u128,
    /// For a bucket: latest time of any charge, bookings included.
    latest: Timestamp,
    /// For a bucket: total amount refunded.
    given_back_ns: u128,
    /// For a bucket: the owner of the last consecutive charges, and the time at which the bucket
    /// has drained if the owner uses them at their starts.
    run: Option<(Id, u128)>,
    /// Uses that are refunded automatically, with their times.
    pub(super) due: Vec<(Timestamp, u64)>,
    pub(super) reset_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    serial: u64,
    /// Latest time at which it may be used, rounded like its window; for a lease and a calendar
    /// period, its end.
    score: Timestamp,
    amount: u64,
    /// For a bucket: time at which this use has drained unless more is refunded, and its drain
    /// rate.
    drained_at_ns: u128,
    given_back_ns: u128,
    drain_ns: u64,
    grain: u64,
}

/// Returns the end of the hundredth of a window that contains `at`.
fn slice(window: Span, at: Timestamp) -> Timestamp {
    let grain = window.as_micros() / 100;
    let into = at.as_micros() % grain;
    if into == 0 { at } else { at + Span::from_micros(grain - into) }
}

fn nanos(at: Timestamp) -> u128 {
    u128::from(at.as_micros()) * 1_000
}

fn cost_ns(drain_ns: u64, grain: u64, amount: u64) -> u128 {
    u128::from(amount.div_ceil(grain)) * u128::from(drain_ns)
}

impl Counter {
    /// Removes all usage.
    pub(super) fn reset(&mut self, now: Timestamp) {
        *self = Self { reset_at: Some(now), ..Self::default() };
    }

    /// Closes a bucket until `until`.
    pub(super) fn close(&mut self, until: Timestamp) {
        if nanos(until) > self.empty_at_ns {
            (self.empty_at_ns, self.run) = (nanos(until), None);
        }
        self.latest = self.latest.max(until);
    }

    /// Returns the time at which a bucket has drained for the next work of an owner.
    fn drained_ns(&self, owner: Option<Id>) -> u128 {
        match self.run {
            Some((of_run, empty_at_ns)) if owner == Some(of_run) => empty_at_ns,
            _ => self.empty_at_ns,
        }
    }

    /// Returns the amount of all uses whose time `counts`.
    fn sum(&self, counts: impl Fn(Timestamp) -> bool) -> u64 {
        let used = self.uses.iter().filter(|used| counts(used.score)).map(|used| used.amount);
        let refunded = self.refunded.iter().filter(|(score, _)| counts(**score));
        used.sum::<u64>() - refunded.map(|(_, amount)| amount).sum::<u64>()
    }

    /// Returns true if `need` fits at `at` under limit number `limit`: the definition of each
    /// limit.
    fn fits_limit(
        &self,
        meter: &Meter<'_>,
        limit: usize,
        at: Timestamp,
        need: u64,
        slack: Slack,
    ) -> bool {
        match meter {
            Meter::Log(quotas) => {
                let quota = quotas[limit];
                self.sum(|score| score + quota.window > at) + need <= quota.limit
            }
            Meter::Windowed(quota) => {
                self.sum(|score| score + quota.window > at) + need <= quota.limit
            }
            Meter::Calendar(quota) => match quota.boundaries.period(at) {
                None => true,
                Some((_, end)) => {
                    self.sum(|score| score == end) + need <= quota.limit && at + slack.span < end
                }
            },
            Meter::Bucket(quota) => {
                let level = self.drained_ns(slack.owner).saturating_sub(nanos(at));
                let cost = |amount| cost_ns(quota.drain_ns(), quota.grain(), amount);
                level + cost(need) <= cost(quota.capacity())
            }
            Meter::Leases(quota) => self.sum(|score| score > at) + need <= quota.limit,
        }
    }

    pub(super) fn fits(&self, meter: &Meter<'_>, at: Timestamp, need: u64, slack: Slack) -> bool {
        (0..meter.len()).all(|limit| {
            need <= meter.limit(limit) && self.fits_limit(meter, limit, at, need, slack)
        })
    }

    /// Tries `from` and then every time at which usage leaves.
    pub(super) fn earliest(
        &self,
        meter: &Meter<'_>,
        from: Timestamp,
        need: u64,
        slack: Slack,
    ) -> EarliestStart {
        let mut earliest = EarliestStart::At { start: from, limit: 0 };
        for limit in 0..meter.len() {
            if need > meter.limit(limit) {
                return EarliestStart::Never { limit };
            }
            let mut candidates = self.instants(meter, limit, need, slack.owner);
            candidates.push(from);
            candidates.retain(|&at| at >= from);
            candidates.sort_unstable();
            let fits = |&at: &Timestamp| self.fits_limit(meter, limit, at, need, slack);
            let start = candidates.into_iter().find(fits);
            let start = start.expect("when everything has left, what is below the limit fits");
            match earliest {
                EarliestStart::At { start: other, .. } if start > other => {
                    earliest = EarliestStart::At { start, limit };
                }
                _ => {}
            }
        }
        earliest
    }

    /// Returns every time at which usage leaves.
    fn instants(
        &self,
        meter: &Meter<'_>,
        limit: usize,
        need: u64,
        owner: Option<Id>,
    ) -> Vec<Timestamp> {
        let scores = || self.uses.iter().map(|used| used.score);
        match meter {
            Meter::Log(quotas) => scores().map(|score| score + quotas[limit].window).collect(),
            Meter::Windowed(quota) => scores().map(|score| score + quota.window).collect(),
            Meter::Calendar(quota) => quota.boundaries.0.to_vec(),
            Meter::Leases(_) => scores().collect(),
            Meter::Bucket(quota) => {
                let cost = |amount| cost_ns(quota.drain_ns(), quota.grain(), amount);
                let room = cost(quota.capacity()) - cost(need);
                let micros = self.drained_ns(owner).saturating_sub(room).div_ceil(1_000);
                vec![Timestamp::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))]
            }
        }
    }

    pub(super) fn write(
        &mut self,
        meter: &Meter<'_>,
        start: Timestamp,
        slack: Slack,
        amount: u64,
        serial: u64,
    ) -> ChargeParams {
        let latest = start + slack.span;
        match meter {
            Meter::Log(_) => self.add(ChargeParams::Log, latest, amount, serial),
            Meter::Windowed(quota) => {
                self.add(ChargeParams::Window(quota.window), latest, amount, serial)
            }
            Meter::Calendar(quota) => {
                let end = quota.boundaries.period(start).map_or(start, |(_, end)| end);
                self.add(ChargeParams::Calendar(quota.boundaries.0, end), start, amount, serial)
            }
            Meter::Bucket(quota) => {
                let cost = cost_ns(quota.drain_ns(), quota.grain(), amount);
                let empty_at_ns = self.drained_ns(slack.owner).max(nanos(start)) + cost;
                let how = self.add(how(*quota), latest, amount, serial);
                self.run = slack.owner.map(|owner| (owner, empty_at_ns));
                how
            }
            Meter::Leases(quota) => {
                let until = start + quota.lease;
                self.add(ChargeParams::Lease { until, ttl: quota.lease }, start, amount, serial)
            }
        }
    }

    /// Adds a use at `at`.
    pub(super) fn add(
        &mut self,
        how: ChargeParams,
        at: Timestamp,
        amount: u64,
        serial: u64,
    ) -> ChargeParams {
        let mut used = Use {
            serial,
            score: at,
            amount,
            drained_at_ns: 0,
            given_back_ns: 0,
            drain_ns: 0,
            grain: 1,
        };
        match how {
            ChargeParams::Log => {}
            ChargeParams::Window(window) => used.score = slice(window, at),
            ChargeParams::Calendar(boundaries, end) => {
                used.score = Boundaries(boundaries).period(at).map_or(end, |(_, end)| end);
            }
            ChargeParams::Bucket { drain_ns, grain } => {
                self.latest = self.latest.max(at);
                self.empty_at_ns =
                    self.empty_at_ns.max(nanos(at)) + cost_ns(drain_ns, grain, amount);
                self.run = None;
                (used.drain_ns, used.grain) = (drain_ns, grain);
                used.drained_at_ns = self.empty_at_ns;
                used.given_back_ns = self.given_back_ns;
            }
            ChargeParams::Lease { until, .. } => used.score = until,
        }
        self.uses.push(used);
        how
    }

    /// Refunds `amount` of a use; of a bucket only the part that has not drained.
    pub(super) fn give_back(&mut self, serial: u64, amount: u64, now: Timestamp) {
        let Some(used) = self.uses.iter_mut().find(|used| used.serial == serial) else {
            return;
        };
        let amount = amount.min(used.amount);
        used.amount -= amount;
        let (used, score) = (*used, used.score);
        let sooner = self.given_back_ns - used.given_back_ns;
        let drained_at_ns = used.drained_at_ns.saturating_sub(sooner);
        self.drain(used.drain_ns, used.grain, amount, drained_at_ns, now);
        if let Some(refunded) = self.refunded.get_mut(&score) {
            let there = self.uses.iter().filter(|used| used.score == score);
            *refunded = there.map(|used| used.amount).sum::<u64>().min(*refunded);
        }
    }

    /// Refunds `amount` of a bucket: the part that drains by `drained_at_ns` and has not drained
    /// yet.
    fn drain(
        &mut self,
        drain_ns: u64,
        grain: u64,
        amount: u64,
        drained_at_ns: u128,
        now: Timestamp,
    ) {
        let undrained = drained_at_ns.saturating_sub(nanos(now.max(self.latest)));
        let back = (u128::from(amount / grain) * u128::from(drain_ns)).min(undrained);
        self.empty_at_ns -= back;
        self.given_back_ns += back;
        if back > 0 {
            self.run = None;
        }
    }

    /// Refunds up to `amount` of the usage at `now`, the oldest first.
    pub(super) fn refund(&mut self, meter: &Meter<'_>, now: Timestamp, mut amount: u64) {
        let (from, until) = match meter {
            Meter::Log(_) => (now - meter.window(), now),
            Meter::Windowed(quota) => (now - quota.window, slice(quota.window, now)),
            Meter::Calendar(quota) => match quota.boundaries.period(now) {
                Some((_, end)) => (end - Span::from_micros(1), end),
                None => return,
            },
            Meter::Bucket(quota) => {
                self.drain(quota.drain_ns(), quota.grain(), amount, self.empty_at_ns, now);
                return;
            }
            Meter::Leases(_) => return,
        };
        let mut scores: Vec<_> = self.uses.iter().map(|used| used.score).collect();
        scores.sort_unstable();
        scores.dedup();
        for score in scores.into_iter().filter(|&score| from < score && score <= until) {
            let back = self.sum(|other| other == score).min(amount);
            *self.refunded.entry(score).or_default() += back;
            amount -= back;
        }
    }

    pub(super) fn give_back_due(&mut self, now: Timestamp) {
        self.due.sort_by_key(|(until, _)| *until);
        let due: Vec<_> = self.due.extract_if(.., |(until, _)| *until <= now).collect();
        for (until, serial) in due {
            self.give_back(serial, u64::MAX, until);
        }
    }

    /// Moves the end of a lease, or removes the lease.
    pub(super) fn lease(&mut self, serial: u64, until: Option<Timestamp>) {
        match until {
            Some(until) => {
                for used in self.uses.iter_mut().filter(|used| used.serial == serial) {
                    used.score = until;
                }
            }
            None => self.uses.retain(|used| used.serial != serial),
        }
    }

    /// Returns true if a use exists.
    pub(super) fn has(&self, serial: u64) -> bool {
        self.uses.iter().any(|used| used.serial == serial)
    }

    pub(super) fn readings(&self, meter: &Meter<'_>, now: Timestamp) -> Vec<Reading> {
        let live = |window: Span| {
            let leaves = |score: Timestamp| score + window;
            let scores = self.uses.iter().map(|used| used.score);
            let live =
                scores.filter(|&score| leaves(score) > now && self.sum(|other| other == score) > 0);
            let reset = live.map(leaves).min().unwrap_or(now);
            Reading::new(self.sum(|score| leaves(score) > now), reset)
        };
        match meter {
            Meter::Log(quotas) => quotas.iter().map(|quota| live(quota.window)).collect(),
            Meter::Windowed(quota) => vec![live(quota.window)],
            Meter::Leases(_) => vec![live(Span::ZERO)],
            Meter::Calendar(quota) => {
                let end = quota.boundaries.period(now).map_or(now, |(_, end)| end);
                vec![Reading::new(self.sum(|score| score == end), end)]
            }
            Meter::Bucket(quota) => {
                let level = self.empty_at_ns.saturating_sub(nanos(now));
                let grains = level.div_ceil(u128::from(quota.drain_ns()));
                let used = u64::try_from(grains).unwrap_or(u64::MAX).saturating_mul(quota.grain());
                let empty = u64::try_from(self.empty_at_ns.div_ceil(1_000)).unwrap_or(u64::MAX);
                vec![Reading::new(used, now.max(Timestamp::from_micros(empty)))]
            }
        }
    }
}

fn how(quota: BucketQuota) -> ChargeParams {
    ChargeParams::Bucket { drain_ns: quota.drain_ns(), grain: quota.grain() }
}

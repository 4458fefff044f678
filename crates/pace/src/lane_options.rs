//! [`LaneOptions`]: the settings of a lane, and how many turns it books ahead.

use std::time::Duration;

use sluicegate_config::WaitOrder;
use sluicegate_core::limit::{Limit, Unit};
use sluicegate_core::query::Pacing;
use sluicegate_core::time::Span;

use crate::own_starts::room;

/// Time ahead for which all replicas together book turns. A replica that dies wastes at most the
/// turns that it has booked.
pub(crate) const AHEAD: Span = Span::from_secs(1);
/// The same for a queue in fair order. It is shorter because a request of a light flow on another
/// replica waits behind all booked turns.
const AHEAD_FAIR: Span = Span::from_millis(500);
/// Minimum and maximum number of turns that are booked ahead. At least two: one is used while the
/// next is booked.
const AHEAD_MIN: usize = 2;
const AHEAD_MAX: usize = 256;
/// Number of slacks that a run of turns should last, so that it costs at most 2 % of the limit.
const RUN_SLACKS: u64 = 50;

/// Settings of a lane.
#[derive(Clone, Debug)]
pub struct LaneOptions {
    /// Maximum time a request waits for its turn.
    pub max: Duration,
    /// Maximum number of waiting requests.
    pub depth: usize,
    /// Order in which waiting requests are served.
    pub order: WaitOrder,
    /// Average time between two starts, by the slowest limit.
    pub(crate) interval: Span,
    /// Time by which a start may be late without delaying the next one, by the tightest token
    /// bucket.
    room: Option<Span>,
    /// Number of leases of the smallest concurrency limit, if there is one.
    pub(crate) leases: Option<u64>,
}

impl LaneOptions {
    /// Creates the settings of a lane whose work has these limits.
    pub fn new(limits: &[Limit], max: Duration, depth: usize, order: WaitOrder) -> Self {
        let each = limits.iter().filter(|limit| limit.unit() == Unit::Requests).map(|limit| {
            let amount = match limit {
                Limit::Bucket { rate, .. } => rate.amount,
                _ => limit.amount(),
            };
            limit.window().as_micros() / amount.get().max(1)
        });
        let interval = Span::from_micros(each.max().unwrap_or(0));
        let rooms = limits.iter().filter_map(|limit| match limit {
            Limit::Bucket { rate, capacity } if limit.unit() == Unit::Requests => {
                Some(room(rate.window.span(), rate.amount.get(), capacity.get()))
            }
            _ => None,
        });
        let room = rooms.min();
        let concurrent = limits.iter().filter(|limit| limit.unit() == Unit::Slots);
        let leases = concurrent.map(|limit| limit.amount().get()).min();
        Self { max, depth, order, interval, room, leases }
    }

    /// Returns the number of turns that all replicas together book ahead.
    pub(crate) fn ahead(&self) -> usize {
        let ahead = if self.order == WaitOrder::Fifo { AHEAD } else { AHEAD_FAIR };
        let turns = ahead.as_micros() / self.interval.as_micros().max(1);
        let turns = usize::try_from(turns).unwrap_or(usize::MAX).clamp(AHEAD_MIN, AHEAD_MAX);
        let leases = self.leases.and_then(|leases| usize::try_from(leases).ok());
        leases.map_or(turns, |leases| turns.min(leases.max(1)))
    }

    /// Returns the time ahead for which all replicas together book turns in runs. The lead and the slack
    /// are added because no booking starts sooner.
    pub(crate) fn horizon(&self, pacing: Pacing) -> Span {
        self.interval_times(self.ahead()) + pacing.lead + pacing.slack
    }

    /// Returns the number of turns in a run that is worth the slack that it costs, and that leaves
    /// time to book the next run.
    pub(crate) fn run_length(&self, pacing: Pacing) -> usize {
        let few = self.book_again_at(pacing).unwrap_or_default();
        let slack = pacing.slack.as_micros().saturating_mul(RUN_SLACKS);
        let turns = slack.div_ceil(self.interval.as_micros().max(1));
        let turns = usize::try_from(turns).unwrap_or(usize::MAX);
        turns.min(self.ahead().saturating_sub(few)).max(1)
    }

    pub(crate) fn interval_times(&self, turns: usize) -> Span {
        Span::from_micros(self.interval.as_micros().saturating_mul(turns as u64))
    }

    /// Returns the number of pending turns at or below which the lane books its next run of turns,
    /// or `None` if it books turns one by one.
    ///
    /// If a token bucket has less room than the slack, the slack is lost each time that turns
    /// change from one replica to another. So the lane books a whole run of turns at once, about
    /// two leads before the last run is used up. Replicas take turns: while the runs of others reach
    /// as far ahead as all replicas together may book, a replica waits without a booking.
    pub(crate) fn book_again_at(&self, pacing: Pacing) -> Option<usize> {
        self.room.filter(|room| *room < pacing.slack)?;
        let during = (pacing.lead + pacing.lead).as_micros();
        let turns = during.div_ceil(self.interval.as_micros().max(1));
        Some(usize::try_from(turns).unwrap_or(usize::MAX).max(1))
    }
}

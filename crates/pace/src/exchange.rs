//! [`Exchange`]: decides when a lane reports its backlog to the store, and for how long it relies
//! on the backlogs of other replicas that the store returns.

use sluicegate_core::Id;
use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::store::Store as _;
use sluicegate_core::time::{Span, Timestamp};
use tracing::debug;

use crate::pacer::{PacedWork, Pacer};

/// Time between two reports of a backlog that hardly changes.
pub(crate) const EVERY: Span = Span::from_millis(250);
/// Shortest time between two reports.
const EVERY_MIN: Span = Span::from_millis(25);
/// Divisor of a length: a backlog has changed much if it differs from the last report by more than
/// an eighth.
const CHANGED_PART: usize = 8;
/// Time after which a report that is not repeated is forgotten.
const EXPIRES_AFTER: Span = Span::from_secs(1);

/// The reports of one lane.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Id of the lane in the store.
    queue: Id,
    /// Time and length of the last report.
    sent: Option<(Timestamp, usize)>,
    /// Time of the last answer.
    received: Option<Timestamp>,
    /// Time at which requests were last refused because of other replicas.
    refused: Option<Timestamp>,
}

impl Exchange {
    pub(crate) const fn new(queue: Id) -> Self {
        Self { queue, sent: None, received: None, refused: None }
    }

    /// Returns the time until the next report of a queue with `waiting` requests.
    pub(crate) fn pause(&self, now: Timestamp, waiting: usize) -> Span {
        let Some((sent, reported)) = self.sent else { return Span::ZERO };
        let changed = waiting.abs_diff(reported) > reported / CHANGED_PART;
        let next = sent + if changed { EVERY_MIN } else { EVERY };
        next.since(now)
    }

    /// Returns a report, which is sent now.
    pub(crate) fn report(&mut self, now: Timestamp, backlog: Backlog, len: usize) -> BacklogReport {
        self.sent = Some((now, len));
        BacklogReport { queue: self.queue, backlog, expires_after: EXPIRES_AFTER }
    }

    /// Notes that the backlogs of other replicas were received.
    pub(crate) const fn received(&mut self, now: Timestamp) {
        self.received = Some(now);
    }

    /// Returns true if waiting requests may be refused because of other replicas. All replicas
    /// refuse at the same time, so each one pauses after a refusal until the others have reported
    /// their new backlogs.
    pub(crate) fn may_refuse(&self, now: Timestamp) -> bool {
        self.refused.is_none_or(|refused| now.since(refused) > EVERY + EVERY)
    }

    /// Notes that requests were refused because of other replicas.
    pub(crate) const fn refused(&mut self, now: Timestamp) {
        self.refused = Some(now);
    }

    /// Returns true if the backlogs of other replicas are too old to rely on.
    pub(crate) fn is_outdated(&self, now: Timestamp) -> bool {
        self.received.is_none_or(|received| now.since(received) > EXPIRES_AFTER)
    }
}

impl Pacer {
    /// Sends a report. Returns the backlogs of other replicas, or `None` if the store did not
    /// answer.
    pub(crate) async fn exchange<W: PacedWork + ?Sized>(
        &self,
        work: &W,
        report: BacklogReport,
    ) -> Option<Vec<Backlog>> {
        let query = work.query(self.service().request_id());
        let exchanged = self
            .service()
            .with_plan(&query, async |store, _, plan| store.exchange_backlogs(plan, &report).await);
        match exchanged.await {
            Ok(backlogs) => Some(backlogs),
            Err(error) => {
                debug!(%error, "backlog not reported to other replicas");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_is_reported_four_times_a_second_and_sooner_if_it_changes_much() {
        let at = |millis: u64| Timestamp::from_millis(1_000_000 + millis);
        let mut exchange = Exchange::new(Id::from_bits(1));
        assert_eq!(exchange.pause(at(0), 1), Span::ZERO);
        exchange.report(at(0), Backlog::default(), 80);
        for (waiting, pause) in [(80, 250), (85, 250), (90, 250), (91, 25), (69, 25), (0, 25)] {
            assert_eq!(exchange.pause(at(0), waiting), Span::from_millis(pause), "{waiting}");
        }
        assert_eq!(exchange.pause(at(100), 80), Span::from_millis(150));
        assert_eq!(exchange.pause(at(100), 0), Span::ZERO);
    }

    #[test]
    fn backlogs_of_other_replicas_are_not_relied_on_for_longer_than_the_store_keeps_them() {
        let at = Timestamp::from_millis;
        let mut exchange = Exchange::new(Id::from_bits(1));
        assert!(exchange.is_outdated(at(5)));
        exchange.received(at(5));
        assert!(!exchange.is_outdated(at(1_005)) && exchange.is_outdated(at(1_006)));
    }
}

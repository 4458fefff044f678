//! [`OtherQueues`]: the requests that wait on other replicas for the same limits. Together with the
//! own queue they determine how many of the next turns this replica may book. Decision 023 explains
//! the numbers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use sluicegate_core::backlog::Backlog;

/// The sum of the backlogs of all other replicas.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OtherQueues {
    waiting: HashMap<String, u64>,
    unnamed_flows: u64,
    unnamed_waiting: u64,
    booked: u64,
}

/// One flow on all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowCount {
    /// Number of its requests that wait on this replica.
    pub(crate) here: u64,
    /// Number of its requests that wait on all replicas.
    pub(crate) total: u64,
    /// Number of its requests that are served in each round.
    pub(crate) weight: u64,
}

/// All flows, by priority.
pub(crate) type FlowCounts = BTreeMap<Reverse<u16>, Vec<FlowCount>>;

impl OtherQueues {
    pub(crate) fn new(backlogs: &[Backlog]) -> Self {
        let mut sum = Self::default();
        for backlog in backlogs {
            for (flow, waiting) in &backlog.flows {
                *sum.waiting.entry(flow.clone()).or_default() += waiting;
            }
            sum.unnamed_flows += backlog.unnamed_flows;
            sum.unnamed_waiting += backlog.unnamed_waiting;
            sum.booked += backlog.booked;
        }
        sum
    }

    /// Returns true if no other replica has waiting requests.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.unnamed_waiting == 0
    }

    /// Returns the number of turns that other replicas have booked.
    pub(crate) const fn booked(&self) -> u64 {
        self.booked
    }

    /// Returns the number of requests of a flow that wait on other replicas.
    pub(crate) fn of(&self, flow: &str) -> u64 {
        self.waiting.get(flow).copied().unwrap_or_default()
    }

    /// Returns the named flows.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (&str, u64)> {
        self.waiting.iter().map(|(flow, waiting)| (flow.as_str(), *waiting))
    }

    /// Returns the unnamed flows as one flow with the sum of their weights.
    pub(crate) fn unnamed(&self) -> Option<FlowCount> {
        let (total, weight) = (self.unnamed_waiting, self.unnamed_flows.max(1));
        (total > 0).then_some(FlowCount { here: 0, total, weight })
    }
}

/// Returns how many of the next `turns` turns would go to requests of this replica if the requests
/// of all replicas waited in one queue.
///
/// The highest priority goes first. Within a priority the flows share the turns by weight; a flow
/// that needs less than its share leaves the rest to the others. Within a flow, each replica gets
/// turns in proportion to its waiting requests.
pub(crate) fn own_turns(turns: u64, counts: &FlowCounts) -> f64 {
    let (mut left, mut own) = (turns as f64, 0.0);
    for flows in counts.values() {
        let level = fill_level(left, flows);
        for flow in flows {
            let gets = (level * flow.weight as f64).min(flow.total as f64);
            own += gets * flow.here as f64 / flow.total.max(1) as f64;
            left -= gets;
        }
        if left <= 0.0 {
            break;
        }
    }
    own
}

/// Returns the number of rounds after which `turns` turns are used up. In each round a flow gets as
/// many turns as its weight, until none of its requests waits. Returns infinity if there are enough
/// turns for all.
fn fill_level(turns: f64, flows: &[FlowCount]) -> f64 {
    let rounds = |flow: &FlowCount| flow.total as f64 / flow.weight.max(1) as f64;
    let mut shortest_first: Vec<&FlowCount> = flows.iter().collect();
    shortest_first.sort_by(|a, b| rounds(a).total_cmp(&rounds(b)));
    let mut left = turns;
    let mut weights: f64 = flows.iter().map(|flow| flow.weight as f64).sum();
    for flow in shortest_first {
        if rounds(flow) * weights >= left {
            return left / weights;
        }
        left -= flow.total as f64;
        weights -= flow.weight as f64;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flows as (here, on other replicas, weight), all of one priority.
    fn own(turns: u64, flows: &[(u64, u64, u64)]) -> f64 {
        let flow = |&(here, others, weight): &(u64, u64, u64)| FlowCount {
            here,
            total: here + others,
            weight,
        };
        own_turns(turns, &BTreeMap::from([(Reverse(0), flows.iter().map(flow).collect())]))
    }

    #[test]
    fn replicas_share_the_turns_of_a_flow_by_their_waiting_requests() {
        assert_eq!(own(20, &[(100, 0, 1)]), 20.0);
        assert_eq!(own(20, &[(5, 0, 1)]), 5.0);
        assert_eq!(own(20, &[(100, 300, 1)]), 5.0);
        assert_eq!(own(20, &[(0, 300, 1)]), 0.0);
    }

    #[test]
    fn flows_share_the_turns_by_their_weights_wherever_they_wait() {
        assert_eq!(own(20, &[(500, 0, 1), (0, 500, 1)]), 10.0);
        assert_eq!(own(20, &[(500, 0, 3), (0, 500, 1)]), 15.0);
        // The light flow gets all it needs, and the heavy one the rest.
        assert_eq!(own(20, &[(1, 0, 1), (0, 500, 1)]), 1.0);
        assert_eq!(own(20, &[(500, 0, 1), (0, 1, 1)]), 19.0);
        assert_eq!(own(20, &[(500, 500, 1), (10, 490, 1)]), 5.2);
    }

    #[test]
    fn a_higher_priority_gets_turns_first() {
        let flow = |here, total| FlowCount { here, total, weight: 1 };
        let counts = BTreeMap::from([
            (Reverse(9), vec![flow(0, 15)]),
            (Reverse(0), vec![flow(100, 100), flow(0, 100)]),
        ]);
        assert_eq!(own_turns(20, &counts), 2.5);
        assert_eq!(own_turns(15, &counts), 0.0);
    }

    #[test]
    fn backlogs_are_added_up() {
        let first = Backlog::new([("a", 3), ("b", 1)], 2);
        let second =
            Backlog { unnamed_flows: 4, unnamed_waiting: 9, ..Backlog::new([("a", 2)], 1) };
        let others = OtherQueues::new(&[first, second]);
        assert_eq!((others.of("a"), others.of("b"), others.of("c")), (5, 1, 0));
        assert_eq!((others.booked(), others.is_empty()), (3, false));
        assert_eq!(others.unnamed(), Some(FlowCount { here: 0, total: 9, weight: 4 }));
        assert!(OtherQueues::new(&[Backlog::default()]).is_empty());
    }
}

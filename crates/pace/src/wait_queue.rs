//! [`WaitQueue`]: the waiting requests of a lane and their order. It has no clock: the lane calls
//! it when there is a turn.
//!
//! Turns go to the highest priority first. Within a priority, flows are served by deficit
//! round-robin: each gets as many turns in a row as its weight, and every request costs the same.
//! In `fifo` there is one flow.
//!
//! The same flow may also wait on other replicas. Its weight here is then reduced to the share of
//! its requests that wait here, because the other replicas serve the rest.
//!
//! A request that had a turn and missed it goes before all others, whatever their priority.
//!
//! If the queue is full, a request displaces the last request of the longest flow in the lowest
//! priority, if that priority is lower than its own, or the same and its own flow is shorter. So a
//! tenant that floods the queue can't keep others out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use sluicegate_config::WaitOrder;
use sluicegate_core::backlog::{Backlog, FLOWS_MAX};

use crate::other_queues::{FlowCount, FlowCounts, OtherQueues, own_turns};

/// Cost of one request in credits. It is larger than one so that a fraction of a weight is still an
/// integer.
const REQUEST: u64 = 64;
/// Minimum credit per round, so that `next` finds a flow after a few rounds.
const CREDIT_MIN: u64 = REQUEST / 16;
/// Priority of requests that missed their turn: above all configurable priorities.
const RETURNED: u16 = 1 << 8;

/// Waiting requests.
#[derive(Debug)]
pub(crate) struct WaitQueue<T> {
    depth: usize,
    order: WaitOrder,
    /// Requests by priority, the highest first.
    classes: BTreeMap<Reverse<u16>, Class<T>>,
    len: usize,
    next_number: u64,
    others: OtherQueues,
}

#[derive(Debug)]
struct Class<T> {
    /// Names of the flows in the order of their turns.
    round: VecDeque<Arc<str>>,
    flows: HashMap<Arc<str>, Flow<T>>,
}

#[derive(Debug)]
struct Flow<T> {
    weight: u32,
    /// Credit left in this round; each request costs [`REQUEST`].
    credit: u64,
    /// Requests by arrival number, so that the oldest is first and any of them can leave.
    waiting: BTreeMap<u64, T>,
}

/// A place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    priority: u16,
    flow: Arc<str>,
    number: u64,
}

/// The result of entering the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EnterResult<T> {
    /// The request waits.
    Waiting(Place),
    /// The request waits in the place of another one, which is displaced.
    InPlaceOf(Place, T),
    /// The queue is full.
    Full(T),
}

impl<T> Flow<T> {
    /// Returns the credit of the flow per round: its weight, reduced to the share of its requests
    /// that wait here if `others` wait on other replicas.
    fn credit_per_round(&self, others: u64) -> u64 {
        let here = self.waiting.len() as u64;
        let part = u64::from(self.weight) * REQUEST * here / (here + others).max(1);
        part.max(CREDIT_MIN)
    }
}

impl<T> WaitQueue<T> {
    pub(crate) fn new(depth: usize, order: WaitOrder) -> Self {
        let others = OtherQueues::default();
        Self { depth, order, classes: BTreeMap::new(), len: 0, next_number: 0, others }
    }

    /// Changes depth and order for requests that come from now on.
    pub(crate) fn reconfigure(&mut self, depth: usize, order: WaitOrder) {
        (self.depth, self.order) = (depth, order);
    }

    /// Returns the dimension that separates flows.
    pub(crate) fn by(&self) -> Option<&str> {
        match &self.order {
            WaitOrder::Fifo => None,
            WaitOrder::Fair { by, .. } => Some(by),
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the request that came first.
    pub(crate) fn oldest(&self) -> Option<&T> {
        let flows = self.classes.values().flat_map(|class| class.flows.values());
        let first = flows.filter_map(|flow| flow.waiting.first_key_value());
        first.min_by_key(|(number, _)| **number).map(|(_, waiter)| waiter)
    }

    /// Adds a request. If the queue is full, it displaces a request of lower priority or of a longer
    /// flow, or is rejected.
    pub(crate) fn enter(&mut self, flow: &str, waiter: T) -> EnterResult<T> {
        let flow = if self.order == WaitOrder::Fifo { "" } else { flow };
        let (priority, weight) = self.standing(flow);
        let displaced = if self.len - self.returned() < self.depth {
            None
        } else {
            let own = self.flow(priority, flow).map_or(0, |flow| flow.waiting.len());
            let gives_way = |(length, lowest, _): &(usize, u16, Arc<str>)| {
                *lowest < priority || *lowest == priority && own + 1 < *length
            };
            match self.longest().filter(gives_way) {
                None => return EnterResult::Full(waiter),
                Some((_, priority, flow)) => self.last_of(priority, &flow),
            }
        };
        let place = self.add(priority, weight, flow, waiter);
        match displaced {
            None => EnterResult::Waiting(place),
            Some(displaced) => EnterResult::InPlaceOf(place, displaced),
        }
    }

    /// Adds a request that missed its turn, before all others. The maximum depth does not apply to
    /// it.
    pub(crate) fn come_back(&mut self, waiter: T) -> Place {
        self.add(RETURNED, 1, "", waiter)
    }

    fn add(&mut self, priority: u16, weight: u32, flow: &str, waiter: T) -> Place {
        self.next_number += 1;
        let number = self.next_number;
        let class = self
            .classes
            .entry(Reverse(priority))
            .or_insert_with(|| Class { round: VecDeque::new(), flows: HashMap::new() });
        let name = match class.flows.get_key_value(flow) {
            Some((name, _)) => name.clone(),
            None => {
                let name: Arc<str> = flow.into();
                class.round.push_back(name.clone());
                let waiting = BTreeMap::new();
                let credit = u64::from(weight) * REQUEST;
                class.flows.insert(name.clone(), Flow { weight, credit, waiting });
                name
            }
        };
        let flow = class.flows.get_mut(&name).expect("it was there or was made above");
        flow.waiting.insert(number, waiter);
        self.len += 1;
        Place { priority, flow: name, number }
    }

    /// Removes a request. Returns `None` if it got its turn or was displaced.
    pub(crate) fn leave(&mut self, place: &Place) -> Option<T> {
        let class = self.classes.get_mut(&Reverse(place.priority))?;
        let waiter = class.flows.get_mut(&place.flow)?.waiting.remove(&place.number)?;
        self.len -= 1;
        self.forget_if_empty(place.priority, &place.flow.clone());
        Some(waiter)
    }

    /// Removes and returns the request whose turn is next.
    pub(crate) fn next(&mut self) -> Option<T> {
        let mut first = self.classes.first_entry()?;
        let (Reverse(priority), class) = (*first.key(), first.get_mut());
        let (name, flow) = loop {
            let name = class.round.front()?.clone();
            let flow = class.flows.get_mut(&name)?;
            if flow.credit >= REQUEST {
                break (name, flow);
            }
            flow.credit += flow.credit_per_round(self.others.of(&name));
            class.round.rotate_left(1);
        };
        let credit_per_round = flow.credit_per_round(self.others.of(&name));
        let (_, waiter) = flow.waiting.pop_first()?;
        self.len -= 1;
        flow.credit -= REQUEST;
        if flow.credit < REQUEST {
            flow.credit += credit_per_round;
            class.round.rotate_left(1);
        }
        self.forget_if_empty(priority, &name);
        Some(waiter)
    }

    /// Removes all requests.
    pub(crate) fn clear(&mut self) -> Vec<T> {
        let mut all = Vec::with_capacity(self.len);
        while let Some(waiter) = self.next() {
            all.push(waiter);
        }
        all
    }

    /// Sets the requests that wait on other replicas.
    pub(crate) fn set_others(&mut self, others: OtherQueues) {
        self.others = others;
    }

    /// Returns the requests that wait on other replicas.
    pub(crate) const fn others(&self) -> &OtherQueues {
        &self.others
    }

    /// Counts the waiting requests by flow, for other replicas.
    pub(crate) fn backlog(&self, booked: u64) -> Backlog {
        let flows = self.classes.values().flat_map(|class| &class.flows);
        Backlog::new(flows.map(|(name, flow)| (&**name, flow.waiting.len() as u64)), booked)
    }

    /// Returns how many of the next `turns` turns this replica may book, so that all replicas
    /// together book about `turns`.
    pub(crate) fn own_turns(&self, turns: usize) -> usize {
        if self.others.is_empty() {
            return self.len.min(turns);
        }
        let own = own_turns(turns as u64, &self.counts());
        // Rounded up, so that each replica has a turn. Requests that missed a turn get another one
        // even beyond the share.
        (own.ceil() as usize).max(1).max(self.returned()).min(self.len)
    }

    /// Counts all flows on all replicas.
    fn counts(&self) -> FlowCounts {
        let mut counts = FlowCounts::new();
        for (priority, class) in &self.classes {
            let flows = class.flows.iter().map(|(name, flow)| {
                let here = flow.waiting.len() as u64;
                let others = if priority.0 == RETURNED { 0 } else { self.others.of(name) };
                FlowCount { here, total: here + others, weight: flow.weight.into() }
            });
            counts.insert(*priority, flows.collect());
        }
        for (name, total) in self.others.flows() {
            let (priority, weight) = self.standing(name);
            if self.flow(priority, name).is_none() {
                let flow = FlowCount { here: 0, total, weight: weight.into() };
                counts.entry(Reverse(priority)).or_default().push(flow);
            }
        }
        if let Some(unnamed) = self.others.unnamed() {
            counts.entry(Reverse(0)).or_default().push(unnamed);
        }
        counts
    }

    /// Returns the number of requests on this replica that would go before a request that arrives
    /// now.
    pub(crate) fn ahead_of(&self, flow: &str) -> usize {
        let flow = if self.order == WaitOrder::Fifo { "" } else { flow };
        let (priority, weight) = self.standing(flow);
        let mut ahead = 0;
        for (Reverse(other), class) in &self.classes {
            if *other > priority {
                ahead += class.flows.values().map(|flow| flow.waiting.len()).sum::<usize>();
            } else if *other == priority {
                let own = class.flows.get(flow).map_or(0, |flow| flow.waiting.len());
                // Number of whole rounds until the request gets its turn.
                let rounds = own / weight as usize + 1;
                let others = class.flows.iter().filter(|(name, _)| &***name != flow);
                let each = others.map(|(_, other)| {
                    other.waiting.len().min(rounds.saturating_mul(other.weight as usize))
                });
                ahead += own + each.sum::<usize>();
            }
        }
        ahead
    }

    /// Returns the number of requests on all replicas that would go before a request that arrives
    /// now.
    pub(crate) fn ahead_of_everywhere(&self, flow: &str) -> u64 {
        let flow = if self.order == WaitOrder::Fifo { "" } else { flow };
        let (priority, weight) = self.standing(flow);
        let own = self.flow(priority, flow).map_or(0, |flow| flow.waiting.len() as u64);
        let own = own + self.others.of(flow);
        ahead_of(&self.counts(), priority, (own, own, weight.into()))
    }

    /// Removes the requests that would wait too long behind those of all replicas, starting at the
    /// end of each flow. Calls `is_too_long` with the number of requests that go before one.
    ///
    /// If every replica does this with the same counts, about as many requests stay as can be
    /// served in time.
    pub(crate) fn take_too_long(
        &mut self,
        is_too_long: impl Fn(u64, &T) -> bool,
    ) -> Vec<(Arc<str>, T)> {
        let counts = self.counts();
        let mut long: Vec<(usize, u16, Arc<str>)> = Vec::new();
        for (&Reverse(priority), class) in &self.classes {
            if priority != RETURNED {
                let flows = class.flows.iter();
                long.extend(flows.map(|(name, flow)| (flow.waiting.len(), priority, name.clone())));
            }
        }
        long.sort_unstable_by_key(|(length, ..)| Reverse(*length));
        long.truncate(FLOWS_MAX);
        let mut taken = Vec::new();
        for (here, priority, name) in long {
            let (here, weight) = (here as u64, u64::from(self.standing(&name).1));
            let total = here + self.others.of(&name);
            // Requests of the same flow on other replicas are interleaved with those of this
            // replica.
            while let Some((before, last)) = self.flow(priority, &name).and_then(|flow| {
                let (_, last) = flow.waiting.last_key_value()?;
                Some(((flow.waiting.len() as u64 - 1) * total / here, last))
            }) {
                if !is_too_long(ahead_of(&counts, priority, (before, total, weight)), last) {
                    break;
                }
                taken.extend(self.last_of(priority, &name).map(|waiter| (name.clone(), waiter)));
            }
        }
        taken
    }

    /// Returns the number of requests that missed a turn. They do not count towards the maximum
    /// depth.
    fn returned(&self) -> usize {
        self.flow(RETURNED, "").map_or(0, |flow| flow.waiting.len())
    }

    fn standing(&self, flow: &str) -> (u16, u32) {
        match &self.order {
            WaitOrder::Fifo => (0, 1),
            WaitOrder::Fair { weights, priorities, .. } => {
                let weight = weights.get(flow).copied().unwrap_or(1).max(1);
                (priorities.get(flow).copied().unwrap_or(0).into(), weight)
            }
        }
    }

    fn flow(&self, priority: u16, flow: &str) -> Option<&Flow<T>> {
        self.classes.get(&Reverse(priority))?.flows.get(flow)
    }

    /// Returns the flow with most requests waiting, of the lowest priority that has any.
    fn longest(&self) -> Option<(usize, u16, Arc<str>)> {
        let (Reverse(priority), class) = self.classes.last_key_value()?;
        let lengths = class.flows.iter().map(|(name, flow)| (flow.waiting.len(), name));
        lengths.max().map(|(length, name)| (length, *priority, name.clone()))
    }

    fn last_of(&mut self, priority: u16, flow: &str) -> Option<T> {
        let class = self.classes.get_mut(&Reverse(priority))?;
        let (_, waiter) = class.flows.get_mut(flow)?.waiting.pop_last()?;
        self.len -= 1;
        self.forget_if_empty(priority, flow);
        Some(waiter)
    }

    /// Removes a flow without requests: clients choose the names of flows, so there may be many.
    fn forget_if_empty(&mut self, priority: u16, flow: &str) {
        let Some(class) = self.classes.get_mut(&Reverse(priority)) else { return };
        if class.flows.get(flow).is_some_and(|flow| flow.waiting.is_empty()) {
            class.flows.remove(flow);
            class.round.retain(|name| &**name != flow);
        }
        if class.flows.is_empty() {
            self.classes.remove(&Reverse(priority));
        }
    }
}

/// Returns the number of requests that go before a request with this priority: `before` of the
/// `total` requests of its own flow, and the requests of other flows that are served in the
/// meantime.
fn ahead_of(counts: &FlowCounts, priority: u16, (before, total, weight): (u64, u64, u64)) -> u64 {
    // Number of whole rounds until its turn comes.
    let rounds = before / weight.max(1) + 1;
    let served = |flow: &FlowCount| flow.total.min(rounds.saturating_mul(flow.weight));
    let mut ahead = 0;
    for (Reverse(other), flows) in counts {
        if *other > priority {
            ahead += flows.iter().map(|flow| flow.total).sum::<u64>();
        } else if *other == priority {
            ahead += flows.iter().map(served).sum::<u64>();
        }
    }
    // The sum treats its own flow like the others, perhaps with the weight of an older configuration:
    // replace that part by the exact number.
    ahead.saturating_sub(served(&FlowCount { here: 0, total, weight })) + before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fair(weights: &[(&str, u32)], priorities: &[(&str, u8)]) -> WaitOrder {
        WaitOrder::Fair {
            by: "tenantId".to_owned(),
            weights: weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect(),
            priorities: priorities.iter().map(|(name, p)| ((*name).to_owned(), *p)).collect(),
        }
    }

    /// Adds the letters of `come`, each in the flow of its name, and returns the order in which they
    /// go.
    fn called(order: WaitOrder, come: &str) -> String {
        let mut queue = WaitQueue::new(100, order);
        for letter in come.chars() {
            assert!(matches!(queue.enter(&letter.to_string(), letter), EnterResult::Waiting(_)));
        }
        std::iter::from_fn(|| queue.next()).collect()
    }

    #[test]
    fn a_weight_that_a_reload_raises_does_not_put_anyone_behind() {
        let mut queue = WaitQueue::new(100, fair(&[], &[]));
        for letter in "aaaa".chars() {
            queue.enter("a", letter);
        }
        queue.reconfigure(100, fair(&[("a", 9)], &[]));
        assert!(queue.take_too_long(|ahead, _| ahead > 4).is_empty());
    }

    #[test]
    fn fifo_is_the_order_of_arrival() {
        let mut queue = WaitQueue::new(9, WaitOrder::Fifo);
        for letter in "abcab".chars() {
            queue.enter(&letter.to_string(), letter);
        }
        assert_eq!(queue.oldest(), Some(&'a'));
        assert_eq!(String::from_iter(std::iter::from_fn(|| queue.next())), "abcab");
        assert_eq!((queue.len(), queue.oldest()), (0, None));
    }

    #[test]
    fn flows_take_turns() {
        assert_eq!(called(fair(&[], &[]), "aaaaabc"), "abcaaaa");
        assert_eq!(called(fair(&[("a", 2)], &[]), "aaaaabb"), "aabaaba");
        assert_eq!(called(fair(&[("b", 3)], &[]), "aaabbbb"), "abbbaba");
    }

    #[test]
    fn a_higher_priority_goes_first() {
        assert_eq!(called(fair(&[], &[("z", 1)]), "aabzz"), "zzaba");
    }

    #[test]
    fn a_request_that_missed_its_turn_goes_before_all_others() {
        let mut queue = WaitQueue::new(2, fair(&[], &[("z", 255)]));
        queue.enter("z", 'z');
        queue.come_back('1');
        let left = queue.come_back('2');
        queue.come_back('3');
        assert_eq!(queue.leave(&left), Some('2'));
        // They take nobody's place, and nobody takes theirs.
        assert!(matches!(queue.enter("a", 'a'), EnterResult::Waiting(_)));
        assert_eq!(queue.enter("b", 'b'), EnterResult::Full('b'));
        assert_eq!(queue.len(), 4);
        assert_eq!(String::from_iter(std::iter::from_fn(|| queue.next())), "13za");
    }

    #[test]
    fn a_request_that_leaves_is_not_called() {
        let mut queue = WaitQueue::new(9, fair(&[], &[]));
        let EnterResult::Waiting(first) = queue.enter("a", 1) else { panic!("there is room") };
        queue.enter("a", 2);
        queue.enter("b", 3);
        assert_eq!(queue.leave(&first), Some(1));
        assert_eq!(queue.leave(&first), None);
        assert_eq!(queue.clear(), [2, 3]);
    }

    #[test]
    fn a_full_queue_makes_room_for_a_shorter_flow() {
        let mut queue = WaitQueue::new(3, fair(&[], &[]));
        for number in 1..=3 {
            queue.enter("noisy", number);
        }
        assert_eq!(queue.enter("noisy", 4), EnterResult::Full(4));
        let EnterResult::InPlaceOf(_, displaced) = queue.enter("quiet", 5) else {
            panic!("no place")
        };
        assert_eq!(displaced, 3);
        assert_eq!(queue.clear(), [1, 5, 2]);
        let mut fifo = WaitQueue::new(1, WaitOrder::Fifo);
        fifo.enter("", 1);
        assert_eq!(fifo.enter("", 2), EnterResult::Full(2));
    }

    #[test]
    fn a_full_queue_makes_room_for_a_higher_priority_only() {
        let mut queue = WaitQueue::new(3, fair(&[], &[("vip", 5), ("other", 5)]));
        for number in 1..=3 {
            queue.enter("vip", number);
        }
        assert_eq!(queue.enter("plain", 4), EnterResult::Full(4));
        assert!(matches!(queue.enter("other", 5), EnterResult::InPlaceOf(_, 3)));
        let mut queue = WaitQueue::new(1, fair(&[], &[("vip", 5)]));
        queue.enter("plain", 1);
        assert!(matches!(queue.enter("vip", 2), EnterResult::InPlaceOf(_, 1)));
    }

    #[test]
    fn the_number_of_requests_before_a_new_one_is_known() {
        let mut queue = WaitQueue::new(100, fair(&[("b", 2)], &[("z", 1)]));
        for letter in "aaaabbbbz".chars() {
            queue.enter(&letter.to_string(), letter);
        }
        for flow in ["a", "b", "c", "z"] {
            let expected = queue.ahead_of(flow);
            let mut copy = WaitQueue::new(100, fair(&[("b", 2)], &[("z", 1)]));
            for letter in "aaaabbbbz".chars() {
                copy.enter(&letter.to_string(), letter);
            }
            copy.enter(flow, '*');
            let before =
                std::iter::from_fn(|| copy.next()).take_while(|other| *other != '*').count();
            assert!(expected >= before && expected <= before + 2, "{flow}: {expected} {before}");
        }
    }
}

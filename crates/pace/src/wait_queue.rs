//! [`WaitQueue`]: the waiting requests of a lane and their order. It knows no time: its owner says
//! when a turn comes.
//!
//! Turns go to the highest priority first. Inside a priority they go round the flows, as many in
//! a row as the weight of a flow says (deficit round-robin, where every request costs the same).
//! In `fifo` there is one flow.
//!
//! A request that had a turn and missed it goes before all others, whatever their priority.
//!
//! A full queue makes room for a flow that has fewer requests waiting than the longest one: the
//! last request of the longest is displaced. So a tenant that sends without end fills the queue for
//! itself alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Priority of requests that missed their turn: above all that can be configured.
const RETURNED: u16 = 1 << 8;

/// The order in which waiting requests are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// First in, first out.
    Fifo,
    /// Fair queueing over the values of a dimension.
    Fair {
        /// The dimension; requests without it share one queue.
        by: String,
        /// Number of requests per round by dimension value; the default is 1.
        weights: HashMap<String, u32>,
        /// Priority by dimension value, the largest first; the default is 0.
        priorities: HashMap<String, u8>,
    },
}

/// Waiting requests.
#[derive(Debug)]
pub(crate) struct WaitQueue<T> {
    depth: usize,
    order: Order,
    /// Requests by priority, the highest first.
    classes: BTreeMap<Reverse<u16>, Class<T>>,
    len: usize,
    next_number: u64,
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
    /// Number of requests that may go before the next flow has its turn.
    credit: u32,
    /// Requests by number, so that the first is first and any can leave.
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

impl<T> WaitQueue<T> {
    pub(crate) fn new(depth: usize, order: Order) -> Self {
        Self { depth, order, classes: BTreeMap::new(), len: 0, next_number: 0 }
    }

    /// Changes depth and order for requests that come from now on.
    pub(crate) fn reconfigure(&mut self, depth: usize, order: Order) {
        (self.depth, self.order) = (depth, order);
    }

    /// Returns the dimension that separates flows.
    pub(crate) fn by(&self) -> Option<&str> {
        match &self.order {
            Order::Fifo => None,
            Order::Fair { by, .. } => Some(by),
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

    /// Adds a request, if there is queue.
    pub(crate) fn enter(&mut self, flow: &str, waiter: T) -> EnterResult<T> {
        let flow = if self.order == Order::Fifo { "" } else { flow };
        let (priority, weight) = self.standing(flow);
        let displaced = if self.len - self.returned() < self.depth {
            None
        } else {
            let own = self.flow(priority, flow).map_or(0, |flow| flow.waiting.len());
            match self.longest().filter(|(length, ..)| own + 1 < *length) {
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

    /// Adds a request that missed its turn, before all others. There is always room for these.
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
                class.flows.insert(name.clone(), Flow { weight, credit: weight, waiting });
                name
            }
        };
        let flow = class.flows.get_mut(&name).expect("it was there or was made above");
        flow.waiting.insert(number, waiter);
        self.len += 1;
        Place { priority, flow: name, number }
    }

    /// Removes a request. Returns `None` if it had its turn or was displaced before.
    pub(crate) fn leave(&mut self, place: &Place) -> Option<T> {
        let class = self.classes.get_mut(&Reverse(place.priority))?;
        let waiter = class.flows.get_mut(&place.flow)?.waiting.remove(&place.number)?;
        self.len -= 1;
        self.forget_if_empty(place.priority, &place.flow.clone());
        Some(waiter)
    }

    /// Removes and returns the request whose turn is next.
    pub(crate) fn next(&mut self) -> Option<T> {
        let (&Reverse(priority), class) = self.classes.first_key_value()?;
        let name = class.round.front()?.clone();
        let class = self.classes.get_mut(&Reverse(priority))?;
        let flow = class.flows.get_mut(&name)?;
        let (_, waiter) = flow.waiting.pop_first()?;
        self.len -= 1;
        flow.credit = flow.credit.saturating_sub(1);
        if flow.credit == 0 {
            flow.credit = flow.weight;
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

    /// Returns the number of requests that go before one that would come now.
    pub(crate) fn ahead_of(&self, flow: &str) -> usize {
        let flow = if self.order == Order::Fifo { "" } else { flow };
        let (priority, weight) = self.standing(flow);
        let mut ahead = 0;
        for (Reverse(other), class) in &self.classes {
            if *other > priority {
                ahead += class.flows.values().map(|flow| flow.waiting.len()).sum::<usize>();
            } else if *other == priority {
                let own = class.flows.get(flow).map_or(0, |flow| flow.waiting.len());
                // Number of whole rounds until its turn comes.
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

    /// Returns the number of requests that missed a turn. They had a place before, and take none
    /// from others.
    fn returned(&self) -> usize {
        self.flow(RETURNED, "").map_or(0, |flow| flow.waiting.len())
    }

    fn standing(&self, flow: &str) -> (u16, u32) {
        match &self.order {
            Order::Fifo => (0, 1),
            Order::Fair { weights, priorities, .. } => {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fair(weights: &[(&str, u32)], priorities: &[(&str, u8)]) -> Order {
        Order::Fair {
            by: "tenantId".to_owned(),
            weights: weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect(),
            priorities: priorities.iter().map(|(name, p)| ((*name).to_owned(), *p)).collect(),
        }
    }

    /// Adds the letters of `come`, each in the flow of its name, and returns the order in which they
    /// go.
    fn called(order: Order, come: &str) -> String {
        let mut queue = WaitQueue::new(100, order);
        for letter in come.chars() {
            assert!(matches!(queue.enter(&letter.to_string(), letter), EnterResult::Waiting(_)));
        }
        std::iter::from_fn(|| queue.next()).collect()
    }

    #[test]
    fn fifo_is_the_order_of_arrival() {
        let mut queue = WaitQueue::new(9, Order::Fifo);
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
        let mut fifo = WaitQueue::new(1, Order::Fifo);
        fifo.enter("", 1);
        assert_eq!(fifo.enter("", 2), EnterResult::Full(2));
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

//! The waiting requests of a route and their order. Pure: its owner says when a turn comes.
//!
//! Turns go to the highest priority first. Inside a priority they go round the flows, as many in
//! a row as the weight of a flow says (deficit round-robin, where every request costs the same).
//! In `fifo` there is one flow.
//!
//! A request that had a turn and missed it goes before all others, whatever their priority.
//!
//! A full room makes place for a flow that has fewer waiting than the longest one: the last of the
//! longest has to go. So a tenant that sends without end fills the room for itself alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::options::Order;

/// The priority of those who missed their turn: above all that can be configured.
const RETURNED: u16 = 1 << 8;

/// Those who wait.
#[derive(Debug)]
pub(crate) struct Room<T> {
    depth: usize,
    order: Order,
    /// The highest priority first.
    classes: BTreeMap<Reverse<u16>, Class<T>>,
    len: usize,
    next_number: u64,
}

#[derive(Debug)]
struct Class<T> {
    /// Whose turn it is, and who comes after.
    round: VecDeque<Arc<str>>,
    flows: HashMap<Arc<str>, Flow<T>>,
}

#[derive(Debug)]
struct Flow<T> {
    weight: u32,
    /// How many may go before the next flow has its turn.
    credit: u32,
    /// By number, so that the first is first and any can leave.
    waiting: BTreeMap<u64, T>,
}

/// A place in the room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    priority: u16,
    flow: Arc<str>,
    number: u64,
}

/// What became of somebody who wants to wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered<T> {
    /// It waits.
    Waiting(Place),
    /// It waits in the place of another, who has to go.
    InPlaceOf(Place, T),
    /// There is no room.
    Full(T),
}

impl<T> Room<T> {
    pub(crate) fn new(depth: usize, order: Order) -> Self {
        Self { depth, order, classes: BTreeMap::new(), len: 0, next_number: 0 }
    }

    /// Changes depth and order for those who come from now on.
    pub(crate) fn reconfigure(&mut self, depth: usize, order: Order) {
        (self.depth, self.order) = (depth, order);
    }

    /// The dimension that tells flows apart.
    pub(crate) fn by(&self) -> Option<&str> {
        match &self.order {
            Order::Fifo => None,
            Order::Fair { by, .. } => Some(by),
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Who came first of all that wait.
    pub(crate) fn oldest(&self) -> Option<&T> {
        let flows = self.classes.values().flat_map(|class| class.flows.values());
        let first = flows.filter_map(|flow| flow.waiting.first_key_value());
        first.min_by_key(|(number, _)| **number).map(|(_, waiter)| waiter)
    }

    /// Lets somebody wait, if there is room.
    pub(crate) fn enter(&mut self, flow: &str, waiter: T) -> Entered<T> {
        let flow = if self.order == Order::Fifo { "" } else { flow };
        let (priority, weight) = self.standing(flow);
        let displaced = if self.len - self.returned() < self.depth {
            None
        } else {
            let own = self.flow(priority, flow).map_or(0, |flow| flow.waiting.len());
            match self.longest().filter(|(length, ..)| own + 1 < *length) {
                None => return Entered::Full(waiter),
                Some((_, priority, flow)) => self.last_of(priority, &flow),
            }
        };
        let place = self.add(priority, weight, flow, waiter);
        match displaced {
            None => Entered::Waiting(place),
            Some(displaced) => Entered::InPlaceOf(place, displaced),
        }
    }

    /// Lets somebody wait who missed a turn, before all others. There is always room for those.
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

    /// Somebody goes away. `None` if it was called or displaced before.
    pub(crate) fn leave(&mut self, place: &Place) -> Option<T> {
        let class = self.classes.get_mut(&Reverse(place.priority))?;
        let waiter = class.flows.get_mut(&place.flow)?.waiting.remove(&place.number)?;
        self.len -= 1;
        self.forget_if_empty(place.priority, &place.flow.clone());
        Some(waiter)
    }

    /// Calls the next.
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

    /// Sends everybody away.
    pub(crate) fn clear(&mut self) -> Vec<T> {
        let mut all = Vec::with_capacity(self.len);
        while let Some(waiter) = self.next() {
            all.push(waiter);
        }
        all
    }

    /// How many go before somebody who comes now.
    pub(crate) fn ahead_of(&self, flow: &str) -> usize {
        let flow = if self.order == Order::Fifo { "" } else { flow };
        let (priority, weight) = self.standing(flow);
        let mut ahead = 0;
        for (Reverse(other), class) in &self.classes {
            if *other > priority {
                ahead += class.flows.values().map(|flow| flow.waiting.len()).sum::<usize>();
            } else if *other == priority {
                let own = class.flows.get(flow).map_or(0, |flow| flow.waiting.len());
                // Whole rounds until its turn comes.
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

    /// How many missed a turn. They had a place before, and take none from others.
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

    /// The flow with most waiting, of the lowest priority that has any.
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

    /// Flows are names that clients choose: one that has nobody waiting takes no room.
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

    /// Lets the letters of `come` in, each of the flow of its name, and tells who goes.
    fn called(order: Order, come: &str) -> String {
        let mut room = Room::new(100, order);
        for letter in come.chars() {
            assert!(matches!(room.enter(&letter.to_string(), letter), Entered::Waiting(_)));
        }
        std::iter::from_fn(|| room.next()).collect()
    }

    #[test]
    fn fifo_is_the_order_of_arrival() {
        let mut room = Room::new(9, Order::Fifo);
        for letter in "abcab".chars() {
            room.enter(&letter.to_string(), letter);
        }
        assert_eq!(room.oldest(), Some(&'a'));
        assert_eq!(String::from_iter(std::iter::from_fn(|| room.next())), "abcab");
        assert_eq!((room.len(), room.oldest()), (0, None));
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
        let mut room = Room::new(2, fair(&[], &[("z", 255)]));
        room.enter("z", 'z');
        room.come_back('1');
        let left = room.come_back('2');
        room.come_back('3');
        assert_eq!(room.leave(&left), Some('2'));
        // They take nobody's place, and nobody takes theirs.
        assert!(matches!(room.enter("a", 'a'), Entered::Waiting(_)));
        assert_eq!(room.enter("b", 'b'), Entered::Full('b'));
        assert_eq!(room.len(), 4);
        assert_eq!(String::from_iter(std::iter::from_fn(|| room.next())), "13za");
    }

    #[test]
    fn a_request_that_leaves_is_not_called() {
        let mut room = Room::new(9, fair(&[], &[]));
        let Entered::Waiting(first) = room.enter("a", 1) else { panic!("there is room") };
        room.enter("a", 2);
        room.enter("b", 3);
        assert_eq!(room.leave(&first), Some(1));
        assert_eq!(room.leave(&first), None);
        assert_eq!(room.clear(), [2, 3]);
    }

    #[test]
    fn a_full_room_makes_place_for_a_shorter_flow() {
        let mut room = Room::new(3, fair(&[], &[]));
        for number in 1..=3 {
            room.enter("noisy", number);
        }
        assert_eq!(room.enter("noisy", 4), Entered::Full(4));
        let Entered::InPlaceOf(_, displaced) = room.enter("quiet", 5) else { panic!("no place") };
        assert_eq!(displaced, 3);
        assert_eq!(room.clear(), [1, 5, 2]);
        let mut fifo = Room::new(1, Order::Fifo);
        fifo.enter("", 1);
        assert_eq!(fifo.enter("", 2), Entered::Full(2));
    }

    #[test]
    fn how_many_go_before_is_known() {
        let mut room = Room::new(100, fair(&[("b", 2)], &[("z", 1)]));
        for letter in "aaaabbbbz".chars() {
            room.enter(&letter.to_string(), letter);
        }
        for flow in ["a", "b", "c", "z"] {
            let expected = room.ahead_of(flow);
            let mut copy = Room::new(100, fair(&[("b", 2)], &[("z", 1)]));
            for letter in "aaaabbbbz".chars() {
                copy.enter(&letter.to_string(), letter);
            }
            copy.enter(flow, '*');
            let before = std::iter::from_fn(|| copy.next()).take_while(|who| *who != '*').count();
            assert!(expected >= before && expected <= before + 2, "{flow}: {expected} {before}");
        }
    }
}

//! Which server has which slot, as far as is known.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;

use crate::redis::failure::Refusal;
use crate::redis::link::{Link, State};
use crate::redis::server::{Address, Server};
use crate::redis::slot::{SLOTS, Slot};

/// The primaries, and what each of them has.
#[derive(Debug)]
pub(super) struct Map {
    /// The place of each slot's server in `nodes`.
    owners: Box<[Option<u16>]>,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    address: Address,
    link: Link,
    /// A server sent us there since the map was read. One that gets its first slot is in nobody's
    /// list yet.
    sent_to: AtomicBool,
}

impl Map {
    pub(super) fn unknown() -> Self {
        Self { owners: vec![None; SLOTS].into(), nodes: Vec::new() }
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn owner(&self, slot: Slot) -> Option<&Link> {
        let place = self.owners[slot.index()]?;
        Some(&self.nodes[usize::from(place)].link)
    }

    /// The link to a server, if there is one.
    pub(super) fn at(&self, address: &Address) -> Option<&Link> {
        let node = self.nodes.iter().find(|node| node.address == *address)?;
        node.sent_to.store(true, Ordering::Relaxed);
        Some(&node.link)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.nodes.iter().map(|node| &node.address)
    }

    /// Whether a server may throw counters away.
    pub(super) fn evicts(&self) -> bool {
        self.nodes.iter().any(|node| node.link.evicts())
    }

    /// Why a server writes nothing, if one answers but doesn't.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.nodes.iter().find_map(|node| node.link.refusal())
    }

    /// What can be asked: everything, something, or nothing.
    pub(super) fn state(&self) -> State {
        let states = || self.nodes.iter().map(|node| node.link.state());
        if states().all(|state| state == State::Down) {
            State::Down
        } else if self.owners.iter().all(Option::is_some) && states().all(|s| s == State::Up) {
            State::Up
        } else {
            State::Unsure
        }
    }

    /// A server says that this one has the slot; `open` makes a link to it.
    pub(super) fn moved(&mut self, slot: Slot, to: &Address, open: impl FnOnce() -> Link) {
        let place = self.place(to, open);
        self.owners[slot.index()] = Some(place);
    }

    /// The link to a server, made by `open` if there is none.
    pub(super) fn at_or(&mut self, address: &Address, open: impl FnOnce() -> Link) -> Link {
        let place = self.place(address, open);
        self.nodes[usize::from(place)].link.clone()
    }

    fn place(&mut self, address: &Address, open: impl FnOnce() -> Link) -> u16 {
        let known = self.nodes.iter().position(|node| node.address == *address);
        let place = known.unwrap_or_else(|| {
            let (address, sent_to) = (address.clone(), AtomicBool::new(true));
            self.nodes.push(Node { address, link: open(), sent_to });
            self.nodes.len() - 1
        });
        u16::try_from(place).expect("a cluster has at most 16,384 servers with slots")
    }

    /// Takes over what a server says. Links that still lead somewhere are kept, all others end.
    pub(super) fn adopt(&mut self, ranges: &[Range], open: impl Fn(&Address) -> Link) {
        let before = std::mem::replace(self, Self::unknown());
        for node in before.nodes {
            let named = ranges.iter().any(|range| range.owner == node.address);
            if named || node.sent_to.swap(false, Ordering::Relaxed) {
                self.nodes.push(node);
            }
        }
        for range in ranges {
            let place = self.place(&range.owner, || open(&range.owner));
            self.owners[range.first.index()..=range.last.index()].fill(Some(place));
        }
    }
}

/// Slots that lie on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    first: Slot,
    last: Slot,
    owner: Address,
}

impl Range {
    /// Reads an answer to CLUSTER SLOTS: of each range its first and last slot, the primary and
    /// then its replicas. `asked` is the host that gave it.
    pub(super) fn read_all(answer: &Value, asked: &str) -> Option<Vec<Self>> {
        let Value::Array(ranges) = answer else { return None };
        ranges.iter().map(|range| Self::read(range, asked)).collect()
    }

    /// Its first and last slot, if it is at this server.
    pub(super) fn of(&self, server: &Server) -> Option<(Slot, Slot)> {
        let is_there = self.owner.host == server.host && self.owner.port == server.port;
        is_there.then_some((self.first, self.last))
    }

    fn read(range: &Value, asked: &str) -> Option<Self> {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = match host {
            Value::BulkString(bytes) => str::from_utf8(bytes).ok()?,
            // It does not want to say.
            _ => "",
        };
        let slot = |number: i64| Slot::new(u16::try_from(number).ok()?);
        let (first, last) = (slot(*first)?, slot(*last)?);
        let owner = Address::new(host, u16::try_from(*port).ok()?, asked);
        (first <= last).then_some(Self { first, last, owner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: &str, port: i64) -> Value {
        let host = Value::BulkString(host.as_bytes().to_vec());
        Value::Array(vec![host, Value::Int(port), Value::Nil, Value::Array(Vec::new())])
    }

    fn range(first: i64, last: i64, servers: Vec<Value>) -> Value {
        let numbers = [Value::Int(first), Value::Int(last)];
        Value::Array(numbers.into_iter().chain(servers).collect())
    }

    #[test]
    fn the_primary_of_a_range_is_its_owner() {
        let answer = Value::Array(vec![
            range(0, 99, vec![server("10.0.0.1", 7_000), server("10.0.0.2", 7_000)]),
            range(100, 16_383, vec![server("", 7_001)]),
        ]);
        let ranges = Range::read_all(&answer, "seed").expect("a good answer");
        let owners: Vec<_> = ranges.iter().map(|r| (r.owner.host.as_str(), r.owner.port)).collect();
        assert_eq!(owners, [("10.0.0.1", 7_000), ("seed", 7_001)]);
        assert_eq!(ranges[1].last.index(), 16_383);
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_none() {
        for (first, last, port) in [(5, 4, 1), (0, 16_384, 1), (-1, 4, 1), (0, 4, 65_536)] {
            let answer = Value::Array(vec![range(first, last, vec![server("a", port)])]);
            assert_eq!(Range::read_all(&answer, "seed"), None, "{first} {last} {port}");
        }
        assert_eq!(Range::read_all(&Value::Okay, "seed"), None);
    }
}

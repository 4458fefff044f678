//! [`SlotMap`]: the servers of a Redis Cluster and the slots that each owns.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;

use crate::redis::failure::WriteRefusal;
use crate::redis::link::{ConnectionState, Link};
use crate::redis::server::{RedisEndpoint, ServerAddress, ServerUsage};
use crate::redis::slot::{ClusterSlot, SLOTS};

/// The primaries of a cluster and the slots of each.
#[derive(Debug)]
pub(super) struct SlotMap {
    /// Index in `nodes` of each slot's owner.
    owners: Box<[Option<u16>]>,
    nodes: Vec<ClusterNode>,
}

/// One primary of the cluster.
#[derive(Debug)]
struct ClusterNode {
    address: ServerAddress,
    link: Link,
    /// Set if a redirection named this server since the map was read. A server that is importing
    /// its first slot is in no slot list yet.
    redirected: AtomicBool,
}

impl SlotMap {
    pub(super) fn empty() -> Self {
        Self { owners: vec![None; SLOTS].into(), nodes: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn owner(&self, slot: ClusterSlot) -> Option<&Link> {
        let index = self.owners[slot.index()]?;
        Some(&self.nodes[usize::from(index)].link)
    }

    /// Returns the link to a server, if there is one.
    pub(super) fn link_to(&self, address: &ServerAddress) -> Option<&Link> {
        let node = self.nodes.iter().find(|node| node.address == *address)?;
        node.redirected.store(true, Ordering::Relaxed);
        Some(&node.link)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &ServerAddress> {
        self.nodes.iter().map(|node| &node.address)
    }

    /// Returns true if a server may evict counters.
    pub(super) fn evicts(&self) -> bool {
        self.nodes.iter().any(|node| node.link.evicts())
    }

    /// Returns memory and load of each connected server.
    pub(super) fn usage(&self) -> Vec<ServerUsage> {
        self.nodes.iter().filter_map(|node| node.link.usage()).collect()
    }

    /// Returns the reason why a server rejects writes, if one does.
    pub(super) fn refusal(&self) -> Option<WriteRefusal> {
        self.nodes.iter().find_map(|node| node.link.refusal())
    }

    /// Returns `Up` if every slot has a connected owner, `Down` if no server is connected.
    pub(super) fn state(&self) -> ConnectionState {
        let states = || self.nodes.iter().map(|node| node.link.state());
        if states().all(|state| state == ConnectionState::Down) {
            ConnectionState::Down
        } else if self.owners.iter().all(Option::is_some)
            && states().all(|s| s == ConnectionState::Up)
        {
            ConnectionState::Up
        } else {
            ConnectionState::Connecting
        }
    }

    /// Records a redirection: `to` owns the slot. `open` makes a link if there is none.
    pub(super) fn set_owner(
        &mut self,
        slot: ClusterSlot,
        to: &ServerAddress,
        open: impl FnOnce() -> Link,
    ) {
        let index = self.index_or_insert(to, open);
        self.owners[slot.index()] = Some(index);
    }

    /// Returns the link to a server; `open` makes it if there is none.
    pub(super) fn link_or_insert(
        &mut self,
        address: &ServerAddress,
        open: impl FnOnce() -> Link,
    ) -> Link {
        let index = self.index_or_insert(address, open);
        self.nodes[usize::from(index)].link.clone()
    }

    fn index_or_insert(&mut self, address: &ServerAddress, open: impl FnOnce() -> Link) -> u16 {
        let known = self.nodes.iter().position(|node| node.address == *address);
        let index = known.unwrap_or_else(|| {
            let (address, redirected) = (address.clone(), AtomicBool::new(true));
            self.nodes.push(ClusterNode { address, link: open(), redirected });
            self.nodes.len() - 1
        });
        u16::try_from(index).expect("a cluster has at most 16,384 servers with slots")
    }

    /// Replaces the map by what a server reported. Links to servers that are still needed are kept;
    /// all others end.
    pub(super) fn replace(&mut self, ranges: &[SlotRange], open: impl Fn(&ServerAddress) -> Link) {
        let before = std::mem::replace(self, Self::empty());
        for node in before.nodes {
            let named = ranges.iter().any(|range| range.owner == node.address);
            if named || node.redirected.swap(false, Ordering::Relaxed) {
                self.nodes.push(node);
            }
        }
        for range in ranges {
            let index = self.index_or_insert(&range.owner, || open(&range.owner));
            self.owners[range.first.index()..=range.last.index()].fill(Some(index));
        }
    }
}

/// A range of slots with one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    first: ClusterSlot,
    last: ClusterSlot,
    owner: ServerAddress,
}

impl SlotRange {
    /// Parses the reply to CLUSTER SLOTS: for each range its first and last slot, the primary, and
    /// the replicas. `queried_host` is the host that replied.
    pub(super) fn read_all(answer: &Value, queried_host: &str) -> Option<Vec<Self>> {
        let Value::Array(ranges) = answer else { return None };
        ranges.iter().map(|range| Self::read(range, queried_host)).collect()
    }

    /// Returns the first and last slot if the range belongs to this server.
    pub(super) fn of(&self, server: &RedisEndpoint) -> Option<(ClusterSlot, ClusterSlot)> {
        let is_there = self.owner.host == server.host && self.owner.port == server.port;
        is_there.then_some((self.first, self.last))
    }

    fn read(range: &Value, queried_host: &str) -> Option<Self> {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = match host {
            Value::BulkString(bytes) => str::from_utf8(bytes).ok()?,
            // The server does not report its host.
            _ => "",
        };
        let slot = |number: i64| ClusterSlot::new(u16::try_from(number).ok()?);
        let (first, last) = (slot(*first)?, slot(*last)?);
        let owner = ServerAddress::new(host, u16::try_from(*port).ok()?, queried_host);
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
        let ranges = SlotRange::read_all(&answer, "seed").expect("a good answer");
        let owners: Vec<_> = ranges.iter().map(|r| (r.owner.host.as_str(), r.owner.port)).collect();
        assert_eq!(owners, [("10.0.0.1", 7_000), ("seed", 7_001)]);
        assert_eq!(ranges[1].last.index(), 16_383);
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_none() {
        for (first, last, port) in [(5, 4, 1), (0, 16_384, 1), (-1, 4, 1), (0, 4, 65_536)] {
            let answer = Value::Array(vec![range(first, last, vec![server("a", port)])]);
            assert_eq!(SlotRange::read_all(&answer, "seed"), None, "{first} {last} {port}");
        }
        assert_eq!(SlotRange::read_all(&Value::Okay, "seed"), None);
    }
}

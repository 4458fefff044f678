//! What things are called in Redis.
//!
//! | what | its name |
//! |---|---|
//! | a counter of a rule | `sg:{USER:ann#requests}` |
//! | a counter under a literal key | the key itself if it is a log; else in braces, its kind behind it |
//! | estimates that are given back by themselves | the counter's name and `:holds` |
//! | a record | `sg:id:` and the id |
//! | the mark of an admission without a record | `sg:once:` and the id |
//! | the texts that all nodes share | `sg:{shelf}` |
//! | the mark of a refund | `sg:refund:` and the id |
//! | the nodes that there are | `sg:nodes` |
//! | the fence of a node, against late arrivals of what it took back | `sg:fence:` and the node |
//! | the count of heartbeats | `sg:heartbeat`, in a cluster `sg:{SLOT}:heartbeat` for one slot of each server |
//!
//! Everything that belongs to one counter lies in one slot of a Redis Cluster: the braces are what
//! Redis hashes. A planner that spreads counters by a partition puts braces into the key, and then
//! those decide. Values can't, because their braces are escaped.
//!
//! In a cluster an id has a record in every slot that it is charged in, because a script reaches no
//! other: `sg:{SLOT}:id:` and the id, where `SLOT` is a text that depends on the slot alone. So
//! whoever knows a key that was charged knows where its record is.

use sluicegate_core::algorithm::Meter;
use sluicegate_core::{Charge, Id, Key};

use super::slot::{Slot, tag_of};

/// Makes names that begin alike.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
    layout: Layout,
}

/// What lies where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Everything on one server, which reaches all of it.
    Together,
    /// By slot.
    Slots,
}

impl Names {
    pub(super) fn new(prefix: impl Into<String>, layout: Layout) -> Self {
        Self { prefix: prefix.into(), layout }
    }

    pub(super) const fn layout(&self) -> Layout {
        self.layout
    }

    /// The slot of a key's counter, whatever it measures.
    pub(super) fn slot(&self, key: &Key) -> Slot {
        Slot::of(&self.log(key))
    }

    /// The slot of what is charged nowhere.
    pub(super) fn slot_of_id(&self, id: Id) -> Slot {
        Slot::of(format!("{}{id}", self.prefix).as_bytes())
    }

    /// The counter of a charge.
    pub(super) fn counter(&self, charge: &Charge<'_>) -> Vec<u8> {
        let name = self.log(&charge.key);
        if !is_literal(&charge.key) {
            return name;
        }
        // One text, but state of one kind is of no use to another.
        match charge.meter {
            Meter::Log(_) => name,
            Meter::Windowed(_) => beside(&name, KINDS[0]),
            Meter::Calendar(_) => beside(&name, KINDS[1]),
            Meter::Bucket(_) => beside(&name, KINDS[2]),
            Meter::Leases(_) => beside(&name, KINDS[3]),
        }
    }

    /// The log under a key, if it is one; all else that is counted under it is called after that.
    pub(super) fn log(&self, key: &Key) -> Vec<u8> {
        let (prefix, bytes) = (self.prefix.as_bytes(), key.as_bytes());
        if is_literal(key) {
            bytes.to_vec()
        } else if tag_of(bytes).is_some() {
            [prefix, bytes].concat()
        } else {
            [prefix, b"{", bytes, b"}"].concat()
        }
    }

    /// The estimates of a counter, in its slot.
    pub(super) fn holds(counter: &[u8]) -> Vec<u8> {
        beside(counter, b":holds")
    }

    /// The texts that all nodes share, and where they lie in a cluster.
    pub(super) fn shelf(&self) -> (Vec<u8>, Option<Slot>) {
        let name = format!("{}{{shelf}}", self.prefix).into_bytes();
        let slot = (self.layout == Layout::Slots).then(|| Slot::of(&name));
        (name, slot)
    }

    /// The record of an id, in a slot if there are any.
    pub(super) fn record(&self, slot: Option<Slot>, id: Id) -> Vec<u8> {
        self.of_id(slot, "id", id)
    }

    /// The mark of an admission that leaves no record.
    pub(super) fn once(&self, slot: Option<Slot>, id: Id) -> Vec<u8> {
        self.of_id(slot, "once", id)
    }

    /// The mark of a refund.
    pub(super) fn refund(&self, slot: Option<Slot>, id: Id) -> Vec<u8> {
        self.of_id(slot, "refund", id)
    }

    /// The fence of a node.
    pub(super) fn fence(&self, slot: Option<Slot>, node: Id) -> Vec<u8> {
        self.of_id(slot, "fence", node)
    }

    /// The nodes that have announced themselves.
    pub(super) fn nodes(&self) -> Vec<u8> {
        format!("{}nodes", self.prefix).into_bytes()
    }

    /// The count of heartbeats, in a slot if there are any.
    pub(super) fn heartbeat(&self, slot: Option<Slot>) -> Vec<u8> {
        let prefix = &self.prefix;
        match slot {
            None => format!("{prefix}heartbeat"),
            Some(slot) => format!("{prefix}{{{}}}:heartbeat", slot.tag()),
        }
        .into_bytes()
    }

    fn of_id(&self, slot: Option<Slot>, what: &str, id: Id) -> Vec<u8> {
        let prefix = &self.prefix;
        match slot {
            None => format!("{prefix}{what}:{id}"),
            Some(slot) => format!("{prefix}{{{}}}:{what}:{id}", slot.tag()),
        }
        .into_bytes()
    }

    /// Everything that a charge on this key may have written, whatever it measured.
    pub(super) fn touched(&self, key: &Key) -> Vec<Vec<u8>> {
        let base = self.log(key);
        let kinds: &[&[u8]] = if is_literal(key) { &KINDS } else { &[] };
        let beside_it = kinds.iter().map(|kind| beside(&base, kind));
        let counters: Vec<_> = std::iter::once(base.clone()).chain(beside_it).collect();
        counters.into_iter().flat_map(|name| [Self::holds(&name), name]).collect()
    }
}

const KINDS: [&[u8]; 4] = [b":windowed", b":calendar", b":bucket", b":leases"];

/// A name that lies where `name` lies.
fn beside(name: &[u8], what: &[u8]) -> Vec<u8> {
    match tag_of(name) {
        Some(_) => [name, what].concat(),
        None if !name.contains(&b'}') => [b"{", name, b"}", what].concat(),
        // In braces, only a part of it would count.
        None => [b"{", Slot::of(name).tag().as_bytes(), b"}", name, what].concat(),
    }
}

/// Whether a key is a template of the configuration, word for word. All others end in `#` and what
/// they count; in values and in the names of rules it is escaped.
fn is_literal(key: &Key) -> bool {
    !key.as_bytes().contains(&b'#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_counter_lies_in_its_slot() {
        assert_eq!(Names::holds(b"sg:{U:ann#requests}"), b"sg:{U:ann#requests}:holds");
        assert_eq!(Names::holds(b"ziraai:worker:gemini"), b"{ziraai:worker:gemini}:holds");
    }

    #[test]
    fn a_record_lies_with_the_counters_of_its_slot() {
        let id = Id::from_bits(7);
        let names = Names::new("sg:", Layout::Slots);
        let odd = ["{}x", "a}b", "}", "a{}{b}", "{a", "{{a}}", "x{}", "}{"];
        for key in
            ["USER:ann#requests", "{ann}USER:ann#requests", "ziraai:worker"].iter().chain(&odd)
        {
            let key = Key::literal(key);
            let slot = names.slot(&key);
            assert_eq!(Slot::of(&names.record(Some(slot), id)), slot);
            assert!(names.touched(&key).iter().all(|name| Slot::of(name) == slot));
        }
        let alone = Names::new("sg:", Layout::Together);
        assert_eq!(alone.record(None, id), b"sg:id:00000000000000000000000000000007");
    }

    #[test]
    fn a_key_without_the_mark_of_a_rule_is_literal() {
        assert!(is_literal(&Key::literal("ziraai:worker:ratelimit:gemini")));
        assert!(!is_literal(&Key::literal("USER:ann#requests")));
    }
}

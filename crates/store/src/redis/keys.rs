//! [`KeyNames`] builds the names of all keys in Redis.
//!
//! | kind of key | its name |
//! |---|---|
//! | counter of a rule | `sg:{USER:ann#requests}` |
//! | counter of a literal key | the key itself for a log; otherwise the key in braces, followed by the algorithm |
//! | backlogs of the queues that wait for a counter | the log's name and `:backlogs` |
//! | estimates that are refunded automatically | the counter's name and `:holds` |
//! | record of an admission | `sg:id:` and the id |
//! | marker of an admission without a record | `sg:once:` and the id |
//! | overrides that all nodes share | `sg:{shelf}` |
//! | summaries of nodes | `sg:{summaries}` |
//! | reservations that are not settled | `sg:{reservations}`, and the same with `:dues` and `:ends` |
//! | marker of a refund | `sg:refund:` and the id |
//! | nodes that use this Redis | `sg:nodes` |
//! | fence of a node, which rejects calls that arrive after their rollback | `sg:fence:` and the node |
//! | heartbeat counter | `sg:heartbeat`, in a cluster `sg:{SLOT}:heartbeat` for one slot of each server |
//!
//! All keys of one counter lie in one slot of a Redis Cluster: Redis hashes only the part in
//! braces. A ruleset that spreads counters by a `partition` puts braces into the key, and those
//! decide the slot. Dimension values can't change the slot, because their braces are escaped.
//!
//! In a cluster an id has a record in every slot that it is charged in, because a script can't
//! reach another slot: `sg:{SLOT}:id:` and the id, where `SLOT` is a text that depends only on the
//! slot. So a charged key is enough to find its record.

use sluicegate_core::algorithm::Meter;
use sluicegate_core::{Charge, Id, Key};

use super::slot::{ClusterSlot, tag_of};

/// Builds key names with a common prefix.
#[derive(Clone, Debug)]
pub(super) struct KeyNames {
    prefix: String,
    layout: Layout,
}

/// Distribution of the keys over servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// All keys on one server.
    SingleServer,
    /// Keys spread over the slots of a cluster.
    BySlot,
}

impl KeyNames {
    pub(super) fn new(prefix: impl Into<String>, layout: Layout) -> Self {
        Self { prefix: prefix.into(), layout }
    }

    pub(super) const fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the slot of a key's counter. It is the same for every algorithm.
    pub(super) fn slot(&self, key: &Key) -> ClusterSlot {
        ClusterSlot::of(&self.log(key))
    }

    /// Returns the slot for an id that is charged to no counter.
    pub(super) fn slot_of_id(&self, id: Id) -> ClusterSlot {
        ClusterSlot::of(format!("{}{id}", self.prefix).as_bytes())
    }

    /// Returns the name of a charge's counter.
    pub(super) fn counter(&self, charge: &Charge<'_>) -> Vec<u8> {
        let name = self.log(&charge.key);
        if !is_literal(&charge.key) {
            return name;
        }
        // Different algorithms can share a literal key, but not its stored state.
        match charge.meter {
            Meter::Log(_) => name,
            Meter::Windowed(_) => with_suffix(&name, KINDS[0]),
            Meter::Calendar(_) => with_suffix(&name, KINDS[1]),
            Meter::Bucket(_) => with_suffix(&name, KINDS[2]),
            Meter::Leases(_) => with_suffix(&name, KINDS[3]),
        }
    }

    /// Returns the name of the log under a key. The names of all other counters of the key derive
    /// from it.
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

    /// Returns the key of a counter's estimates, in the counter's slot.
    pub(super) fn holds(counter: &[u8]) -> Vec<u8> {
        with_suffix(counter, b":holds")
    }

    /// Returns the key of the backlogs of all queues whose work is charged on `key`, in its slot.
    pub(super) fn backlogs(&self, key: &Key) -> Vec<u8> {
        with_suffix(&self.log(key), b":backlogs")
    }

    /// Returns the key of the shared overrides, and its slot in a cluster.
    pub(super) fn overrides(&self) -> (Vec<u8>, Option<ClusterSlot>) {
        let name = format!("{}{{shelf}}", self.prefix).into_bytes();
        let slot = (self.layout == Layout::BySlot).then(|| ClusterSlot::of(&name));
        (name, slot)
    }

    /// Returns the key of the summaries of all nodes, and its slot in a cluster.
    pub(super) fn summaries(&self) -> (Vec<u8>, Option<ClusterSlot>) {
        let name = format!("{}{{summaries}}", self.prefix).into_bytes();
        let slot = (self.layout == Layout::BySlot).then(|| ClusterSlot::of(&name));
        (name, slot)
    }

    /// Returns the keys of the reservations that are not settled, and their slot in a cluster.
    pub(super) fn reservations(&self) -> ([Vec<u8>; 3], Option<ClusterSlot>) {
        let name = format!("{}{{reservations}}", self.prefix).into_bytes();
        let slot = (self.layout == Layout::BySlot).then(|| ClusterSlot::of(&name));
        ([name.clone(), with_suffix(&name, b":dues"), with_suffix(&name, b":ends")], slot)
    }

    /// Returns the key of an id's record.
    pub(super) fn record(&self, slot: Option<ClusterSlot>, id: Id) -> Vec<u8> {
        self.of_id(slot, "id", id)
    }

    /// Returns the marker of an admission that leaves no record.
    pub(super) fn once(&self, slot: Option<ClusterSlot>, id: Id) -> Vec<u8> {
        self.of_id(slot, "once", id)
    }

    /// Returns the marker of a refund.
    pub(super) fn refund(&self, slot: Option<ClusterSlot>, id: Id) -> Vec<u8> {
        self.of_id(slot, "refund", id)
    }

    /// Returns the fence of a node.
    pub(super) fn fence(&self, slot: Option<ClusterSlot>, node: Id) -> Vec<u8> {
        self.of_id(slot, "fence", node)
    }

    /// Returns the set of nodes that have announced themselves.
    pub(super) fn nodes(&self) -> Vec<u8> {
        format!("{}nodes", self.prefix).into_bytes()
    }

    /// Returns the heartbeat counter of a slot, or of the only server.
    pub(super) fn heartbeat(&self, slot: Option<ClusterSlot>) -> Vec<u8> {
        let prefix = &self.prefix;
        match slot {
            None => format!("{prefix}heartbeat"),
            Some(slot) => format!("{prefix}{{{}}}:heartbeat", slot.tag()),
        }
        .into_bytes()
    }

    fn of_id(&self, slot: Option<ClusterSlot>, what: &str, id: Id) -> Vec<u8> {
        let prefix = &self.prefix;
        match slot {
            None => format!("{prefix}{what}:{id}"),
            Some(slot) => format!("{prefix}{{{}}}:{what}:{id}", slot.tag()),
        }
        .into_bytes()
    }

    /// Returns every key that a charge on `key` may have written, with any algorithm.
    pub(super) fn keys_of_charge(&self, key: &Key) -> Vec<Vec<u8>> {
        let base = self.log(key);
        let kinds: &[&[u8]] = if is_literal(key) { &KINDS } else { &[] };
        let beside_it = kinds.iter().map(|kind| with_suffix(&base, kind));
        let counters: Vec<_> = std::iter::once(base.clone()).chain(beside_it).collect();
        counters.into_iter().flat_map(|name| [Self::holds(&name), name]).collect()
    }
}

const KINDS: [&[u8]; 4] = [b":windowed", b":calendar", b":bucket", b":leases"];

/// Returns `name` with a suffix, changed so that it stays in the slot of `name`.
fn with_suffix(name: &[u8], what: &[u8]) -> Vec<u8> {
    match tag_of(name) {
        Some(_) => [name, what].concat(),
        None if !name.contains(&b'}') => [b"{", name, b"}", what].concat(),
        // Redis would hash only the part before the first closing brace.
        None => [b"{", ClusterSlot::of(name).tag().as_bytes(), b"}", name, what].concat(),
    }
}

/// Returns true if a key is a literal key of the configuration. All other keys end in `#` and their
/// unit; in values and rule names `#` is escaped.
fn is_literal(key: &Key) -> bool {
    !key.as_bytes().contains(&b'#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_counter_lies_in_its_slot() {
        assert_eq!(KeyNames::holds(b"sg:{U:ann#requests}"), b"sg:{U:ann#requests}:holds");
        assert_eq!(KeyNames::holds(b"ziraai:worker:gemini"), b"{ziraai:worker:gemini}:holds");
    }

    #[test]
    fn a_record_lies_with_the_counters_of_its_slot() {
        let id = Id::from_bits(7);
        let names = KeyNames::new("sg:", Layout::BySlot);
        let odd = ["{}x", "a}b", "}", "a{}{b}", "{a", "{{a}}", "x{}", "}{"];
        for key in
            ["USER:ann#requests", "{ann}USER:ann#requests", "ziraai:worker"].iter().chain(&odd)
        {
            let key = Key::literal(key);
            let slot = names.slot(&key);
            assert_eq!(ClusterSlot::of(&names.record(Some(slot), id)), slot);
            assert_eq!(ClusterSlot::of(&names.backlogs(&key)), slot);
            assert!(names.keys_of_charge(&key).iter().all(|name| ClusterSlot::of(name) == slot));
        }
        let alone = KeyNames::new("sg:", Layout::SingleServer);
        assert_eq!(alone.record(None, id), b"sg:id:00000000000000000000000000000007");
    }

    #[test]
    fn a_key_without_the_mark_of_a_rule_is_literal() {
        assert!(is_literal(&Key::literal("ziraai:worker:ratelimit:gemini")));
        assert!(!is_literal(&Key::literal("USER:ann#requests")));
    }
}

//! What things are called in Redis.
//!
//! | what | its name |
//! |---|---|
//! | a counter of a rule | `sg:{USER:ann#requests}` |
//! | a counter under a literal key | the key itself if it is a log; else with its kind behind it |
//! | estimates that are given back by themselves | the counter's name and `:holds` |
//! | a record | `sg:id:` and the id |
//! | the mark of an admission without a record | `sg:once:` and the id |
//!
//! Everything that belongs to one counter lies in one slot of a Redis Cluster: the braces are what
//! Redis hashes. A planner that spreads counters by a partition puts braces into the key, and then
//! those decide. Values can't, because their braces are escaped.

use sluicegate_core::algorithm::Meter;
use sluicegate_core::{Charge, Id, Key};

/// Makes names that begin alike.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The counter of a charge.
    pub(super) fn counter(&self, charge: &Charge<'_>) -> Vec<u8> {
        let key = charge.key.as_bytes();
        let mut name = Vec::with_capacity(self.prefix.len() + key.len() + 2);
        if is_literal(&charge.key) {
            name.extend_from_slice(key);
            // One text, but state of one kind is of no use to another.
            let kind: &[u8] = match charge.meter {
                Meter::Log(_) => b"",
                Meter::Windowed(_) => b":windowed",
                Meter::Calendar(_) => b":calendar",
                Meter::Bucket(_) => b":bucket",
                Meter::Leases(_) => b":leases",
            };
            name.extend_from_slice(kind);
            return name;
        }
        name.extend_from_slice(self.prefix.as_bytes());
        if tagged(key) {
            name.extend_from_slice(key);
        } else {
            name.push(b'{');
            name.extend_from_slice(key);
            name.push(b'}');
        }
        name
    }

    /// The estimates of a counter, in its slot.
    pub(super) fn holds(counter: &[u8]) -> Vec<u8> {
        if tagged(counter) {
            [counter, b":holds"].concat()
        } else {
            [b"{", counter, b"}:holds"].concat()
        }
    }

    /// The record of an id.
    pub(super) fn record(&self, id: Id) -> Vec<u8> {
        format!("{}id:{id}", self.prefix).into_bytes()
    }

    /// The mark of an admission that leaves no record.
    pub(super) fn once(&self, id: Id) -> Vec<u8> {
        format!("{}once:{id}", self.prefix).into_bytes()
    }
}

/// Whether a key is a template of the configuration, word for word. All others end in `#` and what
/// they count; in values and in the names of rules it is escaped.
fn is_literal(key: &Key) -> bool {
    !key.as_bytes().contains(&b'#')
}

/// Whether Redis Cluster hashes a part of the name instead of the whole.
fn tagged(name: &[u8]) -> bool {
    let Some(open) = name.iter().position(|&byte| byte == b'{') else { return false };
    let close = name[open + 1..].iter().position(|&byte| byte == b'}');
    close.is_some_and(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_counter_lies_in_its_slot() {
        assert_eq!(Names::holds(b"sg:{U:ann#requests}"), b"sg:{U:ann#requests}:holds");
        assert_eq!(Names::holds(b"ziraai:worker:gemini"), b"{ziraai:worker:gemini}:holds");
        assert_eq!(Names::holds(b"{}odd"), b"{{}odd}:holds");
    }

    #[test]
    fn a_key_without_the_mark_of_a_rule_is_literal() {
        assert!(is_literal(&Key::literal("ziraai:worker:ratelimit:gemini")));
        assert!(!is_literal(&Key::literal("USER:ann#requests")));
    }
}

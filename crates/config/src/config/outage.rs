//! What happens while the store does not answer.

use std::collections::BTreeMap;

use sluicegate_core::Limit;

/// How much each node lets through on its own while the store does not answer.
///
/// With a limit of L and N nodes, a node admits ⌊x · L / N⌋ in a window:
///
/// | policy | x |
/// |---|---|
/// | `closed` | 0 |
/// | `local` | ½ |
/// | `open` | 10 |
/// | `unlimited` | not counted |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutagePolicy {
    /// Nothing: the limit is worth more than the availability of what it protects.
    #[default]
    Closed,
    /// Half of this node's share: all nodes together stay below one and a half limits, whatever
    /// was let through before.
    Local,
    /// Ten times this node's share: keeps out a flood, and hardly anything else.
    Open,
    /// Everything.
    Unlimited,
}

impl OutagePolicy {
    /// Every policy with the word for it, strictest first.
    pub const ALL: [(&'static str, Self); 4] = [
        ("closed", Self::Closed),
        ("local", Self::Local),
        ("open", Self::Open),
        ("unlimited", Self::Unlimited),
    ];

    /// How much of a limit one of `nodes` lets through in a window; `None` if it does not count.
    pub fn share(self, limit: &Limit, nodes: u32) -> Option<u64> {
        // A bucket gives its rate in the long run; its capacity may be as small as one.
        let amount = match limit {
            Limit::Bucket { rate, .. } => rate.amount,
            other => other.amount(),
        };
        let amount = u128::from(amount.get());
        let nodes = u128::from(nodes.max(1));
        let share = match self {
            Self::Closed => 0,
            Self::Local => amount / (2 * nodes),
            Self::Open => 10 * amount / nodes,
            Self::Unlimited => return None,
        };
        Some(u64::try_from(share).unwrap_or(u64::MAX))
    }
}

/// The policies of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    /// For everybody else. Default: closed, because a limit that a lost connection lifts is none.
    pub default: OutagePolicy,
    /// By the value of the dimension `clientType`. Default: none.
    pub by_client_type: BTreeMap<String, OutagePolicy>,
}

impl Outage {
    /// The policy for a client type.
    pub fn policy(&self, client_type: Option<&str>) -> OutagePolicy {
        let own = client_type.and_then(|client_type| self.by_client_type.get(client_type));
        own.copied().unwrap_or(self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_down() {
        let share =
            |limit: &str, policy: OutagePolicy| policy.share(&limit.parse().expect(limit), 4);
        assert_eq!(share("100/h", OutagePolicy::Closed), Some(0));
        assert_eq!(share("100/h", OutagePolicy::Local), Some(12));
        assert_eq!(share("7/h", OutagePolicy::Local), Some(0));
        assert_eq!(share("25/s smooth", OutagePolicy::Local), Some(3));
        assert_eq!(share("3 concurrent", OutagePolicy::Open), Some(7));
        assert_eq!(share("9007199254740991/h", OutagePolicy::Open), Some(22_517_998_136_852_477));
        assert_eq!(share("7/h", OutagePolicy::Unlimited), None);
    }
}

//! [`OutagePolicy`]: the amount that a node admits by itself while the store does not answer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::algorithm::{Meter, concurrency, log, window};
use crate::limit::Limit;
use crate::plan::{Charge, Plan};

/// Amount that each node admits by itself while the store does not answer.
///
/// With a limit of L and N nodes, a node admits ⌊x · L / N⌋ in a window:
///
/// | policy | x |
/// |---|---|
/// | `closed` | 0 |
/// | `local` | ½ |
/// | `open` | 10 |
/// | `unlimited` | not counted |
///
/// Together with what the store admitted before, that is at most (1 + x) L in any window. If
/// several policies apply to one plan, the strictest wins, which is the smallest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutagePolicy {
    /// Nothing: the limit is more important than the availability of the service behind it.
    #[default]
    Closed,
    /// Half of this node's share: all nodes together stay below one and a half times the limit,
    /// including what the store admitted before.
    Local,
    /// Ten times this node's share: stops a flood and little else.
    Open,
    /// Everything, without counting.
    Unlimited,
}

impl OutagePolicy {
    /// Every policy with its name in the configuration, strictest first.
    pub const ALL: [(&'static str, Self); 4] = [
        ("closed", Self::Closed),
        ("local", Self::Local),
        ("open", Self::Open),
        ("unlimited", Self::Unlimited),
    ];

    /// Returns its name in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Local => "local",
            Self::Open => "open",
            Self::Unlimited => "unlimited",
        }
    }

    /// Returns the share of one of `nodes` nodes, or `None` if this policy does not count.
    fn share_of(self, nodes: u32) -> Option<Share> {
        let nodes = u64::from(nodes.max(1));
        match self {
            Self::Closed => Some(Share { of: 0, by: 1 }),
            Self::Local => Some(Share { of: 1, by: 2 * nodes }),
            Self::Open => Some(Share { of: 10, by: nodes }),
            Self::Unlimited => None,
        }
    }

    /// Returns the part of a limit that one of `nodes` nodes admits in a window, or `None` if this
    /// policy does not count.
    pub fn share(self, limit: &Limit, nodes: u32) -> Option<u64> {
        // In the long run a bucket admits its rate; its capacity may be as small as one.
        let amount = match limit {
            Limit::Bucket { rate, .. } => rate.amount,
            other => other.amount(),
        };
        Some(self.share_of(nodes)?.amount(amount.get()))
    }
}

/// Reaction to a store server that has lost its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataLossPolicy {
    /// Goes on with empty counters: after n losses in a window, up to (1 + n) times the limit may
    /// have been admitted in it.
    #[default]
    Continue,
    /// Keeps every rule closed for one window from the loss.
    Closed,
}

impl DataLossPolicy {
    /// All policies with their names in the configuration.
    pub const ALL: [(&'static str, Self); 2] =
        [("continue", Self::Continue), ("closed", Self::Closed)];

    /// Returns its name in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Closed => "closed",
        }
    }
}

/// Fraction of every limit: `of / by`, rounded down.
#[derive(Clone, Copy, Debug)]
struct Share {
    of: u64,
    by: u64,
}

impl Share {
    fn amount(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.of) / u128::from(self.by);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// Returns a meter with this fraction of the charge's limits, or `None` if a fraction is zero.
    fn meter<'a>(self, charge: &Charge<'a>) -> Option<Meter<'a>> {
        let some = |limit| Some(self.amount(limit)).filter(|&part| part > 0);
        Some(match &charge.meter {
            Meter::Log(quotas) => {
                let part = |quota: &log::LogQuota| {
                    Some(log::LogQuota { limit: some(quota.limit)?, window: quota.window })
                };
                Meter::Log(Cow::Owned(quotas.iter().map(part).collect::<Option<_>>()?))
            }
            Meter::Windowed(quota) => {
                Meter::Windowed(window::WindowQuota { limit: some(quota.limit)?, ..*quota })
            }
            Meter::Calendar(quota) => {
                Meter::Calendar(window::CalendarQuota { limit: some(quota.limit)?, ..*quota })
            }
            // A fraction of a bucket may hold less than one, so its rate per window is counted
            // instead.
            Meter::Bucket(quota) => {
                let (limit, window) = match &charge.limits()[0] {
                    Limit::Bucket { rate, .. } => (rate.amount.get(), rate.window.span()),
                    other => (quota.capacity(), other.window()),
                };
                Meter::Windowed(window::WindowQuota { limit: some(limit)?, window })
            }
            Meter::Leases(quota) => {
                Meter::Leases(concurrency::SlotQuota { limit: some(quota.limit)?, ..*quota })
            }
        })
    }
}

/// Outage policies of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutagePolicies {
    /// Policy of all other client types. Default: closed, because a limit that is lifted by a lost
    /// connection is no limit.
    pub default: OutagePolicy,
    /// Policies by value of the dimension `clientType`. Default: none.
    pub by_client_type: BTreeMap<String, OutagePolicy>,
    /// Maximum number of nodes that run at the same time.
    pub nodes_max: u32,
}

impl Default for OutagePolicies {
    fn default() -> Self {
        let default = OutagePolicy::default();
        Self { default, by_client_type: BTreeMap::new(), nodes_max: 4 }
    }
}

impl OutagePolicies {
    /// Name of the dimension that selects a policy.
    pub const CLIENT_TYPE: &'static str = "clientType";

    /// Returns the policy for a client type.
    pub fn policy(&self, client_type: Option<&str>) -> OutagePolicy {
        let own = client_type.and_then(|client_type| self.by_client_type.get(client_type));
        own.copied().unwrap_or(self.default)
    }
}

/// Admission rule of a node for one plan while the store does not answer.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for the length of one match")]
pub(crate) enum OutageAdmission<'a> {
    /// Refuse it.
    Closed,
    /// Admit it if the node's own share has room for this plan.
    Counted(Plan<'a>),
    /// Admit it without counting.
    Uncounted,
}

/// Returns how one of `nodes` nodes decides about a plan while the store does not answer.
pub(crate) fn outage_admission<'a>(plan: &Plan<'a>, nodes: u32) -> OutageAdmission<'a> {
    let Some(share) = plan.outage.share_of(nodes) else { return OutageAdmission::Uncounted };
    match plan.with_meters(|charge| share.meter(charge)) {
        Some(part) => OutageAdmission::Counted(part),
        None => OutageAdmission::Closed,
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

    #[test]
    fn every_policy_has_a_name() {
        for (word, policy) in OutagePolicy::ALL {
            assert_eq!(policy.word(), word);
        }
        assert!(OutagePolicy::ALL.is_sorted_by_key(|(_, policy)| policy), "strictest first");
    }
}

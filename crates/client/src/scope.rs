//! [`Scope`]: one limit that was checked.

use std::time::Duration;

use sluicegate_core::Timestamp;
use sluicegate_core::limit::Unit;
use sluicegate_service::answer;

/// A limit that was checked, with its usage. Amounts of money are in nano-dollars.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scope {
    /// Name of the rule.
    pub rule: String,
    /// The limit as it is written in the configuration, such as `100/h`.
    pub limit: String,
    /// Unit of the amounts.
    pub unit: Unit,
    /// Maximum of the limit.
    pub max: u64,
    /// Amount that is used, including the request if it was admitted.
    pub used: u64,
    /// Amount that is left.
    pub remaining: u64,
    /// Time until more is left.
    pub reset_after: Duration,
    /// True if the rule is counted and never denies.
    pub shadow: bool,
}

impl Scope {
    pub(crate) fn of(scope: &answer::Scope<'_, '_>, at: Timestamp) -> Self {
        Self {
            rule: scope.name().to_owned(),
            limit: scope.text.to_owned(),
            unit: scope.limit.unit(),
            max: scope.amount(),
            used: scope.reading.used,
            remaining: scope.remaining(),
            reset_after: scope.reading.reset.since(at).into(),
            shadow: scope.charge.shadow(),
        }
    }
}

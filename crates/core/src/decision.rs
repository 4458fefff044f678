//! [`Decision`]: the answer of the store to a plan, with the reason and the time.

use smallvec::SmallVec;

use crate::algorithm::Reading;
use crate::limit::Unit;
use crate::plan::Plan;
use crate::time::Timestamp;

/// One reading per limit, in the order of [`Plan::scopes`].
pub type Readings = SmallVec<[Reading; 4]>;

/// Answer to the question if the work may start. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The work may start, and all of it is charged.
    Allow(Allow),
    /// Not now. Nothing is charged.
    Deny(Deny),
    /// Never: the amount is larger than a limit.
    Never(Never),
    /// The store does not answer or has lost its data, and the outage policy refuses in this case.
    /// Nothing is charged.
    Closed(Closed),
}

/// An admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    /// Time of the decision, by the clock of the store.
    pub at: Timestamp,
    /// Time at which the work may start: now, or the start of a booking. Earlier than `at` if an
    /// earlier request or attempt with the same id made the charges, which count from then on.
    pub start: Timestamp,
    /// Deadline for renewing, settling or releasing, if any of these is due.
    pub until: Option<Timestamp>,
    /// True if the id was admitted before. Nothing was charged again.
    pub replayed: bool,
    /// Charges of shadow rules that would have denied the work.
    pub shadowed: SmallVec<[u16; 4]>,
    /// Reading of every limit, including this work.
    pub readings: Readings,
    /// Time at which each charge was written, by the clock of its server, if the charges are on
    /// several servers. Otherwise empty: all were written at `start`.
    pub charged_at: Vec<Timestamp>,
}

/// A denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deny {
    /// Time of the decision, by the clock of the store.
    pub at: Timestamp,
    /// First time at which all of it fits if no other request is admitted before.
    pub start: Timestamp,
    /// Limit that causes the longest wait.
    pub hit: Hit,
    /// Reading of every limit.
    pub readings: Readings,
}

/// A denial because the amount is larger than a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Never {
    /// Time of the decision, by the clock of the store.
    pub at: Timestamp,
    /// Limit that is too small.
    pub hit: Hit,
    /// Reading of every limit.
    pub readings: Readings,
}

/// A refusal because the usage is unknown: the store does not answer, or it has lost its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Time of the refusal, by the clock of this node; if the store has lost its data, by the
    /// store's clock.
    pub at: Timestamp,
    /// End of the refusal, if the store has lost its data. By then, everything admitted before has
    /// left the window of its rule.
    pub until: Option<Timestamp>,
    /// Always empty, because the usage is unknown.
    pub readings: Readings,
}

/// One limit of one charge of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Index of the charge in the plan.
    pub charge: usize,
    /// Index of the limit in the meter of the charge.
    pub limit: usize,
}

impl Decision {
    /// Returns true if the work may start.
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// Returns the time of the decision.
    pub const fn at(&self) -> Timestamp {
        match self {
            Self::Allow(allow) => allow.at,
            Self::Deny(deny) => deny.at,
            Self::Never(never) => never.at,
            Self::Closed(closed) => closed.at,
        }
    }

    /// Returns the reading of every limit.
    pub const fn readings(&self) -> &Readings {
        match self {
            Self::Allow(allow) => &allow.readings,
            Self::Deny(deny) => &deny.readings,
            Self::Never(never) => &never.readings,
            Self::Closed(closed) => &closed.readings,
        }
    }

    /// Returns the largest amount of a unit that would fit now, or `None` if no limit counts the
    /// unit.
    pub fn fits(&self, plan: &Plan<'_>, unit: Unit) -> Option<u64> {
        let scopes = plan.charges().iter().flat_map(|charge| {
            (0..charge.meter.len()).map(move |limit| (charge, charge.meter.limit(limit)))
        });
        scopes
            .zip(self.readings())
            .filter(|((charge, _), _)| charge.unit() == unit && !charge.shadow())
            .map(|((_, limit), reading)| limit.saturating_sub(reading.used))
            .min()
    }
}

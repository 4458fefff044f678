//! What the store decided, with why and when.

use smallvec::SmallVec;

use crate::algorithm::Reading;
use crate::limit::Unit;
use crate::plan::Plan;
use crate::time::Timestamp;

/// One reading per limit, in the order of [`Plan::scopes`].
pub type Readings = SmallVec<[Reading; 4]>;

/// May the work go? A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may go: all of it is charged.
    Allow(Allow),
    /// Not now: nothing is charged.
    Deny(Deny),
    /// Not ever: it is more than a limit can give.
    Never(Never),
    /// The store does not answer or has lost its memory, and the policy is to refuse then. Nothing
    /// is charged.
    Closed(Closed),
}

/// An admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    /// When it was decided, by the clock of the store.
    pub at: Timestamp,
    /// When the work may start: now, or the start of a booking.
    pub start: Timestamp,
    /// Renew, settle or release before this instant, if there is something to.
    pub until: Option<Timestamp>,
    /// The id was admitted before; nothing was charged again.
    pub replayed: bool,
    /// The charges of shadow rules that would have denied it.
    pub shadowed: SmallVec<[u16; 4]>,
    /// What every limit shows, this work included.
    pub readings: Readings,
    /// When each charge was written, by the clock of its own server, if the charges lie on several
    /// servers. Otherwise empty: all were written at `start`.
    pub charged_at: Vec<Timestamp>,
}

/// A denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deny {
    /// When it was decided, by the clock of the store.
    pub at: Timestamp,
    /// The first instant at which all of it would fit if nobody else came.
    pub start: Timestamp,
    /// The limit that binds longest.
    pub hit: Hit,
    /// What every limit shows.
    pub readings: Readings,
}

/// More than a limit can ever give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Never {
    /// When it was decided, by the clock of the store.
    pub at: Timestamp,
    /// The limit that is too small.
    pub hit: Hit,
    /// What every limit shows.
    pub readings: Readings,
}

/// A refusal because the usage is not known: the store does not answer, or it lost its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// When it was refused, by the clock of this node; of a store that lost its memory by its own.
    pub at: Timestamp,
    /// Until when, if the store lost its memory: all that was admitted before has left the window
    /// of its rule then.
    pub until: Option<Timestamp>,
    /// None: nobody knows what limits show.
    pub readings: Readings,
}

/// One limit of one charge of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The number of the charge.
    pub charge: usize,
    /// The number of the limit in its meter.
    pub limit: usize,
}

impl Decision {
    /// Whether the work may go.
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// When it was decided.
    pub const fn at(&self) -> Timestamp {
        match self {
            Self::Allow(allow) => allow.at,
            Self::Deny(deny) => deny.at,
            Self::Never(never) => never.at,
            Self::Closed(closed) => closed.at,
        }
    }

    /// What every limit shows.
    pub const fn readings(&self) -> &Readings {
        match self {
            Self::Allow(allow) => &allow.readings,
            Self::Deny(deny) => &deny.readings,
            Self::Never(never) => &never.readings,
            Self::Closed(closed) => &closed.readings,
        }
    }

    /// The most of a unit that would fit now, or `None` if nothing limits the unit.
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

//! [`Checker`]: reads a log of admissions and proves that no limit was exceeded at any time.
//!
//! It shares no code with [`sluicegate_core::algorithm`], so that an error of the limiter is not
//! repeated here. It only knows the guarantee of each [`Limit`]:
//!
//! | limit | proven guarantee |
//! |---|---|
//! | `100/h`, `20000 tokens/min` | in every window (t − W, t] at most the amount |
//! | `25/s burst 50` | in every interval [a, b] at most capacity + rate × (b − a) |
//! | `500/calendar day Europe/Berlin` | in every period at most the amount |
//! | `100 concurrent` | at every instant at most 100 slots held |
//!
//! All computations are exact, in integers. Events may be in any order, so the logs of several
//! nodes can be read one after the other. n events of a scope take O(n log n).
//!
//! ```
//! use sluicegate_core::Timestamp;
//! use sluicegate_checker::{Checker, LogError};
//!
//! let mut checker = Checker::new();
//! checker.scope("USER_MODEL:u1:gpt4#requests", "2/s".parse::<sluicegate_core::Limit>().unwrap())?;
//! for millis in [0, 300, 999] {
//!     checker.admit("USER_MODEL:u1:gpt4#requests", Timestamp::from_millis(millis), 1)?;
//! }
//! let violation = checker.check()?.proven().unwrap_err();
//! assert_eq!(
//!     violation.to_string(),
//!     "USER_MODEL:u1:gpt4#requests: 3 admitted in \
//!      (1969-12-31T23:59:59.999Z, 1970-01-01T00:00:00.999Z] where 2/s allows 2"
//! );
//! # Ok::<(), LogError>(())
//! ```

mod judge;
mod lease;
mod log_error;
mod report;
mod scope;

use std::collections::HashMap;

pub use log_error::LogError;
pub use report::{Finding, Interval, Peaks, Report, ScopeVerdict, Violation};
pub use scope::{Bound, CheckedScope};

use sluicegate_core::id::Id;
use sluicegate_core::limit::{Limit, Unit};
use sluicegate_core::time::Timestamp;

/// An action of a limiter on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An amount was used: the actual one, not an estimate that was settled later.
    Admit {
        /// Time of the use.
        at: Timestamp,
        /// The amount, in the unit of the limit; money in nano-dollars.
        amount: u64,
    },
    /// A lease took slots.
    Start {
        /// Start of the lease.
        at: Timestamp,
        /// Id of the lease, unique.
        id: Id,
        /// Number of slots.
        slots: u64,
        /// Time at which the slots are free without an end, because the holder may have died.
        /// `None` if the lease never expires.
        until: Option<Timestamp>,
    },
    /// A lease was extended.
    Renew {
        /// Id of the lease.
        id: Id,
        /// Time until which it lasts at least.
        until: Timestamp,
    },
    /// The holder stopped, and its slots are free from this time on.
    ///
    /// It counts even after the lease has expired, because a slot is in use while its holder works.
    /// A holder that stops because its lease was lost has no end.
    End {
        /// Time of the end.
        at: Timestamp,
        /// Id of the lease.
        id: Id,
    },
}

/// Collects scopes and events, and checks them.
///
/// A key may have several limits, which all count the same admissions. Scopes come before events:
/// an event without a scope is an error, because it would otherwise seem proven.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    logs: Vec<KeyLog>,
    places: HashMap<Box<str>, usize, foldhash::fast::RandomState>,
}

/// Scopes and events of one key.
#[derive(Clone, Debug)]
struct KeyLog {
    key: Box<str>,
    scopes: Vec<CheckedScope>,
    admits: Vec<Admit>,
    leases: lease::LeaseLog,
}

#[derive(Clone, Copy, Debug)]
struct Admit {
    at: Timestamp,
    amount: u64,
    /// Time of the decision; of a booking, earlier than `at`.
    decided: Timestamp,
    /// Part of the amount that did not have to fit.
    beyond: u64,
}

impl Checker {
    /// Creates a checker without scopes and events.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a limit for the events of `key`. Adding the same scope again changes nothing.
    pub fn scope(
        &mut self,
        key: &str,
        scope: impl Into<CheckedScope>,
    ) -> Result<&mut Self, LogError> {
        let scope = scope.into();
        scope.verify(key)?;
        let place = match self.places.get(key) {
            Some(&place) => place,
            None => {
                self.places.insert(key.into(), self.logs.len());
                self.logs.push(KeyLog::new(key));
                self.logs.len() - 1
            }
        };
        self.logs[place].add_scope(scope)?;
        Ok(self)
    }

    /// Records that `amount` was admitted on `key` at `at`.
    pub fn admit(&mut self, key: &str, at: Timestamp, amount: u64) -> Result<(), LogError> {
        self.record(key, Event::Admit { at, amount })
    }

    /// Records that `amount` was admitted on `key` at `at` although only `need` of it had to fit,
    /// as with an `optimistic` budget. In each window, only the admission `decided` last may exceed
    /// the limit.
    pub fn admit_beyond(
        &mut self,
        key: &str,
        at: Timestamp,
        amount: u64,
        need: u64,
        decided: Timestamp,
    ) -> Result<(), LogError> {
        self.admit(key, at, amount)?;
        let log = self.places.get(key).map(|&place| &mut self.logs[place]);
        if let Some(admit) = log.and_then(|log| log.admits.last_mut()) {
            (admit.decided, admit.beyond) = (decided, amount.saturating_sub(need));
        }
        Ok(())
    }

    /// Records an event on `key`.
    pub fn record(&mut self, key: &str, event: Event) -> Result<(), LogError> {
        match self.places.get(key) {
            Some(&place) => self.logs[place].record(event),
            None => Err(LogError::UnknownKey { key: key.into() }),
        }
    }

    /// Checks everything recorded so far. More can be recorded and checked afterwards.
    pub fn check(&mut self) -> Result<Report, LogError> {
        let mut verdicts = Vec::new();
        for log in &mut self.logs {
            log.judge(&mut verdicts)?;
        }
        Ok(Report { verdicts })
    }
}

impl KeyLog {
    fn new(key: &str) -> Self {
        Self {
            key: key.into(),
            scopes: Vec::new(),
            admits: Vec::new(),
            leases: lease::LeaseLog::default(),
        }
    }

    fn add_scope(&mut self, scope: CheckedScope) -> Result<(), LogError> {
        if let Some(known) = self.rated_unit()
            && !is_concurrent(&scope)
            && known != scope.limit.unit()
        {
            return Err(LogError::Units {
                key: self.key.clone(),
                known,
                other: scope.limit.unit(),
            });
        }
        if !self.scopes.contains(&scope) {
            self.scopes.push(scope);
        }
        Ok(())
    }

    fn rated_unit(&self) -> Option<Unit> {
        let mut rated = self.scopes.iter().filter(|scope| !is_concurrent(scope));
        rated.next().map(|scope| scope.limit.unit())
    }

    fn record(&mut self, event: Event) -> Result<(), LogError> {
        let concurrent = !matches!(event, Event::Admit { .. });
        let judged = self.scopes.iter().any(|s| is_concurrent(s) == concurrent);
        if !judged {
            let key = self.key.clone();
            return Err(if concurrent {
                LogError::NotConcurrent { key }
            } else {
                LogError::NotRated { key }
            });
        }
        let (at, until) = match event {
            Event::Admit { at, .. } | Event::End { at, .. } => (Some(at), None),
            Event::Start { at, until, .. } => (Some(at), until),
            Event::Renew { until, .. } => (None, Some(until)),
        };
        // A log from another source can contain any number.
        if let Some(at) = at.max(until).filter(|&at| at > Timestamp::MAX) {
            return Err(LogError::Time { key: self.key.clone(), micros: at.as_micros() });
        }
        match event {
            Event::Admit { at, amount } => {
                self.admits.push(Admit { at, amount, decided: at, beyond: 0 });
            }
            Event::Start { at, id, slots, until } => self.leases.start(at, id, slots, until),
            Event::Renew { id, until } => self.leases.renew(id, until),
            Event::End { at, id } => self.leases.end(at, id),
        }
        Ok(())
    }

    fn judge(&mut self, verdicts: &mut Vec<ScopeVerdict>) -> Result<(), LogError> {
        self.admits.sort_unstable_by_key(|admit| admit.at);
        let held = self.leases.held(&self.key)?;
        for scope in &self.scopes {
            let findings = judge::judge(&self.key, scope, &self.admits, &held)?;
            let events = if is_concurrent(scope) { self.leases.len() } else { self.admits.len() };
            verdicts.push(ScopeVerdict {
                key: self.key.clone(),
                scope: scope.clone(),
                events,
                peaks: findings.peaks,
                first: findings.first,
                exceeded: findings.exceeded,
            });
        }
        Ok(())
    }
}

const fn is_concurrent(scope: &CheckedScope) -> bool {
    matches!(scope.limit, Limit::Concurrent(_))
}

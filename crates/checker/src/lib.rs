//! The judge: reads what was admitted and proves that no limit was exceeded at any time.
//!
//! It shares nothing with [`sluicegate_core::algorithm`]: a mistake that the limiter makes must not be one
//! that its judge makes too. It knows what a [`Limit`] promises, and only that.
//!
//! | limit | what is proven |
//! |---|---|
//! | `100/h`, `20000 tokens/min` | in every window (t − W, t] at most the amount |
//! | `25/s burst 50` | in every stretch [a, b] at most capacity + rate × (b − a) |
//! | `500/calendar day Europe/Berlin` | in every period at most the amount |
//! | `100 concurrent` | at every instant at most so many slots held |
//!
//! All of it is computed in integers, exactly. Events come in any order, so the logs of several
//! nodes can be read one after the other. n events of a scope take O(n log n).
//!
//! ```
//! use sluicegate_core::Timestamp;
//! use sluicegate_checker::{Checker, Malformed};
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
//! # Ok::<(), Malformed>(())
//! ```

mod judge;
mod lease;
mod malformed;
mod report;
mod scope;

use std::collections::HashMap;

pub use malformed::Malformed;
pub use report::{Finding, Interval, Report, Verdict, Violation};
pub use scope::{Bound, Scope};

use sluicegate_core::id::Id;
use sluicegate_core::limit::{Limit, Unit};
use sluicegate_core::time::Timestamp;

/// Something that a limiter let happen on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// So much was used at an instant: what was really used, estimates after their settlement.
    Admit {
        /// When.
        at: Timestamp,
        /// How much, in the unit of the limit; money in nano-dollars.
        amount: u64,
    },
    /// Slots were taken.
    Start {
        /// From when on.
        at: Timestamp,
        /// Of which lease. An id names one lease.
        id: Id,
        /// How many.
        slots: u64,
        /// When they come back if nobody says so, because the holder may have died. They are
        /// held for ever without it.
        until: Option<Timestamp>,
    },
    /// A lease lasts at least until a later instant.
    Renew {
        /// Which lease.
        id: Id,
        /// Until when.
        until: Timestamp,
    },
    /// The holder stopped, and its slots are free from this instant on.
    ///
    /// It counts even after the lease has expired: a slot is in use while its holder works. A
    /// holder that gave up because it was told that its lease was lost has no end.
    End {
        /// When.
        at: Timestamp,
        /// Which lease.
        id: Id,
    },
}

/// Collects scopes and events, and judges them.
///
/// A key may have several limits, which all count the same admits. Scopes come before events: an
/// event that nothing would judge is refused, because it would look proven.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    logs: Vec<Log>,
    places: HashMap<Box<str>, usize, foldhash::fast::RandomState>,
}

/// All that is known of one key.
#[derive(Clone, Debug)]
struct Log {
    key: Box<str>,
    scopes: Vec<Scope>,
    admits: Vec<Admit>,
    leases: lease::Log,
}

#[derive(Clone, Copy, Debug)]
struct Admit {
    at: Timestamp,
    amount: u64,
    /// When it was decided: of a booking, before `at`.
    decided: Timestamp,
    /// The part of the amount that did not have to fit.
    beyond: u64,
}

impl Checker {
    /// A checker that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Judges the events of `key` by one more limit. The same scope again changes nothing.
    pub fn scope(&mut self, key: &str, scope: impl Into<Scope>) -> Result<&mut Self, Malformed> {
        let scope = scope.into();
        scope.verify(key)?;
        let place = match self.places.get(key) {
            Some(&place) => place,
            None => {
                self.places.insert(key.into(), self.logs.len());
                self.logs.push(Log::new(key));
                self.logs.len() - 1
            }
        };
        self.logs[place].judge_by(scope)?;
        Ok(self)
    }

    /// `amount` was admitted on `key` at `at`.
    pub fn admit(&mut self, key: &str, at: Timestamp, amount: u64) -> Result<(), Malformed> {
        self.record(key, Event::Admit { at, amount })
    }

    /// `amount` was admitted on `key` at `at` although only `need` of it had to fit, as an
    /// `optimistic` budget does. Of all that is in a window, only what was `decided` last may go
    /// beyond the limit.
    pub fn admit_beyond(
        &mut self,
        key: &str,
        at: Timestamp,
        amount: u64,
        need: u64,
        decided: Timestamp,
    ) -> Result<(), Malformed> {
        self.admit(key, at, amount)?;
        let log = self.places.get(key).map(|&place| &mut self.logs[place]);
        if let Some(admit) = log.and_then(|log| log.admits.last_mut()) {
            (admit.decided, admit.beyond) = (decided, amount.saturating_sub(need));
        }
        Ok(())
    }

    /// Something happened on `key`.
    pub fn record(&mut self, key: &str, event: Event) -> Result<(), Malformed> {
        match self.places.get(key) {
            Some(&place) => self.logs[place].record(event),
            None => Err(Malformed::UnknownKey { key: key.into() }),
        }
    }

    /// Judges all that was recorded so far. More can be recorded afterwards, and judged again.
    pub fn check(&mut self) -> Result<Report, Malformed> {
        let mut verdicts = Vec::new();
        for log in &mut self.logs {
            log.judge(&mut verdicts)?;
        }
        Ok(Report { verdicts })
    }
}

impl Log {
    fn new(key: &str) -> Self {
        Self {
            key: key.into(),
            scopes: Vec::new(),
            admits: Vec::new(),
            leases: lease::Log::default(),
        }
    }

    fn judge_by(&mut self, scope: Scope) -> Result<(), Malformed> {
        if let Some(known) = self.rated_unit()
            && !is_concurrent(&scope)
            && known != scope.limit.unit()
        {
            return Err(Malformed::Units {
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

    fn record(&mut self, event: Event) -> Result<(), Malformed> {
        let concurrent = !matches!(event, Event::Admit { .. });
        let judged = self.scopes.iter().any(|s| is_concurrent(s) == concurrent);
        if !judged {
            let key = self.key.clone();
            return Err(if concurrent {
                Malformed::NotConcurrent { key }
            } else {
                Malformed::NotRated { key }
            });
        }
        let (at, until) = match event {
            Event::Admit { at, .. } | Event::End { at, .. } => (Some(at), None),
            Event::Start { at, until, .. } => (Some(at), until),
            Event::Renew { until, .. } => (None, Some(until)),
        };
        // A log that is read back from elsewhere can hold any number.
        if let Some(at) = at.max(until).filter(|&at| at > Timestamp::MAX) {
            return Err(Malformed::Time { key: self.key.clone(), micros: at.as_micros() });
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

    fn judge(&mut self, verdicts: &mut Vec<Verdict>) -> Result<(), Malformed> {
        self.admits.sort_unstable_by_key(|admit| admit.at);
        let held = self.leases.held(&self.key)?;
        for scope in &self.scopes {
            let tally = judge::judge(&self.key, scope, &self.admits, &held)?;
            let events = if is_concurrent(scope) { self.leases.len() } else { self.admits.len() };
            verdicts.push(Verdict {
                key: self.key.clone(),
                scope: scope.clone(),
                events,
                worst: tally.worst,
                first: tally.first,
                exceeded: tally.exceeded,
            });
        }
        Ok(())
    }
}

const fn is_concurrent(scope: &Scope) -> bool {
    matches!(scope.limit, Limit::Concurrent(_))
}

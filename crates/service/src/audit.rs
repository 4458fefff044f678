//! [`AuditLog`]: the actions of people and programs that changed a running service.
//!
//! The last actions are kept in memory, for the dashboard. Each is also a log line `audit`, which is
//! the lasting record.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_core::Timestamp;
use tracing::info;

/// Number of actions that are kept.
const ENTRIES_MAX: usize = 1_000;

/// The last actions on a service.
#[derive(Debug, Default)]
pub struct AuditLog(Mutex<VecDeque<AuditEntry>>);

/// An action that changed a running service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Time of the action, by the clock of this node.
    pub at: Timestamp,
    /// Name of the token that the caller used.
    pub by: String,
    /// The kind of action, such as `override set`.
    pub action: &'static str,
    /// The object of the action, such as a rule or a queue.
    pub target: String,
    /// The reason that the caller gave; empty if it gave none.
    pub reason: String,
    /// The result or the details, in words.
    pub detail: String,
}

impl AuditLog {
    /// Records an action.
    pub fn record(&self, entry: AuditEntry) {
        let AuditEntry { by, action, target, reason, detail, .. } = &entry;
        info!(by, action, target, reason, detail, "audit");
        let mut entries = self.lock();
        if entries.len() == ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    /// Returns the last actions, the newest first.
    pub fn newest(&self, count: usize) -> Vec<AuditEntry> {
        self.lock().iter().rev().take(count).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<AuditEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_actions_stay() {
        let log = AuditLog::default();
        for number in 0..=ENTRIES_MAX {
            log.record(AuditEntry {
                at: Timestamp::from_secs(number as u64),
                by: "ann".to_owned(),
                action: "reset",
                target: number.to_string(),
                reason: String::new(),
                detail: String::new(),
            });
        }
        let shown = log.newest(usize::MAX);
        assert_eq!(shown.len(), ENTRIES_MAX);
        assert_eq!((shown[0].target.as_str(), shown[999].target.as_str()), ("1000", "1"));
    }
}

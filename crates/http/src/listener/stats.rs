//! Counters of a listener, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one listener.
#[derive(Debug, Default)]
pub struct Stats {
    accepted: AtomicU64,
    closed: AtomicU64,
    refused: AtomicU64,
    accept_errors: AtomicU64,
    handshake_errors: AtomicU64,
    timed_out: AtomicU64,
}

/// A snapshot of [`Stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerCounts {
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections closed because too many were open.
    pub refused: u64,
    /// Connections open now.
    pub active: u64,
    /// Failed accept calls, mostly for lack of file descriptors.
    pub accept_errors: u64,
    /// Failed TLS handshakes.
    pub handshake_errors: u64,
    /// Connections closed because they were idle for too long.
    pub timed_out: u64,
}

impl Stats {
    /// Returns the current values.
    pub fn counts(&self) -> ListenerCounts {
        // In this order `active` cannot become negative.
        let closed = self.closed.load(Relaxed);
        let accepted = self.accepted.load(Relaxed);
        ListenerCounts {
            accepted,
            refused: self.refused.load(Relaxed),
            active: accepted.saturating_sub(closed),
            accept_errors: self.accept_errors.load(Relaxed),
            handshake_errors: self.handshake_errors.load(Relaxed),
            timed_out: self.timed_out.load(Relaxed),
        }
    }

    /// Counts a connection as open until the guard is dropped.
    pub(super) fn open(self: &Arc<Self>) -> OpenConnection {
        self.accepted.fetch_add(1, Relaxed);
        OpenConnection(Arc::clone(self))
    }

    pub(super) fn add_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(super) fn add_accept_error(&self) {
        self.accept_errors.fetch_add(1, Relaxed);
    }

    pub(super) fn add_handshake_error(&self) {
        self.handshake_errors.fetch_add(1, Relaxed);
    }

    pub(super) fn add_timed_out(&self) {
        self.timed_out.fetch_add(1, Relaxed);
    }
}

/// Guard of an open connection.
pub(super) struct OpenConnection(Arc<Stats>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Relaxed);
    }
}

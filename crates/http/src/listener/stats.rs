//! What a listener counts, for metrics.

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

/// The values of [`Stats`] at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that were let in since the start.
    pub accepted: u64,
    /// Connections that were closed because too many were open.
    pub refused: u64,
    /// Connections that are open now.
    pub active: u64,
    /// Times that the system could not give us a connection, mostly for lack of file descriptors.
    pub accept_errors: u64,
    /// Connections that did not get through the TLS handshake.
    pub handshake_errors: u64,
    /// Connections that were given up because nothing happened on them in time.
    pub timed_out: u64,
}

impl Stats {
    /// The values now.
    pub fn counts(&self) -> Counts {
        // Read in this order, `active` can't be below zero.
        let closed = self.closed.load(Relaxed);
        let accepted = self.accepted.load(Relaxed);
        Counts {
            accepted,
            refused: self.refused.load(Relaxed),
            active: accepted.saturating_sub(closed),
            accept_errors: self.accept_errors.load(Relaxed),
            handshake_errors: self.handshake_errors.load(Relaxed),
            timed_out: self.timed_out.load(Relaxed),
        }
    }

    /// Counts a connection as open for as long as the guard lives.
    pub(super) fn open(self: &Arc<Self>) -> Open {
        self.accepted.fetch_add(1, Relaxed);
        Open(Arc::clone(self))
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

/// An open connection.
pub(super) struct Open(Arc<Stats>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Relaxed);
    }
}

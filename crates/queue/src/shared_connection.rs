//! [`SharedConnection`]: a connection that is opened when it is needed and reopened when it is lost,
//! shared by all callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::Error;

/// The connection of an adapter to its broker.
pub(crate) struct SharedConnection<C> {
    current: Mutex<ConnectionState<C>>,
    /// Number of connection attempts.
    attempts: AtomicU64,
}

/// The connection, or the error of the last attempt.
enum ConnectionState<C> {
    New,
    Up(Arc<C>),
    Down(Error),
}

impl<C> SharedConnection<C> {
    pub(crate) fn new() -> Self {
        Self { current: Mutex::new(ConnectionState::New), attempts: AtomicU64::new(0) }
    }

    /// Returns the open connection, or connects. Only one caller connects at a time; the others
    /// share its result, so that they do not wait for one failure after another.
    pub(crate) async fn open(
        &self,
        is_up: impl Fn(&C) -> bool,
        connect: impl Future<Output = Result<C, Error>>,
    ) -> Result<Arc<C>, Error> {
        let before = self.attempts.load(Ordering::SeqCst);
        let mut current = self.current.lock().await;
        match &*current {
            ConnectionState::Up(live) if is_up(live) => return Ok(live.clone()),
            ConnectionState::Down(error) if self.attempts.load(Ordering::SeqCst) > before => {
                return Err(error.clone());
            }
            _ => {}
        }
        let outcome = connect.await.map(Arc::new);
        self.attempts.fetch_add(1, Ordering::SeqCst);
        *current = match &outcome {
            Ok(live) => ConnectionState::Up(live.clone()),
            Err(error) => ConnectionState::Down(error.clone()),
        };
        outcome
    }
}

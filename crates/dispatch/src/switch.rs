//! Whether limits are asked: a switch that can be turned while messages wait.

use tokio::sync::watch;

/// A switch. Turning it off wakes everybody who waits for a limit.
#[derive(Debug)]
pub(crate) struct Switch(watch::Sender<bool>);

impl Switch {
    pub(crate) fn new(on: bool) -> Self {
        Self(watch::Sender::new(on))
    }

    pub(crate) fn turn(&self, on: bool) {
        self.0.send_replace(on);
    }

    pub(crate) fn is_on(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is off.
    pub(crate) async fn is_off(&self) {
        // The sender is ours, so it does not go while we wait.
        let _ = self.0.subscribe().wait_for(|on| !on).await;
    }
}

//! [`LimitSwitch`]: turns limits on or off while messages wait.

use tokio::sync::watch;

/// A switch for limits. Turning it off wakes all messages that wait for a limit.
#[derive(Debug)]
pub(crate) struct LimitSwitch(watch::Sender<bool>);

impl LimitSwitch {
    pub(crate) fn new(on: bool) -> Self {
        Self(watch::Sender::new(on))
    }

    pub(crate) fn set(&self, on: bool) {
        self.0.send_replace(on);
    }

    pub(crate) fn is_on(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the switch is off.
    pub(crate) async fn turned_off(&self) {
        // Can't fail: this struct owns the sender.
        let _ = self.0.subscribe().wait_for(|on| !on).await;
    }
}

//! The locks of this crate: those of the standard library, or ones whose every interleaving a
//! test can explore.

#[cfg(feature = "shuttle")]
use shuttle::sync as imp;
#[cfg(not(feature = "shuttle"))]
use std::sync as imp;

pub(crate) use imp::MutexGuard;

/// A mutex that goes on after a panic: what it guards is only changed after everything that can
/// fail has been checked.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

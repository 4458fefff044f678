//! The locks of this crate: those of the standard library, or in tests those of `shuttle`, which
//! explores thread schedules.

#[cfg(feature = "shuttle")]
use shuttle::sync as imp;
#[cfg(not(feature = "shuttle"))]
use std::sync as imp;

pub(crate) use imp::MutexGuard;

/// A mutex that ignores poisoning. Its data stays consistent after a panic, because every change
/// comes after all checks that can fail.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

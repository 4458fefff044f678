//! [`CostMeter`]: takes the actual cost of a request from its handler.

use std::sync::{Arc, Mutex, PoisonError};

use crate::cost::Cost;

/// The actual cost of a request, set by its handler at any time until the body of the response ends.
///
/// The layer adds it to the extensions of each request, if it was told to
/// [`reserve`](super::RateLimitLayer::reserve) an estimate. Of a request that is skipped, it charges
/// nothing. Clones share the cost.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::Extension;
/// use sluicegate::Cost;
/// use sluicegate::tower::CostMeter;
///
/// async fn ask(Extension(meter): Extension<CostMeter>) -> &'static str {
///     // Call the model here.
///     meter.set(Cost::new().input_tokens(868).output_tokens(145));
///     "hello"
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CostMeter(Arc<Mutex<Option<Cost>>>);

impl CostMeter {
    /// Sets the actual cost. The last call counts.
    pub fn set(&self, cost: Cost) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cost);
    }

    /// Returns the cost that was set.
    pub(super) fn get(&self) -> Option<Cost> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

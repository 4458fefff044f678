//! Settles deliveries while a queue fails: a message that can't be published is held and published
//! later, instead of being requeued and received again in a loop.

use std::time::Duration;

use sluicegate_core::time::Clock;
use sluicegate_queue::{Delivery, Error, Unsettled};

use crate::queue_state::QueueStates;
use crate::stop::Stop;

/// Time for which a message that can't even become a dead letter is held before it is returned.
const HOLD: Duration = Duration::from_secs(30);

/// Repeats an operation that settles a delivery until it succeeds. Returns an error if the delivery
/// is lost or the message can never be published. Requeues the message if a drain is signalled.
///
/// `queue` is the queue that the operation publishes to.
pub(crate) async fn until_settled<F>(
    mut delivery: Delivery,
    queue: &str,
    (states, clock): (&QueueStates, &dyn Clock),
    stop: &Stop,
    operation: impl Fn(Delivery) -> F,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Unsettled>> + Send,
{
    loop {
        let Err(Unsettled { error, delivery: unsettled }) = operation(delivery).await else {
            states.works(queue);
            return Ok(());
        };
        let Some(unsettled) = unsettled else { return Err(error) };
        if error.is_permanent() {
            let _ = unsettled.with_lease(stop.sleep(HOLD)).await;
            unsettled.abandon();
            return Err(error);
        }
        let wait = states.failed(queue, &error, clock.now());
        if !unsettled.with_lease(stop.sleep(wait.into())).await {
            return unsettled.requeue().await;
        }
        // The connection may have been lost meanwhile: then the broker delivers the message again.
        if unsettled.extend().await == Err(Error::Lost) {
            return Err(Error::Lost);
        }
        delivery = *unsettled;
    }
}

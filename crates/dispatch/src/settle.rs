//! Settles deliveries while a queue fails: a message that can't be published is held and published
//! later, instead of being requeued and received again in a loop.

use std::time::Duration;

use sluicegate_core::time::Clock;
use sluicegate_queue::{Delivery, Error, Unsettled};

use crate::queue_state::QueueStates;
use crate::stop::Stop;

/// Time for which a message that can never be published is held before it is left to the broker.
const HOLD: Duration = Duration::from_secs(30);

/// Repeats an operation that settles a delivery until it succeeds. Returns an error if the delivery
/// is lost, and with the delivery if the message can never be published. If a drain is signalled, it
/// tries once more and requeues the message.
///
/// `queue` is the queue that the operation publishes to.
pub(crate) async fn until_settled<F>(
    mut delivery: Delivery,
    queue: &str,
    (states, clock): (&QueueStates, &dyn Clock),
    stop: &Stop,
    operation: impl Fn(Delivery) -> F,
) -> Result<(), Unsettled>
where
    F: Future<Output = Result<(), Unsettled>> + Send,
{
    loop {
        let Err(Unsettled { error, delivery: unsettled }) = operation(delivery).await else {
            states.works(queue);
            return Ok(());
        };
        let Some(unsettled) = unsettled else { return Err(error.into()) };
        if error.is_permanent() {
            return Err(Unsettled { error, delivery: Some(unsettled) });
        }
        let wait = states.failed(queue, &error, clock.now());
        if !unsettled.with_lease(stop.sleep(wait.into())).await {
            // The last attempt: if it fails, the work is done again.
            return match operation(*unsettled).await {
                Err(Unsettled { delivery: Some(unsettled), .. }) => Ok(unsettled.requeue().await?),
                settled => settled,
            };
        }
        // The connection may have been lost meanwhile: then the broker delivers the message again.
        if unsettled.extend().await == Err(Error::Lost) {
            return Err(Error::Lost.into());
        }
        delivery = *unsettled;
    }
}

/// Holds a message that can never be published for a while, and leaves it to the broker, which counts
/// that: it becomes a dead letter when it was delivered too often.
pub(crate) async fn hold_if_unsettled(
    settled: Result<(), Unsettled>,
    stop: &Stop,
) -> Result<(), Error> {
    let Err(Unsettled { error, delivery }) = settled else { return Ok(()) };
    if let Some(unsettled) = delivery {
        let _ = unsettled.with_lease(stop.sleep(HOLD)).await;
        unsettled.abandon();
    }
    Err(error)
}

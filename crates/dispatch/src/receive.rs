//! The receive loop that dispatchers and workers share: receives messages up to a maximum in
//! flight, runs one task per message, and stops on request.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::time::Clock;
use sluicegate_queue::{Consumer, ConsumerObserver, Delivery, Error, Queue};
use tokio::task::JoinSet;
use tracing::warn;

use crate::queue_state::QueueStates;
use crate::stop::Stop;

/// Delay after a message that was not settled.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum time for returning messages that were received in advance, when a process stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Receives messages until `stop` asks to drain, then waits for those in flight.
///
/// `open` waits until messages may be received. A message whose task fails was returned to the
/// queue and is redelivered.
pub(crate) async fn run<O, W>(
    queue: &Queue,
    most: u16,
    observer: Arc<dyn ConsumerObserver>,
    (states, clock): (&QueueStates, &dyn Clock),
    stop: &Stop,
    open: impl Fn() -> O,
    process: impl Fn(Delivery) -> W,
) where
    O: Future<Output = ()> + Send,
    W: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let mut current: Option<Consumer> = None;
    let taken = stop.drain.run_until_cancelled(async {
        loop {
            let error = match queue.consume(most).await {
                Err(error) => error,
                Ok(consumer) => {
                    let consumer = current.insert(consumer.with_observer(observer.clone()));
                    loop {
                        states.works(queue.name());
                        stop.room(&mut tasks, most.into()).await;
                        open().await;
                        match consumer.receive(usize::from(most) - tasks.len()).await {
                            Ok(received) => {
                                for delivery in received {
                                    tasks.spawn(processed(delivery, &process, stop));
                                }
                            }
                            Err(error) => break error,
                        }
                    }
                }
            };
            current = None;
            let wait = states.failed(queue.name(), &error, clock.now());
            tokio::time::sleep(wait.into()).await;
        }
    });
    let None: Option<std::convert::Infallible> = taken.await;
    let returned = async {
        if let Some(consumer) = current {
            // Dropped at the end of the time, which returns the rest, counted as redelivered.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, consumer.close()).await;
        }
    };
    tokio::join!(returned, stop.finish(tasks));
}

/// Processes one message and logs an error.
fn processed<W>(
    delivery: Delivery,
    process: impl Fn(Delivery) -> W,
    stop: &Stop,
) -> impl Future<Output = ()> + Send + 'static
where
    W: Future<Output = Result<(), Error>> + Send + 'static,
{
    let message = delivery.message().id();
    let (work, stop) = (process(delivery), stop.clone());
    async move {
        if let Err(error) = work.await {
            // The message is redelivered; the delay spares a broker that has a problem.
            warn!(id = %message, %error, "message not settled: it will be redelivered");
            stop.sleep(PAUSE).await;
        }
    }
}

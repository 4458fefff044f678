//! Taking messages from a queue, which both tiers do alike: as many at a time as there may be, each
//! seen through by a task of its own, until there is a wish to stop.

use std::time::Duration;

use sluicegate_queue::{Delivery, Error, Queue};
use tokio::task::JoinSet;
use tracing::warn;

use crate::stop::Stop;

/// How long a broker is left alone after it refused something.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes messages until it is told to stop, and then waits for those in hand.
///
/// `open` waits until something may be taken. What fails was given back, and comes again.
pub(crate) async fn run<O, W>(
    queue: &Queue,
    most: u16,
    stop: &Stop,
    open: impl Fn() -> O,
    see_through: impl Fn(Delivery) -> W,
) where
    O: Future<Output = ()> + Send,
    W: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let taken = stop.drain.run_until_cancelled(async {
        loop {
            let error = match queue.consume(most).await {
                Err(error) => error,
                Ok(mut consumer) => loop {
                    stop.room(&mut tasks, most.into()).await;
                    open().await;
                    match consumer.receive(usize::from(most) - tasks.len()).await {
                        Ok(received) => {
                            for delivery in received {
                                tasks.spawn(seen(delivery, &see_through, stop));
                            }
                        }
                        Err(error) => break error,
                    }
                },
            };
            warn!(queue = queue.name(), %error, "messages can't be taken: trying again");
            tokio::time::sleep(PAUSE).await;
        }
    });
    let None: Option<std::convert::Infallible> = taken.await;
    stop.finish(tasks).await;
}

/// Sees one through.
fn seen<W>(
    delivery: Delivery,
    see_through: impl Fn(Delivery) -> W,
    stop: &Stop,
) -> impl Future<Output = ()> + Send + 'static
where
    W: Future<Output = Result<(), Error>> + Send + 'static,
{
    let message = delivery.message().id();
    let (work, stop) = (see_through(delivery), stop.clone());
    async move {
        if let Err(error) = work.await {
            // It comes again: not at once, whatever is wrong with the broker.
            warn!(id = %message, %error, "a message could not be settled: it is delivered again");
            stop.sleep(PAUSE).await;
        }
    }
}

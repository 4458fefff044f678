//! Sends messages. All messages of a batch are sent before the first confirmation is awaited, so that
//! a batch takes one round trip.

use fe2o3_amqp::link::SendError;
use fe2o3_amqp::types::messaging::Outcome;
use fe2o3_amqp::{Sendable, Sender};
use futures_util::future::join_all;

use super::connection::{OpenConnection, OpenLink};
use super::properties::{self, ReceivedWith};
use super::queue_handle::Confirmation;
use super::{BusClient, NAME, failure};
use crate::Error;
use crate::broker::{OutgoingMessage, QueueName};
use crate::step::DeliveryStep;

/// A message, and the properties with which it was received, if it is passed on.
pub(super) type PublishRequest = (OutgoingMessage, Option<ReceivedWith>);

/// Sends messages, and waits until Service Bus has confirmed or rejected each of them.
pub(super) async fn publish(
    bus: &BusClient,
    queue_name: &QueueName,
    batch: Vec<PublishRequest>,
) -> Vec<Result<(), Error>> {
    let (handle, count) = (bus.queue(queue_name), batch.len());
    let queue = &handle.queue;
    let mut place = queue.sender.lock().await;
    // Taken out of its place: if the caller stops waiting, the sender must not stay there in an
    // unknown state.
    let taken = place.take().filter(|open| open.live.is_up());
    let mut is_old = taken.is_some();
    let mut open = match taken {
        Some(open) => open,
        None => match queue.attach_sender().await {
            Ok(open) => open,
            Err(error) => return vec![Err(error); count],
        },
    };
    let mut sent = Vec::with_capacity(count);
    let mut broken: Option<Error> = None;
    for (next, received_with) in batch {
        let result = match &broken {
            // A time limit for each message would add up.
            Some(error) => Err(error.clone()),
            None => {
                let sent = send(&mut open, queue.address(), &next, received_with.as_ref()).await;
                match (sent, is_old) {
                    // Service Bus closes links that are not used for ten minutes. Nothing was sent.
                    (Err(SendFailure::Link(_)), true) => match queue.attach_sender().await {
                        Ok(fresh) => {
                            open = fresh;
                            let received_with = received_with.as_ref();
                            let sent = send(&mut open, queue.address(), &next, received_with);
                            sent.await.map_err(Error::from)
                        }
                        Err(error) => Err(error),
                    },
                    (sent, _) => sent.map_err(Error::from),
                }
            }
        };
        is_old = false;
        if let Err(error) = &result
            && !error.is_permanent()
        {
            broken = Some(error.clone());
        }
        sent.push(result);
    }
    let (live, link) = (open.live.clone(), open.link.name().to_owned());
    if broken.is_none() {
        *place = Some(open);
    }
    // The next batch is sent while this one is being confirmed.
    drop(place);
    DeliveryStep::Published.emit();
    let confirmed =
        sent.into_iter().map(async |sent| confirmed(&live, queue.address(), sent?).await);
    let results = join_all(confirmed).await;
    DeliveryStep::Confirmed.emit();
    let is_broken =
        |result: &Result<(), Error>| result.as_ref().is_err_and(|error| !error.is_permanent());
    if results.iter().any(is_broken) {
        let mut place = queue.sender.lock().await;
        place.take_if(|open| open.link.name() == link);
    }
    results
}

/// The reason that a message was not sent.
enum SendFailure {
    /// The link is closed.
    Link(Error),
    /// Anything else.
    Other(Error),
}

impl From<SendFailure> for Error {
    fn from(failure: SendFailure) -> Self {
        let (SendFailure::Link(error) | SendFailure::Other(error)) = failure;
        error
    }
}

/// Sends a message without waiting for its confirmation.
async fn send(
    open: &mut OpenLink<Sender>,
    address: &str,
    next: &OutgoingMessage,
    received_with: Option<&ReceivedWith>,
) -> Result<Confirmation, SendFailure> {
    let too_large = |size, max| SendFailure::Other(Error::TooLarge { broker: NAME, size, max });
    let max = open.link.max_message_size().and_then(|max| usize::try_from(max).ok());
    let size = properties::size(&next.message);
    if let Some(max) = max.filter(|max| size > *max) {
        return Err(too_large(size, max));
    }
    let message = properties::write(next, received_with);
    let sendable = Sendable::builder().message(message).build();
    match open.live.within(open.link.send_batchable(sendable)).await.map_err(SendFailure::Other)? {
        Err(SendError::MessageSizeExceeded(exceeded)) => {
            Err(too_large(exceeded.size as usize, exceeded.max_size as usize))
        }
        sent => sent.map_err(|error| SendFailure::Link(failure::of_queue(address, &error))),
    }
}

/// Waits for the confirmation. Everything except a positive one is an error.
async fn confirmed(
    live: &OpenConnection,
    address: &str,
    confirmation: Confirmation,
) -> Result<(), Error> {
    let refused = |how: &str| failure::unavailable(format!("a message for {address} was {how}"));
    match live.within(confirmation).await? {
        Ok(Outcome::Accepted(_)) => Ok(()),
        Ok(Outcome::Rejected(rejected)) => Err(match &rejected.error {
            Some(error) => failure::of_condition(address, error),
            None => refused("rejected"),
        }),
        Ok(_) => Err(refused("released")),
        Err(error) => Err(failure::of_queue(address, &error)),
    }
}

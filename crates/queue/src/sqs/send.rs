//! Sends messages in batches. A successful response may contain failures of single messages.

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use futures_util::future::join_all;

use super::attributes::{self, Attributes, Encoded};
use super::client::{Address, Link};
use super::failure;
use super::gather::{Entry, results};
use crate::Error;
use crate::broker::{Delay, Outgoing, Place};
use crate::step::Step;

/// A message, and the attributes with which it was received, if it is passed on.
pub(super) type Leaving = (Outgoing, Option<Attributes>);

pub(super) async fn send(
    link: &Link,
    place: &Place,
    batch: Vec<Leaving>,
) -> Vec<Result<(), Error>> {
    let line = match link.line(place).await {
        Ok(line) => line,
        Err(error) => return vec![Err(error); batch.len()],
    };
    // All are submitted before the first result is awaited, so that they share requests.
    let ask = |(next, came): Leaving| {
        let encoded = attributes::write(&next.message, came.as_ref())?;
        Ok(line.sends.ask(Sending { encoded, seconds: seconds(next.delay) }))
    };
    let asked: Vec<Result<_, Error>> = batch.into_iter().map(ask).collect();
    join_all(asked.into_iter().map(async |asked| asked?.await)).await
}

/// An encoded message and its delay.
#[derive(Debug)]
pub(super) struct Sending {
    encoded: Encoded,
    seconds: i32,
}

impl Entry for Sending {
    fn size(&self) -> usize {
        self.encoded.size
    }

    async fn request(entries: Vec<Self>, queue: &Address) -> Vec<Result<(), Error>> {
        let count = entries.len();
        let entry = |(number, Self { encoded, seconds }): (usize, Self)| {
            let entry = SendMessageBatchRequestEntry::builder().id(number.to_string());
            let entry = entry.message_body(encoded.body).delay_seconds(seconds);
            let entry = entry.set_message_attributes(Some(encoded.attributes));
            entry.build().expect("it has an id and a body")
        };
        let entries = entries.into_iter().enumerate().map(entry).collect();
        let batch = queue.client.send_message_batch().queue_url(&queue.url);
        Step::Published.reached();
        let sent = batch.set_entries(Some(entries)).send().await;
        Step::Confirmed.reached();
        match sent {
            Ok(answer) => {
                let done = answer.successful.iter().map(|done| done.id());
                let failed = answer.failed.iter().map(|failed| {
                    let words = failed.message().unwrap_or_default();
                    (failed.id(), failure::of_code(&queue.place, failed.code(), words))
                });
                results(count, done, failed)
            }
            Err(error) => vec![Err(failure::of_queue(&queue.place, &error)); count],
        }
    }
}

/// Converts to whole seconds, rounded down: the consumer holds messages that arrive early.
fn seconds(delay: Delay) -> i32 {
    i32::try_from(delay.span().as_micros() / 1_000_000).unwrap_or(i32::MAX)
}

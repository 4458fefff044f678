//! Sending, in batches as large as SQS takes. A batch that is answered may hold failures.

use aws_sdk_sqs::types::SendMessageBatchRequestEntry as Entry;

use super::attributes::{self, Attributes, Encoded};
use super::client::Link;
use super::{SIZE_MAX, failure};
use crate::Error;
use crate::broker::{Delay, Outgoing, Place};
use crate::step::Step;

/// The most messages in a batch.
const BATCH_MAX: usize = 10;

/// A message, and the attributes with which it came if it was somewhere else before.
pub(super) type Leaving = (Outgoing, Option<Attributes>);

pub(super) async fn send(
    link: &Link,
    place: &Place,
    batch: Vec<Leaving>,
) -> Vec<Result<(), Error>> {
    let mut results: Vec<Result<(), Error>> = Vec::with_capacity(batch.len());
    let url = link.url(place).await;
    let mut chunk = Chunk::default();
    for (place_in_batch, (next, came)) in batch.into_iter().enumerate() {
        let encoded = match &url {
            Ok(_) => attributes::write(&next.message, came.as_ref()),
            Err(error) => Err(error.clone()),
        };
        // What is sent is judged when its chunk is.
        results.push(encoded.as_ref().map(drop).map_err(Error::clone));
        let (Ok(encoded), Ok(url)) = (encoded, &url) else { continue };
        if chunk.entries.len() == BATCH_MAX || chunk.size + encoded.size > SIZE_MAX {
            std::mem::take(&mut chunk).send(link, place, url, &mut results).await;
        }
        chunk.add(place_in_batch, encoded, next.delay);
    }
    if let Ok(url) = &url {
        chunk.send(link, place, url, &mut results).await;
    }
    results
}

/// Messages that go together.
#[derive(Default)]
struct Chunk {
    entries: Vec<(usize, Entry)>,
    size: usize,
}

impl Chunk {
    fn add(&mut self, number: usize, encoded: Encoded, delay: Delay) {
        let entry = Entry::builder()
            .id(number.to_string())
            .message_body(encoded.body)
            .set_message_attributes(Some(encoded.attributes))
            .delay_seconds(seconds(delay))
            .build();
        self.entries.push((number, entry.expect("it has an id and a body")));
        self.size += encoded.size;
    }

    async fn send(self, link: &Link, place: &Place, url: &str, results: &mut [Result<(), Error>]) {
        if self.entries.is_empty() {
            return;
        }
        let (numbers, entries): (Vec<_>, Vec<_>) = self.entries.into_iter().unzip();
        let batch = link.client.send_message_batch().queue_url(url).set_entries(Some(entries));
        Step::Published.reached();
        let sent = batch.send().await;
        Step::Confirmed.reached();
        match sent {
            Ok(answer) => {
                for failed in answer.failed() {
                    let words = failed.message().unwrap_or_default();
                    let error = failure::of_code(place, failed.code(), words);
                    let number = failed.id().parse().ok().filter(|n| numbers.contains(n));
                    for number in number.map_or(numbers.clone(), |number| vec![number]) {
                        results[number] = Err(error.clone());
                    }
                }
            }
            Err(error) => {
                let error = failure::of_queue(place, &error);
                for number in numbers {
                    results[number] = Err(error.clone());
                }
            }
        }
    }
}

/// Whole seconds, rounded down: what comes too early is held by its consumer.
fn seconds(delay: Delay) -> i32 {
    i32::try_from(delay.span().as_micros() / 1_000_000).unwrap_or(i32::MAX)
}

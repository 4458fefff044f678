//! [`Held`]: the receipt of a delivery, a receipt handle that is valid until the lease ends.

use std::sync::Arc;

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
};
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use super::attributes::Attributes;
use super::client::{Address, Line, Link};
use super::gather::{Entry, results};
use super::send::send;
use super::{LEASE_MAX, failure};
use crate::Error;
use crate::broker::{Outgoing, Place, Receipt};
use crate::step::Step;

pub(super) struct Held {
    pub(super) link: Arc<Link>,
    /// Queue that the delivery came from.
    pub(super) line: Arc<Line>,
    /// Taken by the method that settles the delivery.
    pub(super) handle: Option<String>,
    pub(super) attributes: Option<Attributes>,
}

impl Held {
    fn handle(&mut self) -> String {
        self.handle.take().unwrap_or_else(|| unreachable!("settled once, by type"))
    }
}

impl Receipt for Held {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let handle = self.handle();
        self.line.deletes.ask(Delete(handle)).boxed()
    }

    fn relay(
        mut self: Box<Self>,
        place: Place,
        next: Outgoing,
    ) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            let came = self.attributes.take();
            let results = send(&self.link, &place, vec![(next, came)]).await;
            // On failure nothing is deleted, and the dropped receipt requeues the message.
            results.into_iter().collect::<Result<(), Error>>()?;
            self.ack().await
        }
        .boxed()
    }

    fn give_back(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let handle = self.handle();
        self.line.hides.ask(Hide { handle, seconds: 0 }).boxed()
    }

    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>> {
        let Some(handle) = self.handle.clone() else {
            return std::future::ready(Err(Error::Lost)).boxed();
        };
        self.line.hides.ask(Hide { handle, seconds: seconds(visibility) }).boxed()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            drop(self.line.hides.ask(Hide { handle, seconds: 0 }));
        }
    }
}

/// An acknowledgement.
#[derive(Debug)]
pub(super) struct Delete(String);

impl Entry for Delete {
    async fn request(entries: Vec<Self>, queue: &Address) -> Vec<Result<(), Error>> {
        let count = entries.len();
        let entry = |(number, Self(handle)): (usize, Self)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(number.to_string());
            entry.receipt_handle(handle).build().expect("it has an id and a receipt")
        };
        let entries = entries.into_iter().enumerate().map(entry).collect();
        let delete = queue.client.delete_message_batch().queue_url(&queue.url);
        let deleted = delete.set_entries(Some(entries)).send().await;
        Step::Acknowledged.reached();
        match deleted {
            Ok(answer) => {
                let done = answer.successful.iter().map(|done| done.id());
                results(count, done, failed(&queue.place, &answer.failed))
            }
            Err(error) => unsettled(count, &queue.place, &error),
        }
    }
}

/// A change of the lease: to this many seconds from now, or to its end.
#[derive(Debug)]
pub(super) struct Hide {
    handle: String,
    seconds: i32,
}

impl Entry for Hide {
    async fn request(entries: Vec<Self>, queue: &Address) -> Vec<Result<(), Error>> {
        let count = entries.len();
        let entry = |(number, Self { handle, seconds }): (usize, Self)| {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(number.to_string());
            let entry = entry.receipt_handle(handle).visibility_timeout(seconds);
            entry.build().expect("it has an id and a receipt")
        };
        let entries = entries.into_iter().enumerate().map(entry).collect();
        let change = queue.client.change_message_visibility_batch().queue_url(&queue.url);
        match change.set_entries(Some(entries)).send().await {
            Ok(answer) => {
                let done = answer.successful.iter().map(|done| done.id());
                results(count, done, failed(&queue.place, &answer.failed))
            }
            Err(error) => unsettled(count, &queue.place, &error),
        }
    }
}

fn failed<'a>(
    place: &'a Place,
    failed: &'a [BatchResultErrorEntry],
) -> impl Iterator<Item = (&'a str, Error)> {
    failed.iter().map(|failed| {
        let words = failed.message().unwrap_or_default();
        (failed.id(), failure::of_receipt(place, failed.code(), words))
    })
}

/// Returns the results of a request that failed as a whole.
fn unsettled<E>(count: usize, place: &Place, error: &SdkError<E>) -> Vec<Result<(), Error>>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    vec![Err(failure::of_queue(place, error)); count]
}

/// Converts to whole seconds, rounded up so that a lease is never too short.
pub(super) fn seconds(visibility: Span) -> i32 {
    i32::try_from(visibility.min(LEASE_MAX).as_secs_ceil()).unwrap_or(i32::MAX)
}

//! The right to settle a delivery: a receipt handle, which is good until the lease ends.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use super::attributes::Attributes;
use super::client::Link;
use super::send::send;
use super::{LEASE_MAX, failure};
use crate::Error;
use crate::broker::{Outgoing, Place, Receipt};
use crate::step::Step;

pub(super) struct Held {
    pub(super) way: Arc<Way>,
    /// Taken by whatever settles it.
    pub(super) handle: Option<String>,
    pub(super) attributes: Option<Attributes>,
}

/// Where the delivery came from.
pub(super) struct Way {
    pub(super) link: Arc<Link>,
    pub(super) place: Place,
    pub(super) url: String,
}

impl Way {
    async fn delete(&self, handle: String) -> Result<(), Error> {
        let delete = self.link.client.delete_message().queue_url(&self.url).receipt_handle(handle);
        let deleted = delete.send().await;
        Step::Acknowledged.reached();
        deleted.map(drop).map_err(|error| failure::of_receipt(&self.place, &error))
    }

    async fn hide(&self, handle: String, seconds: i32) -> Result<(), Error> {
        let change = self.link.client.change_message_visibility().queue_url(&self.url);
        let changed = change.receipt_handle(handle).visibility_timeout(seconds).send().await;
        changed.map(drop).map_err(|error| failure::of_receipt(&self.place, &error))
    }
}

impl Held {
    fn handle(&mut self) -> String {
        self.handle.take().unwrap_or_else(|| unreachable!("settled once, by type"))
    }
}

impl Receipt for Held {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let (way, handle) = (self.way.clone(), self.handle());
        async move { way.delete(handle).await }.boxed()
    }

    fn relay(
        mut self: Box<Self>,
        place: Place,
        next: Outgoing,
    ) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            let came = self.attributes.take();
            let results = send(&self.way.link, &place, vec![(next, came)]).await;
            // On failure nothing is deleted, and dropping the receipt gives the message back.
            results.into_iter().collect::<Result<(), Error>>()?;
            let handle = self.handle();
            self.way.delete(handle).await
        }
        .boxed()
    }

    fn give_back(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let (way, handle) = (self.way.clone(), self.handle());
        async move { way.hide(handle, 0).await }.boxed()
    }

    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>> {
        let Some(handle) = self.handle.clone() else {
            return std::future::ready(Err(Error::Lost)).boxed();
        };
        self.way.hide(handle, seconds(visibility)).boxed()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let way = self.way.clone();
            runtime.spawn(async move { way.hide(handle, 0).await });
        }
    }
}

/// Whole seconds, rounded up: a lease is not shorter than it says.
pub(super) fn seconds(visibility: Span) -> i32 {
    i32::try_from(visibility.min(LEASE_MAX).as_secs_ceil()).unwrap_or(i32::MAX)
}

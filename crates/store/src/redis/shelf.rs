//! Texts that all nodes share, in one key: see `lua/shelf.lua`.

use sluicegate_core::shelf::{Contents, Pending, Shelf, TEXTS_MAX, Version};
use sluicegate_core::store::Error;
use sluicegate_core::{Id, Span};

use super::Redis;
use super::call::{Call, Kept};
use super::reply::Reply;
use super::tally::Asked;

impl Redis {
    async fn ask_shelf(&self, operation: Kept<'_>) -> Result<Reply, Error> {
        let call = |_| Call::shelf(operation, &self.names);
        self.attempts.make(&self.way, (Asked::Shelf, operation.id()), call).await
    }
}

impl Shelf for Redis {
    fn read(&self, known: Option<Version>) -> Pending<'_, Option<Contents>> {
        Box::pin(async move { self.ask_shelf(Kept::Read(known)).await?.contents() })
    }

    fn put<'a>(&'a self, name: Id, text: &'a str, lasts: Option<Span>) -> Pending<'a, ()> {
        Box::pin(async move {
            let put = Kept::Put { name, text, lasts, texts_max: TEXTS_MAX };
            self.ask_shelf(put).await?.ended().map(drop)
        })
    }

    fn remove(&self, name: Id) -> Pending<'_, bool> {
        Box::pin(async move {
            let ended = self.ask_shelf(Kept::Remove(name)).await?.ended()?;
            Ok(!ended.replayed)
        })
    }
}

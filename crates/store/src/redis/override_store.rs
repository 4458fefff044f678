//! The overrides that all nodes share, in one Redis key: see `lua/overrides.lua`. The summaries of
//! nodes are kept in the same way, in another key.

use sluicegate_core::override_store::{
    OVERRIDES_MAX, OverrideFuture, OverrideStore, OverridesVersion, StoredOverrides,
};
use sluicegate_core::store::Error;
use sluicegate_core::{Id, Span};

use super::Redis;
use super::call::{Call, OverrideOperation};
use super::operation_stats::RedisOperation;
use super::reply::Reply;

/// Maximum number of nodes that exchange summaries.
const SUMMARIES_MAX: usize = 100;

impl Redis {
    async fn run_on_overrides(&self, operation: OverrideOperation<'_>) -> Result<Reply, Error> {
        let call = |_| Call::on_shared_texts(operation, self.names.overrides());
        self.retrier.run(&self.connection, (RedisOperation::Overrides, operation.id()), call).await
    }

    async fn run_on_summaries(&self, operation: OverrideOperation<'_>) -> Result<Reply, Error> {
        let call = |_| Call::on_shared_texts(operation, self.names.summaries());
        self.retrier.run(&self.connection, (RedisOperation::Overrides, operation.id()), call).await
    }

    /// Stores the summary of a node, for the dashboards of other nodes. It expires after `lasts`.
    pub async fn put_summary(&self, node: Id, text: &str, lasts: Span) -> Result<(), Error> {
        let lasts = Some(lasts);
        let put = OverrideOperation::Put { name: node, text, lasts, texts_max: SUMMARIES_MAX };
        self.run_on_summaries(put).await?.ended().map(drop)
    }

    /// Returns the summaries of all nodes that wrote one recently, in no particular order.
    pub async fn summaries(&self) -> Result<Vec<String>, Error> {
        let read = self.run_on_summaries(OverrideOperation::Read(None)).await?.overrides()?;
        Ok(read.map(|stored| stored.texts).unwrap_or_default())
    }
}

impl OverrideStore for Redis {
    fn read(&self, known: Option<OverridesVersion>) -> OverrideFuture<'_, Option<StoredOverrides>> {
        Box::pin(
            async move { self.run_on_overrides(OverrideOperation::Read(known)).await?.overrides() },
        )
    }

    fn put<'a>(&'a self, name: Id, text: &'a str, lasts: Option<Span>) -> OverrideFuture<'a, ()> {
        Box::pin(async move {
            let put = OverrideOperation::Put { name, text, lasts, texts_max: OVERRIDES_MAX };
            self.run_on_overrides(put).await?.ended().map(drop)
        })
    }

    fn remove(&self, name: Id) -> OverrideFuture<'_, bool> {
        Box::pin(async move {
            let ended = self.run_on_overrides(OverrideOperation::Remove(name)).await?.ended()?;
            Ok(!ended.replayed)
        })
    }
}

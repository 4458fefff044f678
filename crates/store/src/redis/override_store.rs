//! The overrides that all nodes share, in one Redis key: see `lua/overrides.lua`.

use sluicegate_core::override_store::{
    OVERRIDES_MAX, OverrideFuture, OverrideStore, OverridesVersion, StoredOverrides,
};
use sluicegate_core::store::Error;
use sluicegate_core::{Id, Span};

use super::Redis;
use super::call::{Call, OverrideOperation};
use super::operation_stats::RedisOperation;
use super::reply::Reply;

impl Redis {
    async fn run_on_overrides(&self, operation: OverrideOperation<'_>) -> Result<Reply, Error> {
        let call = |_| Call::on_overrides(operation, &self.names);
        self.retrier.run(&self.connection, (RedisOperation::Overrides, operation.id()), call).await
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

//! The reservations that are not settled yet, which all nodes share: see `lua/reservations.lua`.

use sluicegate_core::Id;
use sluicegate_core::reservation_store::{
    ReservationChanges, ReservationFuture, ReservationStore, UnsettledReservations,
};
use sluicegate_core::store::Error;

use super::Redis;
use super::call::{Call, ReservationOperation};
use super::operation_stats::RedisOperation;

impl Redis {
    async fn run_on_reservations(
        &self,
        operation: ReservationOperation<'_>,
        id: Id,
    ) -> Result<UnsettledReservations, Error> {
        let call = |_| Call::on_reservations(operation, &self.names);
        let operation = (RedisOperation::Reservations, id);
        self.retrier.run(&self.connection, operation, call).await?.reservations()
    }
}

/// Every operation can be repeated, so a call that got no answer is retried.
impl ReservationStore for Redis {
    fn apply<'a>(&'a self, changes: &'a ReservationChanges) -> ReservationFuture<'a, u64> {
        Box::pin(async move {
            let first = changes.opened.first().map(|reservation| reservation.id);
            let id = first.or(changes.ended.first().copied()).unwrap_or(Id::from_bits(0));
            let applied = self.run_on_reservations(ReservationOperation::Apply(changes), id).await;
            Ok(applied?.count)
        })
    }

    fn unsettled(&self, max: usize) -> ReservationFuture<'_, UnsettledReservations> {
        let read = ReservationOperation::Read { max };
        Box::pin(self.run_on_reservations(read, Id::from_bits(0)))
    }

    fn find(&self, id: Id) -> ReservationFuture<'_, Option<String>> {
        Box::pin(async move {
            let found = self.run_on_reservations(ReservationOperation::Find(id), id).await?;
            Ok(found.texts.into_iter().next())
        })
    }
}

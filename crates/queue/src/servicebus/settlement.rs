//! [`Settlement`]: ends a delivery. Concurrent settlements share a request, which Service Bus executes
//! as a whole or not at all.

use uuid::Uuid;

use super::management::{Disposition, ManagementRequest};
use super::queue_handle::BusQueue;
use crate::Error;
use crate::batcher::BatchEntry;
use crate::step::DeliveryStep;

/// The end of one delivery.
#[derive(Clone)]
pub(super) struct Settlement {
    pub(super) lock: Uuid,
    pub(super) disposition: Disposition,
}

impl BatchEntry for Settlement {
    type Queue = BusQueue;
    const BATCH_MAX: usize = 100;

    async fn request(entries: Vec<Self>, queue: &BusQueue) -> Vec<Result<(), Error>> {
        let mut results = vec![Err(Error::Lost); entries.len()];
        for disposition in dispositions(&entries) {
            let places: Vec<_> = (0..entries.len())
                .filter(|place| entries[*place].disposition == disposition)
                .collect();
            let locks: Vec<_> = places.iter().map(|place| entries[*place].lock).collect();
            let settled = settle(queue, &locks, &disposition).await;
            // One invalid lock makes the whole request fail.
            let alone = settled == Err(Error::Lost) && locks.len() > 1;
            for (place, lock) in places.into_iter().zip(locks) {
                results[place] = match alone {
                    true => settle(queue, &[lock], &disposition).await,
                    false => settled.clone(),
                };
            }
        }
        results
    }
}

/// Returns the different dispositions of a batch.
fn dispositions(entries: &[Settlement]) -> Vec<Disposition> {
    let mut found = Vec::new();
    for entry in entries {
        if !found.contains(&entry.disposition) {
            found.push(entry.disposition.clone());
        }
    }
    found
}

async fn settle(queue: &BusQueue, locks: &[Uuid], disposition: &Disposition) -> Result<(), Error> {
    let settled = queue.request(ManagementRequest::settle(locks, disposition)).await.map(drop);
    if *disposition != Disposition::Abandoned {
        DeliveryStep::Acknowledged.emit();
    }
    settled
}

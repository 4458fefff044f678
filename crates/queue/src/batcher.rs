//! [`Batcher`]: combines operations that are submitted at the same time into one request to a broker.
//!
//! An operation does not wait for others: a request is sent at once, unless the maximum number of
//! requests is in flight. Operations that arrive meanwhile go into the next request. If the broker is
//! slower than its callers, they wait before their operations enter the channel.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::Error;

/// Maximum number of concurrent requests of one kind to one queue.
pub(crate) const REQUESTS_MAX: usize = 8;
/// Maximum number of entries that wait for a request: a few rounds of the requests in flight.
const WAITING_MAX: usize = 256;

/// An operation on one message.
pub(crate) trait BatchEntry: Sized + Send + 'static {
    /// The queue of the operation, and the client for it.
    type Queue: Send + Sync + 'static;
    /// Maximum number of entries in a request.
    const BATCH_MAX: usize;
    /// Maximum size of a request.
    const SIZE_MAX: usize = usize::MAX;

    /// Size of the operation in a request.
    fn size(&self) -> usize {
        0
    }

    /// Sends all entries in one request. Returns one result each, in order.
    fn request(
        entries: Vec<Self>,
        queue: &Self::Queue,
    ) -> impl Future<Output = Vec<Result<(), Error>>> + Send;
}

/// A handle to a task that batches operations on one queue. The task ends with the handle.
#[derive(Debug)]
pub(crate) struct Batcher<E> {
    waiting: mpsc::Sender<PendingEntry<E>>,
}

/// An entry and the channel for its result.
type PendingEntry<E> = (E, oneshot::Sender<Result<(), Error>>);

impl<E: BatchEntry> Batcher<E> {
    /// Starts the task, which sends up to `requests` requests at the same time.
    pub(crate) fn start(queue: &Arc<E::Queue>, requests: usize) -> Self {
        let (waiting, entries) = mpsc::channel(WAITING_MAX);
        tokio::spawn(run_batcher(queue.clone(), requests, entries));
        Self { waiting }
    }

    /// Submits an entry. If the channel has room, the entry is sent even if the caller drops the
    /// future. Otherwise it is sent once there is room, and only if the caller keeps waiting.
    pub(crate) fn submit(&self, entry: E) -> impl Future<Output = Result<(), Error>> + use<E> {
        let (reply, result) = oneshot::channel();
        let not_queued = match self.waiting.try_send((entry, reply)) {
            Err(TrySendError::Full(pending)) => Some((self.waiting.clone(), pending)),
            // If the task is gone, the result channel is dropped too.
            Ok(()) | Err(TrySendError::Closed(_)) => None,
        };
        async {
            if let Some((waiting, pending)) = not_queued {
                let _ = waiting.send(pending).await;
            }
            result.await.unwrap_or_else(|_| Err(Error::stopping()))
        }
    }
}

async fn run_batcher<E: BatchEntry>(
    queue: Arc<E::Queue>,
    requests: usize,
    mut entries: mpsc::Receiver<PendingEntry<E>>,
) {
    let requests = Arc::new(Semaphore::new(requests));
    let mut next_first = None;
    loop {
        let Some(first) = (match next_first.take() {
            Some(pending) => Some(pending),
            None => entries.recv().await,
        }) else {
            return;
        };
        let permit = requests.clone().acquire_owned().await;
        // Lets other tasks run that may be about to submit an entry.
        tokio::task::yield_now().await;
        let mut size = first.0.size();
        let mut batch = vec![first];
        while batch.len() < E::BATCH_MAX
            && let Ok(next) = entries.try_recv()
        {
            size += next.0.size();
            if size > E::SIZE_MAX {
                next_first = Some(next);
                break;
            }
            batch.push(next);
        }
        let queue = queue.clone();
        tokio::spawn(async move {
            let (entries, reply): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let results = E::request(entries, &queue).await;
            drop(permit);
            for (reply, result) in reply.into_iter().zip(results) {
                let _ = reply.send(result);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use futures_util::future::{FutureExt as _, join_all};

    /// An entry of this size; even sizes fail.
    struct Item(usize);

    impl BatchEntry for Item {
        type Queue = String;
        const BATCH_MAX: usize = 10;
        const SIZE_MAX: usize = 1_000;

        fn size(&self) -> usize {
            self.0
        }

        async fn request(entries: Vec<Self>, queue: &String) -> Vec<Result<(), Error>> {
            assert!(entries.len() <= Self::BATCH_MAX, "more than the broker takes");
            assert!(entries.iter().map(Self::size).sum::<usize>() <= Self::SIZE_MAX, "larger");
            let batch = entries.len();
            let result = |Self(size): Self| match size % 2 {
                0 => Err(Error::Invalid(format!("{size}, {batch} together in {queue}"))),
                _ => Ok(()),
            };
            entries.into_iter().map(result).collect()
        }
    }

    fn start<E: BatchEntry<Queue = String>>() -> Batcher<E> {
        Batcher::start(&Arc::new("here".to_owned()), REQUESTS_MAX)
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(work)
    }

    /// Submits entries of these sizes at the same time, and returns their results.
    fn submit_all(sizes: impl Iterator<Item = usize>) -> Vec<Result<(), String>> {
        run(async {
            let batcher = start();
            let submitted: Vec<_> = sizes.map(|size| batcher.submit(Item(size))).collect();
            let results = join_all(submitted).await;
            results.into_iter().map(|result| result.map_err(|error| error.to_string())).collect()
        })
    }

    #[test]
    fn entries_submitted_together_share_a_request_and_each_gets_its_own_result() {
        let results = submit_all(1..=25);
        for (size, result) in (1..=25).zip(results) {
            let batch = if size <= 20 { 10 } else { 5 };
            match size % 2 {
                0 => assert_eq!(result, Err(format!("{size}, {batch} together in here"))),
                _ => assert_eq!(result, Ok(())),
            }
        }
    }

    /// An entry that waits for a permit when it is requested, and counts itself.
    struct Slow(Arc<Semaphore>, Arc<AtomicUsize>);

    impl BatchEntry for Slow {
        type Queue = String;
        const BATCH_MAX: usize = 10;

        async fn request(entries: Vec<Self>, _: &String) -> Vec<Result<(), Error>> {
            let mut results = Vec::new();
            for Self(open, count) in entries {
                open.acquire().await.expect("it is never closed").forget();
                count.fetch_add(1, Ordering::SeqCst);
                results.push(Ok(()));
            }
            results
        }
    }

    #[test]
    fn a_slow_broker_makes_submitters_wait_and_the_channel_stays_bounded() {
        const MANY: usize = 10 * WAITING_MAX;
        run(async {
            let (open, count) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
            let batcher = start();
            let submit = || batcher.submit(Slow(open.clone(), count.clone()));
            let mut waiting = join_all((0..MANY).map(|_| submit()).collect::<Vec<_>>());
            // All submitters proceed as far as there is room.
            for _ in 0..MANY {
                assert!((&mut waiting).now_or_never().is_none());
                tokio::task::yield_now().await;
            }
            drop(waiting);
            // Entries in the channel are sent even if their submitters have stopped waiting.
            open.add_permits(MANY);
            submit().await.expect("it goes on");
            let queued = count.load(Ordering::SeqCst);
            let most = WAITING_MAX + REQUESTS_MAX * Slow::BATCH_MAX + 2;
            assert!((WAITING_MAX..=most).contains(&queued), "{queued} of {MANY}");
        });
    }

    #[test]
    fn every_entry_gets_its_result_although_the_channel_has_no_room_for_all() {
        run(async {
            let (open, count) = (Arc::new(Semaphore::new(usize::MAX >> 4)), Arc::default());
            let batcher = start();
            let many = (0..5 * WAITING_MAX)
                .map(|_| batcher.submit(Slow(open.clone(), Arc::clone(&count))));
            let results = join_all(many.collect::<Vec<_>>()).await;
            assert!(results.iter().all(Result::is_ok));
            assert_eq!(count.load(Ordering::SeqCst), 5 * WAITING_MAX);
        });
    }

    #[test]
    fn a_request_is_no_larger_than_the_broker_takes() {
        let half = Item::SIZE_MAX / 2;
        let results = submit_all([half, half, half, 2].into_iter());
        let error = |index: usize| results[index].clone().expect_err("even");
        assert!(error(0).contains(", 2 together") && error(1).contains(", 2 together"));
        assert!(error(2).contains(", 2 together") && error(3).contains(", 2 together"));
    }
}

//! [`Gather`]: combines operations that are submitted at the same time into one SQS request.
//!
//! An operation does not wait for others: a request is sent at once, unless the maximum number of
//! requests is in flight. Operations that arrive meanwhile go into the next request. If SQS is
//! slower than its callers, they wait before their operations enter the channel.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::client::Address;
use super::{NAME, SIZE_MAX};
use crate::Error;

/// Maximum number of messages in a request.
const BATCH_MAX: usize = 10;
/// Maximum number of concurrent requests of one kind to one queue.
const REQUESTS_MAX: usize = 8;
/// Maximum number of entries that wait for a request: a few rounds of the requests in flight.
const WAITING_MAX: usize = 256;

/// An operation on one message.
pub(super) trait Entry: Sized + Send + 'static {
    /// Size of the operation in a request.
    fn size(&self) -> usize {
        0
    }

    /// Sends all entries in one request. Returns one result each, in order.
    fn request(
        entries: Vec<Self>,
        queue: &Address,
    ) -> impl Future<Output = Vec<Result<(), Error>>> + Send;
}

/// A handle to a task that batches operations on one queue. The task ends with the handle.
#[derive(Debug)]
pub(super) struct Gather<E> {
    waiting: mpsc::Sender<Asked<E>>,
}

/// An entry and the channel for its result.
type Asked<E> = (E, oneshot::Sender<Result<(), Error>>);

impl<E: Entry> Gather<E> {
    pub(super) fn start(queue: &Arc<Address>) -> Self {
        let (waiting, come) = mpsc::channel(WAITING_MAX);
        tokio::spawn(gather(queue.clone(), come));
        Self { waiting }
    }

    /// Submits an entry. If there is room in the channel, it is sent even if the caller does not
    /// wait for the result; otherwise it is sent once there is room, if the caller waits.
    pub(super) fn ask(&self, entry: E) -> impl Future<Output = Result<(), Error>> + use<E> {
        let (tell, told) = oneshot::channel();
        let left_out = match self.waiting.try_send((entry, tell)) {
            Err(TrySendError::Full(asked)) => Some((self.waiting.clone(), asked)),
            // If the task is gone, the result channel is dropped too.
            Ok(()) | Err(TrySendError::Closed(_)) => None,
        };
        async {
            if let Some((waiting, asked)) = left_out {
                let _ = waiting.send(asked).await;
            }
            told.await.unwrap_or_else(|_| {
                let detail = "the process is stopping".to_owned();
                Err(Error::Unavailable { broker: NAME, detail })
            })
        }
    }
}

async fn gather<E: Entry>(queue: Arc<Address>, mut come: mpsc::Receiver<Asked<E>>) {
    let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
    let mut left_over = None;
    loop {
        let Some(first) = (match left_over.take() {
            Some(asked) => Some(asked),
            None => come.recv().await,
        }) else {
            return;
        };
        let permit = requests.clone().acquire_owned().await;
        // Lets other tasks run that may be about to submit an entry.
        tokio::task::yield_now().await;
        let mut size = first.0.size();
        let mut together = vec![first];
        while together.len() < BATCH_MAX
            && let Ok(next) = come.try_recv()
        {
            size += next.0.size();
            if size > SIZE_MAX {
                left_over = Some(next);
                break;
            }
            together.push(next);
        }
        let queue = queue.clone();
        tokio::spawn(async move {
            let (entries, tell): (Vec<_>, Vec<_>) = together.into_iter().unzip();
            let results = E::request(entries, &queue).await;
            drop(permit);
            for (tell, result) in tell.into_iter().zip(results) {
                let _ = tell.send(result);
            }
        });
    }
}

/// Returns the results of a request whose entries are identified by their index. SQS lists the
/// entries that succeeded and those that failed; an entry in neither list may have been executed.
pub(super) fn results<'a>(
    count: usize,
    done: impl Iterator<Item = &'a str>,
    failed: impl Iterator<Item = (&'a str, Error)>,
) -> Vec<Result<(), Error>> {
    let detail = "the response has no result for this message".to_owned();
    let mut results = vec![Err(Error::Unavailable { broker: NAME, detail }); count];
    let told = done.map(|id| (id, Ok(()))).chain(failed.map(|(id, error)| (id, Err(error))));
    for (id, result) in told {
        if let Some(place) = id.parse().ok().and_then(|number: usize| results.get_mut(number)) {
            *place = result;
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::broker::Place;
    use aws_sdk_sqs::config::{BehaviorVersion, Config};
    use futures_util::future::{FutureExt as _, join_all};

    /// An entry of this size; even sizes fail.
    struct Item(usize);

    impl Entry for Item {
        fn size(&self) -> usize {
            self.0
        }

        async fn request(entries: Vec<Self>, queue: &Address) -> Vec<Result<(), Error>> {
            assert!(entries.len() <= BATCH_MAX, "more than SQS takes");
            assert!(entries.iter().map(Self::size).sum::<usize>() <= SIZE_MAX, "larger");
            let together = entries.len();
            let result = |Self(size): Self| match size % 2 {
                0 => Err(Error::Invalid(format!("{size}, {together} together in {}", queue.url))),
                _ => Ok(()),
            };
            entries.into_iter().map(result).collect()
        }
    }

    fn start<E: Entry>() -> Gather<E> {
        let config = Config::builder().behavior_version(BehaviorVersion::latest()).build();
        let client = aws_sdk_sqs::Client::from_conf(config);
        let (place, url) = (Place::Live("q".to_owned()), "here".to_owned());
        Gather::start(&Arc::new(Address { client, place, url }))
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(work)
    }

    /// Submits entries of these sizes at the same time, and returns their results.
    fn ask(sizes: impl Iterator<Item = usize>) -> Vec<Result<(), String>> {
        run(async {
            let gather = start();
            let asked: Vec<_> = sizes.map(|size| gather.ask(Item(size))).collect();
            let told = join_all(asked).await;
            told.into_iter().map(|told| told.map_err(|error| error.to_string())).collect()
        })
    }

    #[test]
    fn entries_submitted_together_share_a_request_and_each_gets_its_own_result() {
        let told = ask(1..=25);
        for (size, told) in (1..=25).zip(told) {
            let together = if size <= 20 { 10 } else { 5 };
            match size % 2 {
                0 => assert_eq!(told, Err(format!("{size}, {together} together in here"))),
                _ => assert_eq!(told, Ok(())),
            }
        }
    }

    /// An entry that waits for a permit when it is requested, and counts itself.
    struct Slow(Arc<Semaphore>, Arc<AtomicUsize>);

    impl Entry for Slow {
        async fn request(entries: Vec<Self>, _: &Address) -> Vec<Result<(), Error>> {
            let mut results = Vec::new();
            for Self(open, asked) in entries {
                open.acquire().await.expect("it is never closed").forget();
                asked.fetch_add(1, Ordering::SeqCst);
                results.push(Ok(()));
            }
            results
        }
    }

    #[test]
    fn a_slow_sqs_makes_submitters_wait_and_the_channel_stays_bounded() {
        const MANY: usize = 10 * WAITING_MAX;
        run(async {
            let (open, asked) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
            let gather = start();
            let ask = || gather.ask(Slow(open.clone(), asked.clone()));
            let mut waiting = join_all((0..MANY).map(|_| ask()).collect::<Vec<_>>());
            // All submitters proceed as far as there is room.
            for _ in 0..MANY {
                assert!((&mut waiting).now_or_never().is_none());
                tokio::task::yield_now().await;
            }
            drop(waiting);
            // Entries in the channel are sent even if their submitters have stopped waiting.
            open.add_permits(MANY);
            ask().await.expect("it goes on");
            let in_line = asked.load(Ordering::SeqCst);
            let most = WAITING_MAX + REQUESTS_MAX * BATCH_MAX + 2;
            assert!((WAITING_MAX..=most).contains(&in_line), "{in_line} of {MANY}");
        });
    }

    #[test]
    fn every_entry_gets_its_result_although_the_channel_has_no_room_for_all() {
        run(async {
            let (open, asked) = (Arc::new(Semaphore::new(usize::MAX >> 4)), Arc::default());
            let gather = start();
            let many =
                (0..5 * WAITING_MAX).map(|_| gather.ask(Slow(open.clone(), Arc::clone(&asked))));
            let told = join_all(many.collect::<Vec<_>>()).await;
            assert!(told.iter().all(Result::is_ok));
            assert_eq!(asked.load(Ordering::SeqCst), 5 * WAITING_MAX);
        });
    }

    #[test]
    fn a_request_is_no_larger_than_sqs_takes() {
        let half = SIZE_MAX / 2;
        let told = ask([half, half, half, 2].into_iter());
        let told = |place: usize| told[place].clone().expect_err("even");
        assert!(told(0).contains(", 2 together") && told(1).contains(", 2 together"));
        assert!(told(2).contains(", 2 together") && told(3).contains(", 2 together"));
    }

    #[test]
    fn an_entry_without_a_positive_result_is_an_error() {
        let failed = [("2", Error::Lost), ("9", Error::Lost), ("x", Error::Lost)];
        let results = results(4, ["0", "3"].into_iter(), failed.into_iter());
        assert_eq!((&results[0], &results[2], &results[3]), (&Ok(()), &Err(Error::Lost), &Ok(())));
        assert!(matches!(results[1], Err(Error::Unavailable { .. })));
    }
}

//! What several ask for at the same time goes to SQS in one request.
//!
//! Nobody waits for company: a request leaves as soon as somebody asks, unless many are under way;
//! what is asked for meanwhile goes together in the next. If SQS is slower than those who ask, they
//! wait before they get in line.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::client::Address;
use super::{NAME, SIZE_MAX};
use crate::Error;

/// The most messages in a request.
const BATCH_MAX: usize = 10;
/// The most requests of one kind to one queue at the same time.
const REQUESTS_MAX: usize = 8;
/// The most entries that wait for a request: a few rounds of the requests under way.
const WAITING_MAX: usize = 256;

/// What is asked for one message.
pub(super) trait Entry: Sized + Send + 'static {
    /// What it takes of the size of a request.
    fn size(&self) -> usize {
        0
    }

    /// Asks for all of them: one result each, in their order.
    fn request(
        entries: Vec<Self>,
        queue: &Address,
    ) -> impl Future<Output = Vec<Result<(), Error>>> + Send;
}

/// The way to a task that gathers entries for one queue, which ends with it.
#[derive(Debug)]
pub(super) struct Gather<E> {
    waiting: mpsc::Sender<Asked<E>>,
}

/// An entry, and who is told what came of it.
type Asked<E> = (E, oneshot::Sender<Result<(), Error>>);

impl<E: Entry> Gather<E> {
    pub(super) fn start(queue: &Arc<Address>) -> Self {
        let (waiting, come) = mpsc::channel(WAITING_MAX);
        tokio::spawn(gather(queue.clone(), come));
        Self { waiting }
    }

    /// Asks, whether or not somebody waits for the answer, as long as there is room in the line;
    /// else it asks as soon as there is some, if somebody waits.
    pub(super) fn ask(&self, entry: E) -> impl Future<Output = Result<(), Error>> + use<E> {
        let (tell, told) = oneshot::channel();
        let left_out = match self.waiting.try_send((entry, tell)) {
            Err(TrySendError::Full(asked)) => Some((self.waiting.clone(), asked)),
            // If nobody is there to take it, nobody is there to tell.
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
        // Those who can run now may be about to ask for the same.
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

/// The results of a request whose entries are named by their numbers. SQS answers with what was
/// done and what was not; an entry that is in neither may have been done.
pub(super) fn results<'a>(
    count: usize,
    done: impl Iterator<Item = &'a str>,
    failed: impl Iterator<Item = (&'a str, Error)>,
) -> Vec<Result<(), Error>> {
    let detail = "its answer says nothing of this message".to_owned();
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

    /// Its size; what fails is odd.
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

    /// What becomes of entries that are asked for at the same time.
    fn ask(sizes: impl Iterator<Item = usize>) -> Vec<Result<(), String>> {
        run(async {
            let gather = start();
            let asked: Vec<_> = sizes.map(|size| gather.ask(Item(size))).collect();
            let told = join_all(asked).await;
            told.into_iter().map(|told| told.map_err(|error| error.to_string())).collect()
        })
    }

    #[test]
    fn those_who_ask_together_go_together_and_each_is_told_its_own() {
        let told = ask(1..=25);
        for (size, told) in (1..=25).zip(told) {
            let together = if size <= 20 { 10 } else { 5 };
            match size % 2 {
                0 => assert_eq!(told, Err(format!("{size}, {together} together in here"))),
                _ => assert_eq!(told, Ok(())),
            }
        }
    }

    /// Counts itself when it is asked for, once there is a permit for it.
    struct Slow(Arc<Semaphore>, Arc<AtomicUsize>);

    impl Entry for Slow {
        async fn request(entries: Vec<Self>, _: &Address) -> Vec<Result<(), Error>> {
            let mut results = Vec::new();
            for Self(open, asked) in entries {
                open.acquire().await.expect("nobody closes it").forget();
                asked.fetch_add(1, Ordering::SeqCst);
                results.push(Ok(()));
            }
            results
        }
    }

    #[test]
    fn what_sqs_does_not_take_waits_with_those_who_ask_and_not_in_a_line_without_end() {
        const MANY: usize = 10 * WAITING_MAX;
        run(async {
            let (open, asked) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
            let gather = start();
            let ask = || gather.ask(Slow(open.clone(), asked.clone()));
            let mut waiting = join_all((0..MANY).map(|_| ask()).collect::<Vec<_>>());
            // Everybody who asks gets as far as there is room.
            for _ in 0..MANY {
                assert!((&mut waiting).now_or_never().is_none());
                tokio::task::yield_now().await;
            }
            drop(waiting);
            // Of those who stopped waiting, the ones in line are asked for all the same.
            open.add_permits(MANY);
            ask().await.expect("it goes on");
            let in_line = asked.load(Ordering::SeqCst);
            let most = WAITING_MAX + REQUESTS_MAX * BATCH_MAX + 2;
            assert!((WAITING_MAX..=most).contains(&in_line), "{in_line} of {MANY}");
        });
    }

    #[test]
    fn everybody_is_told_although_there_is_not_room_for_all_in_the_line() {
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
    fn what_is_not_a_clear_yes_is_a_no() {
        let failed = [("2", Error::Lost), ("9", Error::Lost), ("x", Error::Lost)];
        let results = results(4, ["0", "3"].into_iter(), failed.into_iter());
        assert_eq!((&results[0], &results[2], &results[3]), (&Ok(()), &Err(Error::Lost), &Ok(())));
        assert!(matches!(results[1], Err(Error::Unavailable { .. })));
    }
}

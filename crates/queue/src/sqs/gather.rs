//! What several ask for at the same time goes to SQS in one request.
//!
//! Nobody waits for company: a request leaves as soon as somebody asks, unless many are under way;
//! what is asked for meanwhile goes together in the next.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::client::Address;
use super::{NAME, SIZE_MAX};
use crate::Error;

/// The most messages in a request.
const BATCH_MAX: usize = 10;
/// The most requests of one kind to one queue at the same time.
const REQUESTS_MAX: usize = 8;

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
    waiting: mpsc::UnboundedSender<Asked<E>>,
}

/// An entry, and who is told what came of it.
type Asked<E> = (E, oneshot::Sender<Result<(), Error>>);

impl<E: Entry> Gather<E> {
    pub(super) fn start(queue: &Arc<Address>) -> Self {
        let (waiting, come) = mpsc::unbounded_channel();
        tokio::spawn(gather(queue.clone(), come));
        Self { waiting }
    }

    /// Asks, whether or not somebody waits for the answer.
    pub(super) fn ask(&self, entry: E) -> impl Future<Output = Result<(), Error>> + use<E> {
        let (tell, told) = oneshot::channel();
        // If nobody is there to take it, nobody is there to tell.
        let _ = self.waiting.send((entry, tell));
        async {
            told.await.unwrap_or_else(|_| {
                let detail = "the process is stopping".to_owned();
                Err(Error::Unavailable { broker: NAME, detail })
            })
        }
    }
}

async fn gather<E: Entry>(queue: Arc<Address>, mut come: mpsc::UnboundedReceiver<Asked<E>>) {
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
    use super::*;
    use crate::broker::Place;
    use aws_sdk_sqs::config::{BehaviorVersion, Config};
    use futures_util::future::join_all;

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

    /// What becomes of entries that are asked for at the same time.
    fn ask(sizes: impl Iterator<Item = usize>) -> Vec<Result<(), String>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let config = Config::builder().behavior_version(BehaviorVersion::latest()).build();
            let client = aws_sdk_sqs::Client::from_conf(config);
            let (place, url) = (Place::Live("q".to_owned()), "here".to_owned());
            let gather = Gather::start(&Arc::new(Address { client, place, url }));
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

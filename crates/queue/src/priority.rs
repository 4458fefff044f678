//! Priorities on brokers that have none: one queue per level, and [`PrioritySource`], which takes
//! messages from them by weight.
//!
//! | priority of a message | queue | weight |
//! |---|--:|--:|
//! | 0 | `jobs` | 1 |
//! | 1 to 4 | `jobs-priority-1` | 4 |
//! | 5 to 9 | `jobs-priority-5` | 16 |
//!
//! A level gains credit while it waits, and the level with the most credit is next. So an urgent
//! message does not wait for a backlog of others, and a level that others outweigh still gets its
//! share: nothing starves.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::time::{Clock, Span, Timestamp};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::Error;
use crate::broker::{MessageSource, QueueName, ReceivedMessage};

/// The lowest priority and the weight of each level.
const LEVELS: [(u8, i64); 3] = [(0, 1), (1, 4), (5, 16)];
/// Maximum number of messages of a level that wait for their turn in this process.
const WAITING_MAX: usize = 64;
/// Maximum number of messages in one receive call of a level.
const RECEIVE_MAX: usize = 10;

/// Returns the queues of all levels, the lowest first.
pub(crate) fn level_queues(name: &str) -> Vec<QueueName> {
    let queue = |(lowest, _): (u8, i64)| match lowest {
        0 => QueueName::Live(name.to_owned()),
        lowest => QueueName::Live(format!("{name}-priority-{lowest}")),
    };
    LEVELS.map(queue).into()
}

/// Returns the level of a priority.
pub(crate) fn level_of(priority: u8) -> usize {
    LEVELS.iter().rposition(|(lowest, _)| *lowest <= priority).unwrap_or_default()
}

/// The sources of all levels as one.
pub(crate) struct PrioritySource {
    levels: Vec<Level>,
    /// Wakes the consumer when a message arrives.
    arrived: Arc<Notify>,
}

/// One level. A separate task receives its messages, because on some brokers a cancelled receive call
/// requeues its messages.
struct Level {
    weight: i64,
    credit: i64,
    waiting: Arc<WaitingMessages>,
    /// Makes the task end and return the messages that its source has left.
    closed: Arc<Notify>,
    task: JoinHandle<Vec<ReceivedMessage>>,
}

impl Drop for Level {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The maximum time for which messages wait in this process, and what happens to them then.
pub(crate) struct HoldLimit {
    /// Maximum time; the leases are longer.
    pub(crate) time: Span,
    pub(crate) clock: Arc<dyn Clock>,
    /// Returns a message that waited too long to its queue.
    pub(crate) give_back: Box<dyn Fn(ReceivedMessage) + Send + Sync>,
}

/// The messages of a level that have arrived and wait for their turn.
struct WaitingMessages {
    /// Lowest priority of the level.
    lowest: u8,
    state: Mutex<WaitingState>,
    /// Wakes the task of the level when a message was taken.
    taken: Notify,
    arrived: Arc<Notify>,
    hold_limit: Option<Arc<HoldLimit>>,
}

#[derive(Default)]
struct WaitingState {
    messages: VecDeque<(Timestamp, ReceivedMessage)>,
    /// The error that ended the task of the level.
    error: Option<Error>,
}

impl PrioritySource {
    /// Combines the sources of all levels, the lowest first.
    pub(crate) fn new(sources: Vec<Box<dyn MessageSource>>, hold_limit: Option<HoldLimit>) -> Self {
        let arrived = Arc::new(Notify::new());
        let hold_limit = hold_limit.map(Arc::new);
        let level = |(source, (lowest, weight)): (Box<dyn MessageSource>, (u8, i64))| {
            let waiting = Arc::new(WaitingMessages {
                lowest,
                state: Mutex::default(),
                taken: Notify::new(),
                arrived: arrived.clone(),
                hold_limit: hold_limit.clone(),
            });
            let closed = Arc::new(Notify::new());
            let task = tokio::spawn(feed(source, waiting.clone(), closed.clone()));
            Level { weight, credit: 0, waiting, closed, task }
        };
        let levels = sources.into_iter().zip(LEVELS).map(level).collect();
        Self { levels, arrived }
    }

    /// Takes up to `max` messages that have arrived, in the order of the levels' credit.
    fn take(&mut self, max: usize) -> Result<Vec<ReceivedMessage>, Error> {
        let mut states: Vec<_> = self.levels.iter().map(|level| level.waiting.lock()).collect();
        if let Some(error) = states.iter_mut().find_map(|state| state.error.take()) {
            return Err(error);
        }
        let mut credits: Vec<_> =
            self.levels.iter().map(|level| (level.weight, level.credit)).collect();
        let mut taken = Vec::new();
        while taken.len() < max.max(1)
            && let Some(number) = pick(&mut credits, |number| !states[number].messages.is_empty())
            && let Some((_, received)) = states[number].messages.pop_front()
        {
            taken.push(received);
            self.levels[number].waiting.taken.notify_one();
        }
        drop(states);
        for (level, (_, credit)) in self.levels.iter_mut().zip(credits) {
            level.credit = credit;
        }
        Ok(taken)
    }
}

/// Returns the level whose turn it is, of those that have messages. `levels` are their weights and
/// credits.
fn pick(levels: &mut [(i64, i64)], has_messages: impl Fn(usize) -> bool) -> Option<usize> {
    let mut total = 0;
    let mut next: Option<usize> = None;
    for number in 0..levels.len() {
        let (weight, credit) = &mut levels[number];
        if !has_messages(number) {
            // Credit is for waiting messages only.
            *credit = 0;
            continue;
        }
        *credit += *weight;
        total += *weight;
        if next.is_none_or(|next| levels[number].1 >= levels[next].1) {
            next = Some(number);
        }
    }
    levels[next?].1 -= total;
    next
}

impl MessageSource for PrioritySource {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
        async move {
            loop {
                let taken = self.take(max)?;
                if !taken.is_empty() {
                    return Ok(taken);
                }
                self.arrived.notified().await;
            }
        }
        .boxed()
    }

    fn close(mut self: Box<Self>) -> BoxFuture<'static, Vec<ReceivedMessage>> {
        async move {
            self.levels.iter().for_each(|level| level.closed.notify_one());
            let mut left = Vec::new();
            for level in &mut self.levels {
                left.extend((&mut level.task).await.unwrap_or_default());
                let waiting = std::mem::take(&mut level.waiting.lock().messages);
                left.extend(waiting.into_iter().map(|(_, received)| received));
            }
            left
        }
        .boxed()
    }
}

impl WaitingMessages {
    fn lock(&self) -> MutexGuard<'_, WaitingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, received: Vec<ReceivedMessage>) {
        let now = self.hold_limit.as_ref().map_or(Timestamp::ZERO, |limit| limit.clock.now());
        self.lock().messages.extend(received.into_iter().map(|received| (now, received)));
        self.arrived.notify_one();
    }

    /// Raises the priority of messages to the lowest of their level. Foreign producers choose the
    /// priority by the queue alone, and a message that is sent again must stay there.
    fn raise(&self, received: &mut [ReceivedMessage]) {
        for ReceivedMessage { incoming, .. } in received {
            incoming.priority = incoming.priority.max(self.lowest);
        }
    }

    fn fail(&self, error: Error) {
        self.lock().error = Some(error);
        self.arrived.notify_one();
    }

    async fn has_room(&self) {
        while self.lock().messages.len() >= WAITING_MAX {
            self.taken.notified().await;
        }
    }

    /// Gives back messages that wait too long, whether the consumer asks for messages or not.
    async fn limit_waits(&self) {
        let Some(limit) = &self.hold_limit else { return pending().await };
        loop {
            let now = limit.clock.now();
            let mut late = Vec::new();
            let next = {
                let mut state = self.lock();
                let is_late = |(since, _): &mut (Timestamp, _)| now.since(*since) >= limit.time;
                while let Some((_, received)) = state.messages.pop_front_if(is_late) {
                    late.push(received);
                }
                state
                    .messages
                    .front()
                    .map_or(limit.time, |(since, _)| (*since + limit.time).since(now))
            };
            if !late.is_empty() {
                self.taken.notify_one();
            }
            late.into_iter().for_each(&limit.give_back);
            tokio::time::sleep(Duration::from(next).max(Duration::from_millis(1))).await;
        }
    }
}

/// Receives the messages of a level until the consumer is closed or an error occurs that an operator
/// has to fix. Returns the messages that the source has left.
async fn feed(
    mut source: Box<dyn MessageSource>,
    waiting: Arc<WaitingMessages>,
    closed: Arc<Notify>,
) -> Vec<ReceivedMessage> {
    tokio::select! {
        () = closed.notified() => {}
        () = receive_all(&mut *source, &waiting) => {}
    }
    let mut left = source.close().await;
    waiting.raise(&mut left);
    left
}

async fn receive_all(source: &mut dyn MessageSource, waiting: &WaitingMessages) {
    let receive = async {
        loop {
            waiting.has_room().await;
            match source.next(RECEIVE_MAX).await {
                Ok(mut received) => {
                    waiting.raise(&mut received);
                    waiting.push(received);
                }
                Err(error) => return waiting.fail(error),
            }
        }
    };
    let (mut receive, mut limit_waits) = (pin!(receive), pin!(waiting.limit_waits()));
    tokio::select! {
        () = &mut receive => limit_waits.await,
        () = &mut limit_waits => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WallClock;
    use crate::broker::{OutgoingMessage, RawMessage, Receipt, RelayError};

    /// A level with an endless backlog.
    struct Endless(u8);

    impl MessageSource for Endless {
        fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
            let received = |_| ReceivedMessage {
                incoming: RawMessage { priority: self.0, ..RawMessage::default() },
                receipt: Box::new(NoReceipt),
            };
            std::future::ready(Ok((0..max).map(received).collect())).boxed()
        }
    }

    /// A level without messages.
    struct Empty;

    impl MessageSource for Empty {
        fn next(&mut self, _: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
            std::future::pending().boxed()
        }
    }

    struct NoReceipt;

    impl Receipt for NoReceipt {
        fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
            std::future::ready(Ok(())).boxed()
        }

        fn relay(
            self: Box<Self>,
            _: QueueName,
            _: OutgoingMessage,
        ) -> BoxFuture<'static, Result<(), RelayError>> {
            std::future::ready(Ok(())).boxed()
        }

        fn requeue(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
            std::future::ready(Ok(())).boxed()
        }

        fn extend(&self, _: Span) -> BoxFuture<'_, Result<(), Error>> {
            std::future::ready(Ok(())).boxed()
        }
    }

    /// Counts how many of 210 messages are of each level. All levels that have messages have some
    /// waiting when each is taken.
    async fn shares(sources: Vec<Box<dyn MessageSource>>) -> [usize; 3] {
        let mut source = PrioritySource::new(sources, None);
        let mut counts = [0; 3];
        for _ in 0..210 {
            while !source.levels.iter().all(|level| level.waiting.lock().messages.len() > 5) {
                tokio::task::yield_now().await;
            }
            for received in source.next(1).await.expect("received") {
                counts[level_of(received.incoming.priority)] += 1;
            }
        }
        counts
    }

    #[tokio::test]
    async fn urgent_messages_overtake_a_backlog_and_nothing_starves() {
        let endless = |priority| Box::new(Endless(priority)) as Box<dyn MessageSource>;
        assert_eq!(shares(vec![endless(0), endless(1), endless(5)]).await, [10, 40, 160]);
    }

    #[tokio::test]
    async fn a_level_without_messages_costs_the_others_nothing() {
        let sources: Vec<Box<dyn MessageSource>> =
            vec![Box::new(Endless(0)), Box::new(Empty), Box::new(Empty)];
        let mut source = PrioritySource::new(sources, None);
        for _ in 0..50 {
            assert_eq!(source.next(1).await.expect("received").len(), 1);
        }
    }

    /// Nobody asks for messages while all workers are busy, and their leases would end meanwhile.
    #[tokio::test]
    async fn messages_that_wait_too_long_are_given_back_without_a_consumer() {
        let time = Span::from_millis(50);
        let (given_back, mut returns) = tokio::sync::mpsc::unbounded_channel();
        let hold_limit = HoldLimit {
            time,
            clock: Arc::new(WallClock),
            give_back: Box::new(move |_| {
                let _ = given_back.send(WallClock.now());
            }),
        };
        let start = WallClock.now();
        let sources: Vec<Box<dyn MessageSource>> =
            vec![Box::new(Endless(0)), Box::new(Empty), Box::new(Empty)];
        let source = PrioritySource::new(sources, Some(hold_limit));
        // More than fit at once: the room is filled again.
        for _ in 0..3 * WAITING_MAX {
            let at = returns.recv().await.expect("the source exists");
            assert!(at.since(start) >= time);
        }
        drop(source);
    }

    #[test]
    fn a_message_without_a_priority_is_in_the_queue_itself() {
        let names: Vec<_> =
            level_queues("jobs").iter().map(|queue| queue.name().to_owned()).collect();
        assert_eq!(names, ["jobs", "jobs-priority-1", "jobs-priority-5"]);
        let levels: Vec<_> = (0..=9).map(level_of).collect();
        assert_eq!(levels, [0, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    }
}

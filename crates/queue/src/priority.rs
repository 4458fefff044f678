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
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::time::{Clock, Span, Timestamp};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

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
    clock: Arc<dyn Clock>,
    /// Time after which a waiting message is requeued, because its lease would end.
    held_max: Option<Span>,
}

/// The messages of one level. A separate task receives them, because on some brokers a cancelled
/// receive call requeues its messages.
struct Level {
    weight: i64,
    credit: i64,
    arrivals: mpsc::Receiver<Result<ReceivedMessage, Error>>,
    waiting: VecDeque<(Timestamp, ReceivedMessage)>,
    task: AbortHandle,
}

impl Drop for Level {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PrioritySource {
    /// Combines the sources of all levels, the lowest first.
    pub(crate) fn new(
        sources: Vec<Box<dyn MessageSource>>,
        clock: Arc<dyn Clock>,
        held_max: Option<Span>,
    ) -> Self {
        let level = |(source, (_, weight)): (Box<dyn MessageSource>, (u8, i64))| {
            let (sender, arrivals) = mpsc::channel(1);
            let task = tokio::spawn(feed(source, sender)).abort_handle();
            Level { weight, credit: 0, arrivals, waiting: VecDeque::new(), task }
        };
        let levels = sources.into_iter().zip(LEVELS).map(level).collect();
        Self { levels, clock, held_max }
    }

    /// Takes messages that have arrived. Pending if nothing waits.
    fn poll_arrivals(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let now = self.clock.now();
        for level in &mut self.levels {
            if let Some(held_max) = self.held_max {
                level.waiting.retain(|(since, _)| now.since(*since) < held_max);
            }
            while level.waiting.len() < WAITING_MAX {
                match level.arrivals.poll_recv(context) {
                    Poll::Ready(Some(Ok(received))) => level.waiting.push_back((now, received)),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                    // The task ended with an error, which an earlier call has returned.
                    Poll::Ready(None) | Poll::Pending => break,
                }
            }
        }
        match self.levels.iter().all(|level| level.waiting.is_empty()) {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }

    /// Takes the message whose turn it is.
    fn pick(&mut self) -> Option<ReceivedMessage> {
        let mut total = 0;
        let mut next: Option<usize> = None;
        for number in 0..self.levels.len() {
            let level = &mut self.levels[number];
            if level.waiting.is_empty() {
                // Credit is for waiting messages only.
                level.credit = 0;
                continue;
            }
            level.credit += level.weight;
            total += level.weight;
            if next.is_none_or(|next| self.levels[number].credit >= self.levels[next].credit) {
                next = Some(number);
            }
        }
        let level = &mut self.levels[next?];
        level.credit -= total;
        level.waiting.pop_front().map(|(_, received)| received)
    }
}

impl MessageSource for PrioritySource {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
        async move {
            std::future::poll_fn(|context| self.poll_arrivals(context)).await?;
            let mut taken = Vec::new();
            while taken.len() < max.max(1)
                && let Some(received) = self.pick()
            {
                taken.push(received);
            }
            Ok(taken)
        }
        .boxed()
    }
}

/// Receives the messages of a level until the consumer is dropped or an error occurs that an
/// operator has to fix.
async fn feed(
    mut source: Box<dyn MessageSource>,
    arrivals: mpsc::Sender<Result<ReceivedMessage, Error>>,
) {
    loop {
        match source.next(RECEIVE_MAX).await {
            Ok(received) => {
                for received in received {
                    if arrivals.send(Ok(received)).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                let _ = arrivals.send(Err(error)).await;
                return;
            }
        }
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
        let mut source = PrioritySource::new(sources, Arc::new(WallClock), None);
        let is_filled =
            |source: &PrioritySource| source.levels.iter().all(|level| level.waiting.len() > 5);
        let mut counts = [0; 3];
        for _ in 0..210 {
            while !is_filled(&source) {
                let poll = |context: &mut Context<'_>| Poll::Ready(source.poll_arrivals(context));
                let _ = std::future::poll_fn(poll).await;
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
        let mut source = PrioritySource::new(sources, Arc::new(WallClock), None);
        for _ in 0..50 {
            assert_eq!(source.next(1).await.expect("received").len(), 1);
        }
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

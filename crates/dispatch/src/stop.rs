//! [`Stop`]: the shutdown signal of dispatchers and workers.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::error;

/// A shutdown signal with two levels. Clones share the same signal.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Receive nothing new; finish running jobs and requeue waiting messages.
    pub drain: CancellationToken,
    /// Cancel running jobs and requeue all messages.
    pub now: CancellationToken,
}

impl Stop {
    /// Waits until fewer than `most` tasks run, and removes finished ones.
    pub(crate) async fn room(&self, tasks: &mut JoinSet<()>, most: usize) {
        while let Some(ended) = tasks.try_join_next() {
            log_panic(ended);
        }
        while tasks.len() >= most {
            match tasks.join_next().await {
                Some(ended) => log_panic(ended),
                None => return,
            }
        }
    }

    /// Waits until all tasks end; cancels them when `now` is signalled.
    pub(crate) async fn finish(&self, mut tasks: JoinSet<()>) {
        loop {
            tokio::select! {
                biased;
                () = self.now.cancelled() => return tasks.shutdown().await,
                ended = tasks.join_next() => match ended {
                    Some(ended) => log_panic(ended),
                    None => return,
                },
            }
        }
    }

    /// Sleeps; returns false if a drain was signalled before the end.
    pub(crate) async fn sleep(&self, span: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.drain.cancelled() => false,
            () = tokio::time::sleep(span) => true,
        }
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        // Its message is delivered again: at once, or when its lease ends.
        error!(%error, "task panicked");
    }
}

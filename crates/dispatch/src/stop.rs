//! How a dispatcher and its workers are ended.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::error;

/// Two wishes: to come to an end, and to end now. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Take nothing new; finish what is in work, give back what is not.
    pub drain: CancellationToken,
    /// Give everything back.
    pub now: CancellationToken,
}

impl Stop {
    /// Waits until there is room for another task, and forgets those that have ended.
    pub(crate) async fn room(&self, tasks: &mut JoinSet<()>, most: usize) {
        while let Some(ended) = tasks.try_join_next() {
            told(ended);
        }
        while tasks.len() >= most {
            match tasks.join_next().await {
                Some(ended) => told(ended),
                None => return,
            }
        }
    }

    /// Waits for everything that is in work, or for the wish that it ends now.
    pub(crate) async fn finish(&self, mut tasks: JoinSet<()>) {
        loop {
            tokio::select! {
                biased;
                () = self.now.cancelled() => return tasks.shutdown().await,
                ended = tasks.join_next() => match ended {
                    Some(ended) => told(ended),
                    None => return,
                },
            }
        }
    }

    /// Sleeps, unless it is to come to an end before; says whether it slept.
    pub(crate) async fn sleep(&self, span: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.drain.cancelled() => false,
            () = tokio::time::sleep(span) => true,
        }
    }
}

fn told(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        // What it held was given back when it was dropped.
        error!(%error, "a task died");
    }
}

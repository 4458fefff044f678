//! Accepts connections, with a backoff when the system is out of resources and a summary of
//! failures for the log.

use std::future::{Future, pending};
use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tracing::warn;

/// Pause after a local failure, such as too many open files.
const BACKOFF: Duration = Duration::from_millis(100);

/// Minimum time between two log lines of a kind that any client can cause.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Accepts the next connection. Returns an error only after [`BACKOFF`]: the connection that could
/// not be accepted stays in the backlog, and an immediate retry would use a whole core.
pub(super) async fn accept<A, F>(next: impl Fn() -> F) -> io::Result<(TcpStream, A)>
where
    F: Future<Output = io::Result<(TcpStream, A)>>,
{
    loop {
        match next().await {
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                sleep(BACKOFF).await;
                return Err(error);
            }
            Ok(accepted) => return Ok(accepted),
        }
    }
}

/// Returns true if the client left before its connection was accepted; the listener itself is fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused
    )
}

/// Refused connections and accept errors, collected for one log line per interval.
pub(super) struct AcceptProblems {
    every: Interval,
    refused: u64,
    failed: u64,
    last_error: Option<io::Error>,
}

impl AcceptProblems {
    pub(super) fn new() -> Self {
        let mut every = interval(LOG_INTERVAL);
        // After a quiet time the first problem is logged at once, the next a second later.
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { every, refused: 0, failed: 0, last_error: None }
    }

    /// Counts a connection that was closed because too many are open.
    pub(super) fn refused(&mut self) {
        self.refused += 1;
    }

    /// Counts an accept error.
    pub(super) fn failed(&mut self, error: io::Error) {
        self.failed += 1;
        self.last_error = Some(error);
    }

    /// Logs the collected problems when the next log line is due. Never returns while there are
    /// none, so call it again after each problem.
    pub(super) async fn report(&mut self) {
        if self.refused == 0 && self.failed == 0 {
            return pending().await;
        }
        self.every.tick().await;
        if self.refused > 0 {
            warn!(connections = self.refused, "connections refused: connections_max are open");
        }
        if let Some(error) = self.last_error.take() {
            warn!(%error, times = self.failed, "accept failed");
        }
        (self.refused, self.failed) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::time::timeout;

    /// Counts the accept calls within ten pauses if every call fails with `kind`.
    async fn asked(kind: ErrorKind) -> u32 {
        let asked = Cell::new(0);
        let next = || async {
            asked.set(asked.get() + 1);
            tokio::task::yield_now().await;
            if asked.get() > 1_000 {
                return pending().await;
            }
            io::Result::<(TcpStream, ())>::Err(kind.into())
        };
        let failing = async {
            loop {
                assert!(accept(next).await.is_err());
            }
        };
        timeout(BACKOFF * 10 - BACKOFF / 2, failing).await.unwrap_err();
        asked.get()
    }

    #[tokio::test(start_paused = true)]
    async fn a_system_without_connections_is_not_asked_all_the_time() {
        assert_eq!(asked(ErrorKind::Other).await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_delays_nobody() {
        assert_eq!(asked(ErrorKind::ConnectionAborted).await, 1_001);
    }

    #[tokio::test(start_paused = true)]
    async fn problems_are_reported_at_once_and_then_once_a_second() {
        let mut problems = AcceptProblems::new();
        let mut reports = 0;
        let flood = async {
            loop {
                for _ in 0..1_000 {
                    problems.refused();
                }
                problems.report().await;
                reports += 1;
            }
        };
        timeout(Duration::from_millis(2_500), flood).await.unwrap_err();
        assert_eq!(reports, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn without_problems_there_is_no_report() {
        timeout(Duration::from_secs(60), AcceptProblems::new().report()).await.unwrap_err();
    }
}

//! The connection of a request, which is ready before the request takes its turn.
//!
//! A request that connects after its turn reaches the upstream a handshake late, and the next one
//! on an open connection does not: together they come faster than the limit allows. So:
//!
//! | request | its connection |
//! |---|---|
//! | may go at once: nobody waits | is checked out before the limiter is asked |
//! | has to wait | goes back to the pool; one is checked out right after the turn |
//! | on a route without a limit | is checked out when the request is sent |
//!
//! A waiting request holds no connection, because a thousand of them would open a thousand. It
//! announces itself to the pool, which keeps as many connections ready as requests wait, up to the
//! number that the limit allows in one second, and at most 32. So the checkout after the turn finds
//! an open connection. If it does not, opening one takes so long that the turn expires; the request
//! then holds its connection when it gets the next turn.
//!
//! A request that is denied at once has also checked out a connection. [`Places`] limits the number
//! of requests that do so at the same time.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use sluicegate_core::limit::{Limit, Unit};
use sluicegate_http::upstream::{ConnectError, ConnectionPool, ExpectedRequest, ReadyConnection};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

/// Maximum number of connections that are kept ready for waiting requests.
const READY_MAX: u64 = 32;
/// Minimum and maximum number of requests that may hold a connection before they are admitted.
const PLACES: (u64, u64) = (8, 1024);
/// Time after which a request without a decision counts as waiting. A decision takes less time,
/// even if the store is across the network.
const DECISION_TIME_MAX: Duration = Duration::from_millis(20);

/// The connections of a route for requests that are not admitted yet.
pub(crate) struct Places {
    places: Semaphore,
    /// Maximum number of connections that are kept ready for waiting requests.
    ready_max: usize,
    /// Maximum wait for a place. While the upstream accepts no connections, each place is taken for
    /// the whole connect timeout. The other requests have to fail as well instead of queueing up.
    wait_max: Duration,
}

impl Places {
    pub(crate) fn new(limits: &[Limit], connect_timeout: Duration) -> Self {
        let rate = per_second(limits).unwrap_or(READY_MAX);
        let bounded = |least: u64, most: u64| usize::try_from(rate.clamp(least, most));
        Self {
            places: Semaphore::new(bounded(PLACES.0, PLACES.1).unwrap_or(1)),
            ready_max: bounded(1, READY_MAX).unwrap_or(1),
            wait_max: connect_timeout,
        }
    }

    /// Checks out a connection for a request that may go at once.
    pub(crate) async fn checkout<'r>(
        &'r self,
        pool: &'r ConnectionPool,
        wait_max: Duration,
    ) -> Result<HeldConnection<'r>, ConnectError> {
        let place = match self.places.try_acquire() {
            Ok(place) => place,
            Err(_) => {
                let place = timeout(wait_max.min(self.wait_max), self.places.acquire()).await;
                let place = place.map_err(|_| match wait_max < self.wait_max {
                    true => ConnectError::Deadline(wait_max),
                    false => ConnectError::Timeout(self.wait_max),
                })?;
                place.expect("the semaphore is never closed")
            }
        };
        let connection = pool.checkout(wait_max).await?;
        let held = Some((connection, place));
        Ok(HeldConnection { pool, held, expected: None, ready_max: self.ready_max })
    }

    /// Announces a request that has to wait for its turn.
    pub(crate) fn expect<'r>(&'r self, pool: &'r ConnectionPool) -> HeldConnection<'r> {
        let expected = Some(pool.expect(self.ready_max));
        HeldConnection { pool, held: None, expected, ready_max: self.ready_max }
    }
}

/// The connection of a request that is being admitted, or its place among the expected ones.
pub(crate) struct HeldConnection<'r> {
    pool: &'r ConnectionPool,
    held: Option<(ReadyConnection, SemaphorePermit<'r>)>,
    expected: Option<ExpectedRequest>,
    ready_max: usize,
}

impl HeldConnection<'_> {
    /// Runs the admission of the request. If it has to wait, the connection goes back to the pool
    /// meanwhile.
    pub(crate) async fn during<T>(
        &mut self,
        mut admission: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        if self.held.is_some() {
            // Most decisions are made at once, and need no timer.
            let first = std::future::poll_fn(|cx| Poll::Ready(admission.as_mut().poll(cx))).await;
            if let Poll::Ready(admitted) = first {
                return admitted;
            }
            tokio::select! {
                biased;
                admitted = &mut admission => return admitted,
                () = sleep(DECISION_TIME_MAX) => {}
            }
            self.held = None;
            self.expected = Some(self.pool.expect(self.ready_max));
        }
        admission.await
    }

    /// Returns the connection, if the request did not have to wait.
    pub(crate) fn take(self) -> Option<ReadyConnection> {
        self.held.map(|(connection, _)| connection)
    }
}

/// Returns the number of requests per second that the limits allow, rounded up; `None` if they do
/// not count requests.
fn per_second(limits: &[Limit]) -> Option<u64> {
    let counted = limits.iter().filter(|limit| limit.unit() == Unit::Requests);
    let rates = counted.map(|limit| {
        let window = limit.window().as_micros().max(1);
        limit.rate().saturating_mul(1_000_000).div_ceil(window)
    });
    rates.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_connections_are_those_of_one_second_of_the_slowest_limit() {
        for (limits, ready_max) in [
            (&["25/s"][..], 25),
            (&["25/s", "60/min"], 1),
            (&["1/h"], 1),
            (&["25/s smooth"], 25),
            (&["25/s burst 100"], 25),
            (&["1000/s"], 32),
            (&["10 concurrent"], 32),
            (&["25/s", "10 concurrent"], 25),
        ] {
            let parsed: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(Places::new(&parsed, Duration::ZERO).ready_max, ready_max, "{limits:?}");
        }
    }
}

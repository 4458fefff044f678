//! How long an answer is waited for, and when it is asked for again.
//!
//! One attempt, and if it fails in a way that may pass, another after a pause of 5 to 10 ms. A
//! repeated attempt names the same id, so it is counted once, whether or not the first was
//! executed. All of it ends at the deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use std::time::Duration;

use sluicegate_core::store::Error;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Id, Span, Timestamp};
use tokio::time::{sleep, timeout};

use super::call::Call;
use super::failure::Failure;
use super::reply::Reply;
use super::tally::{Asked, Tally};
use super::way::Way;
use crate::clock::MonotonicClock;

/// How long an answer is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For one attempt.
    pub timeout: Duration,
    /// How often a failed attempt is repeated.
    pub retries: u32,
    /// For all of it.
    pub deadline: Duration,
}

impl Default for Patience {
    /// 20 ms, once more, and 45 ms together.
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self { timeout: ms(20), retries: 1, deadline: ms(45) }
    }
}

/// Makes attempts.
#[derive(Debug)]
pub(super) struct Attempts {
    patience: Patience,
    budget: Budget,
    retries: AtomicU64,
    tally: Tally,
    time: MonotonicClock,
}

impl Attempts {
    pub(super) fn new(patience: Patience, time: MonotonicClock) -> Self {
        let (budget, retries) = (Budget::new(), AtomicU64::new(0));
        Self { patience, budget, retries, tally: Tally::default(), time }
    }

    /// What was counted.
    pub(super) const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// When whoever asks now is no longer waited for.
    pub(super) fn deadline(&self) -> Timestamp {
        self.time.now() + Span::from(self.patience.deadline)
    }

    /// Whether that is over.
    pub(super) fn is_over(&self, deadline: Timestamp) -> bool {
        self.time.now() >= deadline
    }

    /// How many attempts were repeated.
    pub(super) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Asks, and asks again if that may help; `call` is told whether it is a repetition.
    pub(super) async fn make(
        &self,
        way: &Way,
        named: (Asked, Id),
        call: impl FnMut(bool) -> Call,
    ) -> Result<Reply, Error> {
        self.make_known(way, named, None, call).await
    }

    /// The same; `doubt` then tells whether something may have been done without an answer.
    pub(super) async fn make_known(
        &self,
        way: &Way,
        (asked, id): (Asked, Id),
        doubt: Option<&Doubt>,
        mut call: impl FnMut(bool) -> Call,
    ) -> Result<Reply, Error> {
        self.budget.earn();
        let Patience { timeout: each, retries, deadline } = self.patience;
        let (began, not_after) = (self.time.now(), self.deadline());
        let attempts = async {
            let mut number = 0;
            loop {
                let call = Call { sent: doubt.map(Doubt::mark), ..call(number > 0) };
                let answer = timeout(each, way.ask(call, not_after)).await;
                let answer = answer.unwrap_or(Err(Failure::Late));
                if let Err(failure) = &answer {
                    self.tally.failed(asked, failure);
                    if let Some(doubt) = doubt {
                        doubt.failed(failure);
                    }
                }
                match answer {
                    Ok(reply) => {
                        if let Some(doubt) = doubt {
                            doubt.answered();
                        }
                        return Ok(reply);
                    }
                    Err(failure) if !failure.retryable() || number == retries => {
                        return Err(failure);
                    }
                    Err(failure) if !self.budget.spend() => return Err(failure),
                    Err(_) => number += 1,
                }
                self.retries.fetch_add(1, Ordering::Relaxed);
                sleep(pause(id, number)).await;
            }
        };
        let answered = timeout(deadline, attempts).await.unwrap_or(Err(Failure::Late));
        self.tally.took(asked, self.time.now().since(began));
        answered.map_err(|failure| Error::Unavailable(failure.to_string().into()))
    }
}

/// Whether something may have been done that nobody was told of.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// The last call was sent.
    sent: Arc<AtomicBool>,
    /// An earlier one was sent, and not answered.
    before: AtomicBool,
}

impl Doubt {
    fn mark(&self) -> Arc<AtomicBool> {
        self.sent.clone()
    }

    /// The last call was answered.
    fn answered(&self) {
        self.sent.store(false, Ordering::Relaxed);
    }

    /// Nobody waits for the last call any more.
    fn failed(&self, failure: &Failure) {
        fence(Ordering::SeqCst);
        if self.sent.swap(false, Ordering::Relaxed) && failure.leaves_doubt() {
            self.before.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there is doubt, once nobody waits for an answer any more.
    pub(super) fn is_left(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sent.load(Ordering::Relaxed) || self.before.load(Ordering::Relaxed)
    }
}

/// 5 to 10 ms, different for each id, so that what failed together does not come back together.
fn pause(id: Id, number: u32) -> Duration {
    let bits = id.to_bits() as u64 ^ u64::from(number);
    let spread = bits.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    Duration::from_micros(5_000 + spread % 5_000)
}

/// Retries are a tenth of all calls at most, and a hundred at once: a server that is slow because
/// it has too much to do must not get twice as much.
#[derive(Debug)]
struct Budget(AtomicI64);

impl Budget {
    const PRICE: i64 = 10;
    const MAX: i64 = 100 * Self::PRICE;

    const fn new() -> Self {
        Self(AtomicI64::new(Self::MAX))
    }

    fn earn(&self) {
        if self.0.load(Ordering::Relaxed) < Self::MAX {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn spend(&self) -> bool {
        let left = self.0.fetch_sub(Self::PRICE, Ordering::Relaxed);
        if left < Self::PRICE {
            self.0.fetch_add(Self::PRICE, Ordering::Relaxed);
        }
        left >= Self::PRICE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_between_5_and_10_ms_and_differ() {
        let pauses: Vec<_> = (0..100).map(|id| pause(Id::from_bits(id), 1).as_micros()).collect();
        assert!(pauses.iter().all(|pause| (5_000..10_000).contains(pause)));
        let distinct: std::collections::BTreeSet<_> = pauses.iter().collect();
        assert!(distinct.len() > 90, "{}", distinct.len());
    }

    #[test]
    fn retries_are_a_tenth_of_the_calls_once_the_reserve_is_used_up() {
        let budget = Budget::new();
        assert_eq!((0..500).filter(|_| budget.spend()).count(), 100);
        let mut spent = 0;
        for _ in 0..1_000 {
            budget.earn();
            spent += u32::from(budget.spend());
        }
        assert_eq!(spent, 100);
    }
}

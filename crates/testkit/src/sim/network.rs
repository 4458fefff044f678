//! [`Network`]: the simulated network between processes.

use super::rng::Rng;

/// Minimum delay of a message.
const DELAY_US_MIN: u64 = 100;
/// Maximum delay of a message that is not slow.
const DELAY_US_USUAL: u64 = 1_500;

/// A network that delays, loses, repeats and thereby reorders messages until its faults end.
///
/// A repeated message stands for everything that makes a command arrive twice: a client library
/// that resends on a new connection, a proxy, or a queue that delivers at least once.
#[derive(Clone, Copy)]
pub(crate) struct Network {
    /// Maximum delay of a message.
    pub(crate) delay_us_max: u64,
    /// Messages per thousand that take up to that long.
    pub(crate) slow_per_mille: u64,
    /// Messages per thousand that are lost.
    pub(crate) lose_per_mille: u64,
    /// Messages per thousand that arrive twice.
    pub(crate) repeat_per_mille: u64,
    /// Time from which the network is fast and loses nothing, so that a run comes to an end.
    pub(crate) calm_from_us: u64,
}

impl Network {
    /// Draws a network at random: some lose more, some delay more.
    pub(crate) fn random(rng: &mut Rng, delay_us_max: u64, calm_from_us: u64) -> Self {
        Self {
            delay_us_max,
            slow_per_mille: rng.between(0, 250),
            lose_per_mille: rng.between(0, 120),
            repeat_per_mille: rng.between(0, 120),
            calm_from_us,
        }
    }

    /// Returns the delay of each copy of a message that is sent now; `None` if the copy is lost or
    /// not made.
    pub(super) fn delays(&self, now_us: u64, rng: &mut Rng) -> [Option<u64>; 2] {
        if now_us >= self.calm_from_us {
            return [Some(rng.between(DELAY_US_MIN, DELAY_US_USUAL)), None];
        }
        let first = (!rng.chance(self.lose_per_mille)).then(|| self.delay(rng));
        let second = rng.chance(self.repeat_per_mille).then(|| self.delay(rng));
        [first, second]
    }

    fn delay(&self, rng: &mut Rng) -> u64 {
        let slow = rng.chance(self.slow_per_mille);
        rng.between(DELAY_US_MIN, if slow { self.delay_us_max } else { DELAY_US_USUAL })
    }
}

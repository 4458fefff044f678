//! What may happen to a message between two processes.

use super::rng::Rng;

/// Nothing crosses the network faster.
const DELAY_US_MIN: u64 = 100;
/// On a good day.
const DELAY_US_USUAL: u64 = 1_500;

/// A network that delays, loses, repeats and thereby reorders messages until it comes to rest.
///
/// A repeated message stands for whatever makes a command arrive twice: a client library that
/// sends again on a new connection, a proxy, a queue that delivers at least once.
#[derive(Clone, Copy)]
pub(crate) struct Network {
    /// The longest that a message is on its way.
    pub(crate) delay_us_max: u64,
    /// How many in a thousand take up to that long.
    pub(crate) slow_per_mille: u64,
    /// How many in a thousand are lost.
    pub(crate) lose_per_mille: u64,
    /// How many in a thousand arrive twice.
    pub(crate) repeat_per_mille: u64,
    /// From this instant on it is quick and loses nothing, so that a run comes to its end.
    pub(crate) calm_from_us: u64,
}

impl Network {
    /// A network of which each seed draws another kind: some lose more, some delay more.
    pub(crate) fn drawn(rng: &mut Rng, delay_us_max: u64, calm_from_us: u64) -> Self {
        Self {
            delay_us_max,
            slow_per_mille: rng.between(0, 250),
            lose_per_mille: rng.between(0, 120),
            repeat_per_mille: rng.between(0, 120),
            calm_from_us,
        }
    }

    /// How long each copy of a message that is sent now takes: none if it is lost.
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

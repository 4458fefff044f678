//! [`Rng`]: a random number generator that gives the same numbers on every machine for the same
//! seed.

/// SplitMix64: fast, and every seed is a good one.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let room = u128::from(high - low) + 1;
        let scaled = (u128::from(self.next()) * room) >> 64;
        low + u64::try_from(scaled).expect("less than the room, which is a difference of two u64")
    }

    /// Returns an index into a list of `len` items.
    pub fn index(&mut self, len: usize) -> usize {
        let last = u64::try_from(len - 1).expect("a list in memory");
        usize::try_from(self.between(0, last)).expect("at most the length of a list in memory")
    }

    /// Returns true with a probability of `per_mille` in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.between(0, 999) < per_mille
    }
}

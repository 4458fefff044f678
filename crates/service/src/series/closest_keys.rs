//! [`ClosestKeys`]: the counters with the largest used share of their limit, or with the largest use,
//! in bounded memory.

use std::collections::HashMap;

use sluicegate_core::{Span, Timestamp};

/// Minimum time between two observations that a pace is measured from.
const PACE_MIN: Span = Span::from_secs(10);

/// The counters that are closest to their limits, as decisions saw them. Nothing is scanned: a
/// counter that no decision reads is forgotten when its window is over.
#[derive(Clone, Debug)]
pub struct ClosestKeys {
    keys: HashMap<String, KeyUsage>,
    keys_max: usize,
    order: KeyOrder,
    /// A lower bound of the ranks in a full table.
    floor: f64,
}

/// The quantity that keys are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// The used share of the limit.
    Share,
    /// The used amount, whatever the limit.
    Amount,
}

impl KeyOrder {
    /// Returns a number that is larger for a key of a higher rank.
    fn rank(self, amount: u64, limit: u64) -> f64 {
        match self {
            Self::Share => share(amount, limit),
            Self::Amount => amount as f64,
        }
    }
}

/// The usage of one limit of one key, as last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyUsage {
    /// Name of the rule.
    pub rule: String,
    /// The limit as written.
    pub limit_text: String,
    /// Dimensions that the rule counts by, with their values.
    pub dimensions: Vec<(String, String)>,
    /// Amount that is charged, in the unit of the limit: in use now, booked ahead, or debt.
    pub charged: u64,
    /// True if work was ever booked on the key. [`ClosestKeys::record`] carries it over from the
    /// previous usage.
    pub has_bookings: bool,
    /// Maximum of the limit.
    pub limit: u64,
    /// Name of the unit.
    pub unit: &'static str,
    /// Time at which it was seen.
    pub at: Timestamp,
    /// Time and amount of the first observation. [`ClosestKeys::record`] sets both, and starts
    /// again when the usage falls.
    pub first: (Timestamp, u64),
    /// Time at which the oldest use expires.
    pub reset: Timestamp,
    /// Time at which nothing of the usage is left.
    pub ends: Timestamp,
}

impl KeyUsage {
    /// Returns the amount in use now. Booked work never exceeds the limit at any instant, so a
    /// charge above the limit is for later. Without bookings, such a charge is debt.
    pub fn used(&self) -> u64 {
        if self.has_bookings { self.charged.min(self.limit) } else { self.charged }
    }

    /// Returns the charged amount that is certainly for later.
    pub fn booked_ahead(&self) -> u64 {
        self.charged - self.used()
    }

    /// Returns the parts that no two keys of a table have in common.
    pub fn identity(&self) -> (&str, &str, &[(String, String)]) {
        (&self.rule, &self.limit_text, &self.dimensions)
    }

    /// Returns the used share of the limit; more than 1 is debt.
    pub fn share(&self) -> f64 {
        share(self.used(), self.limit)
    }

    /// Returns the time at which the limit is used up at the pace since the first observation. Returns
    /// `None` if a part of the usage frees up earlier, or if the pace is not known yet.
    pub fn used_up_at(&self) -> Option<Timestamp> {
        let used = self.used();
        if used >= self.limit {
            return Some(self.at);
        }
        let (first_at, first_used) = self.first;
        let elapsed = self.at.since(first_at);
        let spent = u128::from(used.saturating_sub(first_used));
        if elapsed < PACE_MIN || spent == 0 {
            return None;
        }
        let left = u128::from(self.limit - used) * u128::from(elapsed.as_micros()) / spent;
        let end = self.at + Span::from_micros(u64::try_from(left).ok()?);
        (end < self.reset).then_some(end)
    }
}

fn share(amount: u64, limit: u64) -> f64 {
    amount as f64 / limit.max(1) as f64
}

impl ClosestKeys {
    /// Creates an empty table for at most `keys_max` keys, the first in an order.
    ///
    /// # Panics
    ///
    /// Panics if `keys_max` is 0.
    pub fn new(keys_max: usize, order: KeyOrder) -> Self {
        assert!(keys_max > 0, "there is at least one key");
        Self { keys: HashMap::new(), keys_max, order, floor: 0.0 }
    }

    fn rank(&self, usage: &KeyUsage) -> f64 {
        self.order.rank(usage.used(), usage.limit)
    }

    /// Returns true if a usage would be kept, so that its details are worth collecting.
    pub fn takes(&self, key: &str, charged: u64, limit: u64) -> bool {
        self.keys.len() < self.keys_max
            || self.order.rank(charged, limit) > self.floor
            || self.keys.contains_key(key)
    }

    /// Records the usage of a key, and replaces the previous usage. If the table is full, a new key
    /// replaces the key with the lowest rank, if that is lower.
    pub fn record(&mut self, key: &str, usage: KeyUsage) {
        let rank = |usage: &KeyUsage| self.order.rank(usage.used(), usage.limit);
        if let Some(known) = self.keys.get_mut(key) {
            let fell = usage.charged < known.charged;
            let first = if fell { (usage.at, usage.charged) } else { known.first };
            let has_bookings = usage.has_bookings || known.has_bookings;
            *known = KeyUsage { first, has_bookings, ..usage };
            self.floor = self.floor.min(rank(known));
            return;
        }
        if self.keys.len() == self.keys_max {
            let now = usage.at;
            self.keys.retain(|_, known| known.ends > now);
        }
        if self.keys.len() == self.keys_max {
            let ranks = self.keys.iter().map(|(key, known)| (rank(known), key));
            let lowest = ranks.min_by(|one, other| one.0.total_cmp(&other.0));
            let Some((least, key)) = lowest.map(|(least, key)| (least, key.clone())) else {
                return;
            };
            self.floor = least;
            if rank(&usage) <= least {
                return;
            }
            self.keys.remove(&key);
        }
        let first = (usage.at, usage.charged);
        self.keys.insert(key.to_owned(), KeyUsage { first, ..usage });
    }

    /// Returns the keys with the highest ranks at a time, the highest first.
    pub fn top(&self, now: Timestamp, count: usize) -> Vec<&KeyUsage> {
        let mut keys: Vec<_> = self.keys.iter().filter(|(_, usage)| usage.ends > now).collect();
        keys.sort_by(|(one_key, one), (other_key, other)| {
            self.rank(other).total_cmp(&self.rank(one)).then_with(|| one_key.cmp(other_key))
        });
        keys.into_iter().map(|(_, usage)| usage).take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used: u64, at: u64) -> KeyUsage {
        KeyUsage {
            rule: "USER".to_owned(),
            limit_text: "100/min".to_owned(),
            dimensions: vec![("userId".to_owned(), used.to_string())],
            charged: used,
            has_bookings: false,
            limit: 100,
            unit: "requests",
            at: Timestamp::from_secs(at),
            first: (Timestamp::ZERO, 0),
            reset: Timestamp::from_secs(at + 30),
            ends: Timestamp::from_secs(at + 60),
        }
    }

    fn top(keys: &ClosestKeys, now: u64) -> Vec<u64> {
        keys.top(Timestamp::from_secs(now), 9).iter().map(|usage| usage.used()).collect()
    }

    #[test]
    fn the_largest_shares_stay() {
        let mut keys = ClosestKeys::new(2, KeyOrder::Share);
        for used in [10, 50, 30, 20] {
            assert!(keys.takes(&used.to_string(), used, 100));
            keys.record(&used.to_string(), usage(used, 0));
        }
        assert_eq!(top(&keys, 0), [50, 30]);
        assert!(!keys.takes("25", 25, 100), "smaller than all that are kept");
        assert!(keys.takes("30", 25, 100), "a known key");
    }

    #[test]
    fn a_key_is_known_by_its_last_usage() {
        let mut keys = ClosestKeys::new(1, KeyOrder::Share);
        keys.record("a", usage(90, 0));
        keys.record("b", usage(80, 0));
        keys.record("a", usage(5, 1));
        assert_eq!(top(&keys, 1), [5]);
        assert!(keys.takes("b", 6, 100), "larger than what is left of a");
    }

    #[test]
    fn the_pace_is_measured_since_the_usage_last_fell() {
        let mut keys = ClosestKeys::new(1, KeyOrder::Share);
        let first = |keys: &ClosestKeys, now: u64| keys.top(Timestamp::from_secs(now), 1)[0].first;
        keys.record("a", usage(10, 5));
        keys.record("a", usage(30, 9));
        assert_eq!(first(&keys, 9), (Timestamp::from_secs(5), 10));
        keys.record("a", usage(20, 12));
        assert_eq!(first(&keys, 12), (Timestamp::from_secs(12), 20));
    }

    #[test]
    fn bookings_ahead_are_not_in_use_but_debt_is() {
        let mut keys = ClosestKeys::new(1, KeyOrder::Share);
        let shown = |keys: &ClosestKeys| {
            let [usage] = keys.top(Timestamp::ZERO, 1)[..] else { panic!("one key") };
            (usage.used(), usage.booked_ahead(), usage.share())
        };
        keys.record("a", usage(143, 0));
        assert_eq!(shown(&keys), (143, 0, 1.43), "debt");
        keys.record("a", KeyUsage { has_bookings: true, ..usage(570, 0) });
        assert_eq!(shown(&keys), (100, 470, 1.0));
        keys.record("a", usage(143, 0));
        assert_eq!(shown(&keys), (100, 43, 1.0), "an admission beside the bookings");
        keys.record("a", usage(40, 0));
        assert_eq!(shown(&keys), (40, 0, 0.4));
    }

    #[test]
    fn large_amounts_stay_although_their_share_is_small() {
        let mut keys = ClosestKeys::new(2, KeyOrder::Amount);
        for (used, limit) in [(5_000, 1_000_000), (90, 100), (99, 100), (60, 50)] {
            keys.record(&used.to_string(), KeyUsage { limit, ..usage(used, 0) });
        }
        assert_eq!(top(&keys, 0), [5_000, 99]);
        assert!(!keys.takes("98", 98, 98), "smaller than all that are kept");
        assert!(keys.takes("100", 100, u64::MAX));
    }

    #[test]
    fn a_limit_is_used_up_at_the_pace_since_the_first_observation() {
        let at = Timestamp::from_secs(20);
        let usage = |used: u64, first: (u64, u64), reset: u64| KeyUsage {
            first: (Timestamp::from_secs(first.0), first.1),
            reset: Timestamp::from_secs(reset),
            ..usage(used, 20)
        };
        let secs = |secs: u64| Some(Timestamp::from_secs(secs));
        // 30 in 10 s; the other 50 of 100 take 16.66… s.
        let end = usage(50, (10, 20), 60).used_up_at();
        assert_eq!(end, Some(at + Span::from_micros(16_666_666)));
        assert_eq!(usage(50, (10, 20), 36).used_up_at(), None, "a part frees up earlier");
        assert_eq!(usage(50, (11, 20), 60).used_up_at(), None, "the pace is not known yet");
        assert_eq!(usage(50, (0, 50), 60).used_up_at(), None, "nothing was used since then");
        assert_eq!(usage(100, (20, 100), 60).used_up_at(), secs(20), "it is used up");
        let large = KeyUsage { limit: u64::MAX, ..usage(1, (0, 0), 60) };
        assert_eq!(large.used_up_at(), None, "later than any time");
    }

    #[test]
    fn usage_is_forgotten_when_its_window_is_over() {
        let mut keys = ClosestKeys::new(1, KeyOrder::Share);
        keys.record("a", usage(90, 0));
        assert_eq!(top(&keys, 59), [90]);
        assert_eq!(top(&keys, 60), Vec::<u64>::new());
        keys.record("b", usage(1, 60));
        assert_eq!(top(&keys, 60), [1]);
    }
}

//! Test harness: reproducible random traffic, limiters to send it to, and the check of what they
//! admit.

use std::collections::VecDeque;

use sluicegate_checker::{CheckedScope, Checker, Report};
use sluicegate_core::{Limit, Timestamp};

pub(crate) const MS: u64 = 1_000;
pub(crate) const SECOND: u64 = 1_000 * MS;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

/// 2026-03-20T00:00:00Z, nine days before a clock change in Berlin.
pub(crate) const BEGIN: u64 = 1_773_964_800 * SECOND;

/// The splitmix64 generator.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// One request to a limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) at: u64,
    pub(crate) amount: u64,
    /// The node that gets the request.
    pub(crate) node: usize,
    pub(crate) id: u64,
    /// Random bits for further variation in a test.
    pub(crate) dice: u64,
}

/// Idle, calm and busy phases of random length, because many bugs only show at the edge of a busy
/// phase.
#[derive(Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) asks: usize,
    /// Mean time between two requests in a busy phase; ten times as long in a calm one.
    pub(crate) gap: u64,
    /// Maximum length of a phase.
    pub(crate) phase_max: u64,
    pub(crate) amount_max: u64,
    pub(crate) nodes: u64,
}

/// Traffic that exceeds 100/s, with pauses.
pub(crate) const RUSH: Traffic =
    Traffic { asks: 8_000, gap: MS, phase_max: 2 * SECOND, amount_max: 1, nodes: 1 };

impl Traffic {
    pub(crate) fn asks(&self, seed: u64) -> Vec<Ask> {
        let mut random = Random::new(seed);
        let (mut at, mut phase_end, mut gap) = (BEGIN, BEGIN, self.gap);
        (0..self.asks as u64)
            .map(|id| {
                at += random.below(2 * gap + 1);
                while at >= phase_end {
                    match random.below(3) {
                        0 => at += random.below(self.phase_max),
                        1 => gap = self.gap * 10,
                        _ => gap = self.gap,
                    }
                    phase_end = at + random.below(self.phase_max) + 1;
                }
                Ask {
                    at,
                    amount: 1 + random.below(self.amount_max),
                    node: random.below(self.nodes) as usize,
                    id,
                    dice: random.next(),
                }
            })
            .collect()
    }
}

/// The admitted times and amounts.
pub(crate) type Uses = Vec<(u64, u64)>;

pub(crate) fn scope(limit: &str) -> CheckedScope {
    CheckedScope::new(limit.parse::<Limit>().expect(limit))
}

pub(crate) fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub(crate) fn judge(scopes: &[CheckedScope], uses: &[(u64, u64)]) -> Report {
    let mut checker = Checker::new();
    for scope in scopes {
        checker.scope("K", scope.clone()).expect("a good scope");
    }
    for &(micros, amount) in uses {
        checker.admit("K", at(micros), amount).expect("a good log");
    }
    checker.check().expect("a good log")
}

/// Checks with every seed that the correct limiter is proven, although it gets more requests than
/// it can admit, and that the one with the planted bug is caught.
pub(crate) fn check<C, F>(
    scopes: &[CheckedScope],
    traffic: Traffic,
    correct: impl Fn() -> C,
    faulty: impl Fn() -> F,
) where
    C: FnMut(Ask, &mut Uses),
    F: FnMut(Ask, &mut Uses),
{
    for seed in 0..8 {
        let asks = traffic.asks(seed);
        let report = judge(scopes, &uses(&asks, correct()));
        // A limiter that admits nothing would be proven, too.
        let full = report.verdicts.iter().any(|verdict| {
            let worst = verdict.worst().expect("something was asked for");
            worst.sum + u128::from(traffic.amount_max) > worst.allowed * 98 / 100
        });
        assert!(full, "seed {seed}: never full: {report}");
        if let Err(violation) = report.proven() {
            panic!("seed {seed}: invented: {violation}");
        }
        let caught = judge(scopes, &uses(&asks, faulty())).proven().is_err();
        assert!(caught, "seed {seed}: missed");
    }
}

/// Runs traffic through a limiter and returns what it admits.
pub(crate) fn uses(asks: &[Ask], mut limiter: impl FnMut(Ask, &mut Uses)) -> Uses {
    let mut uses = Uses::new();
    for &ask in asks {
        limiter(ask, &mut uses);
    }
    uses
}

/// Makes a limiter of a function that admits or denies. Admitted work starts at once.
pub(crate) fn at_once(mut admits: impl FnMut(Ask) -> bool) -> impl FnMut(Ask, &mut Uses) {
    move |ask, uses| {
        if admits(ask) {
            uses.push((ask.at, ask.amount));
        }
    }
}

/// The simplest correct sliding log, to compare with and to modify.
#[derive(Clone, Default)]
pub(crate) struct Sliding {
    pub(crate) limit: u64,
    pub(crate) window: u64,
    /// Times and amounts, oldest first.
    pub(crate) entries: VecDeque<(u64, u64)>,
}

impl Sliding {
    pub(crate) fn new(limit: u64, window: u64) -> Self {
        Self { limit, window, entries: VecDeque::new() }
    }

    /// Returns the sum in the window (now − W, now].
    pub(crate) fn used(&mut self, now: u64) -> u64 {
        while let Some(&(oldest, _)) = self.entries.front()
            && now.saturating_sub(oldest) >= self.window
        {
            self.entries.pop_front();
        }
        self.entries.iter().map(|(_, amount)| amount).sum()
    }

    pub(crate) fn write(&mut self, at: u64, amount: u64) {
        self.entries.push_back((at, amount));
    }

    pub(crate) fn admit(&mut self, at: u64, amount: u64) -> bool {
        let fits = self.used(at) + amount <= self.limit;
        if fits {
            self.write(at, amount);
        }
        fits
    }
}

pub(crate) fn sliding(limit: u64, window: u64) -> impl FnMut(Ask, &mut Uses) {
    let mut log = Sliding::new(limit, window);
    at_once(move |ask| log.admit(ask.at, ask.amount))
}

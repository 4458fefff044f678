//! Random work: when it comes, what it was expected to cost, what it really cost, how long it took.

use sluicegate_core::{Span, Timestamp};

/// One piece of work.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) at: Timestamp,
    /// The most that it can cost, in nano-dollars: what a cap on its answer says.
    pub(crate) estimate: u64,
    /// What it costs, as is known when it is done.
    pub(crate) actual: u64,
    pub(crate) takes: Span,
}

/// How much of what was reserved answers really use.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    /// 60 to 100 % of their cap: callers who know what they ask.
    Most,
    /// 2 to 100 %, mostly little: one cap for everything.
    Little,
}

impl Use {
    pub(crate) const ALL: [Self; 2] = [Self::Most, Self::Little];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Most => "60–100 % of the cap",
            Self::Little => "2–100 %, mostly little",
        }
    }

    fn share(self, random: &mut fastrand::Rng) -> f64 {
        match self {
            Self::Most => 0.6 + 0.4 * random.f64(),
            Self::Little => 0.02 + 0.98 * random.f64() * random.f64(),
        }
    }
}

/// When every run begins.
pub(crate) const BEGIN: Timestamp = Timestamp::from_secs(1_800_000_000);
/// How long it lasts.
pub(crate) const LASTS: Span = Span::from_secs(3 * 3_600);

/// Three hours of work that comes at random, 4 pieces a second on average, for 0.2 to 3 cents each at
/// most, and takes 1 to 30 seconds: several times what a budget of 10 dollars an hour pays for.
pub(crate) fn traffic(seed: u64, uses: Use) -> Vec<Work> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut at, mut all) = (BEGIN, Vec::new());
    while at < BEGIN + LASTS {
        let pause = -random.f64().max(1e-12).ln() / 4.0;
        at = at + Span::from_micros((pause * 1e6) as u64);
        let estimate = random.u64(2_000_000..=30_000_000);
        let actual = (estimate as f64 * uses.share(&mut random)) as u64;
        let takes = Span::from_millis(random.u64(1_000..=30_000));
        all.push(Work { at, estimate, actual, takes });
    }
    all
}

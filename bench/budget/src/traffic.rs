//! Random requests with their arrival, estimated cost, actual cost and duration.

use sluicegate_core::{Span, Timestamp};

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) at: Timestamp,
    /// Highest possible cost in nano-dollars, from the output cap of the request.
    pub(crate) estimate: u64,
    /// Actual cost in nano-dollars, known when the request has ended.
    pub(crate) actual: u64,
    pub(crate) takes: Span,
}

/// Distribution of the actual cost, relative to the reserved cost.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    /// 60 to 100 % of the cap: callers with a suitable cap for each request.
    Most,
    /// 2 to 100 % of the cap, mostly little: callers with one cap for all requests.
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

/// Start of every run.
pub(crate) const BEGIN: Timestamp = Timestamp::from_secs(1_800_000_000);
/// Duration of a run.
pub(crate) const LASTS: Span = Span::from_secs(3 * 3_600);

/// Generates three hours of requests: on average 4 per second at random times, with caps of 0.2 to
/// 3 cents and durations of 1 to 30 seconds. A budget of 10 dollars per hour pays for a fraction.
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

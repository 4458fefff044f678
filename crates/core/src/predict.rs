//! [`forecast`]: computes the longest model output that would have been admitted.
//!
//! The input of a request can't be shortened afterwards, but its output cap can. So a denial
//! because of tokens or money names the largest cap that fits.

use std::num::NonZeroU64;

use crate::decision::Decision;
use crate::limit::Unit;
use crate::money::Money;
use crate::plan::{Charge, Plan};
use crate::price::{PriceBook, Quote, TokenCounts};
use crate::query::Query;
use crate::rule::EstimateMode;
use crate::time::EXACT_MAX;

/// The largest output caps that would be admitted, for each of the query's choices. Zero if none
/// would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Cap that fits with the current usage.
    pub now: u64,
    /// Cap that fits with no usage. A larger cap is never admitted.
    pub ever: u64,
}

/// The expected usage of a query that states an output cap.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedUsage<'q> {
    model: &'q str,
    tokens: TokenCounts,
    choices: NonZeroU64,
    /// True if the caller has stated the cost, so the output length does not change it.
    stated: bool,
}

impl<'q> ExpectedUsage<'q> {
    /// Returns the expected usage of a query, or `None` if it states no output cap.
    pub fn of(query: &'q Query<'_>) -> Option<Self> {
        query.cost.output_tokens?;
        Some(Self {
            model: query.model(),
            tokens: TokenCounts::expected(query),
            choices: query.choices,
            stated: query.cost.money.is_some(),
        })
    }
}

/// Computes the largest output caps for the query that made a plan. Returns `None` if there are no
/// readings, or if several queries made the plan.
pub fn forecast(
    expected: ExpectedUsage<'_>,
    plan: &Plan<'_>,
    decision: &Decision,
    prices: &PriceBook,
) -> Option<Forecast> {
    let readings = decision.readings();
    if plan.queries() > 1 || readings.is_empty() {
        return None;
    }
    let input = OutputForecast { expected, prices };
    let limits = || {
        let binding = plan.charges().iter().flat_map(|charge| {
            (0..charge.meter.len()).map(move |limit| (charge, charge.meter.limit(limit)))
        });
        binding.zip(readings).filter(|((charge, _), _)| !charge.shadow())
    };
    let free = limits().map(|((charge, limit), used)| (charge, limit.saturating_sub(used.used)));
    let whole = limits().map(|((charge, limit), _)| (charge, limit));
    Some(Forecast { now: input.longest(free), ever: input.longest(whole) })
}

struct OutputForecast<'a> {
    expected: ExpectedUsage<'a>,
    prices: &'a PriceBook,
}

impl OutputForecast<'_> {
    /// Returns the largest cap that fits all of these.
    fn longest<'p, 'a: 'p>(&self, rooms: impl Iterator<Item = (&'p Charge<'a>, u64)>) -> u64 {
        let mut longest = EXACT_MAX;
        for (charge, room) in rooms {
            match self.longest_in(charge, room) {
                Some(most) => longest = longest.min(most),
                None => return 0,
            }
        }
        longest / self.expected.choices
    }

    /// Returns the number of output tokens that fit one limit, or `None` if even the input does not
    /// fit.
    fn longest_in(&self, charge: &Charge<'_>, room: u64) -> Option<u64> {
        let unconcerned = (charge.need <= room).then_some(EXACT_MAX);
        // An optimistic limit admits while anything is left.
        if charge.rule().mode == EstimateMode::Optimistic {
            return unconcerned;
        }
        match charge.unit() {
            Unit::Requests | Unit::InputTokens | Unit::Slots => unconcerned,
            Unit::OutputTokens => Some(room),
            Unit::Tokens => room.checked_sub(self.expected.tokens.input),
            Unit::Usd if self.expected.stated => unconcerned,
            Unit::Usd => match self.prices.of(self.expected.model) {
                Quote::Priced(prices) if room > 0 => {
                    prices.output_within(&self.expected.tokens, Money::from_nanos(room)?)
                }
                Quote::Priced(_) => None,
                Quote::Free | Quote::Unknown => unconcerned,
            },
        }
    }
}

//! What would fit of work that does not: the longest answer that all its limits have room for.
//!
//! Input can't be made shorter after the fact, the cap on an answer can. So a denial that is about
//! tokens or money says which cap would have been admitted, instead of only that this one was not.

use std::num::NonZeroU64;

use crate::decision::Decision;
use crate::limit::Unit;
use crate::money::Money;
use crate::plan::{Charge, Plan};
use crate::price::{PriceBook, Quote, Tokens};
use crate::query::Query;
use crate::rule::Mode;
use crate::time::EXACT_MAX;

/// The largest caps on an answer that would be admitted, for each of the query's choices. Zero if
/// none would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// With what is in use now.
    pub now: u64,
    /// With nothing in use: what is more than this will never be admitted.
    pub ever: u64,
}

/// What a query expects that said how long an answer it may get.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'q> {
    model: &'q str,
    tokens: Tokens,
    choices: NonZeroU64,
    /// The caller has stated what it costs, whatever the answer is.
    stated: bool,
}

impl<'q> Expected<'q> {
    /// What a query expects; `None` if it says nothing of an answer.
    pub fn of(query: &'q Query<'_>) -> Option<Self> {
        query.cost.output_tokens?;
        Some(Self {
            model: query.model(),
            tokens: Tokens::expected(query),
            choices: query.choices,
            stated: query.cost.money.is_some(),
        })
    }
}

/// Which answer would fit of the one query that made a plan; `None` if nothing is known about the
/// limits. A plan that several queries made has no one answer.
pub fn forecast(
    expected: Expected<'_>,
    plan: &Plan<'_>,
    decision: &Decision,
    prices: &PriceBook,
) -> Option<Forecast> {
    let readings = decision.readings();
    if plan.queries() > 1 || readings.is_empty() {
        return None;
    }
    let asked = Asked { expected, prices };
    let limits = || {
        let binding = plan.charges().iter().flat_map(|charge| {
            (0..charge.meter.len()).map(move |limit| (charge, charge.meter.limit(limit)))
        });
        binding.zip(readings).filter(|((charge, _), _)| !charge.shadow())
    };
    let free = limits().map(|((charge, limit), used)| (charge, limit.saturating_sub(used.used)));
    let whole = limits().map(|((charge, limit), _)| (charge, limit));
    Some(Forecast { now: asked.longest(free), ever: asked.longest(whole) })
}

struct Asked<'a> {
    expected: Expected<'a>,
    prices: &'a PriceBook,
}

impl Asked<'_> {
    /// The largest cap that all of these have room for.
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

    /// How many tokens of an answer one limit has room for; `None` if not even for the rest.
    fn longest_in(&self, charge: &Charge<'_>, room: u64) -> Option<u64> {
        let unconcerned = (charge.need <= room).then_some(EXACT_MAX);
        // An optimistic limit asks only that anything is left.
        if charge.rule().mode == Mode::Optimistic {
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

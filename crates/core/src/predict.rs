//! What would fit of work that does not: the longest answer that all its limits have room for.
//!
//! Input can't be made shorter after the fact, the cap on an answer can. So a denial that is about
//! tokens or money says which cap would have been admitted, instead of only that this one was not.

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

/// Which answer would fit, of a query that said how long an answer it expects.
///
/// `None` if it said nothing, or if nothing is known about the limits. A plan that several queries
/// made has no one answer.
pub fn forecast(
    query: &Query<'_>,
    plan: &Plan<'_>,
    decision: &Decision,
    prices: &PriceBook,
) -> Option<Forecast> {
    let readings = decision.readings();
    if query.cost.output_tokens.is_none() || plan.queries() > 1 || readings.is_empty() {
        return None;
    }
    let asked = Asked { query, tokens: Tokens::expected(query), prices };
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

struct Asked<'a, 'q> {
    query: &'a Query<'q>,
    tokens: Tokens,
    prices: &'a PriceBook,
}

impl Asked<'_, '_> {
    /// The largest cap that all of these have room for.
    fn longest<'p, 'a: 'p>(&self, rooms: impl Iterator<Item = (&'p Charge<'a>, u64)>) -> u64 {
        let mut longest = EXACT_MAX;
        for (charge, room) in rooms {
            match self.longest_in(charge, room) {
                Some(most) => longest = longest.min(most),
                None => return 0,
            }
        }
        longest / self.query.choices
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
            Unit::Tokens => room.checked_sub(self.tokens.input),
            Unit::Usd if self.query.cost.money.is_some() => unconcerned,
            Unit::Usd => match self.prices.of(self.query.model()) {
                Quote::Priced(prices) if room > 0 => {
                    prices.output_within(&self.tokens, Money::from_nanos(room)?)
                }
                Quote::Priced(_) => None,
                Quote::Free | Quote::Unknown => unconcerned,
            },
        }
    }
}

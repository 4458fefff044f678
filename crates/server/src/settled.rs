//! What work came to, for a caller that passes it on with its answer.

use sluicegate_core::store::EndResult;
use sluicegate_core::{Money, Span};

use crate::cost::Stated;
use crate::refusal::Refusal;
use crate::service::Service;
use crate::ticket::{Origin, Ticket};

/// A settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// It had been settled before; nothing changed.
    pub(crate) replayed: bool,
    /// From when the work could start until it was settled; of a replay, until that.
    pub(crate) duration: Option<Span>,
    /// What it cost, if that is known.
    pub(crate) cost: Option<Money>,
    /// Of the tokens sent, the question.
    pub(crate) query_tokens: Option<u64>,
    /// Of the tokens sent, what was sent along with it.
    pub(crate) context_tokens: Option<u64>,
    /// The tokens answered.
    pub(crate) output_tokens: Option<u64>,
}

/// Replaces the estimate of an admission by its actual cost, with the money by the prices in force
/// where it was not stated.
pub(crate) async fn settle(
    service: &Service,
    ticket: &Ticket,
    stated: &Stated,
) -> Result<Settled, Refusal> {
    let cost = ticket.cost(stated, service.limiter().rules().prices())?;
    let ended = service.settle(&ticket.handle, &cost).await?;
    Ok(Settled::new(ticket, stated, cost.money, ended))
}

impl Settled {
    fn new(ticket: &Ticket, stated: &Stated, cost: Option<Money>, ended: EndResult) -> Self {
        let start = ticket.origin.as_ref().map(|Origin { start, .. }| *start);
        Self {
            replayed: ended.replayed,
            duration: start.map(|start| ended.at.since(start)),
            cost,
            query_tokens: stated.query_tokens,
            context_tokens: stated.context_tokens,
            output_tokens: stated.cost.output_tokens,
        }
    }
}

//! [`Settlement`]: the result of settling an admission, with the duration and cost of its work for
//! the answer.

use sluicegate_core::store::{EndResult, Error};
use sluicegate_core::{Money, Span};

use crate::cost::StatedCost;
use crate::refusal::{Refusal, RefusalKind};
use crate::service::Service;
use crate::ticket::Ticket;

/// The result of settling an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// True if it had been settled before and nothing changed.
    pub(crate) replayed: bool,
    /// Time from the start of the work until it was settled; of a replay, until the replay.
    pub(crate) duration: Option<Span>,
    /// The cost, if known.
    pub(crate) cost: Option<Money>,
    /// Input tokens of the question.
    pub(crate) query_tokens: Option<u64>,
    /// Input tokens of the context that was sent with the question.
    pub(crate) context_tokens: Option<u64>,
    /// Output tokens.
    pub(crate) output_tokens: Option<u64>,
}

/// Replaces the estimate of an admission with its actual cost. If the money is not stated, it is
/// computed from the current prices.
pub(crate) async fn settle(
    service: &Service,
    ticket: &Ticket,
    stated: &StatedCost,
) -> Result<Settlement, Refusal> {
    let cost = ticket.cost(stated, service.limiter().rules().prices())?;
    let ended = service.settle(&ticket.handle, &cost).await.map_err(|error| match error {
        Error::Conflict => {
            let detail = "this admission was settled before, with another cost: that cost stays";
            Refusal::new(RefusalKind::Conflict, detail)
        }
        other => other.into(),
    })?;
    Ok(Settlement::new(ticket, stated, cost.money, ended))
}

impl Settlement {
    fn new(ticket: &Ticket, stated: &StatedCost, cost: Option<Money>, ended: EndResult) -> Self {
        let start = ticket.origin.as_ref().map(|origin| origin.start);
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

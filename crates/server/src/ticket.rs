//! What an admission hands out, so that whoever did the work can come back to any node: the handle
//! that its store knows it by, and what settling it takes to know.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sluicegate_core::limit::Unit;
use sluicegate_core::plan::Handle;
use sluicegate_core::price::{Quote, Tokens};
use sluicegate_core::query::Cost;
use sluicegate_core::{Decision, Id, Key, Plan, PriceBook, Timestamp, store};

use crate::answer::Answer;
use crate::refusal::Refusal;
use crate::request::Stated;
use crate::service::Question;

/// An admission, to whoever settles, releases, renews or cancels it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// What names it to the store.
    pub(crate) handle: Handle,
    /// Where its cost comes from, if it is known.
    pub(crate) origin: Option<Origin>,
}

/// What was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// When the work could start, by the clock of the store.
    pub(crate) start: Timestamp,
    /// Some limit on money is charged, so the cost has to be known in the end.
    pub(crate) money: bool,
    /// The model; empty if none was named, or several were.
    pub(crate) model: String,
}

impl Ticket {
    /// The ticket of an admission, if anything about it remains to be done.
    pub(crate) fn of(answer: &Answer<'_, '_>, question: Question) -> Option<Self> {
        let held = match question {
            Question::Peek => false,
            Question::Book => true,
            Question::Acquire | Question::Tally => answer.plan().needs_record(),
        };
        held.then(|| Self::new(answer, answer.plan().handle()))
    }

    /// The ticket of a booking that a claimant was told to use.
    pub(crate) fn claimed(answer: &Answer<'_, '_>, claimant: Id) -> Self {
        Self::new(answer, answer.plan().handle().claimed_by(claimant))
    }

    fn new(answer: &Answer<'_, '_>, handle: Handle) -> Self {
        let start = match answer.decision() {
            Decision::Allow(allow) => allow.start,
            denied => denied.at(),
        };
        let origin =
            Origin { start, money: limits_money(answer.plan()), model: answer.model().to_owned() };
        Self { handle, origin: Some(origin) }
    }

    /// As text: the id, the keys that it was charged on, the claimant, and where it comes from.
    pub(crate) fn text(&self) -> String {
        let Handle { id, claimant, keys } = &self.handle;
        let keys: Vec<&str> = keys.iter().map(Key::as_str).collect();
        // Keys hold no newline: values are escaped, and templates are one line of a configuration.
        let keys = URL_SAFE_NO_PAD.encode(keys.join("\n"));
        let claimant = claimant.map(|claimant| claimant.to_string()).unwrap_or_default();
        let Some(Origin { start, money, model }) = &self.origin else {
            return format!("{id}.{keys}.{claimant}");
        };
        let origin = format!("{} {} {model}", start.as_micros(), u8::from(*money));
        format!("{id}.{keys}.{claimant}.{}", URL_SAFE_NO_PAD.encode(origin))
    }

    /// The ticket that a text stands for.
    pub(crate) fn read(text: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::field("handle", "is not a handle that an admission gave");
        let unknown = || Refusal::from(store::Error::Unknown);
        let mut parts = text.split('.');
        let (Some(id), Some(keys), claimant, origin, None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !keys.bytes().all(plain) {
            return Err(wrong());
        }
        let decoded = |text: &str| {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            String::from_utf8(bytes).ok()
        };
        // It has the form of a handle, and there is nothing that it could be the handle of.
        let keys = decoded(keys).ok_or_else(unknown)?;
        let claimant = claimant.filter(|text| !text.is_empty()).map(str::parse).transpose();
        let origin = origin.map(|text| decoded(text).and_then(|text| Origin::read(&text)));
        Ok(Self {
            handle: Handle {
                id: id.parse().map_err(|_| wrong())?,
                claimant: claimant.map_err(|_| wrong())?,
                keys: keys.split('\n').filter(|key| !key.is_empty()).map(Key::literal).collect(),
            },
            origin: origin.map(|origin| origin.ok_or_else(unknown)).transpose()?,
        })
    }

    /// The cost of what was done, with its money by the book where it was not stated.
    ///
    /// Where money is limited the cost has to come out, or it would be free by accident.
    pub(crate) fn cost(&self, stated: &Stated, prices: &PriceBook) -> Result<Cost, Refusal> {
        let Cost { input_tokens, output_tokens, money, .. } = stated.cost;
        let Some(Origin { model, money: limited, .. }) = &self.origin else {
            return Ok(stated.cost);
        };
        let (input, output) = match (money, input_tokens, output_tokens) {
            (None, Some(input), Some(output)) => (input, output),
            (Some(_), ..) | (None, None, None) => return Ok(stated.cost),
            (None, input, _) if *limited => {
                let field = if input.is_none() { "cost.inputTokens" } else { "cost.outputTokens" };
                let right = "is needed to know what it cost: state it, even if it is 0, or usd";
                return Err(Refusal::field(field, right));
            }
            (None, ..) => return Ok(stated.cost),
        };
        let money = match prices.of(model) {
            Quote::Priced(prices) => {
                Some(prices.cost(&Tokens { input, output, kinds: stated.kinds }))
            }
            Quote::Free => Some(Default::default()),
            Quote::Unknown if !limited => None,
            Quote::Unknown => {
                let right = format!(
                    "no price is known for the model {model:?}: state the cost as usd, or add it \
                     to prices"
                );
                return Err(Refusal::field("cost.usd", right));
            }
        };
        Ok(Cost { money, ..stated.cost })
    }
}

impl Origin {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        let start = Timestamp::from_micros(parts.next()?.parse().ok()?);
        let money = match parts.next()? {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        Some(Self { start, money, model: parts.next()?.to_owned() })
    }
}

fn limits_money(plan: &Plan<'_>) -> bool {
    plan.charges().iter().any(|charge| charge.unit() == Unit::Usd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_reads_back_from_its_text() {
        let handle = Handle {
            id: Id::from_bits(7),
            claimant: None,
            keys: vec![Key::literal("K:é#USD/day")],
        };
        let start = Timestamp::from_secs(1_800_000_000);
        let origin = Origin { start, money: true, model: "a b/c.d".to_owned() };
        for claimant in [None, Some(Id::from_bits(9))] {
            for origin in [None, Some(origin.clone())] {
                let handle = Handle { claimant, ..handle.clone() };
                let ticket = Ticket { handle, origin };
                assert_eq!(Ticket::read(&ticket.text()), Ok(ticket));
            }
        }
    }

    #[test]
    fn what_is_no_ticket_is_refused() {
        for text in ["", ".", "x.y", "a.b.c.d.e", "00000000000000000000000000000007.!"] {
            assert!(Ticket::read(text).is_err(), "{text}");
        }
        let odd = format!("{}.SzE..{}", Id::from_bits(7), URL_SAFE_NO_PAD.encode("1 2 m"));
        assert!(Ticket::read(&odd).is_err());
    }
}

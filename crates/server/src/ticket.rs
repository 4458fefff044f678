//! [`Ticket`]: the text that names an admission to any node. It contains the store's handle and the
//! data that settling needs.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::{Id, Key, PriceBook, Timestamp, store};
use sluicegate_service::cost::{Origin, StatedCost};

use crate::answer::Answer;
use crate::refusal::Refusal;
use crate::service::DecisionMode;

/// An admission that a client can settle, release, renew or cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The store's name of the admission.
    pub(crate) handle: Handle,
    /// Data for computing its cost, if known.
    pub(crate) origin: Option<Origin>,
}

impl Ticket {
    /// Returns the ticket of an admission that can be settled or released later.
    pub(crate) fn of(answer: &Answer<'_, '_>, mode: DecisionMode) -> Option<Self> {
        let held = match mode {
            DecisionMode::Peek => false,
            DecisionMode::Book => true,
            DecisionMode::Acquire | DecisionMode::Tally => answer.plan().needs_record(),
        };
        held.then(|| Self::new(answer, answer.plan().handle()))
    }

    /// Returns the ticket of a claimed booking.
    pub(crate) fn claimed(answer: &Answer<'_, '_>, claimant: Id) -> Self {
        Self::new(answer, answer.plan().handle().claimed_by(claimant))
    }

    fn new(answer: &Answer<'_, '_>, handle: Handle) -> Self {
        Self { handle, origin: Some(Origin::of(answer)) }
    }

    /// Formats the ticket: the id, the charged keys, the claimant and the origin.
    pub(crate) fn text(&self) -> String {
        let Handle { id, claimant, keys } = &self.handle;
        let keys: Vec<&str> = keys.iter().map(Key::as_str).collect();
        // Keys contain no newline: values are escaped, and templates are one line of the
        // configuration.
        let keys = URL_SAFE_NO_PAD.encode(keys.join("\n"));
        let claimant = claimant.map(|claimant| claimant.to_string()).unwrap_or_default();
        let Some(Origin { start, money, model }) = &self.origin else {
            return format!("{id}.{keys}.{claimant}");
        };
        let origin = format!("{} {} {model}", start.as_micros(), u8::from(*money));
        format!("{id}.{keys}.{claimant}.{}", URL_SAFE_NO_PAD.encode(origin))
    }

    /// Parses the ticket that a caller presents. A ticket of an id that another caller chose is unknown.
    pub(crate) fn read_of(caller: &str, text: &str) -> Result<Self, Refusal> {
        let ticket = Self::read(text)?;
        match ticket.handle.id.is_usable_by(caller) {
            true => Ok(ticket),
            false => Err(store::Error::Unknown.into()),
        }
    }

    /// Parses a ticket.
    pub(crate) fn read(text: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::field("handle", "is not a handle from the answer to an admission");
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
        // The form is right, but no admission can have this handle.
        let keys = decoded(keys).ok_or_else(unknown)?;
        let claimant = claimant.filter(|text| !text.is_empty()).map(str::parse).transpose();
        let origin = origin.map(|text| decoded(text).and_then(|text| read_origin(&text)));
        Ok(Self {
            handle: Handle {
                id: id.parse().map_err(|_| wrong())?,
                claimant: claimant.map_err(|_| wrong())?,
                keys: keys.split('\n').filter(|key| !key.is_empty()).map(Key::literal).collect(),
            },
            origin: origin.map(|origin| origin.ok_or_else(unknown)).transpose()?,
        })
    }

    /// Returns the actual cost, with its money computed from the prices if it was not stated.
    pub(crate) fn cost(&self, stated: &StatedCost, prices: &PriceBook) -> Result<Cost, Refusal> {
        match &self.origin {
            None => Ok(stated.cost),
            Some(origin) => Ok(origin.cost(stated, prices)?),
        }
    }
}

/// Parses the origin of an admission from its text in a ticket.
fn read_origin(text: &str) -> Option<Origin> {
    let mut parts = text.splitn(3, ' ');
    let start = Timestamp::from_micros(parts.next()?.parse().ok()?);
    let money = match parts.next()? {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    Some(Origin { start, money, model: parts.next()?.to_owned() })
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

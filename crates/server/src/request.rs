//! The requests that clients can send, in one form for JSON and protobuf.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use sluicegate_core::query::{Pacing, Query, RequestId};
use sluicegate_core::rule::InlineRule;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::time::EXACT_MAX;
use sluicegate_core::{Id, Limit, Ruleset, Span};

pub(crate) use crate::cost::{CostBody, StatedCost};
use crate::refusal::Refusal;
use crate::ticket::Ticket;

/// Maximum number of queries in one call.
const BATCH_MAX: usize = 100;
/// Maximum length of a caller's id, in bytes.
const ID_BYTES_MAX: usize = 256;
/// Maximum length of the name of an inline limit, in bytes: the same as for rules.
const NAME_BYTES_MAX: usize = 64;
/// Maximum number of inline limits in one request.
const LIMITS_MAX: usize = 10;

/// Maximum time before its start at which a booking can be claimed. A closing gate does not stop work
/// that is claimed, so it is not much longer than a slow round trip.
const LEAD_MAX: Span = Span::from_secs(1);
/// Time that a caller may need to start its work after the answer to a claim has arrived.
const WAKE_UP: Span = Span::from_millis(5);

/// Time in which an `allow` call can be settled: longer than nearly every model response takes. The
/// store keeps a record of each call for this time, so it is not longer.
pub(crate) const SETTLE_WITHIN: Span = Span::from_secs(300);

/// A request for a decision.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Request {
    /// Id of the work: the same id again is counted once.
    pub(crate) id: Option<String>,
    /// `userId`, `modelId` and the other dimensions that rules use.
    pub(crate) dimensions: Dimensions,
    /// The estimated cost, as far as it is known.
    #[serde(default)]
    pub(crate) cost: CostBody,
    /// Time for which the cost is held as an estimate, such as `30s`.
    pub(crate) hold: Option<String>,
    /// Inline limits, checked in addition to those of the configuration.
    #[serde(default)]
    pub(crate) limits: Vec<InlineBody>,
}

/// A limit that is part of the request.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct InlineBody {
    /// Name of the limit in denials.
    pub(crate) name: String,
    /// Value that the limit counts by.
    pub(crate) key: String,
    /// The limit, such as `5/s`.
    pub(crate) limit: String,
}

/// The claim of a booking.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ClaimBody {
    /// The booked request.
    pub(crate) request: Request,
    /// The worker that is about to do the work; the same text again is the same claimant.
    pub(crate) claimant: String,
    /// Time before its start at which the booking may be claimed, such as `20ms`.
    pub(crate) lead: Option<String>,
}

/// The handle of an admission.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct HandleBody {
    /// The handle from the answer to the admission.
    handle: String,
}

/// The actual cost of an admission.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SettleBody {
    /// The handle from the answer to the admission.
    handle: String,
    /// The actual cost; omitted fields stay as estimated.
    cost: CostBody,
}

/// Checks the number of requests in one call.
pub(crate) fn check_batch(requests: Vec<Request>) -> Result<Vec<Request>, Refusal> {
    match requests.len() {
        0 => Err(Refusal::invalid("the list is empty: send at least one request")),
        1..=BATCH_MAX => match requests.iter().skip(1).position(|request| request.id.is_some()) {
            None => Ok(requests),
            Some(number) => {
                let right = "is not used: the id of the first request is that of the whole list";
                Err(Refusal::field(format!("requests[{}].id", number + 1), right))
            }
        },
        more => Err(Refusal::invalid(format!(
            "the list has {more} requests, but one call may have at most {BATCH_MAX}"
        ))),
    }
}

impl Request {
    /// Converts the request into a query. Its id is the caller's text, or `fallback` if there is
    /// none.
    pub(crate) fn query(
        self,
        caller: &str,
        fallback: RequestId,
    ) -> Result<Query<'static>, Refusal> {
        let id = match self.id {
            None => fallback,
            Some(text) => RequestId::of_caller(caller_id("id", caller, &text)?, RequestId::KEEP),
        };
        let mut query = Query::new(id);
        for (name, value) in self.dimensions.0 {
            query.insert(name, value).map_err(|error| {
                Refusal::field(format!("dimensions.{}", error.dimension), error.problem.to_string())
            })?;
        }
        let StatedCost { cost, kinds, choices, .. } = self.cost.read()?;
        (query.cost, query.kinds, query.choices) = (cost, kinds, choices);
        query.hold = self.hold.map(|text| span("hold", &text)).transpose()?;
        if self.limits.len() > LIMITS_MAX {
            let right = format!("has more than {LIMITS_MAX} limits");
            return Err(Refusal::field("limits", right));
        }
        for inline in self.limits {
            check_length("limits.name", &inline.name, NAME_BYTES_MAX)?;
            check_length("limits.key", &inline.key, ID_BYTES_MAX)?;
            let limit = inline.limit.parse::<Limit>();
            let limit = limit.map_err(|error| Refusal::field("limits.limit", error.to_string()))?;
            let rule = InlineRule::new(inline.name, &inline.key, [limit]);
            query.inline.push(rule.map_err(|error| Refusal::field("limits", error.to_string()))?);
        }
        Ok(query)
    }
}

/// Converts a caller's text into an id that is unique to the caller.
pub(crate) fn caller_id(field: &str, caller: &str, text: &str) -> Result<Id, Refusal> {
    check_length(field, text, ID_BYTES_MAX)?;
    Ok(Id::scoped(caller, text))
}

/// Checks that a text is neither empty nor longer than `max` bytes.
fn check_length(field: &str, text: &str, max: usize) -> Result<(), Refusal> {
    match text.len() {
        0 => Err(Refusal::field(field, "is empty: leave it out or give it a value")),
        long if long > max => {
            let right = format!("has {long} bytes, more than the {max} that are allowed");
            Err(Refusal::field(field, right))
        }
        _ => Ok(()),
    }
}

fn span(field: &str, text: &str) -> Result<Span, Refusal> {
    let span: Span = text.parse().map_err(|error: sluicegate_core::time::SpanError| {
        Refusal::field(field, error.to_string())
    })?;
    if span == Span::ZERO || span > Span::from_secs(86_400) {
        return Err(Refusal::field(field, "must be from 1us to 1d, such as 30s"));
    }
    Ok(span)
}

impl SettleBody {
    pub(crate) fn read(self, caller: &str) -> Result<(Ticket, StatedCost), Refusal> {
        Ok((Ticket::read_of(caller, &self.handle)?, self.cost.read_actual()?))
    }
}

impl HandleBody {
    pub(crate) fn read(self, caller: &str) -> Result<Ticket, Refusal> {
        Ticket::read_of(caller, &self.handle)
    }
}

/// Refuses a query of `POST /rate-limit/allow` or gRPC `Allow` without a user and a model: these
/// calls require both, independent of the rules. `instead` is the call that requires only what the
/// rules need.
///
/// Nothing is required while limits are disabled.
pub(crate) fn require_user_and_model(
    query: &Query<'_>,
    rules: &Ruleset,
    instead: &str,
) -> Result<(), Refusal> {
    let missing = ["userId", "modelId"].into_iter().find(|name| query.get(name).is_none());
    match missing.filter(|_| !rules.is_empty()) {
        None => Ok(()),
        Some(name) => {
            let right = format!(
                "is required: set it, or call {instead}, which requires only what the rules need"
            );
            Err(Refusal::field(name, right))
        }
    }
}

/// Checks that the query of a claim has an id, which names the booking.
pub(crate) fn require_id(query: Query<'_>) -> Result<Query<'_>, Refusal> {
    if query.id.keep.is_none() {
        return Err(Refusal::field("request.id", "is required: it names the booking"));
    }
    Ok(query)
}

/// Sets the time before its start at which a caller claims its booking: about a round trip.
///
/// The slack of a booking that is made with a lead is longer than the lead, so that the answer to the
/// claim arrives before the booking has expired.
pub(crate) fn set_lead(query: &mut Query<'_>, lead: Option<String>) -> Result<(), Refusal> {
    let Some(text) = lead else { return Ok(()) };
    let lead = span("lead", &text)?;
    if lead > LEAD_MAX {
        return Err(Refusal::field("lead", format!("must be at most {LEAD_MAX}")));
    }
    let slack = (lead + WAKE_UP).max(Settings::SLACK_MIN);
    query.pacing = Some(Pacing { lead, slack, owner: None });
    Ok(())
}

/// A whole number up to the maximum exact value, in any JSON notation: `72046.0` is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeNumber(pub(crate) u64);

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = WholeNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {EXACT_MAX}")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<WholeNumber, E> {
                if number > EXACT_MAX {
                    return Err(E::custom(format!("must be at most {EXACT_MAX}")));
                }
                Ok(WholeNumber(number))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<WholeNumber, E> {
                if number.fract() != 0.0 || number.is_sign_negative() && number != 0.0 {
                    return Err(E::invalid_value(de::Unexpected::Float(number), &self));
                }
                // Too large a number becomes the maximum of the type, which is refused, too.
                self.visit_u64(number as u64)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// Names and values, in the order of the request.
#[derive(Clone, Debug)]
pub(crate) struct Dimensions(pub(crate) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Dimensions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with string fields, such as {\"userId\": \"u1\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dimensions, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                    if pairs.len() > sluicegate_core::query::DIMENSIONS_MAX {
                        return Err(de::Error::custom("has more than 32 dimensions"));
                    }
                }
                Ok(Dimensions(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

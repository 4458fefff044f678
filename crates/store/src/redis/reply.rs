//! [`Reply`]: the replies of the scripts, parsed into decisions.

use redis::Value;
use sluicegate_core::algorithm::{Meter, Reading};
use sluicegate_core::backlog::Backlog;
use sluicegate_core::decision::{Allow, Deny, Hit, Never, Readings};
use sluicegate_core::override_store::{OverridesVersion, StoredOverrides};
use sluicegate_core::reservation_store::UnsettledReservations;
use sluicegate_core::store::{Claim, EndResult, Error, GateClosure, Renewal, Usage};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Decision, Plan};
use smallvec::SmallVec;

use super::failure::CallFailure;
use super::script::ScriptKind;

/// The reply to one call.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// A reply of the fast script.
    Fast { now: Timestamp, result: FastResult, clean: bool, numbers: SmallVec<[u64; 8]> },
    /// A reply of the full script: a result word, followed by its values.
    Full(Vec<Value>),
}

/// The result of the fast script for one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FastResult {
    Admitted,
    /// An earlier attempt of the same call was admitted, and its reply was lost. The numbers begin
    /// with the time since its charge.
    AdmittedBefore,
    /// The numbers begin with the wait, the charge and the limit.
    Denied,
}

impl FastResult {
    /// Returns the number of values before the readings.
    const fn values(self) -> usize {
        match self {
            Self::Admitted => 0,
            Self::AdmittedBefore => 1,
            Self::Denied => 3,
        }
    }
}

impl Reply {
    /// Splits the reply of a batch into the replies of its calls. `rows` is the number of limits
    /// that each shows.
    pub(super) fn split(
        which: ScriptKind,
        value: Value,
        rows: Vec<usize>,
    ) -> impl Iterator<Item = Result<Self, CallFailure>> {
        let mut values = match value {
            Value::Array(values) => values.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let now = match which {
            ScriptKind::Fast => values.next().and_then(|now| number(&now)),
            ScriptKind::Full => None,
        };
        rows.into_iter().map(move |rows| match which {
            ScriptKind::Full => match values.next() {
                Some(Value::Array(reader)) => Ok(Self::Full(reader)),
                other => Err(unexpected_reply(&other)),
            },
            ScriptKind::Fast => {
                let now = Timestamp::from_micros(now.ok_or_else(|| unexpected_reply(&now))?);
                let (result, clean) = match values.next() {
                    Some(Value::Int(word @ (0 | 3))) => (FastResult::Admitted, word == 0),
                    Some(Value::Int(word @ (1 | 4))) => (FastResult::Denied, word == 1),
                    Some(Value::Int(5)) => (FastResult::AdmittedBefore, false),
                    Some(Value::Int(2)) => return Err(unexpected_reply(&values.next())),
                    other => return Err(unexpected_reply(&other)),
                };
                let length = result.values() + 2 * rows;
                let numbers: SmallVec<[u64; 8]> =
                    values.by_ref().take(length).map_while(|value| number(&value)).collect();
                match numbers.len() == length {
                    true => Ok(Self::Fast { now, result, clean, numbers }),
                    false => Err(unexpected_reply(&numbers)),
                }
            }
        })
    }

    /// Returns true if the reply includes the oldest entries of its logs.
    pub(super) const fn has_oldest_entries(&self) -> bool {
        matches!(self, Self::Fast { clean: true, .. })
    }

    /// Parses the reply to acquire, peek or book.
    pub(super) fn decision(self, plan: &Plan<'_>) -> Result<Decision, Error> {
        match self {
            Self::Fast { now, result, numbers, .. } => {
                let (values, limits) = numbers.split_at(result.values());
                let readings = readings(plan, now, limits.iter().copied());
                Ok(match (result, values) {
                    (FastResult::Denied, &[wait, charge, limit]) => Decision::Deny(Deny {
                        at: now,
                        start: now + Span::from_micros(wait),
                        hit: Hit { charge: charge as usize, limit: limit as usize },
                        readings,
                    }),
                    (_, ages) => Decision::Allow(Allow {
                        at: now,
                        start: now - Span::from_micros(ages.first().copied().unwrap_or(0)),
                        until: None,
                        replayed: false,
                        shadowed: SmallVec::new(),
                        readings,
                        charged_at: Vec::new(),
                    }),
                })
            }
            Self::Full(values) => {
                let mut reader = ReplyReader(values.into_iter());
                match reader.word()?.as_str() {
                    "allow" => reader.allow(plan).map(Decision::Allow),
                    "deny" => reader.deny(plan).map(Decision::Deny),
                    "never" => {
                        let Deny { at, hit, readings, .. } = reader.deny(plan)?;
                        Ok(Decision::Never(Never { at, hit, readings }))
                    }
                    word => Err(reader.error(word)),
                }
            }
        }
    }

    pub(super) fn claim(self, plan: &Plan<'_>) -> Result<Claim, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "go" => {
                let good_until = reader.time()?;
                Ok(Claim::Go { good_until, allow: reader.allow(plan)? })
            }
            "spent" => Ok(Claim::Spent),
            "early" => Ok(Claim::Early { at: reader.time()?, start: reader.time()? }),
            "rebooked" => Ok(Claim::Rebooked { at: reader.time()?, start: reader.time()? }),
            "deny" => reader.deny(plan).map(Claim::Deny),
            word => Err(reader.error(word)),
        }
    }

    pub(super) fn ended(self) -> Result<EndResult, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "ended" => {
                let replayed = reader.number()? == 1;
                Ok(EndResult { at: reader.time()?, replayed })
            }
            word => Err(reader.error(word)),
        }
    }

    /// Parses the reply to renew. Returns `None` if the slot holds nothing that expires.
    pub(super) fn renewed(self) -> Result<Option<Renewal>, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "renewed" => Ok(Some(Renewal { at: reader.time()?, until: reader.time()? })),
            "nothing_held" => Ok(None),
            word => Err(reader.error(word)),
        }
    }

    pub(super) fn usage(self, plan: &Plan<'_>) -> Result<Usage, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "usage" => {
                let at = reader.time()?;
                Ok(Usage { at, readings: reader.readings(plan, at) })
            }
            word => Err(reader.error(word)),
        }
    }

    pub(super) fn reset(self) -> Result<Timestamp, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "reset" => reader.time(),
            word => Err(reader.error(word)),
        }
    }

    pub(super) fn closed_gates(self) -> Result<GateClosure, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "shut" => Ok(GateClosure { at: reader.time()?, until: reader.time()? }),
            word => Err(reader.error(word)),
        }
    }

    /// Parses the shared overrides. Returns `None` if they have not changed.
    pub(super) fn overrides(self) -> Result<Option<StoredOverrides>, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "same" => Ok(None),
            "shelf" => {
                let (at, version) = (reader.time()?, OverridesVersion(reader.number()?));
                Ok(Some(StoredOverrides { at, version, texts: reader.texts()? }))
            }
            word => Err(reader.error(word)),
        }
    }

    /// Parses the reservations that are not settled.
    pub(super) fn reservations(self) -> Result<UnsettledReservations, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "reservations" => Ok(UnsettledReservations {
                at: reader.time()?,
                count: reader.number()?,
                open: reader.number()?,
                texts: reader.texts()?,
            }),
            word => Err(reader.error(word)),
        }
    }

    /// Parses the backlogs of other queues. Those of later versions are left out.
    pub(super) fn backlogs(self) -> Result<Vec<Backlog>, Error> {
        let mut reader = self.full()?;
        match reader.word()?.as_str() {
            "backlogs" => {
                let Some(Value::Array(texts)) = reader.0.next() else {
                    return Err(malformed_reply());
                };
                let backlog = |value| match value {
                    Value::BulkString(bytes) => Backlog::parse(std::str::from_utf8(&bytes).ok()?),
                    _ => None,
                };
                Ok(texts.into_iter().filter_map(backlog).collect())
            }
            word => Err(reader.error(word)),
        }
    }

    /// Returns true if an attempt was rolled back.
    pub(super) fn is_rolled_back(&self) -> bool {
        let word = match self {
            Self::Full(values) => values.first(),
            Self::Fast { .. } => None,
        };
        matches!(word, Some(Value::BulkString(word)) if word == b"taken_back")
    }

    /// Parses the number of nodes that have announced themselves.
    pub(super) fn nodes(self) -> Option<u32> {
        let mut reader = self.full().ok()?;
        let nodes = reader.word().ok().filter(|word| word == "nodes").and(reader.number().ok())?;
        u32::try_from(nodes).ok()
    }

    fn full(self) -> Result<ReplyReader, Error> {
        match self {
            Self::Full(values) => Ok(ReplyReader(values.into_iter())),
            Self::Fast { .. } => Err(malformed_reply()),
        }
    }
}

/// Reads the values of a full script's reply in order.
struct ReplyReader(std::vec::IntoIter<Value>);

impl ReplyReader {
    fn word(&mut self) -> Result<String, Error> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            _ => Err(malformed_reply()),
        }
    }

    fn number(&mut self) -> Result<u64, Error> {
        self.0.next().and_then(|value| number(&value)).ok_or_else(malformed_reply)
    }

    fn time(&mut self) -> Result<Timestamp, Error> {
        self.number().map(Timestamp::from_micros)
    }

    fn texts(&mut self) -> Result<Vec<String>, Error> {
        let Some(Value::Array(texts)) = self.0.next() else { return Err(malformed_reply()) };
        let text = |value| match value {
            Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| malformed_reply()),
            _ => Err(malformed_reply()),
        };
        texts.into_iter().map(text).collect()
    }

    fn allow(&mut self, plan: &Plan<'_>) -> Result<Allow, Error> {
        let (at, start) = (self.time()?, self.time()?);
        let until = self.0.next().and_then(|value| number(&value)).map(Timestamp::from_micros);
        let replayed = self.number()? == 1;
        let Some(Value::Array(shadowed)) = self.0.next() else { return Err(malformed_reply()) };
        let shadowed = shadowed.iter().filter_map(number).filter_map(|n| u16::try_from(n).ok());
        let shadowed = shadowed.collect();
        let (readings, charged_at) = (self.readings(plan, at), Vec::new());
        Ok(Allow { at, start, until, replayed, shadowed, readings, charged_at })
    }

    fn deny(&mut self, plan: &Plan<'_>) -> Result<Deny, Error> {
        let (at, start) = (self.time()?, self.time()?);
        let hit = Hit { charge: self.number()? as usize, limit: self.number()? as usize };
        Ok(Deny { at, start, hit, readings: self.readings(plan, at) })
    }

    fn readings(&mut self, plan: &Plan<'_>, now: Timestamp) -> Readings {
        readings(plan, now, self.0.by_ref().map_while(|value| number(&value)))
    }

    /// Returns the error that a result word stands for.
    fn error(&mut self, word: &str) -> Error {
        match word {
            "full" => Error::Full,
            "gone" => Error::Gone,
            "conflict" => Error::Conflict,
            "differs" => Error::Differs,
            "unknown" => Error::Unknown,
            "lost" => Error::Lost,
            "not_claimed" => Error::NotClaimed,
            "too_many" => Error::TooMany,
            "skew" => Error::ClockSkew,
            "refused" => Error::Unavailable("the attempt was rolled back".into()),
            "error" => Error::Unavailable(self.word().unwrap_or_default().into()),
            _ => malformed_reply(),
        }
    }
}

/// Parses the readings of all limits from pairs of numbers: the used amount and the time until the
/// oldest of it leaves. For a bucket the pair is the time until it is empty, in microseconds and
/// remaining nanoseconds.
fn readings(plan: &Plan<'_>, now: Timestamp, numbers: impl IntoIterator<Item = u64>) -> Readings {
    let mut numbers = numbers.into_iter();
    let mut readings = Readings::new();
    for charge in plan.charges() {
        for _ in 0..charge.meter.len() {
            let (Some(first), Some(second)) = (numbers.next(), numbers.next()) else { break };
            readings.push(match &charge.meter {
                Meter::Bucket(quota) => {
                    let level_ns = u128::from(first) * 1_000 + u128::from(second);
                    let grains = level_ns.div_ceil(u128::from(quota.drain_ns()));
                    let grains = u64::try_from(grains).unwrap_or(u64::MAX);
                    let left = first.saturating_add(u64::from(second > 0));
                    let used = grains.saturating_mul(quota.grain());
                    Reading::new(used, now + Span::from_micros(left))
                }
                _ => Reading::new(first, now + Span::from_micros(second)),
            });
        }
    }
    readings
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Returns the failure for a reply that the scripts never send, or for an error inside a script.
fn unexpected_reply(value: &impl std::fmt::Debug) -> CallFailure {
    CallFailure::Refused(format!("{value:?}"))
}

fn malformed_reply() -> Error {
    Error::Unavailable("unexpected reply from Redis".into())
}

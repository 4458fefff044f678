//! What the scripts answer, and what it means.

use redis::Value;
use sluicegate_core::algorithm::{Meter, Reading};
use sluicegate_core::decision::{Allow, Deny, Hit, Never, Readings};
use sluicegate_core::shelf::{Contents, Version};
use sluicegate_core::store::{Claim, Ended, Error, Renewed, Shut, Usage};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Decision, Plan};
use smallvec::SmallVec;

use super::failure::Failure;
use super::script::Which;

/// The answer to one call.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// Of the fast script.
    Fast { now: Timestamp, denied: bool, clean: bool, numbers: SmallVec<[u64; 8]> },
    /// Of the full script: a word, and what belongs to it.
    Full(Vec<Value>),
}

impl Reply {
    /// The answers to the calls of a batch, in their order; `rows` is how many limits each shows.
    pub(super) fn split(
        which: Which,
        value: Value,
        rows: Vec<usize>,
    ) -> impl Iterator<Item = Result<Self, Failure>> {
        let mut values = match value {
            Value::Array(values) => values.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let now = match which {
            Which::Fast => values.next().and_then(|now| number(&now)),
            Which::Full => None,
        };
        rows.into_iter().map(move |rows| match which {
            Which::Full => match values.next() {
                Some(Value::Array(answer)) => Ok(Self::Full(answer)),
                other => Err(odd(&other)),
            },
            Which::Fast => {
                let now = Timestamp::from_micros(now.ok_or_else(|| odd(&now))?);
                let (denied, clean, length) = match values.next() {
                    Some(Value::Int(word @ (0 | 3))) => (false, word == 0, 2 * rows),
                    Some(Value::Int(word @ (1 | 4))) => (true, word == 1, 3 + 2 * rows),
                    Some(Value::Int(2)) => return Err(odd(&values.next())),
                    other => return Err(odd(&other)),
                };
                let numbers: SmallVec<[u64; 8]> =
                    values.by_ref().take(length).map_while(|value| number(&value)).collect();
                match numbers.len() == length {
                    true => Ok(Self::Fast { now, denied, clean, numbers }),
                    false => Err(odd(&numbers)),
                }
            }
        })
    }

    /// Whether it tells the oldest entries of its logs.
    pub(super) const fn is_clean(&self) -> bool {
        matches!(self, Self::Fast { clean: true, .. })
    }

    /// The answer to acquire, peek and book.
    pub(super) fn decision(self, plan: &Plan<'_>) -> Result<Decision, Error> {
        match self {
            Self::Fast { now, denied: false, numbers, .. } => Ok(Decision::Allow(Allow {
                at: now,
                start: now,
                until: None,
                replayed: false,
                shadowed: SmallVec::new(),
                readings: readings(plan, now, numbers),
                charged_at: Vec::new(),
            })),
            Self::Fast { now, denied: true, numbers, .. } => Ok(Decision::Deny(Deny {
                at: now,
                start: now + Span::from_micros(numbers[0]),
                hit: Hit { charge: numbers[1] as usize, limit: numbers[2] as usize },
                readings: readings(plan, now, numbers.into_iter().skip(3)),
            })),
            Self::Full(values) => {
                let mut answer = Answer(values.into_iter());
                match answer.word()?.as_str() {
                    "allow" => answer.allow(plan).map(Decision::Allow),
                    "deny" => answer.deny(plan).map(Decision::Deny),
                    "never" => {
                        let Deny { at, hit, readings, .. } = answer.deny(plan)?;
                        Ok(Decision::Never(Never { at, hit, readings }))
                    }
                    word => Err(answer.error(word)),
                }
            }
        }
    }

    pub(super) fn claim(self, plan: &Plan<'_>) -> Result<Claim, Error> {
        let mut answer = self.full()?;
        match answer.word()?.as_str() {
            "go" => {
                let good_until = answer.time()?;
                Ok(Claim::Go { good_until, allow: answer.allow(plan)? })
            }
            "spent" => Ok(Claim::Spent),
            "early" => Ok(Claim::Early { at: answer.time()?, start: answer.time()? }),
            "rebooked" => Ok(Claim::Rebooked { at: answer.time()?, start: answer.time()? }),
            "deny" => answer.deny(plan).map(Claim::Deny),
            word => Err(answer.error(word)),
        }
    }

    pub(super) fn ended(self) -> Result<Ended, Error> {
        let mut answer = self.full()?;
        match answer.word()?.as_str() {
            "ended" => {
                let replayed = answer.number()? == 1;
                Ok(Ended { at: answer.time()?, replayed })
            }
            word => Err(answer.error(word)),
        }
    }

    /// The answer to renew; none if there is nothing here that ends.
    pub(super) fn renewed(self) -> Result<Option<Renewed>, Error> {
        let mut answer = self.full()?;
        match answer.word()?.as_str() {
            "renewed" => Ok(Some(Renewed { at: answer.time()?, until: answer.time()? })),
            "nothing_held" => Ok(None),
            word => Err(answer.error(word)),
        }
    }

    pub(super) fn usage(self, plan: &Plan<'_>) -> Result<Usage, Error> {
        let mut answer = self.full()?;
        match answer.word()?.as_str() {
            "usage" => {
                let at = answer.time()?;
                Ok(Usage { at, readings: answer.readings(plan, at) })
            }
            word => Err(answer.error(word)),
        }
    }

    pub(super) fn reset(self) -> Result<Timestamp, Error> {
        let mut answer = self.full()?;
        match answer.word()?.as_str() {
            "reset" => answer.time(),
            word => Err(answer.error(word)),
        }
    }

    pub(super) fn shut(self) -> Result<Shut, Error> {
        let mut answer = self.full()?;
        match answer.word()?.as_str() {
            "shut" => Ok(Shut { at: answer.time()?, until: answer.time()? }),
            word => Err(answer.error(word)),
        }
    }

    /// What is on the shelf, unless it is what was known.
    pub(super) fn contents(self) -> Result<Option<Contents>, Error> {
        let mut answer = self.full()?;
        match answer.word()?.as_str() {
            "same" => Ok(None),
            "shelf" => {
                let (at, version) = (answer.time()?, Version(answer.number()?));
                let Some(Value::Array(texts)) = answer.0.next() else { return Err(unreadable()) };
                let text = |value| match value {
                    Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| unreadable()),
                    _ => Err(unreadable()),
                };
                let texts = texts.into_iter().map(text).collect::<Result<_, _>>()?;
                Ok(Some(Contents { at, version, texts }))
            }
            word => Err(answer.error(word)),
        }
    }

    /// Whether an attempt was taken back.
    pub(super) fn is_taken_back(&self) -> bool {
        let word = match self {
            Self::Full(values) => values.first(),
            Self::Fast { .. } => None,
        };
        matches!(word, Some(Value::BulkString(word)) if word == b"taken_back")
    }

    /// How many nodes have announced themselves.
    pub(super) fn nodes(self) -> Option<u32> {
        let mut answer = self.full().ok()?;
        let nodes = answer.word().ok().filter(|word| word == "nodes").and(answer.number().ok())?;
        u32::try_from(nodes).ok()
    }

    fn full(self) -> Result<Answer, Error> {
        match self {
            Self::Full(values) => Ok(Answer(values.into_iter())),
            Self::Fast { .. } => Err(unreadable()),
        }
    }
}

/// An answer of the full script, read from front to back.
struct Answer(std::vec::IntoIter<Value>);

impl Answer {
    fn word(&mut self) -> Result<String, Error> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            _ => Err(unreadable()),
        }
    }

    fn number(&mut self) -> Result<u64, Error> {
        self.0.next().and_then(|value| number(&value)).ok_or_else(unreadable)
    }

    fn time(&mut self) -> Result<Timestamp, Error> {
        self.number().map(Timestamp::from_micros)
    }

    fn allow(&mut self, plan: &Plan<'_>) -> Result<Allow, Error> {
        let (at, start) = (self.time()?, self.time()?);
        let until = self.0.next().and_then(|value| number(&value)).map(Timestamp::from_micros);
        let replayed = self.number()? == 1;
        let Some(Value::Array(shadowed)) = self.0.next() else { return Err(unreadable()) };
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

    /// The error that a word stands for.
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
            "refused" => Error::Unavailable("the attempt was taken back".into()),
            "error" => Error::Unavailable(self.word().unwrap_or_default().into()),
            _ => unreadable(),
        }
    }
}

/// What each limit shows, from pairs of numbers: how much is used and in how long the oldest of it
/// leaves; of a bucket, in how many microseconds and nanoseconds it is empty.
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

/// The script itself failed, or answered what it never should.
fn odd(value: &impl std::fmt::Debug) -> Failure {
    Failure::Refused(format!("{value:?}"))
}

fn unreadable() -> Error {
    Error::Unavailable("Redis gave an answer that can't be read".into())
}

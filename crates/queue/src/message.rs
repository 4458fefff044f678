//! What travels: a body that nobody changes, and what we know about it.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sluicegate_core::{Span, Timestamp};

use crate::Error;

/// A message: the bytes of its producer, and metadata in headers or attributes beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What the producer sent, byte by byte.
    pub body: Bytes,
    /// What the body is, as the producer said it.
    pub content_type: Option<String>,
    /// What kind of work it is: `crawl_repo`. Metrics and filters go by it.
    pub kind: Option<String>,
    /// 0, the default, to 9, which goes first where the broker can do it.
    pub priority: u8,
    /// What else travels along, trace context for instance; ours is in `meta`.
    pub headers: BTreeMap<String, String>,
    /// What we know about it.
    pub meta: Metadata,
}

impl Message {
    /// The most urgent priority.
    pub const PRIORITY_MAX: u8 = 9;

    /// A new job with an id of our own.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self::of_job(JobId::random(), body)
    }

    /// A new job under the id that its producer chose.
    pub fn of_job(job: JobId, body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            content_type: None,
            kind: None,
            priority: 0,
            headers: BTreeMap::new(),
            meta: Metadata::new(job),
        }
    }

    /// The same, of this kind of work.
    pub fn of_kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// The same, more urgent than others; at most [`Message::PRIORITY_MAX`].
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority.min(Self::PRIORITY_MAX);
        self
    }

    /// The name of this copy of the job.
    pub fn id(&self) -> MessageId {
        MessageId { job: self.meta.job.clone(), hop: self.meta.hop }
    }
}

/// What we know about a message. It travels beside the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The piece of work, the same in every queue that it passes.
    pub job: JobId,
    /// How often it was passed on; with the job, the name of this copy.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hop: u32,
    /// How often it has failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// How often it had to wait for a limit, which is no failure.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deferrals: u32,
    /// When it was first sent, in microseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<Timestamp>,
    /// It is not delivered before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// The booking that the work will claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booking: Option<String>,
    /// How it ended, if it is a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died: Option<Died>,
}

impl Metadata {
    pub(crate) const fn new(job: JobId) -> Self {
        Self {
            job,
            hop: 0,
            attempt: 0,
            deferrals: 0,
            sent_at: None,
            not_before: None,
            booking: None,
            died: None,
        }
    }
}

const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Died {
    /// The queue in which it was.
    pub queue: String,
    /// What went wrong, in words.
    pub message: String,
    /// Where, if the handler told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// When.
    pub at: Timestamp,
    /// Where our `error` begins in the body and how long it is: taking it out gives the body of
    /// the producer back. None if the body is no JSON object and was left as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splice: Option<(usize, usize)>,
}

/// The name of a piece of work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl JobId {
    const LENGTH_MAX: usize = 256;

    /// An id that nobody else has.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for JobId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let printable = !text.is_empty() && !text.chars().any(char::is_control);
        if printable && text.len() <= Self::LENGTH_MAX {
            return Ok(Self(text));
        }
        let max = Self::LENGTH_MAX;
        Err(Error::Invalid(format!("a job id has 1 to {max} bytes and no control characters")))
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of one copy of a job: two messages of the same name are the same one, delivered twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The piece of work.
    pub job: JobId,
    /// How often it was passed on.
    pub hop: u32,
}

/// `<job>/<hop>`.
impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.hop)
    }
}

/// When a message is to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as somebody takes it.
    Now,
    /// After a delay that the configuration names. RabbitMQ keeps a queue for each, so these are
    /// few; an instant that is computed is [`When::At`].
    After(Span),
    /// Not before this instant.
    At(Timestamp),
}

impl When {
    /// The instant, by a clock that shows `now`; none if there is nothing to wait for.
    pub(crate) fn instant(self, now: Timestamp) -> Option<Timestamp> {
        let at = match self {
            Self::Now => return None,
            Self::After(span) => now + span,
            Self::At(at) => at,
        };
        (at > now).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_id_can_be_printed() {
        for text in ["", "a\nb", &"x".repeat(257)] {
            assert!(JobId::try_from(text.to_owned()).is_err(), "{text:?}");
        }
        assert!(JobId::try_from("größe/7 {}".to_owned()).is_ok());
        assert_ne!(JobId::random(), JobId::random());
    }

    #[test]
    fn what_has_passed_needs_no_waiting() {
        let now = Timestamp::from_secs(10);
        assert_eq!(When::At(now).instant(now), None);
        assert_eq!(When::After(Span::ZERO).instant(now), None);
        assert_eq!(When::After(Span::from_secs(1)).instant(now), Some(Timestamp::from_secs(11)));
    }
}

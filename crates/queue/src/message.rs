//! [`Message`]: the unchanged body of a producer and our metadata about it.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sluicegate_core::{Span, Timestamp};

use crate::Error;

/// A message: the body of its producer, and metadata in headers or attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Body, as the producer sent it.
    pub body: Bytes,
    /// Content type of the body, as the producer stated it.
    pub content_type: Option<String>,
    /// Type of the job, such as `crawl_repo`. Metrics and filters use it.
    pub kind: Option<String>,
    /// Priority from 0, the default, to 9; higher ones go first if the broker supports it.
    pub priority: u8,
    /// Headers of the producer, such as a trace context; ours are in `meta`.
    pub headers: BTreeMap<String, String>,
    /// Our metadata.
    pub meta: Metadata,
}

impl Message {
    /// The highest priority.
    pub const PRIORITY_MAX: u8 = 9;

    /// Creates a job with a random id.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self::of_job(JobId::random(), body)
    }

    /// Creates a job with the id that its producer chose.
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

    /// Sets the type of the job.
    pub fn of_kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Sets the priority; at most [`Message::PRIORITY_MAX`].
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority.min(Self::PRIORITY_MAX);
        self
    }

    /// Leaves out metadata and headers when the message is sent. What was accepted with them, or from
    /// another program, is accepted without them.
    pub(crate) fn omit_metadata(&mut self) {
        self.headers.clear();
        self.content_type = None;
        self.meta.is_omitted = true;
    }

    /// Returns the id of this copy of the job.
    pub fn id(&self) -> MessageId {
        MessageId { job: self.meta.job.clone(), hop: self.meta.hop }
    }
}

/// Our metadata about a message. It is stored next to the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Id of the job, the same in every queue that it passes.
    pub job: JobId,
    /// Number of times it was passed on; together with the job id it identifies this copy.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hop: u32,
    /// Number of failed attempts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Maximum number of attempts, if it differs from that of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Number of times it waited for a limit, which is not a failure.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deferrals: u32,
    /// Number of deliveries since the last retry that nobody settled or returned, because the
    /// consumer was killed, for example.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redeliveries: u32,
    /// Number of times it was published again without a step, because it was redelivered or returned.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copy: u32,
    /// Time at which it was first sent, in microseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<Timestamp>,
    /// Earliest time of delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Booking that the worker will claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booking: Option<String>,
    /// Record of the failure, if it is a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died: Option<FailureRecord>,
    /// True if the message is sent without metadata and headers, because its body has about the maximum
    /// size of the broker.
    #[serde(skip)]
    pub(crate) is_omitted: bool,
}

impl Metadata {
    pub(crate) const fn new(job: JobId) -> Self {
        Self {
            job,
            hop: 0,
            attempt: 0,
            max_attempts: None,
            deferrals: 0,
            redeliveries: 0,
            copy: 0,
            sent_at: None,
            not_before: None,
            booking: None,
            died: None,
            is_omitted: false,
        }
    }

    /// Counts a step, such as forwarding or deferral: the message gets a new id.
    pub(crate) const fn count_hop(&mut self) {
        self.hop += 1;
        self.copy = 0;
    }
}

const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The record of a failure in a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// Queue that the message came from.
    pub queue: String,
    /// Error message.
    pub message: String,
    /// Stack trace. `None` if there is none, if the body has it, or if there is no room for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// Time of the failure.
    pub at: Timestamp,
    /// Position and length of our `error` in the body; removing it restores the body of the
    /// producer. `None` if the body is not a JSON object and is unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splice: Option<(usize, usize)>,
}

/// The id of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl JobId {
    const LENGTH_MAX: usize = 256;

    /// Creates a random id.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// Returns the id as text.
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
        Err(Error::Invalid(format!(
            "invalid job id: write 1 to {max} bytes without control characters"
        )))
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

/// The id of one copy of a job: two messages with the same id are one message that was delivered
/// twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// Id of the job.
    pub job: JobId,
    /// Number of times it was passed on.
    pub hop: u32,
}

/// Prints `<job>/<hop>`.
impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.hop)
    }
}

/// The earliest time of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryTime {
    /// As soon as a consumer is ready.
    Now,
    /// After one of a few delays that the configuration names: RabbitMQ keeps a queue for each of
    /// them. Computed times are [`DeliveryTime::At`].
    After(Span),
    /// Not before this instant.
    At(Timestamp),
}

impl DeliveryTime {
    /// Returns the instant, or `None` if it is not after `now`.
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
    fn an_instant_in_the_past_is_no_delay() {
        let now = Timestamp::from_secs(10);
        assert_eq!(DeliveryTime::At(now).instant(now), None);
        assert_eq!(DeliveryTime::After(Span::ZERO).instant(now), None);
        assert_eq!(
            DeliveryTime::After(Span::from_secs(1)).instant(now),
            Some(Timestamp::from_secs(11))
        );
    }
}

//! Decodes the requests of `/v1/queues`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::remote::{ReceiveRequest, RemoteQueues};
use sluicegate_queue::{
    DeadLetterReason, DeliveryTime, JobId, Message, Queue, without_byte_order_mark,
};

use crate::request::WholeNumber;
use crate::rest::Problem;

/// Maximum length of the name of a queue, in bytes: the longest URL of an SQS queue is shorter.
const NAME_BYTES_MAX: usize = 256;
/// Maximum number of messages in one call.
const BATCH_MAX: usize = 500;
/// Maximum number of messages that one call receives.
const RECEIVE_MAX: usize = 100;
/// Maximum of the attempts of a message, as in `sluicegate queue send`.
const ATTEMPTS_MAX: u32 = 1_000;
/// Maximum number of headers of a message.
const HEADERS_MAX: usize = 50;
/// Maximum time that a receive waits.
const WAIT_MAX: Span = Span::from_secs(20);
/// Maximum delay of a message: SQS and RabbitMQ keep messages for two weeks or more.
const DELAY_MAX: Span = Span::from_secs(14 * 86_400);
/// Minimum and maximum of a lease.
const LEASE_MIN: Span = Span::from_secs(1);
const LEASE_MAX: Span = Span::from_secs(43_200);
/// Name of the header with our metadata.
const RESERVED: &str = "sluicegate";

/// Checks the name of a queue.
pub(super) fn check_name(name: &str) -> Result<(), Problem> {
    let is_printable = !name.is_empty() && !name.chars().any(char::is_control);
    if is_printable && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let right = format!("write 1 to {NAME_BYTES_MAX} bytes without control characters");
    Err(Problem::field("queue", right))
}

/// A message to send.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SendBody {
    /// Body as JSON; it is sent byte by byte as it is written here.
    #[serde(default, deserialize_with = "json")]
    body: Option<Box<RawValue>>,
    /// Body as text.
    text: Option<String>,
    /// Body as bytes in Base64.
    base64: Option<String>,
    /// Job id.
    job: Option<String>,
    /// Type of the job.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Priority from 0 to 9.
    priority: Option<WholeNumber>,
    /// Maximum number of attempts, instead of that of the worker.
    max_attempts: Option<WholeNumber>,
    content_type: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Delay of the delivery, such as `30s`.
    delay: Option<String>,
    /// Earliest time of the delivery.
    not_before: Option<String>,
}

/// Reads a body; `null` is one, too.
fn json<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// A checked message, not yet one of a queue.
pub(super) struct OutgoingPart {
    body: Bytes,
    job: Option<JobId>,
    kind: Option<String>,
    priority: u8,
    max_attempts: Option<u32>,
    content_type: Option<String>,
    headers: BTreeMap<String, String>,
    when: DeliveryTime,
}

impl SendBody {
    /// Checks the fields.
    pub(super) fn read(self, queues: &RemoteQueues) -> Result<OutgoingPart, Problem> {
        let when = when(queues, self.delay.as_deref(), self.not_before.as_deref())?;
        let body = match (self.body, self.text, self.base64) {
            (Some(json), None, None) => Bytes::copy_from_slice(json.get().as_bytes()),
            (None, Some(text), None) => text.into(),
            (None, None, Some(base64)) => {
                let bytes = STANDARD.decode(base64);
                bytes.map_err(|_| Problem::field("base64", "is not valid Base64"))?.into()
            }
            _ => {
                let right = "write exactly one of body (JSON), text and base64";
                return Err(Problem::field("body", right));
            }
        };
        let job = self.job.map(JobId::try_from).transpose();
        let job = job.map_err(|error| Problem::field("job", error.to_string()))?;
        let priority = self.priority.map_or(0, |it| u8::try_from(it.0).unwrap_or(u8::MAX));
        if priority > Message::PRIORITY_MAX {
            return Err(Problem::field("priority", "must be from 0 to 9"));
        }
        let max_attempts = self.max_attempts.map(|it| u32::try_from(it.0).unwrap_or(u32::MAX));
        if max_attempts.is_some_and(|max| !(1..=ATTEMPTS_MAX).contains(&max)) {
            let right = format!("must be from 1 to {ATTEMPTS_MAX}");
            return Err(Problem::field("maxAttempts", right));
        }
        for (field, text) in [("type", &self.kind), ("contentType", &self.content_type)] {
            if let Some(text) = text {
                check_text(field, text)?;
            }
        }
        if self.headers.len() > HEADERS_MAX {
            let right = format!("has more than {HEADERS_MAX} headers");
            return Err(Problem::field("headers", right));
        }
        for (name, value) in &self.headers {
            check_text(&format!("headers.{name}"), name)?;
            if name.starts_with(RESERVED) || value.chars().any(char::is_control) {
                let right = format!(
                    "is not allowed: names that start with {RESERVED} are ours, and a value has no control characters"
                );
                return Err(Problem::field(format!("headers.{name}"), right));
            }
        }
        let (kind, content_type, headers) = (self.kind, self.content_type, self.headers);
        Ok(OutgoingPart { body, job, kind, priority, max_attempts, content_type, headers, when })
    }
}

/// Checks a text that becomes a property of a message.
fn check_text(field: &str, text: &str) -> Result<(), Problem> {
    if (1..=256).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Problem::field(field, "write 1 to 256 bytes without control characters"))
}

impl OutgoingPart {
    /// Creates the message for a queue, whose configuration may name the field of the job id.
    pub(super) fn message(self, queue: &Queue) -> (Message, DeliveryTime) {
        let job = self.job.or_else(|| queue.job_in(&self.body)).unwrap_or_else(JobId::random);
        let mut message = Message::of_job(job, self.body).with_priority(self.priority);
        message.kind = self.kind.or_else(|| queue.type_in(&message.body));
        message.headers = self.headers;
        message.meta.max_attempts = self.max_attempts;
        message.content_type = self.content_type.or_else(|| {
            let json = without_byte_order_mark(&message.body);
            let is_json = serde_json::from_slice::<IgnoredAny>(json).is_ok();
            is_json.then(|| "application/json".to_owned())
        });
        (message, self.when)
    }
}

/// Messages to send.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SendBatchBody {
    messages: Vec<SendBody>,
}

impl SendBatchBody {
    /// Checks the messages: all are valid, or none is sent.
    pub(super) fn read(self, queues: &RemoteQueues) -> Result<Vec<OutgoingPart>, Problem> {
        check_count("messages", self.messages.len(), BATCH_MAX)?;
        let parts = self.messages.into_iter().enumerate().map(|(number, message)| {
            message.read(queues).map_err(|problem| problem.inside(&format!("messages[{number}]")))
        });
        parts.collect()
    }
}

fn check_count(field: &str, count: usize, max: usize) -> Result<(), Problem> {
    if (1..=max).contains(&count) {
        return Ok(());
    }
    Err(Problem::field(field, format!("has {count} entries: send 1 to {max}")))
}

/// A receive.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ReceiveBody {
    max: Option<WholeNumber>,
    wait: Option<String>,
    lease: Option<String>,
    #[serde(default)]
    format: BodyFormat,
}

/// The form of bodies in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BodyFormat {
    /// As JSON where a body is JSON, otherwise as Base64.
    #[default]
    Json,
    /// Always as Base64, for clients that need every byte.
    Base64,
}

impl ReceiveBody {
    pub(super) fn read(self) -> Result<(ReceiveRequest, BodyFormat), Problem> {
        let max = self.max.map_or(1, |max| usize::try_from(max.0).unwrap_or(usize::MAX));
        if !(1..=RECEIVE_MAX).contains(&max) {
            return Err(Problem::field("max", format!("must be from 1 to {RECEIVE_MAX}")));
        }
        let wait = self.wait.as_deref().map(|text| span("wait", text, Span::ZERO, WAIT_MAX));
        let wait = wait.transpose()?.unwrap_or_default();
        let lease = lease(self.lease.as_deref())?;
        Ok((ReceiveRequest { max, wait, lease }, self.format))
    }
}

/// The handle of a lease.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandleBody {
    pub(super) handle: String,
}

/// Leases to acknowledge.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AckBody {
    handle: Option<String>,
    handles: Option<Vec<String>>,
}

/// One handle, or several.
pub(super) enum Handles {
    One(String),
    Several(Vec<String>),
}

impl AckBody {
    pub(super) fn read(self) -> Result<Handles, Problem> {
        match (self.handle, self.handles) {
            (Some(handle), None) => Ok(Handles::One(handle)),
            (None, Some(handles)) => {
                check_count("handles", handles.len(), BATCH_MAX)?;
                Ok(Handles::Several(handles))
            }
            _ => Err(Problem::field("handle", "write either handle or handles")),
        }
    }
}

/// A lease to settle with a later delivery.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DelayBody {
    pub(super) handle: String,
    delay: Option<String>,
    not_before: Option<String>,
}

impl DelayBody {
    /// Returns the time of the delivery.
    pub(super) fn when(&self, queues: Option<&RemoteQueues>) -> Result<DeliveryTime, Problem> {
        let Some(queues) = queues else { return Ok(DeliveryTime::Now) };
        when(queues, self.delay.as_deref(), self.not_before.as_deref())
    }
}

/// A lease to extend.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    pub(super) handle: String,
    lease: Option<String>,
}

impl ExtendBody {
    pub(super) fn lease(&self) -> Result<Option<Span>, Problem> {
        lease(self.lease.as_deref())
    }
}

/// A lease to dead-letter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadLetterBody {
    pub(super) handle: String,
    pub(super) error: ErrorBody,
}

/// The reason of a dead letter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ErrorBody {
    message: String,
    stack: Option<String>,
}

impl ErrorBody {
    pub(super) fn read(self) -> Result<DeadLetterReason, Problem> {
        if self.message.trim().is_empty() {
            return Err(Problem::field("error.message", "is empty: say why the message failed"));
        }
        Ok(DeadLetterReason { stack: self.stack, ..DeadLetterReason::new(self.message) })
    }
}

fn when(
    queues: &RemoteQueues,
    delay: Option<&str>,
    not_before: Option<&str>,
) -> Result<DeliveryTime, Problem> {
    match (delay, not_before) {
        (None, None) => Ok(DeliveryTime::Now),
        (Some(delay), None) => Ok(queues.after(span("delay", delay, Span::ZERO, DELAY_MAX)?)),
        (None, Some(text)) => {
            let at: Timestamp = text.parse().map_err(|_| {
                Problem::field("notBefore", "write a time such as 2027-01-15T08:00:00Z")
            })?;
            if queues.until(at) > DELAY_MAX {
                return Err(Problem::field("notBefore", format!("is more than {DELAY_MAX} ahead")));
            }
            Ok(DeliveryTime::At(at))
        }
        (Some(_), Some(_)) => Err(Problem::field("delay", "write either delay or notBefore")),
    }
}

fn lease(text: Option<&str>) -> Result<Option<Span>, Problem> {
    text.map(|text| span("lease", text, LEASE_MIN, LEASE_MAX)).transpose()
}

fn span(field: &str, text: &str, min: Span, max: Span) -> Result<Span, Problem> {
    let span: Span = text.parse().map_err(|error: sluicegate_core::time::SpanError| {
        Problem::field(field, error.to_string())
    })?;
    if span < min || span > max {
        let right = format!("must be from {min} to {max}, such as 10s");
        return Err(Problem::field(field, right));
    }
    Ok(span)
}

//! [`ManagementRequest`]: a request to the management node of a queue, which settles, renews, peeks
//! and cancels messages, and whose response says if that succeeded.

use fe2o3_amqp::types::messaging::message::DecodeIntoMessage as _;
use fe2o3_amqp::types::messaging::{ApplicationProperties, Body, Message};
use fe2o3_amqp::types::primitives::{Array, OrderedMap, Uuid, Value};
use fe2o3_amqp_management::error::Error as RequestError;
use fe2o3_amqp_management::{Request, Response};
use serde_amqp::read::SliceReader;
use sluicegate_core::Timestamp;

/// A map of names to values, as requests and responses contain it.
pub(super) type Fields = OrderedMap<String, Value>;

/// Time that Service Bus may take for a request, in milliseconds.
const SERVER_TIMEOUT_MS: u32 = 15_000;

/// A request: an operation and its parameters.
#[derive(Clone)]
pub(super) struct ManagementRequest {
    operation: &'static str,
    fields: Fields,
}

/// The end of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    /// The message is deleted.
    Completed,
    /// The message can be delivered again.
    Abandoned,
    /// The message is moved to the dead-letter subqueue.
    Suspended {
        /// Short reason.
        reason: String,
        /// Error message.
        description: String,
        /// Our metadata, which replaces that of the message.
        envelope: String,
    },
}

impl ManagementRequest {
    fn new<const N: usize>(operation: &'static str, fields: [(&str, Value); N]) -> Self {
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { operation, fields }
    }

    /// Renews locks.
    pub(super) fn renew(locks: &[uuid::Uuid]) -> Self {
        Self::new("com.microsoft:renew-lock", [("lock-tokens", tokens(locks))])
    }

    /// Settles deliveries.
    pub(super) fn settle(locks: &[uuid::Uuid], disposition: &Disposition) -> Self {
        let text = |text: &str| Value::String(text.to_owned());
        let status = match disposition {
            Disposition::Completed => "completed",
            Disposition::Abandoned => "abandoned",
            Disposition::Suspended { .. } => "suspended",
        };
        let mut request = Self::new(
            "com.microsoft:update-disposition",
            [("lock-tokens", tokens(locks)), ("disposition-status", text(status))],
        );
        if let Disposition::Suspended { reason, description, envelope } = disposition {
            let mut put = |name: &str, value| request.fields.insert(name.to_owned(), value);
            put("deadletter-reason", text(reason));
            put("deadletter-description", text(description));
            let name = crate::envelope::HEADER;
            let changed = OrderedMap::from_iter([(text(name), text(envelope))]);
            put("properties-to-modify", Value::Map(changed));
        }
        request
    }

    /// Reads messages from a sequence number on.
    pub(super) fn peek(from: i64, max: i32) -> Self {
        let fields =
            [("from-sequence-number", Value::Long(from)), ("message-count", Value::Int(max))];
        Self::new("com.microsoft:peek-message", fields)
    }

    /// Deletes scheduled messages.
    pub(super) fn cancel(numbers: &[i64]) -> Self {
        let numbers = numbers.iter().copied().map(Value::Long).collect::<Vec<_>>();
        let numbers = Value::Array(Array::from(numbers));
        Self::new("com.microsoft:cancel-scheduled-message", [("sequence-numbers", numbers)])
    }
}

/// Returns lock tokens as an array.
fn tokens(locks: &[uuid::Uuid]) -> Value {
    let uuids = locks.iter().map(|lock| Value::Uuid(Uuid::from(*lock.as_bytes())));
    Value::Array(Array::from(uuids.collect::<Vec<_>>()))
}

impl Request for ManagementRequest {
    // The operation is set below: it differs by request.
    const OPERATION: &'static str = "";
    type Response = ManagementResponse;
    type Body = Fields;

    fn encode_application_properties(&mut self) -> Option<ApplicationProperties> {
        let properties = ApplicationProperties::builder()
            .insert("operation", self.operation)
            .insert("com.microsoft:server-timeout", SERVER_TIMEOUT_MS);
        Some(properties.build())
    }

    fn encode_body(self) -> Fields {
        self.fields
    }
}

/// A response.
#[derive(Debug)]
pub(super) struct ManagementResponse {
    pub(super) status: u16,
    pub(super) text: String,
    fields: Fields,
}

impl Response for ManagementResponse {
    const STATUS_CODE: u16 = 200;
    type Body = Option<Fields>;
    type Error = RequestError;

    fn decode_message(message: Message<Self::Body>) -> Result<Self, RequestError> {
        let fields = message.body.unwrap_or_default();
        Ok(Self { status: Self::STATUS_CODE, text: String::new(), fields })
    }

    fn from_message(mut message: Message<Self::Body>) -> Result<Self, RequestError> {
        match Self::verify_status_code(&mut message) {
            Ok(_) => Self::decode_message(message),
            Err(RequestError::Status(error)) => Ok(Self {
                status: error.code.0.get(),
                text: error.description.unwrap_or_default(),
                fields: Fields::default(),
            }),
            Err(error) => Err(error),
        }
    }
}

impl ManagementResponse {
    /// Returns the ends of renewed locks.
    pub(super) fn expirations(&self) -> Vec<Timestamp> {
        let Some(Value::Array(ends)) = self.fields.get("expirations") else { return Vec::new() };
        let ends = ends.iter().filter_map(|end| match end {
            Value::Timestamp(end) => Some(millis(end.clone().into_inner())),
            _ => None,
        });
        ends.collect()
    }

    /// Returns the messages that were peeked at.
    pub(super) fn messages(&self) -> Vec<Message<Body<Value>>> {
        let Some(Value::List(entries)) = self.fields.get("messages") else { return Vec::new() };
        let encoded = entries.iter().filter_map(|entry| match entry {
            Value::Map(entry) => entry.get(&Value::String("message".to_owned())),
            _ => None,
        });
        let decoded = encoded.filter_map(|encoded| match encoded {
            Value::Binary(bytes) => {
                Body::<Value>::decode_message_from_reader(SliceReader::new(bytes)).ok()
            }
            _ => None,
        });
        decoded.collect()
    }
}

/// Converts a time of Service Bus.
pub(super) fn millis(since_epoch: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(since_epoch).unwrap_or(0))
}

//! Converts messages to and from AMQP 1.0: a body, properties, application properties and annotations.

use std::collections::BTreeMap;

use fe2o3_amqp::types::messaging::annotations::OwnedKey;
use fe2o3_amqp::types::messaging::{
    ApplicationProperties, Body, Data, Header, Message as Native, MessageAnnotations, MessageId,
    Properties,
};
use fe2o3_amqp::types::primitives::{
    Binary, SimpleValue, Symbol, Timestamp as AmqpTimestamp, Value,
};
use sha2::{Digest as _, Sha256};
use sluicegate_core::Timestamp;

use super::management::millis;
use crate::broker::{DeliveryDelay, OutgoingMessage, RawMessage};
use crate::{Message, envelope};

/// Annotations of Service Bus.
const SCHEDULED: &str = "x-opt-scheduled-enqueue-time";
const SEQUENCE_NUMBER: &str = "x-opt-sequence-number";
const LOCKED_UNTIL: &str = "x-opt-locked-until";
const STATE: &str = "x-opt-message-state";
/// State of a message whose delivery is scheduled.
const STATE_SCHEDULED: i32 = 2;
/// Application properties that Service Bus sets itself.
const BROKER_PROPERTIES: [&str; 2] = ["DeadLetterReason", "DeadLetterErrorDescription"];
/// Maximum length of a message id, in characters.
const ID_MAX: usize = 128;
/// Bytes of a message besides its body, headers and metadata, generously.
const OVERHEAD: usize = 1_024;

/// The properties with which a message was received.
#[derive(Clone, Default)]
pub(super) struct ReceivedWith {
    properties: Properties,
    /// Application properties that are not text.
    others: BTreeMap<String, SimpleValue>,
}

/// A message as Service Bus delivered it.
pub(super) struct NativeMessage {
    pub(super) incoming: RawMessage,
    pub(super) received_with: ReceivedWith,
    /// Number of the message in its queue.
    pub(super) number: u64,
    /// End of the lock.
    pub(super) locked_until: Timestamp,
    /// True if its delivery is scheduled.
    pub(super) is_scheduled: bool,
}

/// Returns the size of a message, not less than it will be.
pub(super) fn size(message: &Message) -> usize {
    if message.meta.is_omitted {
        // Service Bus has accepted the body alone, perhaps with other properties.
        return message.body.len();
    }
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    message.body.len() + headers + envelope::write(message).len() + OVERHEAD
}

/// Returns the message id: the job, the hop and the copy, or a hash of them if they are too long. It is
/// the same for the same message, so that a queue that detects duplicates recognises it, and another
/// one for each copy, which such a queue would drop otherwise.
fn message_id(message: &Message) -> String {
    let id = match message.meta.copy {
        0 => message.id().to_string(),
        // No other id ends like this: a hop is a number.
        copy => format!("{}#{copy}", message.id()),
    };
    if id.len() <= ID_MAX {
        return id;
    }
    Sha256::digest(id).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes a message. Properties that it was received with are passed on.
pub(super) fn write(next: &OutgoingMessage, received_with: Option<&ReceivedWith>) -> Native<Data> {
    let OutgoingMessage { message, delay } = next;
    let received_with = received_with.filter(|_| !message.meta.is_omitted);
    let mut properties = received_with.map(|with| with.properties.clone()).unwrap_or_default();
    // A new id for each hop: a queue that detects duplicates would drop a message with a known id.
    properties.message_id = Some(MessageId::String(message_id(message)));
    properties.content_type = message.content_type.as_deref().map(Symbol::from);
    properties.subject.clone_from(&message.kind);
    let mut application = ApplicationProperties::default();
    for (name, value) in received_with.into_iter().flat_map(|with| &with.others) {
        application.0.insert(name.clone(), value.clone());
    }
    let headers = message.headers.iter();
    for (name, value) in headers.filter(|(name, _)| !BROKER_PROPERTIES.contains(&name.as_str())) {
        application.0.insert(name.clone(), SimpleValue::String(value.clone()));
    }
    if !message.meta.is_omitted {
        let envelope = SimpleValue::String(envelope::write(message));
        application.0.insert(envelope::HEADER.to_owned(), envelope);
    }
    let mut annotations = MessageAnnotations::default();
    if let DeliveryDelay::Until { at, .. } = delay {
        // Rounded up: a message must not come before its time.
        let at = i64::try_from(at.as_micros().div_ceil(1_000)).unwrap_or(i64::MAX);
        let key = OwnedKey::Symbol(Symbol::from(SCHEDULED));
        annotations.0.insert(key, Value::Timestamp(AmqpTimestamp::from(at)));
    }
    Native::builder()
        .header(Header { durable: true, ..Header::default() })
        .message_annotations(annotations)
        .properties(properties)
        .application_properties(application)
        .data(Binary::from(message.body.to_vec()))
        .build()
}

/// Decodes a message.
pub(super) fn read(native: Native<Body<Value>>) -> NativeMessage {
    let annotations = native.message_annotations.unwrap_or_default();
    let annotation = |name: &str| annotations.0.get(&OwnedKey::Symbol(Symbol::from(name)));
    let number = match annotation(SEQUENCE_NUMBER) {
        Some(Value::Long(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    };
    let locked_until = match annotation(LOCKED_UNTIL) {
        Some(Value::Timestamp(until)) => millis(until.clone().into_inner()),
        _ => Timestamp::ZERO,
    };
    let is_scheduled = matches!(annotation(STATE), Some(Value::Int(STATE_SCHEDULED)));
    let properties = native.properties.unwrap_or_default();
    let mut incoming = RawMessage {
        body: bytes(native.body).into(),
        content_type: properties.content_type.as_ref().map(|kind| kind.as_str().to_owned()),
        kind: properties.subject.clone(),
        foreign_id: properties.message_id.as_ref().and_then(id),
        redeliveries: native.header.map_or(0, |header| header.delivery_count),
        ..RawMessage::default()
    };
    let mut others = BTreeMap::new();
    for (name, value) in native.application_properties.unwrap_or_default().0 {
        match value {
            SimpleValue::String(text) if name == envelope::HEADER => incoming.envelope = Some(text),
            SimpleValue::String(text) => drop(incoming.headers.insert(name, text)),
            other => drop(others.insert(name, other)),
        }
    }
    let received_with = ReceivedWith { properties, others };
    NativeMessage { incoming, received_with, number, locked_until, is_scheduled }
}

/// Returns the bytes of a body. Producers send bytes; a text or another value comes from programs that
/// use AMQP without an SDK.
fn bytes(body: Body<Value>) -> Vec<u8> {
    match body {
        Body::Data(parts) => parts.into_iter().flat_map(|Data(part)| part.into_vec()).collect(),
        Body::Value(value) => match value.0 {
            Value::String(text) => text.into_bytes(),
            Value::Binary(bytes) => bytes.into_vec(),
            other => serde_amqp::to_vec(&other).unwrap_or_default(),
        },
        Body::Sequence(_) | Body::Empty => Vec::new(),
    }
}

/// Returns a message id as text.
fn id(id: &MessageId) -> Option<String> {
    match id {
        MessageId::String(id) => Some(id.clone()),
        MessageId::Ulong(id) => Some(id.to_string()),
        MessageId::Uuid(id) => Some(uuid::Uuid::from_bytes(id.clone().into_inner()).to_string()),
        MessageId::Binary(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body_fields::BodyFields;

    fn there_and_back(message: &Message) -> Message {
        let next = OutgoingMessage { message: message.clone(), delay: DeliveryDelay::None };
        let written = write(&next, None).map_body(|data| Body::<Value>::Data(vec![data].into()));
        envelope::read(read(written).incoming, &BodyFields::default())
    }

    #[test]
    fn every_body_and_every_header_comes_back() {
        for body in [&b""[..], b"\xff", b"text"] {
            let mut message = Message::new(body.to_vec()).of_kind("k").with_priority(3);
            message.content_type = Some("application/json".to_owned());
            message.headers.insert("größe".to_owned(), String::new());
            assert_eq!(there_and_back(&message), message, "{body:?}");
        }
    }

    #[test]
    fn what_a_producer_wrote_is_passed_on_and_each_hop_has_its_own_id() {
        let mut others = BTreeMap::new();
        others.insert("tries".to_owned(), SimpleValue::Int(7));
        let properties = Properties {
            message_id: Some(MessageId::String("theirs".to_owned())),
            reply_to: Some("answers".to_owned()),
            ..Properties::default()
        };
        let received_with = ReceivedWith { properties, others };
        let mut message = Message::new("x");
        message.headers.insert("DeadLetterReason".to_owned(), "expired".to_owned());
        let id = MessageId::String(message.id().to_string());
        let next = OutgoingMessage { message, delay: DeliveryDelay::None };
        let written = write(&next, Some(&received_with));
        let properties = written.properties.expect("properties");
        assert_eq!(properties.reply_to.as_deref(), Some("answers"));
        assert_eq!(properties.message_id, Some(id));
        let application = written.application_properties.expect("application properties").0;
        assert_eq!(application.get("tries"), Some(&SimpleValue::Int(7)));
        assert_eq!(application.get("DeadLetterReason"), None);
    }

    #[test]
    fn a_long_job_id_is_not_a_message_id() {
        let job = crate::JobId::try_from("j".repeat(200)).expect("an id");
        let next =
            OutgoingMessage { message: Message::of_job(job, "x"), delay: DeliveryDelay::None };
        let Some(MessageId::String(id)) = write(&next, None).properties.and_then(|p| p.message_id)
        else {
            panic!("a text");
        };
        assert!(id.len() <= ID_MAX);
    }
}

//! Converts messages to and from AMQP: a body, properties, and a table of headers.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::{NAME, SIZE_MAX};
use crate::broker::RawMessage;
use crate::{Error, Message, envelope};

/// Delivery mode of messages that survive a restart.
const PERSISTENT: u8 = 2;
/// Headers that the broker sets itself. `x-death` in particular must not be copied: RabbitMQ drops
/// a message that seems to move in a cycle.
const BROKER_HEADERS: [&str; 4] =
    ["x-death", "x-first-death-", "x-last-death-", "x-delivery-count"];

/// The properties with which a message was received, and the size of its body.
#[derive(Clone)]
pub(super) struct ReceivedWith {
    pub(super) properties: BasicProperties,
    pub(super) size: usize,
}

/// Builds the properties of a message from those that it was received with.
///
/// A body that is no larger than the received one is accepted whatever its size: RabbitMQ accepted
/// it before, and otherwise the message could not even become a dead letter.
///
/// Properties of the producer are kept, with two exceptions: `expiration`, which would delete the
/// message from our queues, and `user-id`, which RabbitMQ accepts from that user only.
pub(super) fn write(
    message: &Message,
    received_with: Option<&ReceivedWith>,
) -> Result<BasicProperties, Error> {
    let text = envelope::write(message);
    let size = message.body.len() + text.len();
    let was_accepted = received_with.is_some_and(|received| message.body.len() <= received.size);
    if size > SIZE_MAX && !was_accepted {
        return Err(Error::TooLarge { broker: NAME, size, max: SIZE_MAX });
    }
    let received_with = received_with.map(|received_with| &received_with.properties);
    let mut headers = foreign_headers(received_with);
    for (name, value) in &message.headers {
        headers.insert(short("header", name)?, AMQPValue::LongString(value.as_str().into()));
    }
    headers.insert(envelope::HEADER.into(), AMQPValue::LongString(text.into()));
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers)
        .with_priority(message.priority);
    if let Some(content_type) = &message.content_type {
        properties = properties.with_content_type(short("content type", content_type)?);
    }
    if let Some(kind) = &message.kind {
        properties = properties.with_type(short("type", kind)?);
    }
    let foreign = received_with.and_then(|received_with| received_with.message_id().clone());
    let id = match foreign {
        Some(id) => Some(id),
        // A long job id does not fit; the header has it, too.
        None => ShortString::try_new(message.id().to_string()).ok(),
    };
    if let Some(id) = id {
        properties = properties.with_message_id(id);
    }
    let Some(received_with) = received_with else { return Ok(properties) };
    let keep = |properties: BasicProperties,
                value: &Option<ShortString>,
                with: fn(BasicProperties, ShortString) -> BasicProperties| {
        match value {
            Some(value) => with(properties, value.clone()),
            None => properties,
        }
    };
    properties =
        keep(properties, received_with.content_encoding(), BasicProperties::with_content_encoding);
    properties =
        keep(properties, received_with.correlation_id(), BasicProperties::with_correlation_id);
    properties = keep(properties, received_with.reply_to(), BasicProperties::with_reply_to);
    properties = keep(properties, received_with.app_id(), BasicProperties::with_app_id);
    if let Some(timestamp) = received_with.timestamp() {
        properties = properties.with_timestamp(*timestamp);
    }
    Ok(properties)
}

/// Parses a delivery.
pub(super) fn read(delivery: &mut Delivery) -> RawMessage {
    let body = std::mem::take(&mut delivery.data).into();
    let properties = &delivery.properties;
    let owned = |text: &Option<ShortString>| text.as_ref().map(|text| text.as_str().to_owned());
    let mut incoming = RawMessage {
        body,
        content_type: owned(properties.content_type()),
        kind: owned(properties.kind()),
        priority: properties.priority().unwrap_or_default().min(Message::PRIORITY_MAX),
        foreign_id: owned(properties.message_id()),
        redeliveries: u32::from(delivery.redelivered),
        ..RawMessage::default()
    };
    let headers = properties.headers().as_ref().map(FieldTable::inner);
    for (name, value) in headers.into_iter().flatten() {
        match (name.as_str(), text(value)) {
            ("x-delivery-count", _) => {
                incoming.redeliveries = incoming.redeliveries.max(number(value).unwrap_or(1));
            }
            (envelope::HEADER, value) => incoming.envelope = value,
            (name, Some(value)) if !is_broker_header(name) => {
                incoming.headers.insert(name.to_owned(), value);
            }
            _ => {}
        }
    }
    incoming
}

/// Returns headers that are not text, which are only passed on.
fn foreign_headers(received_with: Option<&BasicProperties>) -> FieldTable {
    let headers = received_with
        .and_then(|received_with| received_with.headers().as_ref())
        .map(FieldTable::inner);
    let kept = headers
        .into_iter()
        .flatten()
        .filter(|(name, value)| text(value).is_none() && !is_broker_header(name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect::<BTreeMap<_, _>>().into()
}

fn is_broker_header(name: &str) -> bool {
    BROKER_HEADERS.iter().any(|beginning| name.starts_with(beginning))
}

fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn number(value: &AMQPValue) -> Option<u32> {
    match value {
        AMQPValue::LongLongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::LongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::LongUInt(number) => Some(*number),
        AMQPValue::ShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortShortUInt(number) => Some(u32::from(*number)),
        _ => None,
    }
}

fn short(what: &str, text: &str) -> Result<ShortString, Error> {
    let message = || format!("{what} {text:?} is too long: RabbitMQ allows 255 bytes");
    ShortString::try_new(text).map_err(|_| Error::Invalid(message()))
}

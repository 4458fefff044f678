//! Converts messages to and from Pub/Sub: data, an ordering key, and up to a hundred attributes.

use std::collections::BTreeMap;

use super::proto::{PubsubMessage, ReceivedMessage};
use super::{NAME, SIZE_MAX};
use crate::broker::RawMessage;
use crate::{Error, Message, envelope};

/// Header that stands for the ordering key.
pub(super) const ORDERING_KEY: &str = "ordering-key";
/// Attribute with all headers that do not fit, or that are not valid attributes, as JSON.
const HEADERS: &str = "sluicegate-headers";
const CONTENT_TYPE: &str = "content-type";
/// Maximum number of headers that become attributes.
const HEADERS_MAX: usize = 40;
/// Maximum sizes of the name and the value of an attribute, and of an ordering key.
const NAME_MAX: usize = 256;
const VALUE_MAX: usize = 1_024;
/// Maximum number of attributes over which a longer text of ours is spread. Two such texts, the headers
/// and the content type are fewer than a hundred.
const PARTS_MAX: usize = 29;

/// Encodes a message.
pub(super) fn write(message: &Message) -> Result<PubsubMessage, Error> {
    let mut attributes = BTreeMap::new();
    let mut rest = BTreeMap::new();
    let mut ordering_key = String::new();
    for (name, value) in &message.headers {
        if name == ORDERING_KEY && value.len() <= VALUE_MAX {
            ordering_key.clone_from(value);
        } else if attributes.len() < HEADERS_MAX && is_name(name) && value.len() <= VALUE_MAX {
            attributes.insert(name.clone(), value.clone());
        } else {
            rest.insert(name, value);
        }
    }
    if let Some(content_type) = &message.content_type {
        if content_type.len() > VALUE_MAX {
            let error = format!("the content type is too long: {NAME} allows {VALUE_MAX} bytes");
            return Err(Error::Invalid(error));
        }
        attributes.insert(CONTENT_TYPE.to_owned(), content_type.clone());
    }
    if !message.meta.is_omitted {
        spread(&mut attributes, envelope::HEADER, &envelope::write(message))?;
    }
    if !rest.is_empty() {
        let rest = serde_json::to_string(&rest).expect("texts are JSON");
        spread(&mut attributes, HEADERS, &rest)?;
    }
    let data = message.body.clone();
    let encoded = PubsubMessage { data, attributes, ordering_key, ..Default::default() };
    let size = size(&encoded);
    // Pub/Sub has accepted the body alone, perhaps with other attributes.
    match size > SIZE_MAX && !message.meta.is_omitted {
        true => Err(Error::TooLarge { broker: NAME, size, max: SIZE_MAX }),
        false => Ok(encoded),
    }
}

/// Parses a delivery.
pub(super) fn read(received: &ReceivedMessage) -> RawMessage {
    let Some(message) = received.message.clone() else { return RawMessage::default() };
    let PubsubMessage { data, mut attributes, message_id, ordering_key, .. } = message;
    let envelope = collect(&mut attributes, envelope::HEADER);
    let rest: Option<BTreeMap<String, String>> =
        collect(&mut attributes, HEADERS).and_then(|rest| serde_json::from_str(&rest).ok());
    let content_type = attributes.remove(CONTENT_TYPE);
    attributes.extend(rest.into_iter().flatten());
    if !ordering_key.is_empty() {
        attributes.insert(ORDERING_KEY.to_owned(), ordering_key);
    }
    RawMessage {
        body: data,
        content_type,
        kind: None,
        priority: 0,
        headers: attributes,
        envelope,
        foreign_id: (!message_id.is_empty()).then_some(message_id),
        redeliveries: u32::try_from(received.delivery_attempt.saturating_sub(1)).unwrap_or(0),
        is_ordered: false,
    }
}

/// Returns the size of a message in a request, at least.
pub(super) fn size(message: &PubsubMessage) -> usize {
    // Lengths and field numbers take a few bytes each.
    let text = |(name, value): (&String, &String)| name.len() + value.len() + 10;
    let attributes: usize = message.attributes.iter().map(text).sum();
    message.data.len() + message.ordering_key.len() + attributes + 20
}

/// Writes a text to attributes, in parts that are short enough: `name`, `name-2`, `name-3`.
fn spread(
    attributes: &mut BTreeMap<String, String>,
    name: &str,
    mut text: &str,
) -> Result<(), Error> {
    if text.len() > PARTS_MAX * VALUE_MAX {
        let (size, max) = (text.len(), PARTS_MAX * VALUE_MAX);
        return Err(Error::TooLarge { broker: "the attributes of Pub/Sub", size, max });
    }
    for number in 1.. {
        let (part, rest) = text.split_at(text.floor_char_boundary(VALUE_MAX));
        attributes.insert(part_name(name, number), part.to_owned());
        if rest.is_empty() {
            break;
        }
        text = rest;
    }
    Ok(())
}

/// Removes the parts of a text and joins them.
fn collect(attributes: &mut BTreeMap<String, String>, name: &str) -> Option<String> {
    let mut text = attributes.remove(name)?;
    for number in 2.. {
        let Some(part) = attributes.remove(&part_name(name, number)) else { break };
        text.push_str(&part);
    }
    Some(text)
}

fn part_name(name: &str, number: u32) -> String {
    if number == 1 { name.to_owned() } else { format!("{name}-{number}") }
}

/// Returns true if the text is a valid attribute name and not one of ours or of Google.
fn is_name(text: &str) -> bool {
    let reserved = ["goog", "sluicegate", CONTENT_TYPE];
    (1..=NAME_MAX).contains(&text.len())
        && !reserved.iter().any(|beginning| text.to_ascii_lowercase().starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FailureRecord;
    use crate::body_fields::BodyFields;
    use sluicegate_core::Timestamp;

    fn there_and_back(message: &Message) -> Message {
        let encoded = write(message).expect("it fits");
        assert!(encoded.attributes.len() <= 100, "{}", encoded.attributes.len());
        for (name, value) in &encoded.attributes {
            assert!(name.len() <= NAME_MAX && value.len() <= VALUE_MAX, "{name}");
        }
        let received = ReceivedMessage { message: Some(encoded), ..Default::default() };
        envelope::read(read(&received), &BodyFields::default())
    }

    #[test]
    fn every_body_and_every_header_comes_back() {
        let long = "ü".repeat(1_000);
        for body in [&b""[..], b"\xff", b"\0", b"text"] {
            let mut message = Message::new(body.to_vec()).of_kind("k");
            message.content_type = Some("application/json".to_owned());
            for n in 0..60 {
                message.headers.insert(format!("h{n}"), "v".to_owned());
            }
            for odd in ["googclient_x", "größe", "", "sluicegate", "Content-Type", ORDERING_KEY] {
                message.headers.insert(odd.to_owned(), "x".to_owned());
            }
            message.headers.insert("long".to_owned(), long.clone());
            assert_eq!(there_and_back(&message), message, "{body:?}");
        }
    }

    #[test]
    fn the_header_of_the_ordering_key_is_the_ordering_key() {
        let mut message = Message::new("x");
        message.headers.insert(ORDERING_KEY.to_owned(), "tenant-1".to_owned());
        let encoded = write(&message).expect("it fits");
        assert_eq!(encoded.ordering_key, "tenant-1");
        assert!(!encoded.attributes.contains_key(ORDERING_KEY));
    }

    #[test]
    fn metadata_longer_than_an_attribute_comes_back_and_too_much_is_refused() {
        let dead = |stack: usize| {
            let mut message = Message::new("x");
            message.meta.died = Some(FailureRecord {
                queue: "q".to_owned(),
                message: "no luck".to_owned(),
                stack: Some("€".repeat(stack)),
                at: Timestamp::from_secs(1),
                splice: None,
            });
            message
        };
        let long = dead(9_000);
        assert!(there_and_back(&long) == long, "it does not come back as it was");
        let error = write(&dead(12_000)).expect_err("too large");
        assert!(matches!(error, Error::TooLarge { size, max, .. } if size > max), "{error}");
    }

    #[test]
    fn attributes_count_in_the_size() {
        let error = write(&Message::new(vec![0; SIZE_MAX])).expect_err("too large");
        assert!(matches!(error, Error::TooLarge { size, .. } if size > SIZE_MAX));
        let encoded = write(&Message::new(vec![0; SIZE_MAX - 1_000])).expect("it fits");
        assert!(prost::Message::encoded_len(&encoded) <= size(&encoded));
    }
}

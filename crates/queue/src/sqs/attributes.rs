//! Converts messages to and from SQS: a text body and at most ten attributes.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_sqs::types::{
    Message as Native, MessageAttributeValue as Value, MessageSystemAttributeName,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{NAME, SIZE_MAX};
use crate::broker::RawMessage;
use crate::{Error, Message, envelope};

/// Attribute that marks an encoded body.
const ENCODING: &str = "sluicegate-encoding";
/// Attribute with all headers that do not fit, or that are not valid attributes, as JSON.
const HEADERS: &str = "sluicegate-headers";
const CONTENT_TYPE: &str = "content-type";
/// Maximum number of headers that become attributes: ten, of which four are ours.
const HEADERS_MAX: usize = 6;
/// The body of an empty message, because SQS accepts no empty body. It is not the Base64 of any
/// bytes.
const EMPTY: &str = "=";

pub(super) type Attributes = HashMap<String, Value>;

/// A message in the form in which it is sent.
#[derive(Debug)]
pub(super) struct EncodedMessage {
    pub(super) body: String,
    pub(super) attributes: Attributes,
    pub(super) size: usize,
}

/// Encodes a message. Attributes that it was received with are passed on if they are not text.
pub(super) fn write(
    message: &Message,
    received_with: Option<&Attributes>,
) -> Result<EncodedMessage, Error> {
    let mut attributes = Attributes::new();
    let mut put = |name: &str, text: String| {
        attributes.insert(name.to_owned(), string(text));
    };
    if !message.meta.is_omitted {
        put(envelope::HEADER, envelope::write(message));
    }
    let body = match std::str::from_utf8(&message.body) {
        Ok(text) if !text.is_empty() && text.chars().all(is_allowed) => text.to_owned(),
        _ => {
            put(ENCODING, "base64".to_owned());
            match message.body.is_empty() {
                true => EMPTY.to_owned(),
                false => BASE64.encode(&message.body),
            }
        }
    };
    let mut rest = BTreeMap::new();
    if let Some(content_type) = &message.content_type {
        match is_value(content_type) {
            true => put(CONTENT_TYPE, content_type.clone()),
            false => drop(rest.insert(CONTENT_TYPE, content_type)),
        }
    }
    let received_with = received_with.filter(|_| !message.meta.is_omitted);
    let foreign: Vec<_> =
        received_with.into_iter().flatten().filter(|(_, value)| text(value).is_none()).collect();
    let mut room = HEADERS_MAX.saturating_sub(foreign.len());
    for (name, value) in &message.headers {
        if room > 0 && is_name(name) && is_value(value) {
            put(name, value.clone());
            room -= 1;
        } else {
            rest.insert(name, value);
        }
    }
    if !rest.is_empty() {
        put(HEADERS, serde_json::to_string(&rest).expect("texts are JSON"));
    }
    attributes.extend(foreign.into_iter().map(|(name, value)| (name.clone(), value.clone())));
    let size = body.len()
        + attributes.iter().map(|(name, value)| attribute_size(name, value)).sum::<usize>();
    // SQS has accepted the body alone, perhaps with other attributes.
    if size > SIZE_MAX && !message.meta.is_omitted {
        return Err(Error::TooLarge { broker: NAME, size, max: SIZE_MAX });
    }
    Ok(EncodedMessage { body, attributes, size })
}

/// Decodes a received message.
pub(super) fn read(native: &Native) -> RawMessage {
    let attributes = native.message_attributes.iter().flatten();
    let mut texts: BTreeMap<String, String> =
        attributes.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect();
    let body = native.body().unwrap_or_default();
    let encoded = texts.remove(ENCODING).is_some_and(|encoding| encoding == "base64");
    let decoded = match body {
        EMPTY if encoded => Some(Vec::new()),
        // An invalid encoding, set by another program, leaves the body unchanged.
        body if encoded => BASE64.decode(body).ok(),
        _ => None,
    };
    let envelope = texts.remove(envelope::HEADER);
    let rest: Option<BTreeMap<String, String>> =
        texts.remove(HEADERS).and_then(|rest| serde_json::from_str(&rest).ok());
    texts.extend(rest.into_iter().flatten());
    let count = MessageSystemAttributeName::ApproximateReceiveCount;
    let received = native.attributes().and_then(|all| all.get(&count)?.parse::<u32>().ok());
    RawMessage {
        body: decoded.unwrap_or_else(|| body.as_bytes().to_vec()).into(),
        content_type: texts.remove(CONTENT_TYPE),
        kind: None,
        priority: 0,
        headers: texts,
        envelope,
        foreign_id: native.message_id.clone(),
        redeliveries: received.map_or(0, |received| received.saturating_sub(1)),
        is_ordered: false,
    }
}

fn string(text: String) -> Value {
    let value = Value::builder().data_type("String").string_value(text).build();
    value.expect("it has a type and a value")
}

/// Returns the value of a text attribute.
fn text(value: &Value) -> Option<String> {
    (value.data_type() == "String").then(|| value.string_value().unwrap_or_default().to_owned())
}

fn attribute_size(name: &str, value: &Value) -> usize {
    let text = value.string_value().map_or(0, str::len);
    let bytes = value.binary_value().map_or(0, |bytes| bytes.as_ref().len());
    name.len() + value.data_type().len() + text + bytes
}

/// Returns true for characters that SQS accepts in texts: those of XML.
const fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

fn is_value(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_allowed)
}

/// Returns true if the text is a valid attribute name and not one of ours.
fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let lower = text.to_ascii_lowercase();
    let reserved = ["aws.", "amazon.", ".", "sluicegate", CONTENT_TYPE];
    (1..=256).contains(&text.len())
        && text.chars().all(allowed)
        && !text.ends_with('.')
        && !text.contains("..")
        && !reserved.iter().any(|beginning| lower.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body_fields::BodyFields;

    fn there_and_back(message: &Message) -> Message {
        let EncodedMessage { body, attributes, .. } = write(message, None).expect("it fits");
        assert!(!body.is_empty() && attributes.len() <= 10);
        let native = Native::builder().body(body).set_message_attributes(Some(attributes)).build();
        envelope::read(read(&native), &BodyFields::default())
    }

    #[test]
    fn every_body_and_every_header_comes_back() {
        for body in [&b""[..], b"=", b"PQ==", b"\xff", b"\0", "\u{ffff}".as_bytes(), b"text"] {
            let mut message = Message::new(body.to_vec()).of_kind("k");
            message.content_type = Some("application/json".to_owned());
            for n in 0..12 {
                message.headers.insert(format!("h{n}"), "v".to_owned());
            }
            for odd in ["aws.x", "größe", "", "sluicegate", "content-type", "a..b"] {
                message.headers.insert(odd.to_owned(), String::new());
            }
            message.headers.remove("content-type");
            message.headers.remove("sluicegate");
            assert_eq!(there_and_back(&message), message, "{body:?}");
        }
    }

    #[test]
    fn attributes_that_are_no_text_are_carried_along() {
        let number = Value::builder().data_type("Number").string_value("7").build();
        let received_with = Attributes::from([("tries".to_owned(), number.expect("complete"))]);
        let written = write(&Message::new("x"), Some(&received_with)).expect("it fits");
        assert_eq!(written.attributes.get("tries"), received_with.get("tries"));
    }

    #[test]
    fn attributes_count_in_the_size() {
        let error = write(&Message::new(vec![b'x'; SIZE_MAX]), None).expect_err("too large");
        assert!(matches!(error, Error::TooLarge { size, .. } if size > SIZE_MAX));
        // Base64 takes four bytes for three.
        assert!(write(&Message::new(vec![0; SIZE_MAX * 3 / 4]), None).is_err());
        assert!(write(&Message::new(vec![0; SIZE_MAX / 4 * 3 - 1_000]), None).is_ok());
    }
}

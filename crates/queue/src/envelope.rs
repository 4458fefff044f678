//! Serialises our metadata into one header or attribute, [`HEADER`], as JSON, and leaves the body
//! of the producer unchanged. It is a single header because SQS allows only ten.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::body_fields::BodyFields;
use crate::broker::RawMessage;
use crate::{JobId, Message, Metadata};

/// Name of the header or attribute.
pub const HEADER: &str = "sluicegate";

#[derive(Serialize)]
struct Envelope<'m> {
    #[serde(flatten)]
    meta: &'m Metadata,
    #[serde(flatten)]
    beside: TypeAndPriority<'m>,
}

/// Type and priority, for brokers without a property for them.
#[derive(Serialize, Deserialize)]
struct TypeAndPriority<'m> {
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    kind: Option<Cow<'m, str>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    priority: u8,
}

const fn is_zero(priority: &u8) -> bool {
    *priority == 0
}

/// Serialises the metadata of a message.
pub fn write(message: &Message) -> String {
    let kind = message.kind.as_deref().map(Into::into);
    let beside = TypeAndPriority { kind, priority: message.priority };
    let envelope = Envelope { meta: &message.meta, beside };
    serde_json::to_string(&envelope).expect("numbers and texts are JSON")
}

/// Parses a received message. A message without metadata, or with invalid metadata, is a new job:
/// its producer does not know our format.
pub(crate) fn read(incoming: RawMessage, fields: &BodyFields) -> Message {
    let RawMessage { body, content_type, kind, priority, headers, envelope, foreign_id, .. } =
        incoming;
    // serde would accept a list as the fields in their order.
    let object = envelope.as_deref().filter(|text| text.trim_start().starts_with('{'));
    let written = object.and_then(|text| {
        // In two passes: a single pass with `flatten` would buffer every field.
        let meta = serde_json::from_str::<Metadata>(text).ok()?;
        Some((meta, serde_json::from_str::<TypeAndPriority<'_>>(text).ok()?))
    });
    let (meta, written, urgent) = match written {
        Some((meta, TypeAndPriority { kind, priority })) => {
            (meta, kind.map(Cow::into_owned), priority)
        }
        None => {
            let found = fields.find(&body);
            let job = found.job.or(foreign_id).and_then(|id| JobId::try_from(id).ok());
            (Metadata::new(job.unwrap_or_else(JobId::random)), found.kind, 0)
        }
    };
    let priority = priority.max(urgent).min(Message::PRIORITY_MAX);
    Message { body, content_type, kind: kind.or(written), priority, headers, meta }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::Timestamp;

    fn incoming(body: &'static str) -> RawMessage {
        RawMessage { body: body.into(), ..RawMessage::default() }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let mut message = Message::new("body").of_kind("crawl_repo").with_priority(7);
        message.meta.hop = 3;
        message.meta.not_before = Some(Timestamp::from_millis(1_500));
        let envelope = Some(write(&message));
        assert_eq!(
            read(RawMessage { envelope, ..incoming("body") }, &BodyFields::default()),
            message
        );
    }

    #[test]
    fn a_foreign_message_takes_its_id_from_its_body_or_from_its_broker() {
        let fields =
            BodyFields { job: Some("AnalysisId".to_owned()), kind: Some("type".to_owned()) };
        let body = r#"{"AnalysisId": "a-7", "type": "crawl_org", "deep": {"AnalysisId": "no"}}"#;
        let message = read(incoming(body), &fields);
        assert_eq!(
            (message.meta.job.as_str(), message.kind.as_deref()),
            ("a-7", Some("crawl_org"))
        );
        let named = RawMessage { foreign_id: Some("m-1".to_owned()), ..incoming("{}") };
        assert_eq!(read(named, &fields).meta.job.as_str(), "m-1");
    }

    #[test]
    fn metadata_that_can_not_be_read_does_not_cost_the_message() {
        for envelope in [
            "",
            "{",
            "[]",
            r#"["a"]"#,
            r#"{"job": 7}"#,
            r#"{"job": ""}"#,
            r#"{"job":"a","hop":-1}"#,
        ] {
            let envelope = Some(envelope.to_owned());
            let message = read(RawMessage { envelope, ..incoming("body") }, &BodyFields::default());
            assert_eq!((message.body.as_ref(), message.meta.hop), (&b"body"[..], 0));
            assert_ne!(message.meta.job.as_str(), "a");
        }
    }
}

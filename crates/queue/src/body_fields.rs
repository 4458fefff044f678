//! [`BodyFields`]: the members of a JSON body in which producers write the id and the type of a
//! job.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

/// The bytes of a byte order mark in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns a body without the byte order mark that some producers write before their JSON.
pub fn without_byte_order_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body)
}

/// Names of top-level members of a JSON object. Default: none is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BodyFields {
    /// Member that holds the job id, such as `AnalysisId`.
    pub(crate) job: Option<String>,
    /// Member that holds the type of the job, such as `type`.
    pub(crate) kind: Option<String>,
}

/// The values of these members.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldValues {
    pub(crate) job: Option<String>,
    pub(crate) kind: Option<String>,
}

impl BodyFields {
    /// Reads the members of a body. A body that is not a JSON object has none.
    pub(crate) fn find(&self, body: &[u8]) -> FieldValues {
        if self.job.is_none() && self.kind.is_none() {
            return FieldValues::default();
        }
        let mut json = serde_json::Deserializer::from_slice(without_byte_order_mark(body));
        json.deserialize_map(FieldVisitor(self)).unwrap_or_default()
    }
}

/// Reads two members and skips the others without storing them.
struct FieldVisitor<'f>(&'f BodyFields);

impl<'de> Visitor<'de> for FieldVisitor<'_> {
    type Value = FieldValues;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldValues, A::Error> {
        let mut found = FieldValues::default();
        while let Some(name) = map.next_key::<String>()? {
            let name = Some(name);
            if name == self.0.job {
                found.job = text(map.next_value()?);
            } else if name == self.0.kind {
                found.kind = text(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Returns the text of a string or a number.
fn text(value: serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_of_an_object_that_are_text_or_numbers_count() {
        let fields = BodyFields { job: Some("id".to_owned()), kind: None };
        for (body, job) in [
            (r#"{"a": [1, {"id": 2}], "id": "x"}"#, Some("x")),
            (r#"{"id": 7}"#, Some("7")),
            (r#"{"id": null}"#, None),
            (r#"{"id": {"a": 1}}"#, None),
            (r#"["id"]"#, None),
            (r#"{"id": "x""#, None),
            ("\u{0}", None),
            ("\u{feff}{\"id\": \"x\"}", Some("x")),
        ] {
            assert_eq!(fields.find(body.as_bytes()).job.as_deref(), job, "{body}");
        }
    }
}

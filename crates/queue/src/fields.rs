//! [`Fields`]: the members of a JSON body in which producers write the id and the type of a job.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

/// Names of top-level members of a JSON object. Default: none is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Member that holds the job id, such as `AnalysisId`.
    pub(crate) job: Option<String>,
    /// Member that holds the type of the job, such as `type`.
    pub(crate) kind: Option<String>,
}

/// The values of these members.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) job: Option<String>,
    pub(crate) kind: Option<String>,
}

impl Fields {
    /// Reads the members of a body. A body that is not a JSON object has none.
    pub(crate) fn find(&self, body: &[u8]) -> Found {
        if self.job.is_none() && self.kind.is_none() {
            return Found::default();
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        json.deserialize_map(Looking(self)).unwrap_or_default()
    }
}

/// Reads two members and skips the others without storing them.
struct Looking<'f>(&'f Fields);

impl<'de> Visitor<'de> for Looking<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let mut found = Found::default();
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
        let fields = Fields { job: Some("id".to_owned()), kind: None };
        for (body, job) in [
            (r#"{"a": [1, {"id": 2}], "id": "x"}"#, Some("x")),
            (r#"{"id": 7}"#, Some("7")),
            (r#"{"id": null}"#, None),
            (r#"{"id": {"a": 1}}"#, None),
            (r#"["id"]"#, None),
            (r#"{"id": "x""#, None),
            ("\u{0}", None),
        ] {
            assert_eq!(fields.find(body.as_bytes()).job.as_deref(), job, "{body}");
        }
    }
}

//! Where in a body its producer wrote the id and the type of a job.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

/// The names of top-level members of a JSON object. Default: none is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// The one that names the job, such as `AnalysisId`.
    pub(crate) job: Option<String>,
    /// The one that says what kind of work it is, such as `type`.
    pub(crate) kind: Option<String>,
}

/// What a body said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) job: Option<String>,
    pub(crate) kind: Option<String>,
}

impl Fields {
    /// Looks into a body; one that is no JSON object says nothing.
    pub(crate) fn find(&self, body: &[u8]) -> Found {
        if self.job.is_none() && self.kind.is_none() {
            return Found::default();
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        json.deserialize_map(Looking(self)).unwrap_or_default()
    }
}

/// Reads two members and skips the others without keeping them.
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

/// Ids are texts or numbers.
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

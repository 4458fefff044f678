//! Decodes JSON bodies into a [`Query`].

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use http_body::Body as _;
use http_body_util::LengthLimitError;
use serde::de::{
    self, Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor,
};
use sluicegate_core::query::{Query, RequestId};
use smallvec::SmallVec;

use super::problem::Problem;
use crate::request;

/// The bytes of a body with a JSON content type.
pub(crate) struct JsonBody(pub(crate) Bytes);

/// The body size limit of a router.
pub(crate) trait BodyLimit {
    /// Returns the maximum size of a body.
    fn body_limit(&self) -> usize;

    /// Returns the name of the option with the limit.
    fn option(&self) -> &'static str {
        "server.body_limit"
    }
}

impl<R: BodyLimit + Send + Sync> FromRequest<R> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, router: &R) -> Result<Self, Problem> {
        let body_limit = router.body_limit();
        require_json(request.headers())?;
        let body = request.into_body();
        // Announced as too large: not a byte of it is read.
        if body.size_hint().lower() > body_limit as u64 {
            return Err(too_large(router.option()));
        }
        let bytes = to_bytes(body, body_limit).await.map_err(|error| {
            let limit = error.source().is_some_and(|source| source.is::<LengthLimitError>());
            if limit { too_large(router.option()) } else { broken_off() }
        })?;
        Ok(Self(bytes))
    }
}

fn too_large(option: &str) -> Problem {
    let detail = format!("the body is too large: send a smaller one, or raise {option}");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

fn broken_off() -> Problem {
    Problem::bad_request("cannot read the body to its end")
}

/// Refuses a body without a JSON content type.
fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || essence.len() > 5 && essence[essence.len() - 5..].eq_ignore_ascii_case("+json");
    if is_json {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "send the body as JSON, with the header content-type: application/json",
    ))
}

/// Decodes a flat object whose string fields are the dimensions of a query.
pub(super) fn flat(body: &[u8], id: RequestId) -> Result<Query<'_>, Problem> {
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(syntax)?;
    let mut query = Query::new(id);
    for (name, value) in fields.0 {
        match value {
            Value::Text(text) => query.insert(name, text)?,
            Value::Null => {}
            Value::Other(what) => {
                return Err(Problem::field(name, format!("must be a string, not {what}")));
            }
        }
    }
    Ok(query)
}

/// Decodes a body of a known type; the problem names the path of the invalid field.
pub(crate) fn shaped<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let text = without_place(&inner);
        let missing = text.strip_prefix("missing field `").and_then(|name| name.strip_suffix('`'));
        if let Some(name) = missing {
            let field = if path == "." { name.to_owned() } else { format!("{path}.{name}") };
            return Problem::field(field, "is missing");
        }
        match path.as_str() {
            "." => syntax(inner),
            _ if inner.is_syntax() || inner.is_eof() => syntax(inner),
            _ => Problem::field(path, text),
        }
    })?;
    json.end().map_err(syntax)?;
    Ok(value)
}

/// Decodes one request, or a list of requests that is one plan.
pub(super) fn requests(body: &[u8]) -> Result<Vec<request::Request>, Problem> {
    let several = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if several { Ok(request::check_batch(shaped(body)?)?) } else { Ok(vec![shaped(body)?]) }
}

fn syntax(error: serde_json::Error) -> Problem {
    match error.classify() {
        serde_json::error::Category::Data => {
            let text = without_place(&error);
            let subject = if text.starts_with("must be ") { "the body " } else { "" };
            Problem::bad_request(format!("{subject}{text}"))
        }
        _ => Problem::bad_request(format!("the body is not valid JSON: {error}")),
    }
}

/// Returns the message of a serde_json error in the words of JSON, without its position, which is
/// redundant next to the field name.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    in_json_words(text)
}

/// Replaces the names of Rust types in a message of serde: `invalid type: map, expected a string`
/// becomes `must be a string, not an object`.
fn in_json_words(text: &str) -> String {
    if let Some(variant) = text.strip_prefix("unknown variant ") {
        return format!("unknown value {variant}");
    }
    // Split at the last occurrence: the value may contain the same word, the expected type does
    // not.
    let split = |kind: &str| text.strip_prefix(kind)?.rsplit_once(", expected ");
    if let Some((found, expected)) = split("invalid type: ").or_else(|| split("invalid value: ")) {
        return format!("must be {}, not {}", expected_word(expected), found_word(found));
    }
    if let Some((length, expected)) = split("invalid length ") {
        return format!("must be {}, not an array of {length} entries", expected_word(expected));
    }
    text.to_owned()
}

fn expected_word(expected: &str) -> &str {
    let numbers = ["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize"];
    match expected {
        "a sequence" => "an array",
        "a map" => "an object",
        "f32" | "f64" => "a number",
        "any valid JSON value" => "JSON",
        _ if numbers.contains(&expected) => "a whole number",
        _ if expected.starts_with("struct ") => "an object",
        _ if expected.starts_with("enum ") || expected.starts_with("variant ") => "a string",
        _ if expected.starts_with("tuple ") => "an array",
        other => other,
    }
}

fn found_word(found: &str) -> String {
    let bare = |text: &str| text.trim_matches('`').to_owned();
    match found.split_once(' ') {
        None => match found {
            "sequence" => "an array".to_owned(),
            "map" => "an object".to_owned(),
            other => other.to_owned(),
        },
        Some(("integer", number)) => format!("the number {}", bare(number)),
        Some(("floating", number)) => {
            format!("the number {}", bare(number.trim_start_matches("point ")))
        }
        Some(("boolean", word)) => bare(word),
        Some(("string", text)) => format!("the string {text}"),
        Some(("unit", _)) => "null".to_owned(),
        Some(_) => found.to_owned(),
    }
}

type Field<'a> = (Cow<'a, str>, Value<'a>);

/// The fields of an object, in their order. A value is kept only as far as it can be a dimension.
struct Fields<'a>(SmallVec<[Field<'a>; 8]>);

enum Value<'a> {
    Text(Cow<'a, str>),
    Null,
    Other(&'static str),
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with string fields, such as {\"userId\": \"u1\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = SmallVec::new();
                while let Some(Text(name)) = map.next_key()? {
                    fields.push((name, map.next_value()?));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A string, borrowed from the body if it contains no escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Text(text) => Ok(Self(text)),
            _ => Err(de::Error::custom("the name of a field must be a string")),
        }
    }
}

impl<'de> Deserialize<'de> for Value<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
                Ok(Value::Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
                Ok(Value::Text(Cow::Owned(text.to_owned())))
            }
            fn visit_unit<E>(self) -> Result<Value<'de>, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Value<'de>, E> {
                Ok(Value::Other("true or false"))
            }
            fn visit_u64<E>(self, _: u64) -> Result<Value<'de>, E> {
                Ok(Value::Other("a number"))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Value<'de>, E> {
                Ok(Value::Other("a number"))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Value<'de>, E> {
                Ok(Value::Other("a number"))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Value<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Value::Other("a list"))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Value::Other("an object"))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::Id;

    fn detail(body: &[u8]) -> String {
        let problem = flat(body, RequestId::ours(Id::from_bits(1))).expect_err("a problem");
        serde_json::to_value(problem).expect("json")["detail"].as_str().expect("text").to_owned()
    }

    #[test]
    fn every_string_field_is_a_dimension() {
        let body = br#"{"userId":"u1","modelId":"a\u00e9\n","region":"eu","tenantId":null}"#;
        let query = flat(body, RequestId::ours(Id::from_bits(1))).expect("a query");
        let dimensions: Vec<_> = query.dimensions().collect();
        assert_eq!(dimensions, [("userId", "u1"), ("modelId", "aé\n"), ("region", "eu")]);
    }

    #[test]
    fn a_field_that_is_not_a_string_is_named() {
        for (value, what) in [
            ("1", "a number"),
            ("-1.5", "a number"),
            ("true", "true or false"),
            ("[1,[2]]", "a list"),
            ("{\"a\":{}}", "an object"),
            ("9007199254740993", "a number"),
        ] {
            let body = format!("{{\"userId\":\"u\",\"modelId\":{value}}}");
            assert_eq!(detail(body.as_bytes()), format!("modelId: must be a string, not {what}"));
        }
    }

    #[test]
    fn what_is_not_json_is_told_where() {
        for body in
            ["", "{", "nan", "{\"a\":NaN}", "{\"a\":\"b\"} x", "\u{feff}{}", "{\"a\":\"\0\"}"]
        {
            assert!(detail(body.as_bytes()).starts_with("the body is not valid JSON"), "{body:?}");
        }
        assert!(detail(b"[]").starts_with("the body must be an object with string fields"));
        assert!(detail(b"\"x\"").ends_with("not the string \"x\""), "{}", detail(b"\"x\""));
        assert!(detail(b"{\"a\":\"\xff\"}").starts_with("the body is not valid JSON"));
        let deep = format!("{{\"userId\":{}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
        assert!(detail(deep.as_bytes()).contains("must be a string"));
    }

    #[test]
    fn bad_dimensions_are_named() {
        assert_eq!(
            detail(br#"{"userId":""}"#),
            "userId: is empty: leave it out or give it a value"
        );
        assert_eq!(detail(br#"{"userId":"\u0000"}"#), "userId: contains a NUL byte");
        assert_eq!(detail(br#"{"userId":"a","userId":"b"}"#), "userId: is given twice");
    }

    #[test]
    fn a_wrong_type_is_named_in_the_words_of_json() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "only the errors matter")]
        struct Wanted {
            count: Option<u16>,
            list: Option<Vec<String>>,
            map: Option<std::collections::BTreeMap<String, String>>,
            share: Option<f64>,
            inner: Option<Box<Wanted>>,
        }
        for (body, words) in [
            ("7", "the body must be an object, not the number 7"),
            ("null", "the body must be an object, not null"),
            ("[]", "the body must be an object, not an array of 0 entries"),
            ("{\"count\": -1}", "count: must be a whole number, not the number -1"),
            ("{\"count\": 1.5}", "count: must be a whole number, not the number 1.5"),
            (
                "{\"list\": \"a, expected b\"}",
                "list: must be an array, not the string \"a, expected b\"",
            ),
            ("{\"list\": [{}]}", "list[0]: must be a string, not an object"),
            ("{\"map\": true}", "map: must be an object, not true"),
            ("{\"map\": {\"a\": []}}", "map.a: must be a string, not an array"),
            ("{\"share\": \"x\"}", "share: must be a number, not the string \"x\""),
            ("{\"inner\": {\"inner\": 1}}", "inner.inner: must be an object, not the number 1"),
        ] {
            let problem = shaped::<Wanted>(body.as_bytes()).expect_err("a wrong type");
            let problem = serde_json::to_value(problem).expect("JSON");
            assert_eq!(problem["detail"], words);
        }
    }
}

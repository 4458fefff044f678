//! Writes the rate-limit fields of an answer into the headers of an HTTP response.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) use sluicegate_service::headers::{Field, each};

use crate::answer::Answer;

/// Adds the rate-limit fields to the headers of a response.
pub fn write(answer: &Answer<'_, '_>, headers: &mut HeaderMap) {
    each(answer, |name, field| {
        let name = HeaderName::from_static(name);
        match field {
            Field::Number(number) => {
                headers.insert(name, HeaderValue::from(number));
            }
            Field::Text(text) => {
                if let Ok(value) = HeaderValue::try_from(text) {
                    headers.insert(name, value);
                }
            }
        }
    });
}

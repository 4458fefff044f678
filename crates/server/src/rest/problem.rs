//! [`Problem`]: an error response in the format of RFC 9457.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sluicegate_core::query::QueryError;
use sluicegate_core::store::Error;

use crate::answer::store_refusal;
use crate::refusal::{Refusal, RefusalKind};
use crate::service::ServiceError;

/// An error response with the field at fault and the remedy. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// `about:blank`: the status is the type.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Name of the status.
    title: String,
    /// Number of the status.
    status: u16,
    /// The error and the remedy.
    detail: String,
    /// The invalid field.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// A word for programs, where several problems have the same status.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl Problem {
    /// Creates a problem with the request as a whole.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            reason: None,
        }
    }

    /// Adds a word for programs.
    #[must_use]
    pub(crate) fn because(self, reason: &'static str) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// Prefixes the field with the path of the enclosing value.
    #[must_use]
    pub(crate) fn inside(self, place: &str) -> Self {
        let Some(field) = &self.field else { return self };
        let (field, detail) = (format!("{place}.{field}"), format!("{place}.{}", self.detail));
        Self { field: Some(field), detail, ..self }
    }

    /// Returns the problem that the store did not answer and the outage policy denies.
    pub fn store_unavailable() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, store_refusal::UNAVAILABLE)
    }

    /// Returns the problem that several keys together used up the limit, because the store has no
    /// room for a counter of each.
    pub fn store_full() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, store_refusal::FULL)
    }

    /// Returns the problem that the store lost its data, so that rules are closed until the lost
    /// usage has left their windows.
    pub fn store_lost_memory() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, store_refusal::LOST_MEMORY)
    }

    /// Returns the same problem with another status.
    pub fn with_status(self, status: StatusCode) -> Self {
        let title = status.canonical_reason().unwrap_or_default().to_owned();
        Self { title, status: status.as_u16(), ..self }
    }

    /// Creates a problem with an invalid request.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Creates a problem with an invalid field.
    pub fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        let field = field.into();
        let detail = format!("{field}: {}", detail.into());
        Self { field: Some(field), ..Self::bad_request(detail) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = header::HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if matches!(self.status, 429 | 503) {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(1));
        }
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.kind {
            RefusalKind::Invalid => StatusCode::BAD_REQUEST,
            RefusalKind::Conflict => StatusCode::CONFLICT,
            RefusalKind::Unknown => StatusCode::NOT_FOUND,
            RefusalKind::Gone => StatusCode::GONE,
            RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            RefusalKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let detail = refusal.to_string();
        Self { field: refusal.field, ..Self::new(status, detail) }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        Refusal::from(error).into()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Refusal::from(error).into()
    }
}

impl From<ServiceError> for Problem {
    fn from(failure: ServiceError) -> Self {
        Refusal::from(failure).into()
    }
}

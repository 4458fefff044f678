//! [`Refusal`]: a request that gets no decision because it is invalid or the service cannot answer
//! it. Every protocol maps the same kinds to its own status codes.

use std::fmt;

use sluicegate_core::price;
use sluicegate_core::query::QueryError;
use sluicegate_core::rule::InlineRule;
use sluicegate_core::ruleset::PlanError;
use sluicegate_core::store::Error;

use crate::service::ServiceError;

/// A refused request, with the field at fault and the remedy. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of the error.
    pub kind: RefusalKind,
    /// The invalid field, by its JSON name.
    pub field: Option<String>,
    /// The error and the remedy.
    pub detail: String,
}

/// Kinds of refusals, by what a client can do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request is invalid: change it.
    Invalid,
    /// The id is in use: choose another.
    Conflict,
    /// The named admission or object does not exist.
    Unknown,
    /// The named admission has ended.
    Gone,
    /// The service is temporarily unavailable: retry.
    Unavailable,
    /// The configuration is wrong; the client can do nothing.
    Internal,
}

impl Refusal {
    /// Creates a refusal that is not about one field.
    pub fn new(kind: RefusalKind, detail: impl Into<String>) -> Self {
        Self { kind, field: None, detail: detail.into() }
    }

    /// Creates a refusal of an invalid request.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(RefusalKind::Invalid, detail)
    }

    /// Creates a refusal of an invalid field.
    pub fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::invalid(detail) }
    }

    /// Makes it a conflict: the request is valid, but does not fit the state of the service.
    #[must_use]
    pub(crate) fn into_conflict(self) -> Self {
        Self { kind: RefusalKind::Conflict, ..self }
    }

    /// Prefixes the field with the path of the enclosing value.
    #[must_use]
    pub fn inside(self, place: &str) -> Self {
        let field = self.field.map(|field| format!("{place}.{field}"));
        Self { field, ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

impl From<QueryError> for Refusal {
    fn from(error: QueryError) -> Self {
        Self::field(error.dimension, error.problem.to_string())
    }
}

impl From<PlanError> for Refusal {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Missing { ref dimension, .. } => {
                let text = error.to_string();
                let detail = text.strip_prefix(&format!("{dimension}: ")).unwrap_or(&text);
                Self::field(dimension, detail)
            }
            PlanError::UnknownPrice(unpriced) => Self::field(price::MODEL, unpriced.to_string()),
            PlanError::TooMany { .. } => {
                let text = error.to_string();
                let detail = text.strip_prefix("requests: ").unwrap_or(&text);
                Self::field("requests", detail)
            }
            // A limit from the request; those of the configuration were checked when it was loaded.
            PlanError::SharedKey { ref key, .. } if key.starts_with(InlineRule::KEY_START) => {
                Self::field("limits", error.to_string())
            }
            PlanError::SharedKey { .. } => Self::new(RefusalKind::Internal, error.to_string()),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Unavailable(_) | Error::ClockSkew | Error::Full => RefusalKind::Unavailable,
            Error::Conflict | Error::Differs | Error::NotClaimed => RefusalKind::Conflict,
            Error::Unknown => RefusalKind::Unknown,
            Error::Gone | Error::Lost => RefusalKind::Gone,
            Error::TooMany | Error::CrossSlot => RefusalKind::Invalid,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<ServiceError> for Refusal {
    fn from(failure: ServiceError) -> Self {
        match failure {
            ServiceError::Plan(error) => error.into(),
            ServiceError::Store(error) => error.into(),
        }
    }
}

//! Why a request gets no decision. The reasons are the same at every front door; each tells them
//! in the codes of its protocol.

use std::fmt;

use sluicegate_core::price;
use sluicegate_core::query::QueryError;
use sluicegate_core::rule::InlineRule;
use sluicegate_core::ruleset::PlanError;
use sluicegate_core::store::Error;

use crate::service::Failure;

/// A refusal that names the field and the remedy. Nothing was consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whose fault it is.
    pub kind: Kind,
    /// The field at fault, as JSON would name it.
    pub field: Option<String>,
    /// What is wrong, and what would be right.
    pub detail: String,
}

/// What a client can do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ask differently.
    Invalid,
    /// Take another id.
    Conflict,
    /// Nothing: what it speaks of is not there.
    Unknown,
    /// Nothing: what it speaks of has ended.
    Gone,
    /// Try again.
    Unavailable,
    /// Nothing: the configuration is at fault.
    Internal,
}

impl Refusal {
    /// A refusal that is not about one field.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, field: None, detail: detail.into() }
    }

    /// A request that can't be understood.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, detail)
    }

    /// A field that can't be understood.
    pub fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::invalid(detail) }
    }

    /// The same, of a part of a larger request.
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
            // A limit that the caller brought along; the configuration's own have been checked.
            PlanError::SharedKey { ref key, .. } if key.starts_with(InlineRule::KEY_START) => {
                Self::field("limits", error.to_string())
            }
            PlanError::SharedKey { .. } => Self::new(Kind::Internal, error.to_string()),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Unavailable(_) | Error::ClockSkew | Error::Full => Kind::Unavailable,
            Error::Conflict | Error::Differs | Error::NotClaimed => Kind::Conflict,
            Error::Unknown => Kind::Unknown,
            Error::Gone | Error::Lost => Kind::Gone,
            Error::TooMany | Error::CrossSlot => Kind::Invalid,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Plan(error) => error.into(),
            Failure::Store(error) => error.into(),
        }
    }
}

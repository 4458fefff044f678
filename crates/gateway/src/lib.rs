//! A reverse proxy that enforces the rate limits of its upstreams across all replicas.
//!
//! ```text
//! identify → reserve → pace → forward → settle
//! ```
//!
//! Each step is a module, in this order; [`Gateway`] runs them. A request over the limit waits in a
//! bounded queue for a slot that is booked in the store, which all replicas share. This crate
//! contains no limiting logic: the limiter decides which requests may go, and when.

mod admit;
mod announcements;
mod forward;
mod gateway;
mod grpc;
mod identify;
mod log;
pub mod metrics;
mod pass;
mod refusal;
mod reserve;
mod route;
mod settle;

pub use announcements::RouteAnnouncements;
pub use gateway::{Gateway, PreparedSettings, RouteState, StartError};
pub use metrics::Metrics;
pub use refusal::PARSE_ERROR_BODIES;
pub use route::RouteError;
pub use sluicegate_http::upstream::{CaError, CredentialsError};
pub use sluicegate_vendors::AnnouncedWindow;

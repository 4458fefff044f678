//! A reverse proxy that keeps the limits of its upstreams, however many replicas there are.
//!
//! ```text
//! identify → reserve → pace → forward → settle
//! ```
//!
//! Each step is a module, in this order; [`Gateway`] is the road. A request over the limit waits in
//! a bounded room for a turn that is booked in the store, which all replicas share. There is no
//! limiting logic here: what may go, and when, the limiter says.

mod forward;
mod gateway;
mod identify;
mod log;
pub mod metrics;
pub mod options;
mod pace;
mod pass;
mod refusal;
mod reserve;
mod route;
mod settle;
mod turn;

pub use gateway::{Gateway, Prepared, StartError};
pub use metrics::Metrics;
pub use options::Options;
pub use route::RouteError;
pub use sluicegate_http::upstream::{CaError, CredentialsError};

//! A tower layer that limits the requests of an HTTP or gRPC server.
//!
//! ```
//! use sluicegate::tower::{Header, Path, PeerAddress, RateLimitLayer};
//! use sluicegate::{Limiter, Rule};
//!
//! let limiter = Limiter::builder()
//!     .rule(Rule::new("USER").per(["userId"]).limit("10/min"))
//!     .rule(Rule::new("ADDRESS").per(["ip"]).limit("100/min"))
//!     .optional(["userId", "ip"])
//!     .build()?;
//! let layer = RateLimitLayer::new(limiter)
//!     .key("userId", Header::new("x-user-id"))
//!     .key("ip", PeerAddress)
//!     .key("path", Path)
//!     .key("host", |request: &http::request::Parts| Some(request.uri.host()?.to_owned()))
//!     .skip(|request| request.uri.path() == "/health");
//! // Router::new().route(…).layer(layer)
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! | the limiter answers | HTTP response | gRPC response |
//! |---|---|---|
//! | allowed | the response of the service, with the rate-limit header fields | the same |
//! | denied | 429 with `Retry-After` and a JSON body with `detail` | `RESOURCE_EXHAUSTED` |
//! | banned | 403 | `PERMISSION_DENIED` |
//! | denied because the usage is not known | 503 with `Retry-After` | `UNAVAILABLE` |
//! | a dimension that the rules need is missing or invalid | 400 | `INVALID_ARGUMENT` |
//!
//! A concurrency slot is held until the body of the response has been sent, or its client is gone.

mod body;
mod key;
mod layer;
mod meter;
mod refusal;
mod service;

pub use body::LimitedBody;
pub use key::{Header, Key, Path, PeerAddress};
pub use layer::RateLimitLayer;
pub use meter::CostMeter;
pub use service::RateLimit;

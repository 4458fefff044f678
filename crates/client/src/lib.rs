//! Rate limits for Rust programs: requests, tokens, money and concurrency, per user, key, tenant or
//! anything else, all decided in one atomic step. The README of the package shows all of it.
//!
//! | use | feature | begin with |
//! |---|---|---|
//! | limits in this process | none | [`Limiter::from_yaml`], [`Limiter::builder`] |
//! | limits shared through Redis | `redis` | the same, with `store: {kind: redis}` or `Builder::redis` |
//! | limits of a `sluicegate serve` | `remote` | `Limiter::remote` |
//! | middleware for axum, tonic and other servers on tower | `tower`, `axum`, `tonic` | `tower::RateLimitLayer` |
//!
//! ```
//! use sluicegate::{Cost, Decision, Limiter, Request};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::from_yaml(
//!     "
//! limits:
//!   - name: user
//!     rules: [{name: USER, per: [userId], limit: [10/min, 100/h]}]
//!   - name: slots
//!     rules: [{name: SLOTS, per: [], limit: 100 concurrent}]
//!   - name: money
//!     rules: [{name: BUDGET, per: [userId], limit: 5.00 USD/day}]
//! prices: {default: {input: 0.20 USD/1M, output: 0.60 USD/1M}}
//! ",
//! )?;
//!
//! let request = Request::from([("userId", "u1"), ("modelId", "gpt4")])
//!     .reserve(Cost::new().input_tokens(868).output_tokens_max(500));
//! match limiter.acquire(request).await? {
//!     Decision::Allowed(admission) => {
//!         // Call the model here. The slot is held until the admission is settled or dropped.
//!         let actual = Cost::new().query_tokens(12).context_tokens(856).output_tokens(145);
//!         let settled = admission.settle(actual).await?;
//!         assert_eq!(settled.cost.map(|cost| cost.to_string()).as_deref(), Some("0.0002606"));
//!     }
//!     Decision::Denied(denial) => println!("{denial}: retry in {:?}", denial.retry_after()),
//! }
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]

mod admission;
mod backend;
mod background;
mod clock;
mod cost;
mod decision;
mod embedded;
mod error;
mod explanation;
mod limiter;
#[cfg(feature = "remote")]
mod remote;
mod request;
mod scope;
mod settlement;
mod stats;
#[cfg(feature = "tower")]
pub mod tower;

pub use admission::Admission;
pub use clock::ManualClock;
pub use cost::Cost;
pub use decision::{Decision, DecisionSource, Denial};
pub use embedded::{Builder, Rule};
pub use error::{Error, ErrorKind};
pub use explanation::{Explanation, GroupExplanation, MatchedRule, SkippedRule};
pub use limiter::Limiter;
#[cfg(feature = "remote")]
pub use remote::{RemoteBuilder, UnavailablePolicy};
pub use request::Request;
pub use scope::Scope;
pub use settlement::Settlement;
pub use sluicegate_core::Money;
pub use sluicegate_core::limit::Unit;
pub use stats::Stats;

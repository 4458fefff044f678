//! The domain types of Sluicegate: queries, rules, plans, decisions and the algorithms that count.
//! A request passes through them in this order:
//!
//! ```text
//! Query ─Ruleset::plan→ Plan ─Store::acquire→ Decision
//! ```
//!
//! This crate contains no clock, socket, file or lock. Time is an argument, and a [`store::Store`]
//! provides atomicity.

pub mod algorithm;
pub mod backlog;
pub mod decision;
pub mod descriptor;
pub mod id;
pub mod key;
pub mod limit;
pub mod limiter;
pub mod money;
pub mod outage;
pub mod override_store;
pub mod overrides;
pub mod plan;
pub mod predict;
pub mod price;
pub mod query;
pub mod reservation_store;
pub mod rule;
pub mod ruleset;
pub mod store;
pub mod store_clock;
pub mod time;

pub use decision::Decision;
pub use id::Id;
pub use key::Key;
pub use limit::Limit;
pub use limiter::Limiter;
pub use money::Money;
pub use plan::{Charge, Plan};
pub use price::PriceBook;
pub use query::Query;
pub use rule::{Group, Rule};
pub use ruleset::Ruleset;
pub use store::Store;
pub use time::{Span, Timestamp};

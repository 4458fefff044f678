//! The limiter in this process: [`Builder`] creates it from rules or from a configuration file.

mod builder;
mod engine;
mod outcome;
mod rule;
mod waiting;

pub use builder::Builder;
pub use rule::Rule;

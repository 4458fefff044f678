//! Tests of the public API: configuration files in, configurations or messages out.

mod anything;
mod documentation;
mod environment;
mod envoy;
mod files;
mod golden;
mod rate_limits;
mod secrets;
mod two_tier;
mod values;

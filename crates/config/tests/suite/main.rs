//! Tests of the public API: configuration files in, configurations or messages out.

mod anything;
mod documentation;
mod envoy;
mod files;
mod golden;
mod secrets;
mod two_tier;
mod values;

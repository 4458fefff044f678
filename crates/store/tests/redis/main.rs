//! The Redis store, on real servers of both versions.

mod clocks;
mod denials;
mod faults;
mod layout;
mod nodes;
mod suite;

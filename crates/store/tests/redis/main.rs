//! The Redis store, on real servers of both versions.

mod denials;
mod faults;
mod layout;
mod nodes;
mod suite;

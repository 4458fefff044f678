//! The Redis store, on real servers of both versions.

mod faults;
mod layout;
mod suite;

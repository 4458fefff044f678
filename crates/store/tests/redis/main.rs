//! The Redis store, on real servers of both versions.

mod faults;
mod suite;

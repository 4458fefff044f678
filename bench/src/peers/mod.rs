//! The limiters that we compare with, each called as its documentation shows.
//!
//! | peer | version | algorithm | several scopes | key |
//! |---|---|---|---|---|
//! | governor | 0.10.4 | GCRA, a DashMap of atomics | one after the other | a `String`, kept or built |
//! | throttlecrab | 0.4.40 | GCRA, a HashMap behind `&mut` | one after the other | a `&str`, built |
//! | limitador | 0.14.0 | fixed window, a moka cache | all read, then all written | a map of values |
//!
//! None of them has an exact log, and none charges several scopes atomically. With the first two,
//! the first scope stays charged if the second denies; with limitador, two requests can both read
//! before either writes.

pub(crate) mod governor;
pub(crate) mod limitador;
pub(crate) mod throttlecrab;

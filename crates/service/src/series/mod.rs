//! Bounded data for the dashboard: time series in rings ([`SeriesTable`]), latencies
//! ([`LatencySketch`]), the most frequent callers ([`HeavyHitters`]) and the keys closest to their
//! limits ([`ClosestKeys`]).
//!
//! All of them are plain values without a clock or a lock. Their memory has a maximum, however many
//! callers there are.

mod closest_keys;
mod heavy_hitters;
mod latency;
mod ring;
mod table;

pub use closest_keys::{ClosestKeys, KeyOrder, KeyUsage};
pub use heavy_hitters::{HeavyHitters, Hitter, HitterWeight};
pub use latency::LatencySketch;
pub use ring::SeriesRing;
pub use table::{Resolution, SeriesTable};

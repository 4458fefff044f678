//! Shuttle.

//! The pacer: starts work at the times that its limits allow, with a store that is a round trip
//! away. The gateway and the dispatcher use it.
//!
//! A turn is the right to start one piece of work in a short interval, the [`StartWindow`]:
//!
//! | step | what happens |
//! |---|---|
//! | acquire | the store admits work that can start now or within the lead |
//! | book | otherwise it reserves the first start that fits |
//! | claim | one lead before that start, the holder asks if the booking is still valid |
//! | go | the work starts in its window; if the window is missed, the turn is given back |
//!
//! The lead and the length of the window follow the measured [`RoundTrips`]. A pacer that starts the
//! work that it books spaces the real starts by itself, so that limits such as `25/s smooth` need no
//! slack between them. Decisions 021 and 022 show why this keeps every limit.
//!
//! [`Lane`] adds a queue of waiting requests: it books as many turns as requests wait, up to a
//! second's worth, and hands each turn to the request that is next.

mod clock;
mod exchange;
mod lane;
mod lease_times;
mod other_queues;
mod own_starts;
mod pacer;
mod round_trip;
mod wait_queue;
mod window;

pub use lane::{Lane, LaneOptions, WaitError, Waited};
pub use lease_times::LeaseTimes;
pub use pacer::{Booking, PacedWork, Pacer, Turn};
pub use round_trip::RoundTrips;
pub use window::{StartAttempt, StartWindow};

#[cfg(test)]
mod tests;

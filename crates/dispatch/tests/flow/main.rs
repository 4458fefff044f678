//! Messages from a producer to a provider and back, on the queue and the store that need no server.

mod dispatching;
mod support;
mod working;

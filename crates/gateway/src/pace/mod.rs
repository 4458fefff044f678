//! The third step: requests wait here until their limit admits them.
//!
//! One lane per route holds those who wait ([`room`]) and a pump that books turns in the store
//! ([`slot`]): as many as there are waiting, up to a small window, in one stream. A turn belongs to
//! nobody until it opens; then the room says who is next. When a request leaves, all others move
//! up, and what is given back is the last booking.

mod lane;
mod room;
mod slot;

pub(crate) use lane::Lane;

#[cfg(test)]
mod tests;

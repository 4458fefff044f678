//! The third step: whoever has to wait, waits here.
//!
//! One lane per route holds those who wait ([`room`]) and a pump that books turns in the store
//! ([`slot`]): as many as there are waiting, up to a small window, in one stream. A turn belongs to
//! nobody until it opens; then the room says who is next. So whoever leaves lets all others move
//! up, and what is given back is the last booking.

mod lane;
mod room;
mod slot;

pub(crate) use lane::Lane;

#[cfg(test)]
mod tests;

//! Limiters that are wrong in one way each, beside their correct sibling.

mod bookings;
mod bucket;
mod calendar;
mod leases;
mod nodes;
mod refunds;
mod windows;

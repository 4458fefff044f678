//! Limiters with one bug each, next to their correct version.

mod bookings;
mod bucket;
mod calendar;
mod leases;
mod nodes;
mod refunds;
mod windows;

//! The judge is judged: planted bugs that it must catch, definitions that it must agree with, and
//! cases at the very edge that it must accept.

mod brute_force;
mod edges;
mod harness;
mod malformed;
mod planted;

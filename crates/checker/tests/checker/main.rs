//! Tests of the checker: planted bugs that it must catch, definitions that it must agree with, and
//! edge cases that it must accept.

mod brute_force;
mod edges;
mod harness;
mod malformed;
mod planted;

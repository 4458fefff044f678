//! The Redis store on real servers of both supported versions.

mod clocks;
mod denials;
mod faults;
mod given_up;
mod layout;
mod loss;
mod nodes;
mod rollout;
mod suite;

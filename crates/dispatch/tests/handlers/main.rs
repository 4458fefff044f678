//! Handlers at work: real servers on this machine, real programs.

#![allow(clippy::unwrap_used, reason = "in tests, a panic is the message")]

mod answers;
mod calls;
mod chats;
mod commands;
mod emits;
mod support;

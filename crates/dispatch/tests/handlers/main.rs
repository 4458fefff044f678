//! Tests of handlers with real servers and real programs on this machine.

#![allow(clippy::unwrap_used, reason = "in tests, a panic is the message")]

mod answers;
mod calls;
mod chats;
mod commands;
mod emits;
mod pages;
mod support;

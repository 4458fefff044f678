//! Handlers at work: real servers on this machine, real programs.

mod answers;
mod calls;
mod chats;
mod commands;
mod emits;
mod support;

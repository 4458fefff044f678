//! Tests of `sluicegate top` and of the log in a real terminal (tmux), and of `sluicegate tail` with
//! real services.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../src/cli/top/screen.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
mod screen;
mod tail;
mod tmux;
mod top;

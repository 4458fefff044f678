//! Servers that end with the tests, however these end.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Starts what follows in a group of its own, and kills the group when its input ends: also when
/// the test process dies, in whatever way. It outlives what ends the tests as a whole, such as
/// Ctrl-C.
///
/// Whoever is given a folder removes it, after a moment in which the others end as well: servers
/// that all tests of a process share are never dropped.
const SCRIPT: &str = "trap '' HUP INT TERM; setsid \"$@\" </dev/null >/dev/null 2>&1 & cat; \
    kill -9 -$!; wait $! 2>/dev/null; if [ -n \"$FOLDER\" ]; then sleep 1; rm -rf \"$FOLDER\"; fi";

/// A program that ends when its standard input is closed, and with us.
pub(crate) fn guarded(program: impl AsRef<OsStr>) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", SCRIPT, "sh"]).arg(program).stdin(Stdio::piped()).stdout(Stdio::null());
    shell
}

//! [`guarded`]: starts a server that ends together with the test process, even if that is killed.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// A shell script that starts a command in its own process group, and kills the group when its
/// standard input ends. That happens even if the test process is killed. The script ignores the
/// signals that end the tests as a whole, such as Ctrl-C.
///
/// If `FOLDER` is set, the script removes that folder after a moment in which the other servers end
/// as well. The test process can't remove it, because servers that all its tests share are never
/// dropped.
const SCRIPT: &str = "trap '' HUP INT TERM; setsid \"$@\" </dev/null >/dev/null 2>&1 & cat; \
    kill -9 -$!; wait $! 2>/dev/null; if [ -n \"$FOLDER\" ]; then sleep 1; rm -rf \"$FOLDER\"; fi";

/// Returns a command for a program that ends when its standard input is closed or this process
/// ends.
pub(crate) fn guarded(program: impl AsRef<OsStr>) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", SCRIPT, "sh"]).arg(program).stdin(Stdio::piped()).stdout(Stdio::null());
    shell
}

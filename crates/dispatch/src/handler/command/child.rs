//! Runs a child process that never outlives its job. When it exits, or when its future is dropped,
//! its whole process group is killed.

use std::collections::VecDeque;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Number of bytes of standard error that are kept, from its end.
const STDERR_BYTES: usize = 4 << 10;
/// Maximum time to read the output after the process exited: a process that left the group may hold
/// the pipe open forever.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of a finished program.
pub(super) struct CommandResult {
    pub(super) status: ExitStatus,
    /// Standard output; `None` if it exceeded the maximum size.
    pub(super) output: Option<Bytes>,
    /// End of standard error.
    pub(super) stderr: Vec<u8>,
}

/// Runs a program until it exits. Dropping the future kills it.
pub(super) async fn run(
    mut command: Command,
    input: &[u8],
    output_max: usize,
) -> io::Result<CommandResult> {
    let mut child = command.process_group(0).spawn()?;
    let mut group = ProcessGroup::of(&child);
    let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
    let ((stdin, stdout), stderr) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;

    let (mut output, mut errors) = (BytesMut::new(), VecDeque::new());
    let ended = {
        let feed = async {
            let mut stdin = stdin;
            // A program need not read its input.
            let _ = stdin.write_all(input).await;
            Ok::<_, OutputTooLarge>(())
        };
        let printed = collect(stdout, &mut output, output_max);
        let stderr_end = keep_end(stderr, &mut errors);
        let mut streams =
            std::pin::pin!(async { tokio::try_join!(feed, printed, stderr_end).map(|_| ()) });
        tokio::select! {
            status = child.wait() => {
                group.kill();
                let streams = timeout(OUTPUT_TIMEOUT, streams).await;
                (Some(status?), streams.unwrap_or(Ok(())))
            }
            streams = &mut streams => (None, streams),
        }
    };
    let (status, within) = match ended {
        (Some(status), within) => (status, within),
        (None, within) => {
            if within.is_err() {
                group.kill();
            }
            let status = child.wait().await?;
            group.kill();
            (status, within)
        }
    };
    Ok(CommandResult {
        status,
        output: within.is_ok().then(|| output.freeze()),
        stderr: errors.into(),
    })
}

/// An error: the output exceeds the maximum size.
struct OutputTooLarge;

async fn collect(
    mut from: impl AsyncRead + Unpin,
    into: &mut BytesMut,
    max: usize,
) -> Result<(), OutputTooLarge> {
    // A pipe error counts as its end.
    while let Ok(1..) = from.read_buf(into).await {
        if into.len() > max {
            return Err(OutputTooLarge);
        }
    }
    Ok(())
}

async fn keep_end(
    mut from: impl AsyncRead + Unpin,
    into: &mut VecDeque<u8>,
) -> Result<(), OutputTooLarge> {
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        into.extend(&buffer[..read]);
        into.drain(..into.len().saturating_sub(STDERR_BYTES));
    }
    Ok(())
}

/// A process group that is killed when this value is dropped.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// Returns the group of a child that is its leader.
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    /// Kills the group, once: after the leader was reaped, the system may reuse its process id.
    fn kill(&mut self) {
        if let Some(leader) = self.0.take() {
            // Fails only if all processes have exited.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

//! A child process that is gone when its work is over: when it ended, and when nobody waits for it
//! any more. Its group goes with it, so that nothing that it started stays behind.

use std::collections::VecDeque;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How much of its complaints is kept: the end of them.
const COMPLAINT_BYTES: usize = 4 << 10;
/// How long what it printed may stay out, after it ended: a process that left its group may hold
/// the pipe open for ever.
const LATE: Duration = Duration::from_secs(1);

/// How a program ran.
pub(super) struct Ran {
    pub(super) status: ExitStatus,
    /// What it printed; none if that was more than it may.
    pub(super) output: Option<Bytes>,
    /// The end of what it complained of.
    pub(super) complaints: Vec<u8>,
}

/// Runs a program to its end. Dropping the future kills it.
pub(super) async fn run(mut command: Command, input: &[u8], output_max: usize) -> io::Result<Ran> {
    let mut child = command.process_group(0).spawn()?;
    let group = Group::of(&child);
    let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
    let ((stdin, stdout), stderr) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;

    let (mut output, mut complaints) = (BytesMut::new(), VecDeque::new());
    let ended = {
        let feed = async {
            let mut stdin = stdin;
            // A program need not read what it is given.
            let _ = stdin.write_all(input).await;
            Ok::<_, TooMuch>(())
        };
        let printed = collect(stdout, &mut output, output_max);
        let complained = keep_end(stderr, &mut complaints);
        let mut streams =
            std::pin::pin!(async { tokio::try_join!(feed, printed, complained).map(|_| ()) });
        tokio::select! {
            status = child.wait() => {
                group.kill();
                let streams = timeout(LATE, streams).await;
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
            (child.wait().await?, within)
        }
    };
    Ok(Ran {
        status,
        output: within.is_ok().then(|| output.freeze()),
        complaints: complaints.into(),
    })
}

/// More was printed than may be.
struct TooMuch;

async fn collect(
    mut from: impl AsyncRead + Unpin,
    into: &mut BytesMut,
    max: usize,
) -> Result<(), TooMuch> {
    // A pipe that breaks has ended.
    while let Ok(1..) = from.read_buf(into).await {
        if into.len() > max {
            return Err(TooMuch);
        }
    }
    Ok(())
}

async fn keep_end(
    mut from: impl AsyncRead + Unpin,
    into: &mut VecDeque<u8>,
) -> Result<(), TooMuch> {
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        into.extend(&buffer[..read]);
        into.drain(..into.len().saturating_sub(COMPLAINT_BYTES));
    }
    Ok(())
}

/// The processes of a child, which are killed when this is dropped.
struct Group(Option<Pid>);

impl Group {
    /// The group that a child leads.
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    fn kill(&self) {
        if let Some(leader) = self.0 {
            // Where all have ended there is nobody left to kill.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

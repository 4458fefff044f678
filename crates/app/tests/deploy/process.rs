//! A program that a test starts and stops.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::repository;

/// A running program, killed on drop.
pub(crate) struct Running(Child);

impl Running {
    /// Starts a program. Its standard error is shown if the test fails.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
    }

    /// Starts a program whose input and output the caller has chosen.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let program = command.get_program().to_owned();
        Self(command.spawn().unwrap_or_else(|error| {
            panic!("{}: {error}: run `cargo xtask test deploy`", program.display())
        }))
    }

    /// Asks the program to stop, and waits for its end. Fails the test if it reports a failure.
    pub(crate) fn stop(mut self) {
        output(Command::new("kill").arg(self.0.id().to_string()));
        let status = self.0.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the path of a program below `target/services`, where `cargo xtask services` puts it.
pub(crate) fn service(path: &str) -> PathBuf {
    let path = repository("target/services").join(path);
    assert!(path.exists(), "no {}: run `cargo xtask services install`", path.display());
    path
}

/// Runs a command to its end; returns its standard output. Fails the test if it fails.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

//! A private Pub/Sub server for tests: Google's fake, extended by the features that it lacks
//! (`pubsub-fake/main.go`).

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::guard::guarded;
use crate::ports::free_port;

/// A running server. It ends when it is dropped, and also when the test process ends in any way: a
/// guard process watches for that.
#[derive(Debug)]
pub struct PubSubServer {
    /// Port that the server listens on, on 127.0.0.1.
    pub port: u16,
    guard: Child,
}

/// The files of a server with TLS and access tokens.
#[derive(Clone, Debug)]
pub struct SecuredFiles {
    /// Certificate of the server.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Key file of a service account, which the server writes.
    pub account: PathBuf,
}

impl PubSubServer {
    /// Starts a server; fails the test if it is not installed.
    pub fn start() -> Self {
        Self::wait(free_port(), &mut guarded(program()))
    }

    /// Starts a server that accepts only the tokens of a service account, over TLS. Its token server
    /// refuses an expired account.
    pub fn secured(files: &SecuredFiles, is_expired: bool) -> Self {
        let mut command = guarded(program());
        command.arg("-cert").arg(&files.certificate).arg("-key").arg(&files.key);
        command.arg("-key-file").arg(&files.account);
        command.args(["-token-port", &free_port().to_string()]);
        command.args(is_expired.then_some("-expired"));
        Self::wait(free_port(), &mut command)
    }

    fn wait(port: u16, command: &mut Command) -> Self {
        let guard = command.args(["-port", &port.to_string()]).spawn().expect("a shell");
        let server = Self { port, guard };
        for _ in 0..2_400 {
            // The port is opened last.
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return server;
            }
            // Only polling shows when the server is ready.
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the Pub/Sub server on port {port} does not answer");
    }

    /// Returns the address of the server.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Runs Google's own client, with `send` or `receive` and its arguments after the project
    /// (`pubsub-fake/sdk.go`). Returns its output.
    pub fn sdk(&self, action: &str, arguments: &[&str]) -> String {
        let address = format!("127.0.0.1:{}", self.port);
        let mut command = Command::new(program());
        let output = command.args([action, &address, "tests"]).args(arguments).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{action} {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for PubSubServer {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn program() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = root.join("target/services/pubsub/pubsub-fake");
    let display = program.display();
    assert!(program.exists(), "no {display}: run `cargo xtask services install`");
    program
}

//! [`SqsServer`]: private SQS servers for tests: moto, which imitates SQS well, and fauxqs, which
//! rejects receipts of expired leases as AWS may do.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use crate::guard::guarded;
use crate::ports::free_port;

/// A script that serves fauxqs on loopback; its own program listens on all interfaces.
const FAUXQS: &str = "
    import { buildApp } from 'fauxqs';
    const app = buildApp({ logger: false });
    await app.listen({ host: '127.0.0.1', port: Number(process.env.PORT) });
";

/// A running server. It ends when it is dropped, and also when the test process ends in any way: a
/// guard process watches for that.
#[derive(Debug)]
pub struct SqsServer {
    /// Port that the server listens on, on 127.0.0.1.
    pub port: u16,
    guard: Child,
}

impl SqsServer {
    /// Starts moto; fails the test if it is not installed.
    pub fn moto() -> Self {
        Self::moto_with(&[])
    }

    /// Starts moto with authentication: it accepts only known credentials and has none at first.
    pub fn wary_moto() -> Self {
        Self::moto_with(&[("INITIAL_NO_AUTH_ACTION_COUNT", "0")])
    }

    fn moto_with(settings: &[(&str, &str)]) -> Self {
        let program = std::env::var_os("SLUICEGATE_MOTO");
        let program = program.expect("SLUICEGATE_MOTO is not set: run `cargo xtask test sqs`");
        let port = free_port();
        let mut command = guarded(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command.envs(settings.iter().copied());
        Self::wait(port, command)
    }

    /// Starts fauxqs; fails the test if it is not installed.
    pub fn fauxqs() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = root.join("target/services/fauxqs");
        assert!(folder.exists(), "no {}: run `cargo xtask services install`", folder.display());
        let port = free_port();
        let mut command = guarded("node_modules/.bin/node");
        command.args(["--input-type=module", "--eval", FAUXQS]);
        command.current_dir(folder).env("PORT", port.to_string());
        Self::wait(port, command)
    }

    fn wait(port: u16, mut command: Command) -> Self {
        let guard = command.spawn().expect("a shell");
        let server = Self { port, guard };
        for _ in 0..2_400 {
            if server.answers().unwrap_or(false) {
                return server;
            }
            // Only polling shows when the server is ready.
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the SQS server on port {port} does not answer");
    }

    fn answers(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut begin = [0; 5];
        stream.read_exact(&mut begin)?;
        Ok(&begin == b"HTTP/")
    }
}

impl Drop for SqsServer {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

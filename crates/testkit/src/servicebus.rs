//! [`ServiceBusServer`]: private doubles of Azure Service Bus for tests, on free ports of loopback. The
//! double is a program of this repository, in `crates/testkit/servicebus`; Microsoft's SDKs check it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::guard::guarded;
use crate::ports::free_port;

/// Name and secret of a key with all rights.
const KEY: (&str, &str) = ("RootManageSharedAccessKey", "c2VjcmV0");

/// A running double. Its messages survive [`ServiceBusServer::kill`].
#[derive(Debug)]
pub struct ServiceBusServer {
    /// Port of the AMQP protocol, on 127.0.0.1.
    pub port: u16,
    /// Port of the management API and of the token endpoint, on 127.0.0.1.
    pub admin_port: u16,
    arguments: Vec<String>,
    folder: PathBuf,
    guard: Child,
    /// A process that removes the folder when this process ends.
    cleaner: Child,
}

impl ServiceBusServer {
    /// Starts a double with queues of the premium tier, whose messages may have 2 MiB.
    pub fn start() -> Self {
        Self::start_with(&["--size-max", "2097152"])
    }

    /// Starts a double with these arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let (port, admin_port) = (free_port(), free_port());
        let journal = folder.join("journal").display().to_string();
        let (name, secret) = KEY;
        let mut all: Vec<_> = arguments.iter().map(|word| (*word).to_owned()).collect();
        all.extend([
            "--journal".to_owned(),
            journal,
            "--key".to_owned(),
            format!("{name}:{secret}"),
        ]);
        let guard = spawn(&folder, port, admin_port, &all);
        let cleaner = guarded("sleep").arg("infinity").env("FOLDER", &folder).spawn();
        let cleaner = cleaner.expect("a shell");
        Self { port, admin_port, arguments: all, folder, guard, cleaner }
    }

    /// Returns a connection string with all rights.
    pub fn connection_string(&self) -> String {
        connection_string(self.port, KEY.0, KEY.1)
    }

    /// Returns the address of the management API.
    pub fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.admin_port)
    }

    /// Kills the double like a power cut.
    pub fn kill(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }

    /// Starts the double again with its messages.
    pub fn restart(&mut self) {
        self.guard = spawn(&self.folder, self.port, self.admin_port, &self.arguments);
    }
}

impl Drop for ServiceBusServer {
    fn drop(&mut self) {
        self.kill();
        // Its shell removes the folder afterwards; there is no need to wait for that.
        drop(self.cleaner.stdin.take());
    }
}

/// Returns a connection string for a port, which may be that of a proxy.
pub fn connection_string(port: u16, name: &str, secret: &str) -> String {
    format!(
        "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={name};SharedAccessKey={secret};\
         UseDevelopmentEmulator=true"
    )
}

/// Returns a command that runs a Python program with Qpid Proton and Microsoft's SDK.
pub fn python() -> Command {
    guarded_python(Command::new)
}

fn guarded_python(command: impl FnOnce(std::ffi::OsString) -> Command) -> Command {
    let program = std::env::var_os("SLUICEGATE_SERVICEBUS");
    command(program.expect("SLUICEGATE_SERVICEBUS is not set: run `cargo xtask test servicebus`"))
}

/// Returns the folder of the double and of the programs that check it.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("servicebus")
}

fn spawn(folder: &Path, port: u16, admin_port: u16, arguments: &[String]) -> Child {
    let mut command = guarded_python(guarded);
    command.arg(programs().join("double.py")).args(arguments);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.args(["--admin", &format!("127.0.0.1:{admin_port}")]);
    let mut child = command.env("PYTHONPYCACHEPREFIX", folder).spawn().expect("a shell");
    for _ in 0..2_400 {
        if answers(port).unwrap_or(false) && TcpStream::connect(("127.0.0.1", admin_port)).is_ok() {
            return child;
        }
        // Only polling shows when the server is ready.
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let ended = child.wait();
    panic!("the Service Bus double on port {port} does not answer: {ended:?}");
}

/// Returns true if the double speaks AMQP 1.0 with a login.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"AMQP\x03\x01\x00\x00")?;
    let mut begin = [0; 4];
    stream.read_exact(&mut begin)?;
    Ok(&begin == b"AMQP")
}

//! [`RabbitServer`]: private RabbitMQ nodes for tests, on free ports of loopback, with their files
//! in a temporary folder.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::guard::guarded;
use crate::ports::free_port;

/// Settings of a node besides its port. With fixed thresholds for memory and disk, RabbitMQ raises
/// no alarm on a small or full test machine.
const SETTINGS: &str = "\
log.file.level = warning
log.console = false
disk_free_limit.absolute = 10MB
vm_memory_high_watermark.absolute = 1GB
collect_statistics_interval = 60000
";

/// A running node. Its data survives [`RabbitServer::kill`].
#[derive(Debug)]
pub struct RabbitServer {
    /// Port that the node listens on, on 127.0.0.1.
    pub port: u16,
    ports: [u16; 2],
    folder: PathBuf,
    node: Child,
    /// Erlang's name service (epmd) of this node alone; otherwise the node would start one that
    /// outlives it.
    names: Child,
}

impl RabbitServer {
    /// Starts a node and waits until it answers.
    pub fn start() -> Self {
        Self::start_with(|_| String::new())
    }

    /// Starts a node with additional settings, which may name files in the folder of the node.
    pub fn start_with(further: impl FnOnce(&Path) -> String) -> Self {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let (port, ports) = (free_port(), [free_port(), free_port()]);
        let further = further(&folder);
        let settings = format!("listeners.tcp.1 = 127.0.0.1:{port}\n{SETTINGS}{further}");
        std::fs::write(folder.join("rabbitmq.conf"), settings).expect("a file");
        std::fs::write(folder.join("enabled_plugins"), "[].").expect("a file");
        std::fs::write(folder.join("env.conf"), "").expect("a file");
        let [names_port, _] = ports.map(|port| port.to_string());
        let names = guarded("epmd")
            .args(["-port", &names_port, "-address", "127.0.0.1"])
            .env("FOLDER", &folder)
            .spawn();
        let names = names.expect("epmd: run `cargo xtask services install`");
        let node = spawn(&folder, port, ports);
        Self { port, ports, folder, node, names }
    }

    /// Returns the URL of the node, with the default login.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Kills the node like a power cut, after its queue definitions are on disk.
    ///
    /// RabbitMQ writes a message before it confirms it. But it writes the existence of a queue, in
    /// Mnesia and in the directory of Raft logs, only seconds later, and loses the queue if it dies
    /// before. Queues of real users are older than that.
    pub fn kill(&mut self) {
        self.ctl(&["eval", "mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()]."]);
        end(&mut self.node);
    }

    /// Kills the node as it is, also if it has not stored its queue definitions yet.
    pub fn kill_at_once(&mut self) {
        end(&mut self.node);
    }

    /// Starts the node again with its data.
    pub fn restart(&mut self) {
        self.node = spawn(&self.folder, self.port, self.ports);
    }

    /// Runs `rabbitmqctl` and returns its output.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(program("rabbitmqctl"));
        environment(&mut command, &self.folder, self.port, self.ports);
        let output = command.arg("-q").args(arguments).output().expect("rabbitmqctl runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "rabbitmqctl {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for RabbitServer {
    fn drop(&mut self) {
        end(&mut self.node);
        // Its shell removes the folder afterwards; there is no need to wait for that.
        drop(self.names.stdin.take());
    }
}

fn end(child: &mut Child) {
    drop(child.stdin.take());
    let _ = child.wait();
}

fn spawn(folder: &Path, port: u16, ports: [u16; 2]) -> Child {
    let mut command = guarded(program("rabbitmq-server"));
    environment(&mut command, folder, port, ports);
    let node = command.spawn().expect("rabbitmq-server: run `cargo xtask services install`");
    wait_until_it_answers(port, folder);
    node
}

fn environment(command: &mut Command, folder: &Path, port: u16, [names, peers]: [u16; 2]) {
    let file = |name: &str| folder.join(name);
    command
        .env("HOME", folder)
        .env("RABBITMQ_BASE", folder)
        .env("RABBITMQ_MNESIA_BASE", file("mnesia"))
        .env("RABBITMQ_LOG_BASE", file("log"))
        .env("RABBITMQ_LOGS", file("log/rabbit.log"))
        .env("RABBITMQ_NODENAME", format!("test{port}@localhost"))
        .env("RABBITMQ_CONFIG_FILE", file("rabbitmq"))
        .env("RABBITMQ_CONF_ENV_FILE", file("env.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("enabled_plugins"))
        .env("RABBITMQ_PID_FILE", file("pid"))
        .env("RABBITMQ_DIST_PORT", peers.to_string())
        .env("ERL_EPMD_PORT", names.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            // The last setting is the one that docs/queues.md recommends: otherwise some messages of
            // delay queues come three minutes late after a node was killed.
            "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none \
             -rabbit dead_letter_worker_publisher_confirm_timeout 10000",
        );
}

/// Returns the path of the program itself: the wrapper in `PATH` would switch to another user.
fn program(name: &str) -> PathBuf {
    let installed = std::fs::read_dir("/usr/lib/rabbitmq/lib");
    let versions = installed.into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let newest = versions.max().expect("no RabbitMQ: run `cargo xtask services install`");
    newest.join("sbin").join(name)
}

fn wait_until_it_answers(port: u16, folder: &Path) {
    for _ in 0..3_600 {
        if answers(port).unwrap_or(false) {
            return;
        }
        // Only polling shows when the server is ready.
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = std::fs::read_to_string(folder.join("log/rabbit.log")).unwrap_or_default();
    panic!("the RabbitMQ node on port {port} does not answer: {log}");
}

/// Returns true if the node speaks AMQP: its port is open before that.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"AMQP\x00\x00\x09\x01")?;
    let mut first = [0; 1];
    Ok(stream.read(&mut first)? == 1 && first == [1])
}

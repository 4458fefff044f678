//! [`RedisServer`]: private Redis servers for tests, on free ports of loopback, without
//! persistence.

mod cluster;
mod sentinel;

pub use cluster::{ClusterOptions, RedisCluster};
pub use sentinel::{MASTER, RedisSentinel};

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::guard::guarded;
use crate::ports::free_port;

/// The version of the server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The installed version: 7.0 or newer.
    System,
    /// 6.2, the oldest supported version.
    V6_2,
}

impl Version {
    /// Returns the path of the program; fails the test if it is not installed.
    fn program(self) -> PathBuf {
        match self {
            Self::System => "redis-server".into(),
            Self::V6_2 => {
                let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
                let path = PathBuf::from(root).join("target/services/redis-6.2/redis-server");
                assert!(path.exists(), "no {}: run `cargo xtask services install`", path.display());
                path
            }
        }
    }
}

/// A certificate for 127.0.0.1, which is its own authority, and its key.
#[derive(Clone, Copy, Debug)]
pub struct RedisTls<'a> {
    /// File of the certificate.
    pub cert: &'a Path,
    /// File of the key.
    pub key: &'a Path,
}

impl RedisTls<'_> {
    /// Returns the options of a server that listens with TLS on this port, besides its plain port,
    /// and replicates only over TLS.
    fn options(self, port: u16) -> Vec<String> {
        let [cert, key] = [self.cert, self.key].map(|path| path.display().to_string());
        let options = [
            ("tls-port", port.to_string()),
            ("tls-auth-clients", "no".to_owned()),
            ("tls-ca-cert-file", cert.clone()),
            ("tls-cert-file", cert),
            ("tls-key-file", key),
            ("tls-replication", "yes".to_owned()),
        ];
        options.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).collect()
    }
}

/// A running server. It ends when it is dropped, and also when the test process ends in any way: a
/// guard process watches for that.
#[derive(Debug)]
pub struct RedisServer {
    /// Plain port on 127.0.0.1.
    pub port: u16,
    /// TLS port on 127.0.0.1, if TLS is used.
    pub tls_port: Option<u16>,
    version: Version,
    more: Vec<String>,
    guard: Child,
}

impl RedisServer {
    /// Starts a server and waits until it answers. `more` are additional options.
    pub fn start(version: Version, more: &[&str]) -> Self {
        Self::start_on(free_port(), version, None, more)
    }

    /// Starts a server on this port, and with TLS on another one if `tls` is given.
    fn start_on(port: u16, version: Version, tls: Option<RedisTls<'_>>, more: &[&str]) -> Self {
        let tls_port = tls.map(|_| free_port());
        let covered = tls.zip(tls_port).map_or(Vec::new(), |(tls, port)| tls.options(port));
        let more = covered.into_iter().chain(more.iter().map(|&option| option.to_owned()));
        let more: Vec<_> = more.collect();
        let guard = spawn(version, port, &more);
        Self { port, tls_port, version, more, guard }
    }

    /// Starts a sentinel with a configuration file, which the sentinel rewrites.
    fn start_sentinel(port: u16, file: &Path, tls: Option<RedisTls<'_>>) -> Self {
        let file = file.display().to_string();
        let tls_port = tls.map(|_| free_port());
        let covered = tls.zip(tls_port).map_or(Vec::new(), |(tls, port)| tls.options(port));
        let more = [vec![file, "--sentinel".to_owned()], covered].concat();
        let guard = spawn(Version::System, port, &more);
        Self { port, tls_port, version: Version::System, more, guard }
    }

    /// Kills the server like a power cut, and starts an empty one in its place.
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.restart();
    }

    /// Kills the server like a power cut.
    pub fn kill(&mut self) {
        // The guard kills the server when its input ends.
        drop(self.guard.stdin.take());
        self.guard.wait().expect("the shell ends");
    }

    /// Starts an empty server in place of a killed one.
    pub fn restart(&mut self) {
        self.guard = spawn(self.version, self.port, &self.more);
    }

    /// Suspends the server (SIGSTOP) until the returned value is dropped: it keeps its connections
    /// and does not answer.
    pub fn stop(&self) -> SuspendedServer {
        let info = self.command(&["INFO", "server"]);
        let process = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        let process = process.expect("a server says which process it is").trim().to_owned();
        signal("-STOP", &process);
        SuspendedServer { process }
    }

    /// Runs one command and returns the raw reply.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).expect("an answer")
    }

    /// Runs one command. A server that changes its role closes its connections.
    pub fn try_command(&self, words: &[&str]) -> std::io::Result<String> {
        command(self.port, words)
    }
}

/// A suspended server, which continues when this value is dropped.
#[derive(Debug)]
pub struct SuspendedServer {
    process: String,
}

impl Drop for SuspendedServer {
    fn drop(&mut self) {
        signal("-CONT", &self.process);
    }
}

fn signal(name: &str, process: &str) {
    let sent = Command::new("kill").args([name, process]).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill {name} {process}");
}

/// Returns the commands that an ACL user needs, as listed in `docs/configuration.md`. Tests that
/// log in with these prove that the list is complete.
pub fn documented_commands() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).expect("the page about the configuration");
    let list = page.split("```acl\n").nth(1).and_then(|rest| rest.split("```").next());
    list.expect("a list of commands").split_whitespace().map(str::to_owned).collect()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn spawn(version: Version, port: u16, more: &[String]) -> Child {
    let port_text = port.to_string();
    let mut options = vec!["--port", &port_text, "--bind", "127.0.0.1", "--loglevel", "warning"];
    let is_sentinel = more.iter().any(|option| option == "--sentinel");
    if !is_sentinel {
        options.extend(["--save", "", "--appendonly", "no", "--databases", "4096"]);
    }
    // The configuration file comes before all options.
    let (file, more) = more.split_at(usize::from(is_sentinel));
    let mut server = guarded(version.program());
    let guard = server.args(file).args(options).args(more).spawn().expect("a shell");
    wait_until_it_answers(port);
    guard
}

fn wait_until_it_answers(port: u16) {
    let answers = || {
        let answer = command(port, &["PING"]).unwrap_or_default();
        answer.starts_with("+PONG") || answer.starts_with("-NOAUTH")
    };
    for _ in 0..1_000 {
        if answers() {
            return;
        }
        // Only polling shows when the server is ready.
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the Redis server on port {port} does not answer");
}

fn command(port: u16, words: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    // A busy machine may stall for seconds.
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut line = format!("*{}\r\n", words.len());
    for word in words {
        line += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(line.as_bytes())?;
    let mut answer = [0; 65_536];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).trim_end().to_owned())
}

//! Test setup of Sluicegate, an upstream, and an Envoy between them.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::json;
use sluicegate_testkit::eventually;
use sluicegate_testkit::ports::free_ports;

use crate::common::{RunningService, post};

/// Environment variable with the path of the Envoy binary.
const ENVOY: &str = "SLUICEGATE_ENVOY";

/// The three processes, stopped on drop.
pub(crate) struct Gateway {
    pub(crate) upstream: Upstream,
    limiter: Option<RunningService>,
    envoy: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Gateway {
    /// Starts all three on free ports, with a configuration of `deploy/envoy`.
    pub(crate) fn start(config: &str) -> Self {
        Self::with(config, "")
    }

    /// Starts all three, with `more` appended to Sluicegate's configuration.
    pub(crate) fn with(config: &str, more: &str) -> Self {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/envoy");
        let folder = tempfile::tempdir().expect("a folder");
        let upstream = Upstream::start();
        let [port, grpc, admin] = free_ports();
        let limits = std::fs::read_to_string(deploy.join("limits.yaml")).expect("the limits");
        let listen = format!(
            "listen: {{http: '127.0.0.1:0', grpc: '127.0.0.1:{grpc}', admin: '127.0.0.1:0'}}\n"
        );
        let ours = format!("{listen}{more}{limits}");
        std::fs::write(folder.path().join("sluicegate.yaml"), ours).expect("a file");
        let mut text = std::fs::read_to_string(deploy.join(config)).expect("a configuration");
        for (from, to) in [(9901, admin), (10_000, port), (8081, grpc), (8000, upstream.port)] {
            let from = format!("port_value: {from}}}");
            assert!(text.contains(&from), "{config} has no {from}");
            text = text.replace(&from, &format!("port_value: {to}}}"));
        }
        let path = folder.path().join("envoy.yaml");
        std::fs::write(&path, text).expect("a file");
        let limiter = Some(RunningService::with_file(&folder.path().join("sluicegate.yaml")));
        let envoy = Command::new(std::env::var(ENVOY).expect("run `cargo xtask test envoy`"))
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "-c"])
            .arg(path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Envoy starts");
        let gateway = Self { upstream, limiter, envoy, port, folder };
        eventually(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
        gateway
    }

    /// Returns a client with a connection of its own.
    pub(crate) fn client(&self) -> Client {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        Client { agent, base: format!("http://127.0.0.1:{}", self.port) }
    }

    /// Kills Sluicegate.
    pub(crate) fn stop_limiter(&mut self) {
        self.limiter = None;
    }

    /// Starts Sluicegate again on the same ports.
    pub(crate) fn start_limiter(&mut self) {
        self.limiter = Some(RunningService::with_file(&self.config()));
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("sluicegate.yaml")
    }

    /// Returns the number of tokens that the limiter has counted for the dimension `key`.
    pub(crate) fn tokens_used(&self, key: &str, value: &str) -> u64 {
        let limiter = self.limiter.as_ref().expect("it runs");
        let dimensions = json!({ "envoy.domain": "edge", "envoy.descriptor": key, key: value });
        let usage = json!({ "dimensions": dimensions });
        let (status, told) = post(&format!("{}/v1/usage", limiter.http), &usage, None);
        assert_eq!(status, 200, "{told}");
        told["scopes"][0]["current"].as_u64().expect("a number")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.envoy.kill();
        let _ = self.envoy.wait();
    }
}

/// An HTTP client of Envoy.
pub(crate) struct Client {
    agent: ureq::Agent,
    base: String,
}

/// The response to a request.
#[derive(Debug)]
pub(crate) struct EnvoyResponse {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

impl Client {
    pub(crate) fn get(&self, path: &str, headers: &[(&str, &str)]) -> EnvoyResponse {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = request.call().expect("an answer");
        let headers = response.headers().iter();
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers = headers.map(|(name, value)| (name.to_string(), text(value.as_bytes())));
        let headers = headers.collect();
        let _ = response.body_mut().read_to_string();
        EnvoyResponse { status: response.status().as_u16(), headers }
    }
}

impl EnvoyResponse {
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(other, _)| other == name);
        &found.unwrap_or_else(|| panic!("no {name} in {self:?}")).1
    }

    pub(crate) fn header_or<'a>(&'a self, name: &str, other: &'a str) -> &'a str {
        self.headers.iter().find(|(known, _)| known == name).map_or(other, |(_, value)| value)
    }
}

/// The upstream behind Envoy: answers and counts every request, and reports 300 tokens used and 200
/// unused.
pub(crate) struct Upstream {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Upstream {
    fn start() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("an address").port();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        thread::spawn(move || {
            for stream in socket.incoming().map_while(Result::ok) {
                let count = count.clone();
                thread::spawn(move || answer(stream, &count));
            }
        });
        Self { port, requests }
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Answers every request on a connection; requests must not have a body.
fn answer(stream: TcpStream, count: &AtomicUsize) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let lines = BufReader::new(stream).lines();
    for line in lines.map_while(Result::ok).filter(String::is_empty) {
        drop(line);
        count.fetch_add(1, Ordering::SeqCst);
        let told = b"HTTP/1.1 200 OK\r\nx-tokens: 300\r\nx-unused-tokens: 200\r\ncontent-length: 2\r\n\r\nok";
        writer.write_all(told).ok()?;
    }
    Some(())
}

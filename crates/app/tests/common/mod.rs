//! Runs the `sluicegate` binary on free ports with a configuration file, for end-to-end tests.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod idle;
pub(crate) mod page;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// Returns the command to run the binary.
pub(crate) fn sluicegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.env_remove("SLUICEGATE_CONFIG").env_remove("SLUICEGATE_URL");
    command.env_remove("SLUICEGATE_ADMIN_URL");
    // A login that the test servers of SQS accept.
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    command
}

/// A running `sluicegate serve`, killed on drop.
pub(crate) struct RunningService {
    pub(crate) http: String,
    pub(crate) grpc: String,
    pub(crate) admin: String,
    pub(crate) config: PathBuf,
    child: Child,
    log: Arc<Mutex<Vec<Value>>>,
    out: Option<std::thread::JoinHandle<String>>,
    _folder: Option<tempfile::TempDir>,
}

/// Listeners on ports that the system selects.
pub(crate) const ANYWHERE: &str =
    "listen: {http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}\n";

impl RunningService {
    /// Starts the service with this configuration, after [`ANYWHERE`].
    pub(crate) fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// Starts the service with this configuration and environment variables.
    pub(crate) fn start_with(config: &str, environment: &[(&str, &Path)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sluicegate.yaml");
        std::fs::write(&path, format!("{ANYWHERE}{config}")).expect("a file");
        let mut running = Self::spawn(&path, environment, &[]);
        running._folder = Some(folder);
        running
    }

    /// Starts only some parts of the service (`--only`) and creates missing queues. Waits only for the
    /// admin listener.
    pub(crate) fn start_only(config: &str, parts: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sluicegate.yaml");
        std::fs::write(&path, format!("{ANYWHERE}{config}")).expect("a file");
        let mut running = Self::spawn(&path, &[], &["--create", "--only", parts]);
        running._folder = Some(folder);
        running
    }

    /// Starts the service with an existing configuration file.
    pub(crate) fn with_file(config: &Path) -> Self {
        Self::spawn(config, &[], &[])
    }

    /// Starts the service with an existing configuration file, environment variables and arguments.
    pub(crate) fn spawn(config: &Path, environment: &[(&str, &Path)], arguments: &[&str]) -> Self {
        let mut child = sluicegate()
            .envs(environment.iter().copied())
            .args(["serve", "--config"])
            .arg(config)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut out = child.stdout.take().expect("piped");
        let out = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            text
        });
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let [mut http, mut grpc, mut admin] = [const { String::new() }; 3];
        let only = arguments.contains(&"--only");
        while admin.is_empty() || !only && (http.is_empty() || grpc.is_empty()) {
            let line = lines.next().expect("it listens before it ends").expect("text");
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            if event["message"] == "listening" {
                let address = format!("http://{}", event["address"].as_str().expect("an address"));
                match event["listener"].as_str() {
                    Some("http") => http = address,
                    Some("grpc") => grpc = address,
                    Some("admin") => admin = address,
                    // A gateway.
                    _ => {}
                }
            }
            log.lock().expect("the log").push(event);
        }
        let more = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                more.lock().expect("the log").push(event);
            }
        });
        let config = config.to_owned();
        Self { http, grpc, admin, config, child, log, out: Some(out), _folder: None }
    }

    /// Replaces the configuration file, as an editor does.
    pub(crate) fn write(&self, config: &str) {
        let beside = self.config.with_extension("new");
        std::fs::write(&beside, format!("{ANYWHERE}{config}")).expect("a file");
        std::fs::rename(&beside, &self.config).expect("replaced");
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(kill.expect("kill").success());
    }

    /// Returns its log so far.
    pub(crate) fn logged(&self) -> Vec<Value> {
        self.log.lock().expect("the log").clone()
    }

    /// Returns the value of a metric. Waits for it, because a starting component does not export its
    /// metrics yet; fails if it never appears.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut value = None;
        sluicegate_testkit::eventually(|| {
            let (_, text) = get(&format!("{}/metrics", self.admin));
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value = found.map(|value| value.parse::<f64>().expect("a number") as u64);
            value.is_some()
        });
        value.expect("it is shown")
    }

    /// Waits for its end; returns its exit code and the decision log.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("it ends");
        let out = self.out.take().expect("taken once").join().expect("no panic");
        (status.code(), out)
    }

    /// Stops it cleanly; returns the decision log.
    pub(crate) fn stop(self) -> String {
        self.signal("-TERM");
        let (code, decisions) = self.end();
        assert_eq!(code, Some(0), "it stops cleanly");
        decisions
    }

    /// Kills it with SIGKILL; returns the decision log as far as it was written.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().expect("killed");
        self.child.wait().expect("it ends");
        self.out.take().expect("taken once").join().expect("no panic")
    }

    /// Calls `POST /rate-limit/allow`; returns the status and the response.
    pub(crate) fn allow(&self, body: &Value) -> (u16, Value) {
        post(&format!("{}/rate-limit/allow", self.http), body, None)
    }
}

impl Drop for RunningService {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

/// Sends a POST request with JSON; returns the status and the response.
pub(crate) fn post(url: &str, body: &Value, token: Option<&str>) -> (u16, Value) {
    let mut request = agent().post(url).header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut response = request.send(body.to_string()).expect("an answer");
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string().expect("a body");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Sends a GET request; returns the status and the body.
pub(crate) fn get(url: &str) -> (u16, String) {
    let mut response = agent().get(url).call().expect("an answer");
    (response.status().as_u16(), response.body_mut().read_to_string().expect("a body"))
}

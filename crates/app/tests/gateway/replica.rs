//! One gateway replica: a process of `sluicegate serve --only gateway`.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sluicegate_core::{Limit, Span, Timestamp};
use sluicegate_testkit::eventually_is;
pub(crate) use sluicegate_testkit::limit_check::longest_delay;
use sluicegate_testkit::limit_check::{self, assert_limit};

use crate::proof;
use crate::vendor::Vendor;

pub(crate) const TOKEN: &str = "the-internal-token-of-the-test";
/// Header that tells the vendor which replica forwarded a request.
pub(crate) const THROUGH: &str = "x-through";

/// A running replica, killed on drop.
pub(crate) struct Replica {
    pub(crate) url: String,
    pub(crate) admin: String,
    pub(crate) config: PathBuf,
    child: Child,
    log: Arc<Mutex<Vec<Value>>>,
    decisions: Arc<Mutex<String>>,
    reading: Vec<thread::JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// Returns the `store` section of a configuration.
pub(crate) fn redis(port: u16) -> String {
    // Longer timeouts and slack than in production: tests share the machine.
    format!(
        "store: {{kind: redis, url: 'redis://127.0.0.1:{port}', timeout: 1s, deadline: 2500ms, nodes_max: 3}}\nbooking: {{slack: 100ms}}\n"
    )
}

/// Returns the `store` section with the default timeouts and slack.
pub(crate) fn distant_redis(port: u16) -> String {
    format!("store: {{kind: redis, url: 'redis://127.0.0.1:{port}', nodes_max: 3}}\n")
}

/// Returns the configuration of a gateway for a vendor; `route` are further options of its route.
pub(crate) fn gateway(vendor: &Vendor, route: &[&str]) -> String {
    let lines: String = route.iter().map(|line| format!("        {line}\n")).collect();
    format!(
        "gateways:
  - name: nivoda
    listen: 127.0.0.1:0
    event: ingestion_proxy_request
    auth:
      tokens:
        internal: {TOKEN}
    routes:
      - path: /graphql
        upstream: http://127.0.0.1:{}/
{lines}",
        vendor.port
    )
}

impl Replica {
    pub(crate) fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sluicegate.yaml");
        std::fs::write(&path, with_admin(config)).expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .args(["serve", "--only", "gateway", "--config"])
            .arg(&path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (mut url, mut admin) = (String::new(), String::new());
        while url.is_empty() {
            let line = lines.next().expect("it listens before it ends").expect("text");
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            let address = || format!("http://{}", event["address"].as_str().expect("an address"));
            match event["listener"].as_str() {
                Some(name) if name.starts_with("gateways.") => url = address(),
                Some("admin") => admin = address(),
                _ => {}
            }
        }
        let logged = log.clone();
        let logging = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                logged.lock().expect("the log").push(event);
            }
        });
        let mut out = child.stdout.take().expect("piped");
        let decisions = Arc::new(Mutex::new(String::new()));
        let decided = decisions.clone();
        let deciding = thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            *decided.lock().expect("the lock") = text;
        });
        let reading = vec![logging, deciding];
        Self { url, admin, config: path, child, log, decisions, reading, _folder: folder }
    }

    /// Replaces the configuration file, as an editor does.
    pub(crate) fn write(&self, config: &str) {
        let beside = self.config.with_extension("new");
        std::fs::write(&beside, with_admin(config)).expect("a file");
        std::fs::rename(&beside, &self.config).expect("replaced");
    }

    /// Sends a request; returns its status, and its error code if it is rejected.
    pub(crate) fn ask(&self) -> (u16, String) {
        self.ask_with(TOKEN)
    }

    pub(crate) fn ask_with(&self, token: &str) -> (u16, String) {
        let (status, _, code) = ask(&self.url, token);
        (status, code)
    }

    /// Sends requests until the response has this status.
    pub(crate) fn wait_for(&self, status: u16) {
        eventually_is(|| self.ask().0, status);
    }

    /// Returns status and body of `/ready`.
    pub(crate) fn ready(&self) -> (u16, String) {
        get(&format!("{}/ready", self.url))
    }

    /// Returns the number of requests that wait for their turn.
    pub(crate) fn waiting(&self) -> usize {
        let (_, metrics) = get(&format!("{}/metrics", self.admin));
        let depths =
            metrics.lines().filter(|line| line.starts_with("sluicegate_gateway_queue_depth"));
        let depths = depths.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
        depths.sum()
    }

    /// Returns the id of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().expect("kill").success());
    }

    /// Waits for the end of the process and returns its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Returns its log since it started to listen.
    pub(crate) fn logged(&self) -> Vec<Value> {
        self.log.lock().expect("the log").clone()
    }

    /// Returns the request lines of its log.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let mut log = self.logged();
        log.retain(|line| line["event"] == "ingestion_proxy_request");
        log
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("it ends");
    }

    /// Stops it cleanly and returns its decision log.
    pub(crate) fn end(mut self) -> String {
        self.terminate();
        self.child.wait().expect("it ends");
        self.decisions()
    }

    /// Returns the decision log up to its end.
    pub(crate) fn decisions(&mut self) -> String {
        for thread in self.reading.drain(..) {
            thread.join().expect("no panic");
        }
        self.decisions.lock().expect("the lock").clone()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_admin(config: &str) -> String {
    format!("listen: {{admin: '127.0.0.1:0'}}\nlog: {{format: json}}\n{config}")
}

fn agent() -> ureq::Agent {
    let patience = Some(Duration::from_secs(60));
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(patience)
        .build()
        .into()
}

/// Sends a GET request; returns status and body.
pub(crate) fn get(url: &str) -> (u16, String) {
    let mut answer = agent().get(url).call().expect("an answer");
    (answer.status().as_u16(), answer.body_mut().read_to_string().expect("a body"))
}

/// Sends a request; returns status, Retry-After and error code. Status 0 if there is no response.
pub(crate) fn ask(url: &str, token: &str) -> (u16, Option<u64>, String) {
    ask_path(url, "/graphql", token)
}

/// Does the same for another path.
pub(crate) fn ask_path(url: &str, path: &str, token: &str) -> (u16, Option<u64>, String) {
    let body = r#"{"operationName":"Diamonds","query":"{a}"}"#;
    let request = agent().post(format!("{url}{path}"));
    let request = request.header("x-internal-token", token).header(THROUGH, url);
    let Ok(mut answer) = request.send(body) else { return (0, None, String::new()) };
    let retry =
        answer.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let text = answer.body_mut().read_to_string().unwrap_or_default();
    let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
    let code = parsed["error"]["code"].as_str().unwrap_or_default().to_owned();
    (answer.status().as_u16(), retry, code)
}

/// Sends this many requests at once, spread over the replicas; returns every response.
pub(crate) fn flood(replicas: &[Replica], count: usize) -> Vec<(u16, Option<u64>, String)> {
    let urls: Vec<_> = replicas.iter().map(|replica| replica.url.clone()).collect();
    let asking = (0..count).map(|number| {
        let url = urls[number % urls.len()].clone();
        thread::spawn(move || ask(&url, TOKEN))
    });
    let asking: Vec<_> = asking.collect();
    asking.into_iter().map(|asking| asking.join().expect("no panic")).collect()
}

/// Proves from the decision logs that the store admitted no more than the limit, and from the
/// vendor's record that no more arrived. Returns the longest delay between the two.
pub(crate) fn prove(limit: &str, logs: &[String], vendor: &Vendor) -> Span {
    let (admits, arrivals) = (admits(logs), vendor.arrivals());
    // A claim that comes after its start is nearer to the next start than the limit allows. The
    // pacer spaces the real starts of `smooth` work by itself (decision 022): the booked starts are
    // judged here, and the real ones below.
    match limit.contains("smooth") {
        true => assert_limit(limit, &booked_starts(logs)),
        false => assert_limit(limit, &admits),
    }
    let delay = longest_delay(&admits, &arrivals);
    match limit.parse() {
        Ok(Limit::Bucket { .. }) => limit_check::assert_bucket_arrivals(limit, delay, &arrivals),
        _ => assert_arrivals(limit, delay, &arrivals),
    }
    delay
}

/// Returns the starts for which admitted requests were booked, in order, even if they were claimed
/// later.
pub(crate) fn booked_starts(logs: &[String]) -> Vec<Timestamp> {
    proof::booked_starts(logs, |_| true)
}

/// Returns the times at which the store admitted requests, by its own clock, in order.
pub(crate) fn admits(logs: &[String]) -> Vec<Timestamp> {
    proof::admits(logs, |_| true)
}

/// Proves that no more requests arrived than a limit per second allows.
pub(crate) fn assert_arrivals(limit: &str, delay: Span, arrivals: &[Timestamp]) {
    let (amount, _) = limit.split_once("/s").expect("a limit per second");
    let amount = amount.parse().expect("a number");
    assert!(
        delay < Span::from_millis(900),
        "{delay} from the store to the vendor prove too little"
    );
    limit_check::assert_arrivals(amount, Span::from_secs(1), delay, arrivals);
}

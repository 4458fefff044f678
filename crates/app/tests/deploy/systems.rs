//! The five example systems, each as a real `sluicegate serve` that has served every kind of request
//! that its metrics count.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};
use sluicegate_testkit::eventually;
use sluicegate_testkit::ports::free_ports;
use sluicegate_testkit::redis::{RedisServer, Version};

use crate::common::{ANYWHERE, RunningService, get, post, sluicegate};
use crate::process::output;
use crate::{read, upstream};

/// Names of the systems, as in `prometheus.yaml`.
pub(crate) const NAMES: [&str; 5] =
    ["inference-limiter", "assistant-api", "two-tier-dispatch", "crawler-queue", "ingestion-proxy"];

/// The running systems and their Redis.
pub(crate) struct Systems {
    pub(crate) redis: RedisServer,
    running: Vec<RunningService>,
    gateway: String,
    _folder: tempfile::TempDir,
}

impl Systems {
    /// Starts all five with the configurations of `examples/`, on one Redis.
    pub(crate) fn start() -> Self {
        let redis = RedisServer::start(Version::System, &[]);
        let folder = tempfile::tempdir().expect("a folder");
        let provider = format!("http://127.0.0.1:{}", upstream::start());
        let [gateway] = free_ports();
        let port = redis.port.to_string();
        let url = format!("redis://127.0.0.1:{port}");
        let file = |name: &str| folder.path().join(name).display().to_string();
        let start = |name: &str, arguments: &[&str], env: &[(&str, &str)]| {
            let config = folder.path().join(format!("{name}.yaml"));
            let example = without_listen(&read(&format!("examples/{name}/sluicegate.yaml")));
            std::fs::write(&config, format!("{ANYWHERE}{example}")).expect("a file");
            let env: Vec<_> = env.iter().map(|(name, value)| (*name, Path::new(value))).collect();
            RunningService::spawn(&config, &env, arguments)
        };
        let redis_url = ("REDIS_URL", url.as_str());
        let running = vec![
            start(NAMES[0], &[], &[redis_url]),
            start(
                NAMES[1],
                &[],
                &[
                    ("REDIS_HOST", "127.0.0.1"),
                    ("REDIS_PORT", &port),
                    ("USER_DAILY_COST_LIMIT", "0.01"),
                    ("GLOBAL_DAILY_COST_LIMIT", "0.015"),
                ],
            ),
            start(
                NAMES[2],
                &["--create"],
                &[
                    redis_url,
                    ("STORE", "redis"),
                    ("QUEUE_FILE", &file("two-tier.db")),
                    ("PROVIDER_URL", &provider),
                    ("OPENAI_RATE_LIMIT", "5"),
                    ("MAX_RETRY_ATTEMPTS", "1"),
                ],
            ),
            start(
                NAMES[3],
                &["--create"],
                &[
                    redis_url,
                    ("STORE", "redis"),
                    ("QUEUE_FILE", &file("crawler.db")),
                    ("GITHUB_URL", &provider),
                ],
            ),
            start(
                NAMES[4],
                &[],
                &[
                    ("REDIS_CONNECTION_STRING", &url),
                    ("PORT", &gateway.to_string()),
                    ("INTERNAL_SERVICE_TOKEN", TOKEN),
                    ("NIVODA_ENDPOINT", &format!("{provider}/graphql")),
                    ("NIVODA_USERNAME", "ann"),
                    ("NIVODA_PASSWORD", "secret"),
                ],
            ),
        ];
        let gateway = format!("http://127.0.0.1:{gateway}/graphql");
        let systems = Self { redis, running, gateway, _folder: folder };
        systems.send("two-tier-dispatch", "two-tier.db", "raw-analysis-queue", &{
            let mut jobs = vec![json!({"AnalysisId": "dead", "text": "fail"})];
            jobs.extend((0..20).map(|n| json!({"AnalysisId": format!("job-{n}")})));
            jobs
        });
        let org = json!({"type": "crawl_org", "org": "acme"});
        systems.send("crawler-queue", "crawler.db", "crawl-org", &[org]);
        systems
    }

    /// Sends messages to an embedded queue of a system.
    fn send(&self, system: &str, file: &str, queue: &str, messages: &[Value]) {
        let folder = self._folder.path();
        let lines = messages.iter().fold(String::new(), |mut text, message| {
            writeln!(text, "{message}").expect("a string takes every write");
            text
        });
        let path = folder.join("messages.ndjson");
        std::fs::write(&path, lines).expect("a file");
        let mut command = sluicegate();
        command.env("QUEUE_FILE", folder.join(file)).args(["queue", "send", "--config"]);
        command.arg(folder.join(format!("{system}.yaml"))).args([queue, "--lines", "-"]);
        output(command.stdin(File::open(&path).expect("a file")));
    }

    /// Returns the log of the gateway so far.
    pub(crate) fn gateway_log(&self) -> Vec<Value> {
        self.running[4].logged()
    }

    /// Returns the address of the admin listener of each system, as host and port.
    pub(crate) fn admin(&self) -> Vec<String> {
        let host = |running: &RunningService| running.admin.replace("http://", "");
        self.running.iter().map(host).collect()
    }

    /// Sends requests of every kind to the decision services and to the gateway.
    pub(crate) fn load(&self) {
        for tenant in ["acme", "globex"] {
            for _ in 0..8 {
                let body = json!({"userId": "u1", "modelId": "gpt4", "tenantId": tenant});
                let (status, answer) = self.running[0].allow(&body);
                assert_eq!(status, 200, "{answer}");
            }
        }
        let spend = |user: &str| {
            let dimensions = json!({"userId": user, "modelId": "gpt4", "tenantId": "acme"});
            let body = json!({"dimensions": dimensions, "cost": {"inputTokens": 45_000}});
            let url = format!("{}/v1/acquire", self.running[1].http);
            let (status, answer) = post(&url, &body, None);
            assert_eq!(status, 200, "{answer}");
        };
        // The second request of ann exceeds her budget, the one of bob the budget of all.
        ["ann", "ann", "bob"].into_iter().for_each(spend);
        for (field, expected) in [("ok", 200), ("break", 502)] {
            let body = json!({"query": format!("query Diamonds {{ {field} }}")}).to_string();
            let agent = ureq::Agent::config_builder().http_status_as_error(false).build();
            let agent: ureq::Agent = agent.into();
            let request = agent.post(&self.gateway).header("x-internal-token", TOKEN);
            let request = request.header("content-type", "application/json");
            let status = request.send(&body).expect("a response").status().as_u16();
            assert_eq!(status, expected, "{body}");
        }
    }

    /// Waits until dispatchers and workers have handled their first messages.
    pub(crate) fn wait_for_jobs(&self) {
        for (system, expected) in [
            (2, "sluicegate_worker_done_total{provider=\"openai\"} "),
            (2, "sluicegate_worker_dead_total{provider=\"openai\"} 1"),
            (2, "sluicegate_dispatch_delayed_total{provider=\"openai\"} "),
            (
                3,
                "sluicegate_queue_processing_seconds_count{queue=\"generate-doc\",type=\"generate_doc\"} 2",
            ),
        ] {
            eventually(|| {
                let (_, text) = get(&format!("{}/metrics", self.running[system].admin));
                let is_positive = |rest: &str| expected.ends_with(char::is_numeric) || rest != "0";
                text.lines().any(|line| line.strip_prefix(expected).is_some_and(is_positive))
            });
        }
    }
}

/// Token of the callers of the gateway.
const TOKEN: &str = "internal-token-of-the-test";

/// Removes the section `listen`, because a test listens on ports that the system selects.
fn without_listen(config: &str) -> String {
    let mut inside = false;
    let keep = config.lines().filter(|line| {
        if !line.starts_with(' ') {
            inside = line.starts_with("listen:");
        }
        !inside
    });
    keep.fold(String::new(), |text, line| text + line + "\n")
}

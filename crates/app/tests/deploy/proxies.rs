//! NGINX and HAProxy with the configurations of `deploy/proxies`, in front of a small application; and
//! the request that the file for Traefik makes it send, because Traefik is in no package registry.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_testkit::eventually;
use sluicegate_testkit::ports::free_ports;
use sluicegate_testkit::redis::{RedisServer, Version};

use crate::common::{ANYWHERE, RunningService, get};
use crate::process::{Running, output, service};
use crate::{python, read, repository, upstream};

/// A proxy, Sluicegate and the application.
struct Edge {
    limiter: Option<RunningService>,
    url: String,
    _proxy: Running,
    folder: tempfile::TempDir,
}

/// Number of requests of users that are used once.
static PROBES: AtomicU64 = AtomicU64::new(0);

/// A proxy that is tested.
#[derive(Clone, Copy, Debug)]
enum Proxy {
    Nginx,
    HaProxy,
}

impl Proxy {
    /// Starts the proxy in a folder that contains its files.
    fn start(self, folder: &Path) -> Running {
        match self {
            Self::Nginx => {
                let mut command = Command::new(service("nginx/usr/sbin/nginx"));
                // One process: workers would outlive a master that is killed at the end of the test.
                let options = "daemon off; master_process off;";
                command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-g", options]);
                Running::start(command.current_dir(folder))
            }
            Self::HaProxy => {
                let mut command = Command::new("haproxy");
                Running::start(command.args(["-f", "haproxy.cfg"]).current_dir(folder))
            }
        }
    }
}

impl Edge {
    /// Starts all three. `store` is added to the configuration of Sluicegate, and `outage` is its policy.
    fn start(proxy: Proxy, store: &str, outage: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("limits.yaml");
        let [port, http] = free_ports();
        let limits = read("deploy/proxies/limits.yaml");
        assert!(limits.contains("\n  default: closed\n"), "{limits}");
        let limits = limits.replace("default: closed", &format!("default: {outage}"));
        let listen = ANYWHERE.replacen("127.0.0.1:0", &format!("127.0.0.1:{http}"), 1);
        std::fs::write(&config, format!("{listen}{store}{limits}")).expect("a file");
        let limiter = Some(RunningService::with_file(&config));
        let app = upstream::start();
        for file in ["nginx.conf", "haproxy.cfg", "sluicegate.lua"] {
            let mut text = read(&format!("deploy/proxies/{file}"));
            for (from, to) in [(10080, port), (10081, port), (8080, http), (8000, app)] {
                text = text.replace(&format!("127.0.0.1:{from}"), &format!("127.0.0.1:{to}"));
            }
            // The folders of Debian's package, which are not there, because it is not installed.
            let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
            let temporary = temporary.map(|name| format!("{name}_temp_path {name};\n"));
            text = text.replace("\nhttp {\n", &format!("\nhttp {{\n{}", temporary.concat()));
            std::fs::write(folder.path().join(file), text).expect("a file");
        }
        let running = proxy.start(folder.path());
        eventually(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { limiter, url: format!("http://127.0.0.1:{port}"), _proxy: running, folder }
    }

    /// Sends a request of a user; returns the status and the headers.
    fn get(&self, path: &str, user: Option<&str>) -> (u16, ureq::http::HeaderMap) {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build();
        let agent: ureq::Agent = agent.into();
        let mut request = agent.get(format!("{}{path}", self.url));
        if let Some(user) = user {
            request = request.header("x-user", user);
        }
        let response = request.call().expect("a response");
        (response.status().as_u16(), response.headers().clone())
    }

    /// Returns the number of decisions that Sluicegate made without Redis.
    fn fallbacks(&self) -> u64 {
        let limiter = self.limiter.as_ref().expect("it runs");
        let (_, metrics) = get(&format!("{}/metrics", limiter.admin));
        let lines = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("rate_limiter_fallback_total{")?.rsplit_once(' '));
        lines.map(|(_, count)| count.parse::<u64>().expect("a count")).sum()
    }

    /// Sends a request; returns true if it passed and Redis decided.
    fn decides_with_redis(&self) -> bool {
        let before = self.fallbacks();
        // A new user each time, so that none reaches a limit.
        let user = format!("user-{}", PROBES.fetch_add(1, Ordering::Relaxed));
        self.get("/", Some(&user)).0 == 200 && self.fallbacks() == before
    }

    fn statuses(&self, count: usize, path: &str, user: &str) -> Vec<u16> {
        (0..count).map(|_| self.get(path, Some(user)).0).collect()
    }
}

/// Spellings of the path of a login, which most applications treat alike.
const LOGINS: [&str; 7] =
    ["/login?x=1", "//login", "/%6cogin", "/%6Cogin?/a", "/./login", "/a/%2e%2e/login", "/login/"];

fn check_limits(proxy: Proxy) {
    let mut edge = Edge::start(proxy, "", "closed");
    let (status, headers) = edge.get("/", Some("ann"));
    assert_eq!((status, &headers["x-ratelimit-limit"]), (200, &"50".parse().expect("a value")));
    assert_eq!(edge.statuses(49, "/", "ann"), [200; 49], "{proxy:?}");
    let (status, headers) = edge.get("/", Some("ann"));
    assert_eq!(status, 429, "{proxy:?}");
    let wait: u64 = headers["retry-after"].to_str().expect("text").parse().expect("seconds");
    assert!((3_000..=3_600).contains(&wait), "{wait}");
    assert_eq!(edge.statuses(4, "/login", "bob"), [200, 200, 200, 429], "{proxy:?}");
    assert_eq!(edge.get("/", Some("bob")).0, 200, "only logins are exhausted");
    for path in LOGINS {
        assert_eq!(edge.get(path, Some("bob")).0, 429, "{proxy:?}: {path}");
    }
    assert_eq!(edge.get("/login/other", Some("bob")).0, 200, "{proxy:?}");
    assert_eq!(edge.get("/", None).0, 403, "{proxy:?}: a user is required");
    // A header that looks like parameters is one value: a new user, who has a limit of their own.
    assert_eq!(edge.statuses(2, "/", "ann&userId=bob"), [200, 200], "{proxy:?}");
    // Without Sluicegate both files let requests pass.
    edge.limiter = None;
    assert_eq!(edge.statuses(3, "/", "ann"), [200; 3], "{proxy:?}");
    edge.limiter = Some(RunningService::with_file(&edge.folder.path().join("limits.yaml")));
    eventually(|| edge.get("/", Some("new")).1.contains_key("x-ratelimit-limit"));
}

/// Kills Redis behind a proxy, calls `check`, and restarts Redis.
fn without_redis(proxy: Proxy, outage: &str, check: impl Fn(&Edge)) {
    let mut redis = RedisServer::start(Version::System, &[]);
    let store = format!("store: {{kind: redis, url: 'redis://127.0.0.1:{}'}}\n", redis.port);
    let edge = Edge::start(proxy, &store, outage);
    eventually(|| edge.decides_with_redis());
    redis.kill();
    check(&edge);
    redis.restart();
    eventually(|| edge.decides_with_redis());
}

fn check_closed(proxy: Proxy) {
    without_redis(proxy, "closed", |edge| {
        // No request passes, and none gets a 500.
        eventually(|| edge.get("/", Some("ann")).0 != 200);
        for _ in 0..20 {
            let (status, headers) = edge.get("/", Some("ann"));
            assert_eq!((status, headers["retry-after"].as_bytes()), (429, &b"1"[..]), "{proxy:?}");
        }
    });
}

fn check_open(proxy: Proxy) {
    without_redis(proxy, "open", |edge| {
        eventually(|| !edge.decides_with_redis());
        // The proxies would also pass requests if Sluicegate itself did not answer, as on a busy machine.
        // So its decisions are counted.
        let before = edge.fallbacks();
        eventually(|| {
            assert_eq!(edge.statuses(20, "/", "eve"), [200; 20], "{proxy:?}");
            edge.fallbacks() - before >= 20
        });
    });
}

#[test]
fn nginx_keeps_limits_and_passes_requests_while_the_limiter_is_down() {
    check_limits(Proxy::Nginx);
}

#[test]
fn nginx_answers_429_and_no_500_while_redis_is_down_and_the_policy_is_closed() {
    check_closed(Proxy::Nginx);
}

#[test]
fn nginx_passes_requests_while_redis_is_down_and_the_policy_is_open() {
    check_open(Proxy::Nginx);
}

#[test]
fn haproxy_keeps_limits_and_passes_requests_while_the_limiter_is_down() {
    check_limits(Proxy::HaProxy);
}

#[test]
fn haproxy_answers_429_and_no_500_while_redis_is_down_and_the_policy_is_closed() {
    check_closed(Proxy::HaProxy);
}

#[test]
fn haproxy_passes_requests_while_redis_is_down_and_the_policy_is_open() {
    check_open(Proxy::HaProxy);
}

/// Returns a YAML file of the repository as JSON.
fn yaml(path: &str) -> serde_json::Value {
    let program = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let mut command = Command::new(python());
    let text = output(command.args(["-c", program]).arg(repository(path)));
    serde_json::from_str(&text).expect("JSON")
}

fn texts(value: &serde_json::Value) -> Vec<String> {
    let items = value.as_array().expect("a list").iter();
    items.map(|item| item.as_str().expect("a text").to_lowercase()).collect()
}

#[test]
fn traefik_asks_an_endpoint_that_answers_with_the_headers_that_it_copies() {
    let http = &yaml("deploy/proxies/traefik.yaml")["http"];
    let router = &http["routers"]["app"];
    assert!(http["services"][router["service"].as_str().expect("a service")].is_object(), "{http}");
    let [limit] = &texts(&router["middlewares"])[..] else { panic!("{router}") };
    let forward = &http["middlewares"][limit]["forwardAuth"];
    let address = forward["address"].as_str().expect("an address");
    let (sent, copied) =
        (texts(&forward["authRequestHeaders"]), texts(&forward["authResponseHeaders"]));
    // A header that a parameter names is sent: by the list, or by Traefik itself.
    let named: Vec<_> =
        address.split("=@").skip(1).filter_map(|rest| rest.split('&').next()).collect();
    assert!(named.len() == 2, "{address}");
    for name in named {
        assert!(name.starts_with("x-forwarded-") || sent.iter().any(|sent| sent == name), "{name}");
    }
    let service = RunningService::start(&read("deploy/proxies/limits.yaml"));
    let path = address.strip_prefix("http://127.0.0.1:8080").expect("the default of listen.http");
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let ask = |user: &str, uri: &str| {
        let request = agent.get(format!("{}{path}", service.http)).header("x-user", user);
        request.header("x-forwarded-uri", uri).call().expect("a response")
    };
    let allowed = ask("ann", "/login");
    assert_eq!(allowed.status(), 200);
    for name in copied {
        assert!(allowed.headers().contains_key(name.as_str()), "{name}: {:?}", allowed.headers());
    }
    let statuses = [(); 3].map(|()| ask("ann", "/login"));
    assert_eq!(statuses.each_ref().map(|response| response.status().as_u16()), [200, 200, 429]);
    assert!(statuses[2].headers().contains_key("retry-after"), "{:?}", statuses[2].headers());
    assert_eq!(ask("ann", "/").status(), 200, "only logins are exhausted");
    // Traefik sends the query string, too.
    for path in LOGINS {
        assert_eq!(ask("ann", path).status(), 429, "{path}");
    }
}

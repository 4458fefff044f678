//! `sluicegate serve` on Redis with TLS, user and password: a single server, a cluster, and Sentinel.

mod common;

use std::path::Path;
use std::sync::LazyLock;

use common::{RunningService, get, post};
use serde_json::json;
use sluicegate_testkit::eventually_is;
use sluicegate_testkit::redis::{
    ClusterOptions, MASTER, RedisCluster, RedisSentinel, RedisServer, RedisTls, Version,
    documented_commands,
};

/// Access rules, as options of a server: the limiter gets exactly the permissions of the
/// documentation, the servers those they need among themselves, and a client without a login may
/// read but not write.
fn users() -> Vec<&'static str> {
    static USERS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let limiter = ["--user", "limiter", "on", ">s3cret@", "~sg:*", "-@all"];
        let others =
            ["--user", "default", "on", "nopass", "~*", "&*", "+@all", "-eval", "-evalsha"];
        let limiter = limiter.map(str::to_owned).into_iter().chain(documented_commands());
        limiter.chain(others.map(str::to_owned)).collect()
    });
    USERS.iter().map(String::as_str).collect()
}

struct Certificate {
    folder: tempfile::TempDir,
}

impl Certificate {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certified = rcgen::generate_simple_self_signed(names).expect("a certificate");
        std::fs::write(folder.path().join("cert.pem"), certified.cert.pem()).expect("a file");
        let key = certified.signing_key.serialize_pem();
        std::fs::write(folder.path().join("key.pem"), key).expect("a file");
        Self { folder }
    }

    fn cert(&self) -> std::path::PathBuf {
        self.folder.path().join("cert.pem")
    }

    fn with<T>(&self, run: impl FnOnce(RedisTls<'_>) -> T) -> T {
        run(RedisTls { cert: &self.cert(), key: &self.folder.path().join("key.pem") })
    }
}

fn server(login: &str, server: &RedisServer) -> String {
    format!("'rediss://{login}127.0.0.1:{}'", server.tls_port.expect("it listens under cover"))
}

/// Asserts that a service with this store admits exactly the limit, over two rules, and settles its
/// reservations.
fn decides(store: &str, trusted: &Path) {
    let config = format!(
        "store: {{kind: redis, {store}, timeout: 2s, deadline: 5s}}\n\
         limits:\n\
         \x20 - {{name: user, rules: [{{name: USER, per: [userId], limit: [3/h, 90 tokens/h]}}]}}\n\
         \x20 - {{name: model, rules: [{{name: MODEL, per: [modelId], limit: 100/h}}]}}\n"
    );
    let service = RunningService::start_with(&config, &[("SSL_CERT_FILE", trusted)]);
    eventually_is(|| get(&format!("{}/ready", service.admin)).1, "{\"status\":\"ready\"}");
    let ann = json!({ "userId": "ann", "modelId": "gpt4" });
    let allowed = (0..6).filter(|_| service.allow(&ann).1["allowed"] == true).count();
    assert_eq!(allowed, 3, "{store}");
    // Overrides use Redis commands of their own.
    let other = json!({ "rule": "USER", "when": { "userId": "bob" }, "limit": ["9/h", "90 tokens/h"],
        "reason": "a test" });
    let (status, answer) = post(&format!("{}/v1/overrides", service.http), &other, None);
    assert_eq!(status, 201, "{store}: {answer}");
}

/// Asserts that Redis rejects a service with this login.
fn is_refused(store: &str, trusted: &Path) {
    let config = format!("store: {{kind: redis, {store}, timeout: 2s, deadline: 5s}}\n");
    let service = RunningService::start_with(&config, &[("SSL_CERT_FILE", trusted)]);
    let (_, answer) = service.allow(&json!({ "userId": "ann", "modelId": "gpt4" }));
    assert_eq!(answer["reason"], "STORE_UNAVAILABLE", "{store}");
}

const LOGIN: &str = "limiter:s3cret%40@";

#[test]
fn a_single_server_requires_its_user_and_password() {
    let redis = RedisServer::start(Version::System, &users());
    let nobody = Path::new("/nonexistent");
    decides(&format!("url: 'redis://{LOGIN}127.0.0.1:{}'", redis.port), nobody);
    for login in ["", "limiter:wrong@", ":s3cret%40@"] {
        is_refused(&format!("url: 'redis://{login}127.0.0.1:{}'", redis.port), nobody);
    }
}

#[test]
fn a_cluster_with_tls_requires_its_user_and_password() {
    let certificate = Certificate::new();
    let cluster = certificate.with(|tls| {
        let tls = Some(tls);
        RedisCluster::start_with(ClusterOptions {
            tls,
            more: &users(),
            ..ClusterOptions::default()
        })
    });
    let seed = |login: &str| format!("cluster: [{}]", server(login, &cluster.primaries[1]));
    decides(&seed(LOGIN), &certificate.cert());
    is_refused(&seed("limiter:wrong@"), &certificate.cert());
    is_refused(&seed(LOGIN), &Certificate::new().cert());
}

#[test]
fn a_master_with_tls_and_its_sentinels_require_user_and_password() {
    let certificate = Certificate::new();
    let rules = "user watcher on >w4tch@ +@all\nuser default on nopass +@all -sentinel|get-master-addr-by-name\n";
    let redis = certificate.with(|tls| RedisSentinel::start_with(Some(tls), &users(), rules));
    let nodes: Vec<_> =
        redis.sentinels.iter().map(|sentinel| server("watcher:w4tch%40@", sentinel)).collect();
    let store = |password: &str| {
        let nodes = nodes.join(", ");
        format!(
            "sentinel: {{master: {MASTER}, nodes: [{nodes}], username: limiter, password: '{password}'}}"
        )
    };
    decides(&store("s3cret@"), &certificate.cert());
    is_refused(&store("wrong"), &certificate.cert());
    is_refused(&store("s3cret@").replace("w4tch", "wrong"), &certificate.cert());
}

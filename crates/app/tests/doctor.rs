//! `sluicegate init` and `sluicegate doctor`, with a real Redis.

mod common;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{ANYWHERE, RunningService, sluicegate};
use serde_json::Value;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::WallClock;
use sluicegate_testkit::rabbitmq::RabbitServer;
use sluicegate_testkit::redis::{RedisServer, Version, documented_commands};

/// Names of the starter files, which are also the names of the examples.
const STARTERS: [&str; 5] =
    ["inference-limiter", "assistant-api", "two-tier-dispatch", "crawler-queue", "ingestion-proxy"];

/// Runs a command in a folder; returns its exit code and its standard output and error.
fn run(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    run_program(sluicegate(), folder, arguments)
}

/// Runs a command with further arguments in a folder; returns the same as [`run`].
fn run_program(
    mut command: Command,
    folder: &Path,
    arguments: &[&str],
) -> (Option<i32>, String, String) {
    command.current_dir(folder).env_remove("REDIS_URL").args(arguments);
    let output = command.output().expect("it ran");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_starter_file_is_valid_without_warnings() {
    for name in STARTERS {
        let folder = tempfile::tempdir().expect("a folder");
        let (code, out, err) = run(folder.path(), &["init", name]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{name}: {out}");
        assert_eq!(out, "sluicegate.yaml written. Next: sluicegate check sluicegate.yaml\n");
        let (code, out, err) = run(folder.path(), &["check", "--strict", "sluicegate.yaml"]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{name}: {out}");
        let (code, printed, _) = run(folder.path(), &["init", name, "--output", "-"]);
        let written = std::fs::read_to_string(folder.path().join("sluicegate.yaml"));
        assert_eq!((code, printed), (Some(0), written.expect("the file")), "{name}");
        let machine = run(folder.path(), &["doctor", "--config", "sluicegate.yaml", "--json"]);
        let invalid = machine.1.lines().filter(|line| serde_json::from_str::<Value>(line).is_err());
        assert_eq!(invalid.count(), 0, "{name}: {}", machine.1);
    }
}

/// The tests run the example on all brokers, so the starter file crawls every page, too.
#[test]
fn the_starter_file_of_the_crawler_does_what_the_example_does() {
    let read = |path: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::read_to_string(path).expect("a file")
    };
    let section = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("\n{name}:\n")).expect(name);
        let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    };
    let starter = read("src/cli/starter/crawler-queue.yaml");
    let example = read("../../examples/crawler-queue/sluicegate.yaml");
    // The example crawls the simulator unless it is told otherwise.
    let example =
        example.replace("GITHUB_URL:-http://127.0.0.1:18081", "GITHUB_URL:-https://api.github.com");
    for name in ["queue", "workers"] {
        assert_eq!(section(&starter, name), section(&example, name), "{name}");
    }
    assert!(section(&starter, "workers").contains("pages: {link: page}"), "{starter}");
}

#[test]
fn an_existing_file_is_replaced_only_by_force() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluicegate.yaml");
    std::fs::write(&path, "mine").expect("a file");
    let (code, _, err) = run(folder.path(), &["init", "assistant-api"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("sluicegate.yaml exists: add --force to replace it"), "{err}");
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "mine");
    assert_eq!(run(folder.path(), &["init", "assistant-api", "--force"]).0, Some(0));
    assert!(std::fs::read_to_string(&path).expect("the file").contains("USER_COST"));
    let (code, _, err) = run(folder.path(), &["init", "nonsense"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("inference-limiter") && err.contains("ingestion-proxy"), "{err}");
    let nowhere = run(folder.path(), &["init", "assistant-api", "--output", "no/such/folder.yaml"]);
    assert_eq!(nowhere.0, Some(2));
    assert!(nowhere.2.contains("can't write no/such/folder.yaml"), "{}", nowhere.2);
}

/// Runs the doctor on a configuration; returns its exit code, and message and remedy by check and
/// result, such as `port problem`.
fn examine(config: &str) -> (Option<i32>, BTreeMap<String, Vec<String>>) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("sluicegate.yaml"), config).expect("a file");
    let arguments = ["doctor", "--config", "sluicegate.yaml", "--json"];
    let (code, out, err) = run(folder.path(), &arguments);
    assert_eq!(err, "", "{out}");
    let mut findings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in out.lines() {
        let finding: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        assert_eq!(finding["result"] == "ok", finding["remedy"].is_null(), "{finding}");
        let place = format!("{} {}", word("check"), word("result"));
        let text = format!("{} | {}", word("message"), word("remedy"));
        findings.entry(place).or_default().push(text);
    }
    (code, findings)
}

#[test]
fn a_healthy_machine_has_no_problems() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let redis = RedisServer::start(Version::System, &["--appendonly", "yes", "--dir", &dir]);
    let store = format!(
        "store: {{kind: redis, url: 'redis://127.0.0.1:{}', timeout: 1s, deadline: 5s}}\n",
        redis.port
    );
    let server = "server: {connections_max: 10}\n";
    let (code, findings) = examine(&format!("{ANYWHERE}{store}{server}"));
    assert_eq!(code, Some(0), "{findings:#?}");
    for check in ["configuration", "port", "open files", "redis", "persistence", "eviction"] {
        assert!(findings.contains_key(&format!("{check} ok")), "{check}: {findings:#?}");
    }
    for check in ["permissions", "round trip", "clock"] {
        assert!(findings.contains_key(&format!("{check} ok")), "{check}: {findings:#?}");
    }
    assert!(findings["redis ok"][0].contains("Redis 7."), "{findings:#?}");
    assert_eq!(redis.command(&["DBSIZE"]), ":0", "it leaves nothing behind");
}

#[test]
fn the_documented_permissions_are_enough_and_missing_ones_are_named() {
    let permitted = documented_commands();
    let user = |forbidden: &str| {
        let mut options = vec!["--user", "limiter", "on", ">secret", "~sg:*", "-@all"];
        options.extend(permitted.iter().map(String::as_str));
        options.push(forbidden);
        RedisServer::start(Version::System, &options)
    };
    let examine = |redis: &RedisServer, prefix: &str| {
        let url = format!("redis://limiter:secret@127.0.0.1:{}", redis.port);
        examine(&format!(
            "{ANYWHERE}store: {{kind: redis, key_prefix: '{prefix}', url: '{url}'}}\n"
        ))
    };
    let redis = user("+ping");
    let (_, findings) = examine(&redis, "sg:");
    assert!(findings.contains_key("permissions ok"), "{findings:#?}");
    let (code, findings) = examine(&redis, "other:");
    assert_eq!(code, Some(1), "{findings:#?}");
    assert!(findings["permissions problem"][0].contains("~other:*"), "{findings:#?}");
    let redis = user("-zadd");
    let (code, findings) = examine(&redis, "sg:");
    assert_eq!(code, Some(1), "{findings:#?}");
    let [found] = findings["permissions problem"].as_slice() else { panic!("{findings:#?}") };
    assert!(found.contains("no permission for +zadd | run `redis-cli ACL SETUSER"), "{found}");
    // Scripts use ZADD; the node itself uses ROLE. The remedy grants both.
    assert_eq!(redis.command(&["ACL", "SETUSER", "limiter", "-role"]), "+OK");
    let (code, findings) = examine(&redis, "sg:");
    assert_eq!(code, Some(1), "{findings:#?}");
    let [found] = findings["permissions problem"].as_slice() else { panic!("{findings:#?}") };
    assert!(found.contains("no permission for +role +zadd | "), "{found}");
    apply_remedy(&redis, found);
    let (code, findings) = examine(&redis, "sg:");
    assert_eq!(code, Some(0), "{findings:#?}");
    assert!(findings.contains_key("permissions ok"), "{findings:#?}");
}

/// Runs the `redis-cli` command of a remedy.
fn apply_remedy(redis: &RedisServer, finding: &str) {
    let command = finding.split("`redis-cli ").nth(1).and_then(|rest| rest.split('`').next());
    let command = command.unwrap_or_else(|| panic!("{finding}")).replace("<user>", "limiter");
    let words: Vec<_> = command.split(' ').collect();
    assert_eq!(redis.command(&words), "+OK", "{command}");
}

/// Without these commands the doctor can't finish its other checks of Redis.
#[test]
fn a_permission_that_the_doctor_itself_needs_is_named() {
    let permitted = documented_commands();
    for missing in ["+info", "+ping"] {
        let mut options = vec!["--user", "limiter", "on", ">secret", "~sg:*", "-@all"];
        options.extend(permitted.iter().map(String::as_str).filter(|command| *command != missing));
        let redis = RedisServer::start(Version::System, &options);
        let url = format!("redis://limiter:secret@127.0.0.1:{}", redis.port);
        let config = format!("{ANYWHERE}store: {{kind: redis, url: '{url}'}}\n");
        let (code, findings) = examine(&config);
        assert_eq!(code, Some(1), "{findings:#?}");
        let Some([found]) = findings.get("permissions problem").map(Vec::as_slice) else {
            panic!("{findings:#?}")
        };
        assert!(found.contains(&format!("no permission for {missing} | ")), "{found}");
        apply_remedy(&redis, found);
        let (code, findings) = examine(&config);
        assert_eq!(code, Some(0), "{findings:#?}");
        assert!(findings.contains_key("permissions ok"), "{findings:#?}");
    }
}

#[test]
fn every_eviction_policy_that_deletes_counters_is_a_problem() {
    let redis = RedisServer::start(Version::System, &[]);
    let config =
        format!("{ANYWHERE}store: {{kind: redis, url: 'redis://127.0.0.1:{}'}}\n", redis.port);
    for policy in ["allkeys-random", "volatile-lru", "volatile-ttl"] {
        assert_eq!(redis.command(&["CONFIG", "SET", "maxmemory-policy", policy]), "+OK");
        let (code, findings) = examine(&config);
        assert_eq!(code, Some(1), "{findings:#?}");
        let [found] = findings["eviction problem"].as_slice() else { panic!("{findings:#?}") };
        let (problem, remedy) = found.split_once(" | ").expect("a remedy");
        assert!(problem.contains(&format!("maxmemory-policy is {policy}: ")), "{problem}");
        assert!(remedy.contains("set it in redis.conf"), "{remedy}");
        apply_remedy(&redis, remedy);
        let (code, findings) = examine(&config);
        assert_eq!(code, Some(0), "{findings:#?}");
        assert!(findings.contains_key("eviction ok"), "{findings:#?}");
    }
}

/// Writes a certificate that expires so many days from now, and its key; returns both paths.
fn write_certificate(folder: &Path, days: i64) -> (PathBuf, PathBuf) {
    let mut parameters =
        rcgen::CertificateParams::new(["localhost".to_owned()]).expect("parameters");
    let today = WallClock.now().as_micros() / 86_400_000_000;
    let expires = today.checked_add_signed(days).expect("a day") * 86_400;
    parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(expires);
    let key = rcgen::KeyPair::generate().expect("a key");
    let cert = parameters.self_signed(&key).expect("a certificate");
    let (cert_file, key_file) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert_file, cert.pem()).expect("a file");
    std::fs::write(&key_file, key.serialize_pem()).expect("a file");
    (cert_file, key_file)
}

#[test]
fn a_certificate_is_reported_before_and_after_it_expires() {
    for (days, code, result, words) in [
        (-1, 1, "TLS problem", "expired at "),
        (10, 0, "TLS warning", "expires at "),
        (60, 0, "TLS ok", "is valid until "),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let (cert, key) = write_certificate(folder.path(), days);
        let (cert, key) = (cert.display(), key.display());
        let (exit, findings) = examine(&format!(
            "listen:\n  http: {{address: '127.0.0.1:0', tls: {{cert: '{cert}', key: '{key}', client_ca: '{cert}'}}}}\n  \
             grpc: 127.0.0.1:0\n  admin: 127.0.0.1:0\n"
        ));
        assert_eq!(exit, Some(code), "{findings:#?}");
        let tls = findings.iter().filter(|(place, _)| place.starts_with("TLS"));
        assert_eq!(tls.map(|(place, _)| place).collect::<Vec<_>>(), [result], "{findings:#?}");
        let [own, clients] = findings[result].as_slice() else { panic!("{findings:#?}") };
        for (found, option) in [(own, "cert"), (clients, "client_ca")] {
            let problem = format!("listen.http.tls.{option}: {cert} {words}");
            assert!(found.starts_with(&problem), "{problem}: {found}");
            assert_eq!(found.contains(" | renew the certificate"), days < 30, "{found}");
        }
    }
}

#[test]
fn a_key_that_this_user_may_not_read_is_a_problem() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, key) = write_certificate(folder.path(), 60);
    let config = format!(
        "listen:\n  http: 127.0.0.1:0\n  grpc: {{address: '127.0.0.1:0', tls: {{cert: '{}', key: '{}'}}}}\n  \
         admin: 127.0.0.1:0\n",
        cert.display(),
        key.display()
    );
    std::fs::write(folder.path().join("sluicegate.yaml"), config).expect("a file");
    std::fs::set_permissions(&key, Permissions::from_mode(0o000)).expect("permissions");
    let mut program = sluicegate();
    if std::fs::read(&key).is_ok() {
        // This user is root, who may read every file until the capability is dropped.
        program = Command::new("setpriv");
        program.args(["--bounding-set=-all", "--inh-caps=-all"]);
        program.arg(sluicegate().get_program());
    }
    let arguments = ["doctor", "--config", "sluicegate.yaml"];
    let (code, out, err) = run_program(program, folder.path(), &arguments);
    assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
    let problem = format!("listen.grpc.tls: cannot read {}", key.display());
    let mut lines = out.lines().skip_while(|line| !line.contains(&problem));
    let line = lines.next().unwrap_or_else(|| panic!("{problem}: {out}"));
    assert!(line.starts_with("problem  TLS ") && line.contains("Permission denied"), "{line}");
    let remedy = lines.next().expect("a remedy").trim();
    assert!(remedy.contains("let this user read the file"), "{remedy}");
    assert!(out.contains("\n1 problem, "), "{out}");

    std::fs::remove_file(&key).expect("a file");
    let (code, out, _) = run(folder.path(), &arguments);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains(&problem) && out.contains("correct the path"), "{out}");
}

#[test]
fn each_problem_of_a_machine_is_found() {
    let redis = RedisServer::start(Version::System, &["--maxmemory-policy", "allkeys-lru"]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let folder = tempfile::tempdir().expect("a folder");
    let (cert_file, key_file) = write_certificate(folder.path(), -1);
    let (cert_file, key_file) = (cert_file.display(), key_file.display());
    let config = format!(
        "listen:\n  http: 127.0.0.1:{port}\n  grpc: {{address: '127.0.0.1:0', tls: {{cert: '{cert_file}', key: '{key_file}'}}}}\n  admin: 192.0.2.1:0\nauth: {{tokens: {{a: 0123456789abcdef0123}}}}\n\
         store: {{kind: redis, url: 'redis://127.0.0.1:{}'}}\n\
         queue: {{path: /no/such/folder/queue.db}}\n\
         workers: [{{provider: p, queue: jobs, handler: {{command: [cat]}}}}]\n",
        redis.port
    );
    let (code, findings) = examine(&config);
    assert_eq!(code, Some(1), "{findings:#?}");
    for (place, expected) in [
        ("port problem", "is in use by another program"),
        ("port problem", "admin: can't listen on 192.0.2.1:0"),
        ("TLS problem", "expired at "),
        ("persistence warning", "set `appendonly yes`"),
        ("eviction problem", "maxmemory-policy is allkeys-lru"),
        ("folder problem", "can't write to /no/such/folder"),
        ("queue ok", "does not exist yet: the service creates it"),
    ] {
        let found = findings.get(place).into_iter().flatten();
        assert!(found.clone().any(|text| text.contains(expected)), "{expected}: {findings:#?}");
    }
}

#[test]
fn a_redis_that_is_down_and_a_missing_queue_are_problems() {
    let [redis, broker] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [redis, broker] = [redis, broker].map(|held| held.local_addr().expect("an address"));
    let (code, findings) = examine(&format!(
        "{ANYWHERE}store: {{kind: redis, url: 'redis://{redis}'}}\n\
         queue: {{kind: rabbitmq, url: 'amqp://guest:guest@{broker}/'}}\n"
    ));
    assert_eq!(code, Some(1), "{findings:#?}");
    assert!(findings["redis problem"][0].contains("outage policies decide"), "{findings:#?}");
    assert!(findings["broker problem"][0].starts_with("RabbitMQ: "), "{findings:#?}");

    // A client that connects with its first request.
    let worker = "workers: [{provider: p, queue: jobs, handler: {command: [cat]}}]\n";
    let pubsub = format!("queue: {{kind: pubsub, project: tests, endpoint: 'http://{broker}'}}\n");
    for workers in ["", worker] {
        let (code, findings) = examine(&format!("{ANYWHERE}{pubsub}{workers}"));
        assert_eq!(code, Some(1), "{findings:#?}");
        let problem = &findings["broker problem"][0];
        assert!(problem.starts_with("Pub/Sub: Pub/Sub is unavailable"), "{problem}");
        assert!(!findings.contains_key("broker ok"), "{findings:#?}");
    }

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db").display().to_string();
    let queue = format!("queue: {{path: '{path}'}}\n");
    let other = folder.path().join("other.yaml");
    std::fs::write(&other, &queue).expect("a file");
    let other = other.display().to_string();
    let sent =
        run(folder.path(), &["queue", "send", "other", "{}", "--create", "--config", &other]);
    assert_eq!(sent.0, Some(0), "{}", sent.2);
    let worker = "workers: [{provider: p, queue: jobs, handler: {command: [cat]}}]\n";
    let (code, findings) = examine(&format!("{ANYWHERE}{queue}{worker}"));
    assert_eq!(code, Some(1), "{findings:#?}");
    let problem = &findings["queue problem"][0];
    assert!(problem.contains("jobs") && problem.contains("--create"), "{problem}");
}

#[test]
fn a_running_service_with_tls_or_ipv6_is_recognised() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, key) = write_certificate(folder.path(), 60);
    let (cert, key) = (cert.display(), key.display());
    let tls = format!("tls: {{cert: '{cert}', key: '{key}'}}");
    // The certificate of the service is also the authority of its clients.
    let mutual = format!("tls: {{cert: '{cert}', key: '{key}', client_ca: '{cert}'}}");
    let listen = |http: &str, grpc: &str, admin: &str| {
        format!(
            "listen:\n  http: {{address: '{http}', {tls}}}\n  grpc: {{address: '{grpc}', {mutual}}}\n  \
             admin: '{admin}'\n"
        )
    };
    let path = folder.path().join("sluicegate.yaml");
    std::fs::write(&path, listen("127.0.0.1:0", "127.0.0.1:0", "[::1]:0")).expect("a file");
    let service = RunningService::with_file(&path);
    let address = |url: &str| url.replace("http://", "");
    let (http, grpc, admin) =
        (address(&service.http), address(&service.grpc), address(&service.admin));
    let (code, findings) = examine(&listen(&http, &grpc, &admin));
    assert_eq!(code, Some(0), "{findings:#?}");
    let warnings = &findings["port warning"];
    assert_eq!(warnings.len(), 3, "{findings:#?}");
    for (listener, address) in [(0, &http), (2, &admin)] {
        let expected = format!("a Sluicegate listens on {address} already");
        assert!(warnings[listener].contains(&expected), "{expected}: {findings:#?}");
    }
    assert!(warnings[1].contains("no client certificate"), "{findings:#?}");
}

#[test]
fn a_running_broker_is_asked_for_its_login_and_queues() {
    let rabbit = RabbitServer::start();
    let queue = |login: &str| {
        format!("queue: {{kind: rabbitmq, url: 'amqp://{login}@127.0.0.1:{}/%2f'}}\n", rabbit.port)
    };
    let worker =
        "workers: [{provider: p, queue: jobs, results: done, handler: {command: [cat]}}]\n";
    let config = format!("{ANYWHERE}{}{worker}", queue("guest:guest"));
    // No queue exists yet.
    let (code, findings) = examine(&config);
    assert_eq!(code, Some(1), "{findings:#?}");
    assert!(findings["broker ok"][0].starts_with("RabbitMQ: connected"), "{findings:#?}");
    let missing = &findings["queue problem"];
    assert_eq!(missing.len(), 2, "{findings:#?}");
    assert!(missing[1].contains("create jobs, or start the service with --create"), "{missing:?}");

    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("sluicegate.yaml"), &config).expect("a file");
    for queue in ["jobs", "done"] {
        let arguments = ["queue", "send", queue, "{}", "--create", "--config", "sluicegate.yaml"];
        let sent = run(folder.path(), &arguments);
        assert_eq!(sent.0, Some(0), "{}", sent.2);
        assert!(sent.2.contains("is new: sending in 5s"), "{}", sent.2);
    }
    let (code, findings) = examine(&config);
    assert_eq!(code, Some(0), "{findings:#?}");
    assert!(findings["broker ok"][0].starts_with("RabbitMQ: connected"), "{findings:#?}");
    assert_eq!(findings["queue ok"], ["done exists | ", "jobs exists | "], "{findings:#?}");

    for workers in ["", worker] {
        let (code, findings) =
            examine(&format!("{ANYWHERE}{}{workers}", queue("guest:planted-secret")));
        assert_eq!(code, Some(1), "{findings:#?}");
        let problem = &findings["broker problem"][0];
        assert!(
            problem.starts_with("RabbitMQ: ") && problem.contains("user, password"),
            "{problem}"
        );
        assert!(!problem.contains("planted-secret"), "{problem}");
        assert!(!findings.contains_key("broker ok"), "{findings:#?}");
    }
}

#[test]
fn a_running_service_is_recognised_and_an_invalid_file_is_an_error() {
    let service = RunningService::start("");
    let http = service.http.replace("http://", "");
    let (code, findings) = examine(&format!(
        "listen: {{http: '{http}', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}}\n"
    ));
    assert_eq!(code, Some(0), "{findings:#?}");
    assert!(findings["port warning"][0].contains("a Sluicegate listens"), "{findings:#?}");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("bad.yaml"), "limits: nonsense").expect("a file");
    let (code, out, err) = run(folder.path(), &["doctor", "--config", "bad.yaml"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("bad.yaml:1"), "{err}");
    let (code, out, _) = run(folder.path(), &["doctor"]);
    assert!(matches!(code, Some(0 | 1)), "{out}");
    assert!(out.contains("checks\n") && out.contains("open files"), "{out}");
}

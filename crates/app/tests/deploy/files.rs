//! Files of `deploy/` for programs that do not run here: Kubernetes, Compose, Terraform, systemd and Kusto. Each is
//! checked as far as possible.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Command;

use serde_json::{Value, json};
use sluicegate_testkit::{eventually, eventually_get, eventually_is};

use crate::common::{ANYWHERE, post, sluicegate};
use crate::process::{Running, output};
use crate::systems::Systems;
use crate::{python, read, repository};

#[test]
fn manifests_are_valid() {
    let script = repository("crates/app/tests/deploy/manifests.py");
    let printed = output(Command::new(python()).arg(script).arg(repository("deploy")));
    for expected in
        ["central: Deployment", "gateway: Service", "dispatch: Deployment", "sidecar: ConfigMap"]
    {
        assert!(printed.contains(expected), "{expected} in\n{printed}");
    }
    assert_eq!(printed.matches("compose: ").count(), 5, "one for each example:\n{printed}");
    assert!(printed.contains("terraform: proxy.tf"), "{printed}");
}

#[test]
fn configurations_in_manifests_are_valid() {
    let variables = [
        "GATEWAY_TOKEN",
        "PROMETHEUS_TOKEN",
        "INTERNAL_SERVICE_TOKEN",
        "NIVODA_USERNAME",
        "NIVODA_PASSWORD",
    ];
    let urls = [
        ("REDIS_URL", "redis://redis:6379"),
        ("NIVODA_ENDPOINT", "https://vendor/graphql"),
        ("PROVIDER_URL", "https://providers"),
    ];
    for path in [
        "kubernetes/central/sluicegate.yaml",
        "kubernetes/gateway/sluicegate.yaml",
        "kubernetes/dispatch/sluicegate.yaml",
        "kubernetes/dispatch/worker.yaml",
        "kubernetes/sidecar/limits.yaml",
        "proxies/limits.yaml",
    ] {
        let mut command = sluicegate();
        for (number, name) in variables.iter().enumerate() {
            command.env(name, format!("a-secret-of-enough-length-{number}"));
        }
        command.envs(urls);
        command.args(["check", "--strict"]).arg(repository("deploy").join(path));
        output(&mut command);
    }
}

/// Returns the names of the variables that a configuration cannot do without.
fn required_variables(text: &str) -> BTreeSet<&str> {
    let names = text.split("${").skip(1).filter_map(|rest| rest.split_once(":?"));
    names.map(|(name, _)| name).filter(|name| !name.contains(['}', ':'])).collect()
}

#[test]
fn required_variables_of_manifests_are_in_the_list_of_secrets() {
    let readme = read("deploy/kubernetes/README.md");
    for folder in ["central", "gateway", "dispatch"] {
        let row = readme.lines().find(|line| line.starts_with(&format!("| [{folder}](")));
        let row = row.unwrap_or_else(|| panic!("{folder} is not in the table"));
        let mut names = 0;
        for entry in std::fs::read_dir(repository("deploy/kubernetes").join(folder)).expect(folder)
        {
            let path = entry.expect("a file").path();
            let text = std::fs::read_to_string(&path).expect("a file");
            for name in required_variables(&text) {
                names += 1;
                assert!(row.contains(&format!("`{name}`")), "{folder}: {name} is not in {row}");
            }
        }
        assert!(names > 0, "{folder}");
    }
    // A worker without it would send every job to nowhere.
    let path = repository("deploy/kubernetes/dispatch/worker.yaml");
    let output = sluicegate().args(["check"]).arg(path).env_remove("PROVIDER_URL").output();
    let output = output.expect("it ran");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("PROVIDER_URL"), "{errors}");
}

/// Returns a section of a YAML file without comments at the end of its lines.
fn section(text: &str, name: &str) -> Vec<String> {
    let start = format!("\n{name}:\n");
    let (_, rest) = text.split_once(&start).unwrap_or_else(|| panic!("no {name}"));
    let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
    let lines = lines.map(|line| line.split(" #").next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The files for Kubernetes differ from the example in what an example has defaults for: broker and store,
/// the address of the providers, and the listener.
#[test]
fn the_dispatcher_for_kubernetes_does_what_the_example_does() {
    for (file, parts) in
        [("sluicegate.yaml", &["dispatch", "workers"][..]), ("worker.yaml", &["workers"])]
    {
        let copy = read(&format!("deploy/kubernetes/dispatch/{file}"));
        let example = read(&format!("examples/two-tier-dispatch/{file}"));
        let example = example
            .replace(
                "${PROVIDER_URL:-http://127.0.0.1:18080}",
                "${PROVIDER_URL:?the address of the model providers}",
            )
            .replace("kind: ${STORE:-memory}", "kind: redis")
            .replace("kind: ${QUEUE:-embedded}", "kind: rabbitmq");
        for part in parts.iter().chain(&["store"]) {
            assert_eq!(section(&copy, part), section(&example, part), "{file}: {part}");
        }
        let others = ["path", "endpoint", "project", "connection_string", "namespace", "admin_url"];
        let mut queue = section(&example, "queue");
        queue.retain(|line| !others.iter().any(|name| line.starts_with(&format!("  {name}:"))));
        assert_eq!(section(&copy, "queue"), queue, "{file}");
    }
}

/// kustomize reads only files below its folder, so these are copies.
#[test]
fn copies_of_configurations_are_up_to_date() {
    for (copy, original) in [
        ("deploy/kubernetes/gateway/sluicegate.yaml", "examples/ingestion-proxy/sluicegate.yaml"),
        ("deploy/kubernetes/sidecar/limits.yaml", "deploy/envoy/limits.yaml"),
    ] {
        let text = read(copy);
        let rest = text.strip_prefix(&read(original));
        let rest = rest.unwrap_or_else(|| panic!("copy {original} to {copy}"));
        assert!(
            rest.is_empty() || rest.contains(original),
            "{copy} does not say where the copy ends"
        );
    }
    let after = |path: &str| {
        let text = read(path);
        text.split_once("\nadmin:").map(|(_, rest)| rest.to_owned()).expect("the admin section")
    };
    let sidecar = after("deploy/kubernetes/sidecar/envoy.yaml");
    let sidecar = sidecar.replace("0.0.0.0, port_value: 10000", "127.0.0.1, port_value: 10000");
    assert!(sidecar == after("deploy/envoy/sidecar.yaml"), "copy deploy/envoy/sidecar.yaml");
}

#[test]
fn the_systemd_unit_is_valid_and_hardened() {
    let unit = read("deploy/systemd/sluicegate.service");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluicegate.service");
    let binary = env!("CARGO_BIN_EXE_sluicegate");
    std::fs::write(&path, unit.replace("/usr/bin/sluicegate", binary)).expect("a file");
    let mut verify = Command::new("systemd-analyze");
    output(verify.args(["verify", "--man=no"]).arg(&path));
    // 0 is the best, 10 the worst: 30 stands for 3.0.
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=yes", "--no-pager", "--threshold=30"]).arg(&path);
    output(&mut security);
}

/// Rotates the log of a running service twice with the file of the Debian package: the lines of all files
/// together are the whole log. In the journal they are mixed with the other messages of the service.
#[test]
fn rotated_decision_logs_prove_what_the_whole_log_proves() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let rotation = read("deploy/systemd/sluicegate.logrotate");
    let rotated =
        rotation.replace("/var/log/sluicegate/", &format!("{}/", folder.path().display()));
    assert!(rotated.contains(&path("decisions.log").display().to_string()), "{rotated}");
    std::fs::write(path("rotation"), rotated).expect("a file");
    // logrotate refuses a file that others may write to.
    output(Command::new("chmod").args(["644"]).arg(path("rotation")));
    std::fs::write(path("sluicegate.yaml"), ANYWHERE).expect("a file");
    let open = |name: &str| {
        // systemd opens the file for appending, too.
        File::options().create(true).append(true).open(path(name)).expect("a file")
    };
    let mut command = sluicegate();
    command.args(["serve", "--config"]).arg(path("sluicegate.yaml"));
    let service = Running::spawn(command.stdout(open("decisions.log")).stderr(open("service.log")));
    let listening = || {
        let log = std::fs::read_to_string(path("service.log")).expect("the log");
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut http = events.filter(|event| event["listener"] == "http");
        http.find_map(|event| Some(format!("http://{}", event["address"].as_str()?)))
    };
    let http = eventually_get(|| listening().ok_or("no listener"));
    let lines = || std::fs::read_to_string(path("decisions.log")).expect("the log").lines().count();
    for _ in 0..3 {
        for _ in 0..20 {
            let url = format!("{http}/rate-limit/allow");
            let (status, _) = post(&url, &json!({"userId": "ann", "modelId": "gpt4"}), None);
            assert_eq!(status, 200);
        }
        eventually_is(lines, 20);
        let mut logrotate = Command::new("/usr/sbin/logrotate");
        logrotate.args(["--force", "--state"]).arg(path("state")).arg(path("rotation"));
        output(&mut logrotate);
        assert_eq!(lines(), 0, "the file is emptied");
    }
    service.stop();
    assert_eq!(lines(), 1, "the last line of the process");
    for name in ["decisions.log.1.gz", "decisions.log.2.gz", "decisions.log.3.gz"] {
        assert!(path(name).exists(), "{name}");
    }
    let binary = env!("CARGO_BIN_EXE_sluicegate");
    for logs in ["decisions.log*", "decisions.log* service.log"] {
        let line = format!("zcat -f {logs} | {binary} verify -");
        let mut verify = Command::new("sh");
        let printed = output(verify.args(["-c", &line]).current_dir(folder.path()));
        assert!(printed.contains("proven: 60 admissions"), "{printed}");
    }
    // A part of it proves nothing.
    let line = format!("zcat -f decisions.log decisions.log.[13].gz | {binary} verify -");
    let part = Command::new("sh").args(["-c", &line]).current_dir(folder.path()).output();
    assert_eq!(part.expect("it ran").status.code(), Some(2));
}

#[test]
fn kusto_queries_ask_for_fields_of_the_log() {
    let systems = Systems::start();
    systems.load();
    // A request that succeeded has no code, and one that failed has no remaining tokens.
    let logged = || {
        let events = systems.gateway_log().into_iter();
        let requests = events.filter(|event| event["event"] == "ingestion_proxy_request");
        let fields = requests.filter_map(|event| Some(event.as_object()?.clone()));
        fields.flatten().map(|(name, _)| name).collect::<BTreeSet<_>>()
    };
    eventually(|| logged().contains("cause"));
    let logged = logged();
    let queries = read("deploy/azure/queries.kql");
    assert!(queries.contains("\"ingestion_proxy_request\""));
    let fields = queries.split("log.").skip(1);
    let fields = fields.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
    let fields: BTreeSet<_> = fields.flatten().collect();
    assert!(fields.len() > 10, "{fields:?}");
    for field in fields {
        assert!(logged.contains(field), "no field {field} in {logged:?}");
    }
}

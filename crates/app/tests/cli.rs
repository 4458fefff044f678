//! Tests of the commands that query a service or check a configuration.

mod common;

use common::{RunningService, sluicegate};
use serde_json::{Value, json};

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = sluicegate().args(arguments).output().expect("it ran");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_running_service_is_queried_from_the_command_line() {
    let service = RunningService::start(
        "limits: [{name: g, effective: true, rules: [{name: USER, per: [userId], limit: 2/h}]}]\n",
    );
    let ask = |command: &str| run(&[command, "userId=u1", "modelId=m", "--url", &service.http]);
    let (code, out, _) = ask("allow");
    assert_eq!(code, Some(0));
    assert!(out.starts_with("allowed\n"), "{out}");
    assert_eq!(ask("allow").0, Some(0));
    let (code, out, _) = ask("allow");
    assert_eq!(code, Some(1));
    assert!(out.starts_with("denied by USER, retry in "), "{out}");
    let (code, out, _) = ask("explain");
    assert_eq!(code, Some(1));
    assert!(out.contains("g      USER           2/h    USER:u1#requests"), "{out}");
    let (code, out, _) = ask("usage");
    assert_eq!(code, Some(0));
    assert!(out.contains("USER  2/h    2     2   0"), "{out}");
    let (code, out, _) = ask("reset");
    assert_eq!(code, Some(1));
    assert!(
        out.contains("USER  USER:u1#requests") && out.contains("no counter was reset"),
        "{out}"
    );
    let (code, out, _) = run(&["reset", "userId=u1", "--yes", "--url", &service.http]);
    assert_eq!((code, out.as_str()), (Some(0), "reset: USER:u1#requests\n"));
    // Without the user, no rule counts the request.
    for yes in [&["--yes"][..], &[]] {
        let words = ["reset", "modelId=m", "--url", &service.http];
        let (code, out, said) = run(&words.iter().chain(yes).copied().collect::<Vec<_>>());
        assert!(code == Some(2) && said.contains("no rule counts a request"), "{out}{said}");
    }
    assert_eq!(ask("allow").0, Some(0));
    let json = ["allow", "userId=u1", "modelId=m", "--json", "--url", &service.http];
    let (_, out, _) = run(&json);
    assert!(out.starts_with("{\"allowed\":true,"), "{out}");
}

#[test]
fn a_configuration_file_without_its_option_is_explained() {
    for command in ["serve", "doctor"] {
        let (code, _, said) = run(&[command, "limits.yaml"]);
        assert!(code == Some(2) && said.contains("write --config limits.yaml"), "{said}");
        let (_, help, _) = run(&[command, "--help"]);
        assert!(!help.contains("[FILE]"), "{help}");
    }
}

/// Runs a command; returns its exit code and its lines of JSON.
fn run_json(arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let (code, out, err) = run(arguments);
    let line = |line: &str| {
        serde_json::from_str(line).unwrap_or_else(|_| panic!("{arguments:?}: {line:?} {err}"))
    };
    (code, out.lines().map(line).collect())
}

#[test]
fn every_table_is_available_as_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let config = "limits: [{name: g, rules: [{name: USER, per: [userId], limit: 2/h}]}]\n";
    let queue = format!("queue: {{path: '{}'}}\n", path("queue.db"));
    std::fs::write(path("limits.yaml"), format!("{config}{queue}")).expect("a file");
    let (code, lines) = run_json(&["check", "--json", &path("limits.yaml")]);
    assert_eq!((code, lines.len()), (Some(0), 1));
    assert_eq!(lines[0]["groups"][0]["rules"][0]["limits"], json!(["2/h"]));
    assert_eq!(lines[0]["required"][0], "userId");
    assert_eq!(lines[0]["warnings"], json!([]));
    assert_eq!(run_json(&["check", "--json", "--strict", &path("limits.yaml")]).0, Some(0));

    let send = ["queue", "send", "jobs", "{}", "--create", "--config", &path("limits.yaml")];
    assert_eq!(run(&send).0, Some(0));
    let depth = ["queue", "depth", "jobs", "lost", "--json", "--config", &path("limits.yaml")];
    let (code, lines) = run_json(&depth);
    assert_eq!((code, lines.len()), (Some(2), 1), "a missing queue does not hide the other");
    assert_eq!((&lines[0]["queue"], &lines[0]["ready"]), (&json!("jobs"), &json!(1)));
    assert_eq!(lines[0]["inFlight"], 0);

    let tests = "config: limits.yaml\ntests:\n\
                 - {name: good, steps: [{send: {userId: a}}]}\n\
                 - {name: bad, steps: [{send: {userId: a}, expect: {decision: deny}}]}\n";
    std::fs::write(path("tests.yaml"), tests).expect("a file");
    let (code, lines) = run_json(&["test", "--json", &path("tests.yaml")]);
    assert_eq!((code, lines.len()), (Some(1), 2));
    assert_eq!((&lines[0]["test"], &lines[0]["result"]), (&json!("good"), &json!("passed")));
    assert_eq!(lines[1]["result"], "failed");
    let mismatch = &lines[1]["failure"]["mismatches"][0];
    assert_eq!((&mismatch["expected"], &mismatch["got"]), (&json!("deny"), &json!("allow")));

    let service = RunningService::start(config);
    let asked = ["userId=u1", "modelId=m", "--json", "--url", &service.http];
    for (command, field) in
        [("allow", "allowed"), ("usage", "scopes"), ("explain", "groups"), ("reset", "wouldReset")]
    {
        let (_, lines) = run_json(&[&[command], &asked[..]].concat());
        assert!(lines.len() == 1 && lines[0].get(field).is_some(), "{command}: {lines:?}");
    }
    let (_, lines) = run_json(&["override", "list", "--json", "--url", &service.http]);
    assert_eq!(lines, [json!({"overrides": []})]);
    std::fs::write(path("decisions.log"), service.stop()).expect("a file");
    let (code, lines) = run_json(&["verify", "--json", &path("decisions.log")]);
    assert_eq!(code, Some(0));
    assert_eq!((&lines[0]["result"], &lines[0]["admissions"]), (&json!("proven"), &json!(1)));
    assert_eq!(lines[0]["fullest"][0]["limit"], "2/h");
    let log = std::fs::read_to_string(path("decisions.log")).expect("a log");
    let first = log.lines().skip(1).collect::<Vec<_>>().join("\n");
    std::fs::write(path("cut.log"), first).expect("a file");
    let (code, _, err) = run(&["verify", "--json", &path("cut.log")]);
    assert_eq!(code, Some(2), "a log that proves nothing is an error: {err}");
}

#[test]
fn the_health_of_a_process_is_its_exit_code() {
    let service = RunningService::start("");
    for url in [&service.http, &service.admin] {
        let healthy = "{\"status\":\"healthy\"}\n";
        assert_eq!(run(&["health", "--url", url]), (Some(0), healthy.to_owned(), String::new()));
        let (code, out, _) = run(&["health", "--ready", "--url", url]);
        assert_eq!((code, out.as_str()), (Some(0), "{\"status\":\"ready\"}\n"));
    }
    let lost = RunningService::start("store: {kind: redis, url: 'redis://127.0.0.1:1'}\n");
    let (code, out, _) = run(&["health", "--ready", "--url", &lost.admin]);
    assert_eq!(code, Some(1));
    assert!(out.contains("unhealthy"), "{out}");
    let (code, _, err) = run(&["health", "--url", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("no response from http://127.0.0.1:1/health"), "{err}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    assert_eq!(run(&["man", &path]).0, Some(0));
    for page in ["sluicegate.1", "sluicegate-serve.1", "sluicegate-doctor.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).expect(page);
        assert!(text.starts_with(".ie") && text.contains(".SH NAME"), "{page}");
    }
    let (code, _, err) = run(&["man", "/no/such/folder"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("can't write to /no/such/folder"), "{err}");
}

#[test]
fn errors_exit_with_2() {
    let (code, _, said) = run(&["allow", "userId=u1", "--url", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("is `sluicegate serve` running?"), "{said}");
    let (code, _, said) = run(&["allow", "userId", "--url", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("NAME=VALUE, such as userId=u1"), "{said}");
    assert_eq!(run(&["frobnicate"]).0, Some(2));
    assert_eq!(run(&[]).0, Some(2));
}

#[test]
fn a_configuration_is_checked_as_the_service_would_read_it() {
    let (code, out, _) = run(&["check"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("caller  USER_MODEL        userId, modelId  100/h"), "{out}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bad.yaml");
    std::fs::write(&path, "limits: [{name: g, rules: [{name: X, per: [], limit: 5/parsec}]}]")
        .expect("a file");
    let (code, _, said) = run(&["check", path.to_str().expect("a path")]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("bad.yaml:1:54: limits[0].rules[0].limit: ") && said.contains("^"),
        "{said}"
    );
}

#[test]
fn check_shows_no_default_rule_for_a_file_of_gateways_or_jobs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.yaml").display().to_string();
    let check = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        let (code, out, said) = run(&["check", "--strict", &path]);
        assert_eq!(code, Some(0), "{text}: {out}{said}");
        out
    };
    let lists_it = |out: &str| {
        out.lines()
            .any(|line| line.starts_with("caller ") && line.ends_with("userId, modelId  100/h"))
    };
    let note = "the file has no section limits, so requests to listen.http and listen.grpc get the \
                default rule USER_MODEL (100/h per userId and modelId); `sluicegate serve --only ";
    let gateway = |options: &str| {
        format!(
            "gateways: [{{name: p, listen: '127.0.0.1:0', {options} \
             routes: [{{name: r, path: /, upstream: 'http://a', limit: 5/s, wait: {{max: 1s}}}}]}}]\n"
        )
    };
    let worker = "workers: [{provider: p, queue: q, limit: 5/s, handler: {command: [cat]}}]\n";
    let dispatch = "dispatch: {source: raw, providers: {p: {queue: q, limit: 5/s}}}\n";
    for (text, parts) in [
        (gateway(""), "gateway`"),
        (worker.to_owned(), "worker`"),
        (format!("{dispatch}{worker}"), "dispatch,worker`"),
    ] {
        let out = check(&text);
        assert!(!lists_it(&out), "{out}");
        assert!(out.contains(&format!("{note}{parts} runs without these listeners\n")), "{out}");
        assert!(
            out.contains("required  userId, modelId of requests to listen.http and listen.grpc\n")
        );
    }
    let out = check(
        "gateways: [{name: p, listen: '127.0.0.1:0', routes: [{path: /, upstream: 'http://a'}]}]",
    );
    assert!(out.starts_with("required ") && out.ends_with("c.yaml: 0 rules valid\n"), "{out}");
    // The default rule applies where no limits are written, and to gateways that know its dimensions.
    let named = "dimensions: {userId: x-user, modelId: x-model},";
    for text in ["", "log: {level: warn}\n", &gateway(named)] {
        let out = check(text);
        assert!(lists_it(&out) && !out.contains(note), "{text}: {out}");
    }
}

#[test]
fn an_unwritable_snapshot_is_found_before_shutdown() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.yaml").display().to_string();
    let snapshot = folder.path().join("lost/usage").display().to_string();
    let store = format!("store: {{kind: memory, snapshot: {{path: '{snapshot}'}}}}\n");
    std::fs::write(&path, format!("{}{store}", common::ANYWHERE)).expect("a file");
    let lost = folder.path().join("lost").display().to_string();
    let problem = format!("store.snapshot.path: can't write to {lost}: No such file");
    let remedy = "create the folder and give it to the user of the service, or change \
                  store.snapshot.path";
    let (code, _, said) = run(&["serve", "--config", &path]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&problem) && said.contains(remedy), "{said}");
    let (code, out, _) = run(&["check", "--strict", &path]);
    assert_eq!(code, Some(0), "the file itself is valid: {out}");
    assert!(out.contains(&problem) && out.contains(remedy), "{out}");
    let (code, out, _) = run(&["doctor", "--config", &path]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains(&problem) && out.contains(remedy), "{out}");
    std::fs::create_dir(&lost).expect("a folder");
    assert!(!run(&["check", &path]).1.contains("store.snapshot.path"));
    assert_eq!(std::fs::read_dir(&lost).expect("a folder").count(), 0, "nothing is left behind");
}

#[test]
fn help_has_examples_and_nothing_is_coloured_outside_of_a_terminal() {
    let commands =
        ["serve", "check", "allow", "explain", "test", "verify", "queue", "dlq", "top", "tail"];
    for command in commands {
        let (code, out, _) = run(&[command, "--help"]);
        assert_eq!(code, Some(0), "{command}");
        assert!(out.contains("Examples:"), "{command}: {out}");
        assert!(!out.contains('\u{1b}'), "{command}");
    }
    let (code, out, _) = run(&["completions", "bash"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("_sluicegate"));
    assert!(!run(&["check"]).1.contains('\u{1b}'));
}

#[test]
fn a_reset_of_a_user_keeps_the_usage_of_its_tenant() {
    let service = RunningService::start(
        "limits:\n\
         - {name: user, rules: [{name: USER, per: [userId], limit: 5/h}]}\n\
         - {name: tenant, rules: [{name: TENANT, per: [tenantId], limit: 9/h}]}\n",
    );
    let ask = |words: &[&str]| {
        let who = ["userId=u1", "tenantId=t1", "modelId=m", "--url", &service.http];
        run(&words.iter().chain(&who).copied().collect::<Vec<_>>())
    };
    let used = || {
        let (_, out, _) = ask(&["usage", "--json"]);
        let usage: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        [0, 1].map(|scope| usage["scopes"][scope]["current"].as_u64().expect("a number"))
    };
    assert_eq!(ask(&["allow"]).0, Some(0));
    let (code, out, _) = ask(&["reset"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(
        out.contains("USER    USER:u1#requests") && out.contains("TENANT  TENANT:t1#requests"),
        "{out}"
    );
    assert_eq!(used(), [1, 1], "it was only listed");
    let body = serde_json::json!({ "dimensions": { "userId": "u1", "tenantId": "t1" } });
    let (status, problem) = common::post(&format!("{}/v1/reset", service.http), &body, None);
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(status == 400 && detail.contains("the counters of USER, TENANT"), "{status} {detail}");
    assert_eq!(used(), [1, 1], "it was refused");
    let (code, _, said) = ask(&["reset", "--rule", "NONE"]);
    assert!(code == Some(2) && said.contains("NONE does not charge this request"), "{said}");
    assert_eq!(ask(&["reset", "--rule", "USER"]).1, "reset: USER:u1#requests\n");
    assert_eq!(used(), [0, 1]);
    assert_eq!(ask(&["reset", "--yes"]).0, Some(0));
    assert_eq!(used(), [0, 0]);
}

#[test]
fn explain_shows_overrides_and_why_a_rule_did_not_match() {
    let service = RunningService::start(
        "dimensions: {tenantId: optional}\nlimits:\n\
         - name: user\n\
        \x20 rules:\n\
        \x20   - {name: PREMIUM, per: [userId], when: {userId: premium_*}, limit: 50/h}\n\
        \x20   - {name: USER, per: [userId], limit: 5/h}\n\
         - {name: tenant, rules: [{name: TENANT, per: [tenantId], limit: 9/h}]}\n",
    );
    let set = ["override", "set", "USER", "userId=u1", "--limit", "7/h", "--for", "1h"];
    let set = [&set[..], &["--reason", "a test", "--json", "--url", &service.http]].concat();
    let (_, out, said) = run(&set);
    let set: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{said}"));
    let id = set["id"].as_str().expect("an id");
    let (code, out, _) = run(&["explain", "userId=u1", "--url", &service.http]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains(&format!("7/h (override {id} until ")), "{out}");
    assert!(
        out.contains("user    PREMIUM       userId is u1, but the rule requires premium_*"),
        "{out}"
    );
    assert!(out.contains("tenant  TENANT        tenantId is missing"), "{out}");
    let (_, out, _) = run(&["explain", "userId=premium_1", "--url", &service.http]);
    assert!(out.contains("user    USER          rule PREMIUM comes first and applies"), "{out}");
}

/// Such overrides were accepted: the first two had no effect, although one is a ban, and the third
/// lifted a budget.
#[test]
fn an_override_with_a_misspelled_dimension_or_without_a_unit_of_its_rule_is_refused() {
    let service = RunningService::start(
        "limits:\n- {name: user, rules: [{name: USER, per: [userId], limit: [5/h, 1.00 USD/day]}]}\n",
    );
    let set = |condition: &str, limits: &[&str]| {
        let mut arguments = vec!["override", "set", "USER", condition, "--reason", "a test"];
        arguments.extend(["--url", service.http.as_str()]);
        limits.iter().for_each(|limit| arguments.extend(["--limit", *limit]));
        run(&arguments)
    };
    for (condition, limits, expected) in [
        ("userID=eve", &["0"][..], "when.userID: unknown dimension: did you mean userId?"),
        ("modelI=m", &["0"], "when.modelI: unknown dimension: did you mean modelId?"),
        ("userId=eve", &["9/h"], "has none for USD: list it as well, such as \"1.00 USD/day\""),
    ] {
        let (code, _, said) = set(condition, limits);
        assert!(code == Some(2) && said.contains(expected), "{condition}: {code:?} {said}");
    }
    for (condition, limits) in [
        ("region=eu", &["0"][..]),
        ("userId=eve", &["9/h", "2.00 USD/day"]),
        ("userId=eve", &["unlimited"]),
    ] {
        let (code, _, said) = set(condition, limits);
        assert_eq!(code, Some(0), "{condition}: {said}");
    }
}

#[test]
fn a_service_with_nothing_to_run_is_an_error() {
    let (code, _, said) = run(&["serve", "--only", "gateway,worker"]);
    let expected =
        "--only: nothing to run, because the configuration has no section gateways or workers";
    assert!(code == Some(2) && said.contains(expected), "{code:?} {said}");
}

#[test]
fn an_address_without_a_scheme_is_explained() {
    let expected = "address \"localhost:8080\": write http:// or https:// before the host";
    for arguments in [
        &["allow", "userId=a", "--url", "localhost:8080"][..],
        &["top", "--once", "--admin", "localhost:8080"],
    ] {
        let (code, _, said) = run(arguments);
        assert!(code == Some(2) && said.contains(expected), "{code:?} {said}");
    }
}

#[test]
fn check_reads_the_file_of_the_variable() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.yaml");
    std::fs::write(&path, "limits: [{name: g, rules: [{name: OWN, per: [], limit: 7/h}]}]")
        .expect("a file");
    let output =
        sluicegate().arg("check").env("SLUICEGATE_CONFIG", &path).output().expect("it runs");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && shown.contains("OWN"), "{shown}");
}

#[test]
fn check_shows_limits_that_do_not_apply_at_gateways() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.yaml");
    let check = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        run(&["check", path.to_str().expect("a path")])
    };
    let gateway = |limits: &str, route: &str| {
        format!(
            "{limits}
gateways:
- name: p
  listen: 127.0.0.1:0
  dimensions: {{tenantId: x-tenant-id, user: {{header: x-user, required: true}}}}
  routes: [{{name: c, path: /, upstream: 'http://a', {route}}}]
"
        )
    };
    let rules = "limits:
- {name: tenant, rules: [{name: TENANT, per: [tenantId], limit: 9/h}]}
- {name: user, rules: [{name: USER, per: [user], limit: 9/h}]}
- {name: model, rules: [{name: MODEL, per: [modelId], limit: 9/h}]}";
    let (code, out, said) = check(&gateway(
        rules,
        "limits: [{per: [tenantId], limit: 5/s}, {per: [user], limit: 5/s}]",
    ));
    assert_eq!(code, Some(0), "{said}");
    for note in [
        "note: gateway p: MODEL never applies, because the gateway provides no modelId\n",
        "note: gateway p: a request without the header x-tenant-id bypasses TENANT, p/c/1; to refuse \
         it, write tenantId: {header: x-tenant-id, required: true}\n",
    ] {
        assert!(out.contains(note), "{out}");
    }
    assert_eq!(out.matches("note: ").count(), 2, "{out}");
    let (_, out, _) = check(&gateway("", "limit: 25/s"));
    assert!(
        out.contains("note: gateway p: requests wait up to 1min, and a shutdown lasts 10s"),
        "{out}"
    );
    let (_, out, _) = check(&gateway("", "limit: 25/s, wait: {max: 5s}"));
    assert!(!out.contains("a shutdown lasts"), "{out}");
    for (route, expected) in [
        ("limit: 5 tokens/min", "routes[0].limit: a gateway can't count tokens or money: write a"),
        (
            "limits: [{per: [usr], limit: 5/s}]",
            "limits[0].per[0]: no request through this gateway has \
                                                this dimension: did you mean user?",
        ),
        (
            "wait: {max: 5s}",
            "routes[0].wait: requests wait for `limit` of the route, and the route",
        ),
    ] {
        let (code, _, said) = check(&gateway("", route));
        assert!(code == Some(2) && said.contains(expected), "{route}: {code:?} {said}");
    }
    let (code, out, _) = check(&gateway("", "limit: 5/s, wait: {max: 5min}"));
    let warning = "wait.max: longer than server.shutdown_grace: when the process stops";
    assert!(code == Some(0) && out.contains(warning), "{out}");
}

#[test]
fn check_loads_the_tls_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let certified = |name: &str| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        std::fs::write(file(&format!("{name}.crt")), made.cert.pem()).expect("a file");
        let key = made.signing_key.serialize_pem();
        std::fs::write(file(&format!("{name}.key")), key).expect("a file");
    };
    certified("a");
    certified("b");
    std::fs::write(file("text.crt"), "not a certificate").expect("a file");
    let check = |cert: &str, key: &str, ca: &str| {
        let text = format!(
            "listen: {{http: {{address: '127.0.0.1:0', tls: {{cert: '{}', key: '{}'}}}}}}\n\
             gateways: [{{name: g, listen: '127.0.0.1:0', routes: [{{path: /, \
             upstream: 'https://a', ca: '{}'}}]}}]\n",
            file(cert),
            file(key),
            file(ca)
        );
        std::fs::write(file("c.yaml"), text).expect("a file");
        let (code, _, said) = run(&["check", &file("c.yaml")]);
        (code, said)
    };
    assert_eq!(check("a.crt", "a.key", "a.crt").0, Some(0));
    for (cert, key, ca, expected) in [
        ("none.crt", "a.key", "a.crt", "listen.http.tls: cannot read "),
        ("text.crt", "a.key", "a.crt", "contains no certificate"),
        ("a.crt", "b.key", "a.crt", "does not belong to the first certificate"),
        ("a.crt", "a.key", "none.crt", "gateways[0].routes[0].ca: cannot read "),
        ("a.crt", "a.key", "text.crt", "gateways[0].routes[0].ca: the CA file "),
    ] {
        let (code, said) = check(cert, key, ca);
        assert!(code == Some(2) && said.contains(expected), "{expected}: {code:?} {said}");
    }
}

#[test]
fn a_log_filter_that_cannot_be_read_is_an_error() {
    let output = sluicegate()
        .arg("serve")
        .env("SLUICEGATE_LOG", "sluicegate=loud")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("SLUICEGATE_LOG=\"sluicegate=loud\" is no log filter"), "{said}");
    assert!(said.contains("such as warn,sluicegate_store=debug"), "{said}");
}

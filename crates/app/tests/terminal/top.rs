//! Tests of `sluicegate top`, and of the log on a terminal.

use std::process::Command;

use serde_json::{Value, json};
use sluicegate_testkit::eventually;
use sluicegate_testkit::ports::free_port;

use crate::common::{RunningService, sluicegate};
use crate::screen::Screen;
use crate::tmux::Tmux;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sluicegate");

/// A rule that ann uses half and bob whole, and a worker whose jobs fail.
const CONFIG: &str = r#"
limits:
  - name: caller
    rules:
      - name: USER
        per: [userId]
        limit: 4/h
  - name: all
    rules:
      - name: EVERYONE
        per: []
        limit: 1000/h
queue: {path: QUEUE}
workers:
  - provider: mailer
    queue: mail
    dead_letter: mail-dead
    limit: 6000/min
    attempts: 1
    handler: {command: [sh, -c, "exit 3"]}
"#;

fn start(folder: &tempfile::TempDir) -> RunningService {
    let queue = folder.path().join("queue.db").display().to_string();
    let config = folder.path().join("sluicegate.yaml");
    let text = format!("{}{}", crate::common::ANYWHERE, CONFIG.replace("QUEUE", &queue));
    std::fs::write(&config, text).expect("a file");
    let service = RunningService::spawn(&config, &[], &["--create"]);
    for _ in 0..2 {
        allow(&service, "ann");
    }
    for _ in 0..6 {
        allow(&service, "bob");
    }
    service
}

fn allow(service: &RunningService, user: &str) {
    service.allow(&json!({ "userId": user, "modelId": "m" }));
}

fn send_job(service: &RunningService) {
    let status = sluicegate()
        .args(["queue", "send", "mail", "{}", "--config"])
        .arg(&service.config)
        .output()
        .expect("it runs");
    assert!(status.status.success());
}

/// Returns the numbers of the lines that contain each text.
fn places<const N: usize>(screen: &str, texts: [&str; N]) -> [Option<usize>; N] {
    texts.map(|text| screen.lines().position(|line| line.contains(text)))
}

fn is_above(screen: &str, upper: &str, lower: &str) -> bool {
    let [upper, lower] = places(screen, [upper, lower]);
    upper.is_some() && lower.is_some() && upper < lower
}

/// Returns the words of the line that begins with a word.
fn row<'s>(screen: &'s str, first: &str) -> Vec<&'s str> {
    let mut rows = screen.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.first() == Some(&first)).unwrap_or_default()
}

#[test]
fn each_page_is_drawn_sorted_and_filtered_and_the_terminal_is_restored() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = start(&folder);
    send_job(&service);
    let tmux = Tmux::start(&[("TZ", "UTC")]);
    let admin = &service.admin;
    tmux.command_line(&format!("{PROGRAM} top --admin {admin} --interval 200ms; echo code=$?"));

    let screen = tmux.wait_until(|screen| row(screen, "USER").last() == Some(&"2"));
    assert!(tmux.is_taken_over());
    for text in
        ["1 Overview", "2 Limits", "3 Queues", "denied", "Rules (3)", "Nodes (1)", "store memory"]
    {
        assert!(screen.contains(text), "{text}: {screen}");
    }
    assert!(is_above(&screen, "USER ", "EVERYONE"), "sorted by denials: {screen}");
    // Live: the next reading has the new denial.
    allow(&service, "bob");
    tmux.wait_until(|screen| row(screen, "USER").last() == Some(&"3"));
    // From the last column, the denials, to the first.
    tmux.press("s");
    let screen = tmux.wait_for("rule↑");
    assert!(is_above(&screen, "EVERYONE", "USER "), "sorted by name: {screen}");
    tmux.press("r");
    let screen = tmux.wait_for("rule↓");
    assert!(is_above(&screen, "USER ", "EVERYONE"), "in the other order: {screen}");

    tmux.press("2");
    let screen = tmux.wait_for("Closest to the limit (4)");
    assert!(is_above(&screen, "userId=bob", "userId=ann"), "sorted by share: {screen}");
    let bob = row(&screen, "userId=bob");
    assert_eq!(bob, ["userId=bob", "USER", "4/h", "4", "4", "100", "%", "0"]);
    assert!(screen.contains("Callers of the last minutes (3)"), "{screen}");
    tmux.press("r");
    tmux.wait_until(|screen| is_above(screen, "userId=ann", "userId=bob"));
    tmux.press("/");
    tmux.type_text("BOB");
    tmux.wait_for("filter: BOB");
    tmux.press("Enter");
    let screen = tmux.wait_for("Closest to the limit (1 of 4)");
    assert!(!screen.contains("userId=ann") && screen.contains("userId=bob"), "{screen}");
    assert!(screen.contains("Callers of the last minutes (1 of 3)"), "{screen}");
    tmux.press("Escape");
    tmux.wait_for("Closest to the limit (4)");
    // The second table has its own order.
    tmux.press("Right");
    tmux.press("s");
    tmux.press("s");
    tmux.wait_for("caller↑");

    tmux.press("Tab");
    let screen = tmux.wait_until(|screen| row(screen, "mail-dead").get(4) == Some(&"1"));
    assert_eq!(row(&screen, "mail")[..5], ["mail", "0", "0", "0", "–"], "{screen}");
    assert_eq!(row(&screen, "mail-dead")[..5], ["mail-dead", "–", "–", "–", "1"], "{screen}");
    assert_eq!(row(&screen, "mailer").last(), Some(&"1"), "one job is dead: {screen}");
    tmux.press("?");
    tmux.wait_for("any key closes this help");
    tmux.press("x");
    tmux.wait_until(|screen| !screen.contains("any key closes"));
    tmux.press("BTab");
    tmux.wait_for("Closest to the limit");

    tmux.press("q");
    tmux.wait_for("code=0");
    tmux.assert_restored();
}

#[test]
fn a_signal_restores_the_terminal() {
    let service = RunningService::start("");
    let tmux = Tmux::start(&[]);
    for signal in ["-TERM", "-INT", "-HUP"] {
        let pid = tmux.path("pid");
        let line = format!(
            "clear; sh -c 'echo $$ >{}; exec {PROGRAM} top --admin {}'; echo code=$?",
            pid.display(),
            service.admin
        );
        tmux.command_line(&line);
        tmux.wait_for("1 Overview");
        let pid = std::fs::read_to_string(pid).expect("the id of the process");
        let killed = Command::new("kill").args([signal, pid.trim()]).status();
        assert!(killed.expect("kill runs").success());
        tmux.wait_for("code=0");
        tmux.assert_restored();
    }
}

/// In the terminal, this test itself is the program that panics.
#[test]
fn a_panic_restores_the_terminal_and_is_shown() {
    if std::env::var_os("SLUICEGATE_TEST_PANIC").is_some() {
        let mut screen = Screen::open().expect("a terminal");
        screen
            .terminal
            .draw(|frame| frame.render_widget("taken over", frame.area()))
            .expect("drawn");
        std::thread::spawn(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("a line");
            panic!("planted");
        });
        loop {
            std::thread::park();
        }
    }
    let tmux = Tmux::start(&[("SLUICEGATE_TEST_PANIC", "1")]);
    let this = std::env::current_exe().expect("this program");
    let name = "top::a_panic_restores_the_terminal_and_is_shown";
    tmux.command_line(&format!("{} --exact {name} --nocapture; echo code=$?", this.display()));
    tmux.wait_for("taken over");
    assert!(tmux.is_taken_over());
    // In raw mode, enter is a carriage return.
    tmux.press("C-j");
    let screen = tmux.wait_for("code=101");
    assert!(screen.contains("planted"), "{screen}");
    tmux.assert_restored();
}

#[test]
fn a_node_that_is_gone_is_said_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let admin = format!("127.0.0.1:{}", free_port());
    let config = folder.path().join("sluicegate.yaml");
    let listen =
        format!("listen: {{http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '{admin}'}}\n");
    std::fs::write(&config, listen).expect("a file");
    let service = RunningService::with_file(&config);
    let tmux = Tmux::start(&[]);
    tmux.command_line(&format!("{PROGRAM} top --admin http://{admin} --interval 200ms"));
    tmux.wait_for("? help");
    service.kill();
    let screen = tmux.wait_for("data is old: no response from");
    assert!(screen.contains("USER_MODEL"), "the last data stays: {screen}");
    let _service = RunningService::with_file(&config);
    tmux.wait_for("? help");
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = sluicegate().args(arguments).output().expect("it ran");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn without_a_terminal_the_tables_are_printed_once_or_as_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = start(&folder);
    send_job(&service);
    let admin = &service.admin;
    let (code, out, err) = run(&["top", "--admin", admin]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("standard output is not a terminal"), "{err}");
    assert!(err.contains("--once") && err.contains("--json"), "{err}");
    // The rates and the depths are known after a second.
    eventually(|| {
        let (_, out, _) = run(&["top", "--admin", admin, "--once"]);
        row(&out, "mail-dead").get(4) == Some(&"1")
    });
    let (code, out, _) = run(&["top", "--admin", admin, "--once"]);
    assert_eq!(code, Some(0));
    assert!(!out.contains('\x1b'), "{out}");
    for title in ["Rules", "Nodes", "Closest to the limit", "Callers", "Queues", "Providers"] {
        assert!(out.lines().any(|line| line.starts_with(title)), "{title}: {out}");
    }
    assert_eq!(row(&out, "USER").last(), Some(&"2"), "{out}");
    let (code, out, _) = run(&["top", "--admin", admin, "--json"]);
    assert_eq!(code, Some(0));
    let all: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(all["decisions"]["denied"], 2);
    assert_eq!(all["rules"][0]["rule"], "USER");
    assert_eq!(all["rules"][0]["denied"], 2);
    let closest = all["closest"].as_array().expect("a list");
    assert!(closest.iter().any(|one| one["dimensions"] == json!([["userId", "bob"]])), "{out}");
    let queues = all["queues"].as_array().expect("a list");
    for expected in [
        json!({"queue": "mail", "ready": 0.0, "delayed": 0.0, "inFlight": 0.0, "dead": null}),
        json!({"queue": "mail-dead", "ready": null, "delayed": null, "inFlight": null, "dead": 1.0}),
    ] {
        let found = queues.iter().find(|queue| queue["queue"] == expected["queue"]);
        let found = found.expect("the queue");
        for (name, value) in expected.as_object().expect("a map") {
            assert_eq!(found[name], *value, "{name}: {out}");
        }
    }
    assert!(all["rates"].get("p99").is_some() && all["nodes"][0]["id"].is_string(), "{out}");
}

/// Ten requests with a turn each under a limit of four per minute were "250 %" of it.
#[test]
fn bookings_ahead_are_not_shown_as_present_use() {
    let rule = "{name: PACED, per: [userId], limit: 4/min}";
    let service =
        RunningService::start(&format!("limits:\n  - {{name: paced, rules: [{rule}]}}\n"));
    for _ in 0..10 {
        let body = json!({ "dimensions": { "userId": "cat" } });
        let url = format!("{}/v1/book", service.http);
        let (status, answer) = crate::common::post(&url, &body, None);
        assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
    }
    let admin = &service.admin;
    let (_, out, _) = run(&["top", "--admin", admin, "--once"]);
    let cat = ["userId=cat", "PACED", "4/min", "4", "4", "100", "%", "6"];
    assert_eq!(row(&out, "userId=cat"), cat, "{out}");
    let (_, out, _) = run(&["top", "--admin", admin, "--json"]);
    let all: Value = serde_json::from_str(&out).expect("JSON");
    let closest = &all["closest"][0];
    assert_eq!((&closest["used"], &closest["bookedAhead"]), (&json!(4), &json!(6)), "{out}");
    assert_eq!(closest["share"], 1.0, "{out}");
}

#[test]
fn address_token_and_certificate_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&cert, made.cert.pem()).expect("a file");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("a file");
    let config = folder.path().join("sluicegate.yaml");
    let text = format!(
        "listen: {{http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: {{address: '127.0.0.1:0', tls: \
         {{cert: '{}', key: '{}'}}}}}}\nauth: {{tokens: {{reader: {{token: \
         reader-token-of-the-terminal, scopes: [read]}}, asker: {{token: \
         asker-token-of-the-terminal, scopes: [decide]}}}}}}\n",
        cert.display(),
        key.display()
    );
    std::fs::write(&config, text).expect("a file");
    let service = RunningService::with_file(&config);
    let url = service.admin.replace("http:", "https:");
    let cert = cert.display().to_string();
    let top = |more: &[&str]| run(&[&["top", "--json", "--admin", &url], more].concat());
    let reader = ["--token", "reader-token-of-the-terminal"];
    let (code, _, err) = top(&reader);
    assert_eq!(code, Some(2));
    assert!(err.contains("no response from https://") && err.contains("ertificate"), "{err}");
    let (code, _, err) = top(&["--ca", &cert]);
    assert_eq!(code, Some(2));
    assert!(err.contains("token"), "{err}");
    let (code, _, err) = top(&["--ca", &cert, "--token", "asker-token-of-the-terminal"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("read"), "names the scope: {err}");
    let (code, out, err) = top(&[&["--ca", &cert], &reader[..]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with('{'), "{out}");
    let (code, _, err) = top(&["--ca", &config.display().to_string()]);
    assert_eq!(code, Some(2));
    assert!(err.contains("--ca: ") && err.contains("contains no certificate"), "{err}");
    let tail = ["tail", "--max", "1", "--admin", &url, "--ca", &cert];
    let (code, _, err) = run(&tail);
    assert_eq!(code, Some(2));
    assert!(err.contains("token"), "{err}");
    let (code, _, err) = run(&["top", "--admin", "http://127.0.0.1:1", "--once"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("is `sluicegate serve` running?"), "{err}");
    let (code, _, err) = run(&["top", "--interval", "1ms", "--once"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("--interval: write a duration from 200ms to 1h"), "{err}");
}

#[test]
fn the_log_on_a_terminal_is_short_aligned_and_coloured() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("sluicegate.yaml");
    std::fs::write(&config, crate::common::ANYWHERE).expect("a file");
    for (environment, is_coloured) in [(vec![], true), (vec![("NO_COLOR", "1")], false)] {
        let tmux = Tmux::start(&environment);
        tmux.command_line(&format!("{PROGRAM} serve --config {} >/dev/null", config.display()));
        let screen = tmux.wait_until(|screen| screen.matches("listening").count() == 3);
        let lines: Vec<_> = screen.lines().filter(|line| line.contains("listening")).collect();
        for line in &lines {
            let (time, rest) = line.split_once(" INFO  listening ").expect(line);
            assert_eq!(time.len(), "00:00:00.000Z".len(), "{line}");
            assert!(rest.trim_start().starts_with("listener="), "{line}");
        }
        let columns: Vec<_> = lines.iter().map(|line| line.find("listener=")).collect();
        assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{screen}");
        let coloured = tmux.coloured_screen();
        assert_eq!(coloured.contains("\x1b[32mINFO"), is_coloured, "{coloured:?}");
        tmux.press("C-c");
        tmux.wait_for("stopped");
    }
}

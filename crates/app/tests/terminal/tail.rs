//! Tests of `sluicegate tail`.

use std::io::{BufRead, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sluicegate_testkit::ports::free_port;
use sluicegate_testkit::{eventually, eventually_get};

use crate::common::{RunningService, sluicegate};

const CONFIG: &str = "limits:\n  - {name: caller, rules: [{name: USER, per: [userId], limit: 2/h}]}\n  \
                      - {name: all, rules: [{name: EVERYONE, per: [], limit: 1000000/h}]}\n";

/// A running `sluicegate tail`, killed on drop.
struct Tail {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    notes: Arc<Mutex<String>>,
}

impl Tail {
    fn start(admin: &str, arguments: &[&str]) -> Self {
        let mut child = sluicegate()
            .args(["tail", "--admin", admin])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let (lines, notes) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<String>>::default());
        let (kept, out) = (lines.clone(), BufReader::new(child.stdout.take().expect("piped")));
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                kept.lock().expect("the lines").push(line);
            }
        });
        let (kept, err) = (notes.clone(), BufReader::new(child.stderr.take().expect("piped")));
        std::thread::spawn(move || {
            for line in err.lines().map_while(Result::ok) {
                kept.lock().expect("the notes").push_str(&(line + "\n"));
            }
        });
        Self { child, lines, notes }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("the lines").clone()
    }

    fn notes(&self) -> String {
        self.notes.lock().expect("the notes").clone()
    }

    /// Makes decisions until a line contains a text.
    #[track_caller]
    fn wait_for(&self, service: &RunningService, text: &str) -> String {
        eventually_get(|| {
            for user in ["ann", "bob"] {
                service.allow(&json!({ "userId": user, "modelId": "m", "tenantId": "t" }));
            }
            let lines = self.lines();
            let found = lines.iter().find(|line| line.contains(text)).cloned();
            found.ok_or_else(|| (lines, self.notes()))
        })
    }

    #[track_caller]
    fn wait_for_note(&self, text: &str) {
        eventually_get(|| {
            let notes = self.notes();
            if notes.contains(text) { Ok(()) } else { Err(notes) }
        });
    }

    fn signal(&self, name: &str) {
        let killed = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(killed.expect("kill runs").success());
    }

    fn code(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn decisions_are_printed_as_they_are_made_until_ctrl_c() {
    let service = RunningService::start(CONFIG);
    for signal in ["-INT", "-TERM"] {
        let mut tail = Tail::start(&service.admin, &[]);
        let line = tail.wait_for(&service, "denied");
        assert!(line.contains("userId=") && line.contains("USER 2/2 · EVERYONE"), "{line}");
        assert!(line.ends_with(" µs") && !line.contains('\x1b'), "{line}");
        tail.signal(signal);
        assert_eq!(tail.code(), Some(0), "{}", tail.notes());
    }
}

#[test]
fn filters_select_decisions_and_json_is_one_object_per_line() {
    let service = RunningService::start(CONFIG);
    let mut tail = Tail::start(
        &service.admin,
        &["--denied", "--user", "bob", "--rule", "USER", "tenantId=t", "--json", "--max", "2"],
    );
    let others = Tail::start(&service.admin, &["--rule", "NO_SUCH_RULE"]);
    let allowed = Tail::start(&service.admin, &["--allowed", "--json"]);
    tail.wait_for(&service, "\"n\"");
    eventually(|| {
        service.allow(&json!({ "userId": "bob", "modelId": "m", "tenantId": "t" }));
        tail.lines().len() == 2
    });
    assert_eq!(tail.code(), Some(0), "it ends after --max");
    for line in tail.lines() {
        let one: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&one["allowed"], &one["rule"]), (&json!(false), &json!("USER")));
        let dimensions = one["dimensions"].as_array().expect("a list");
        assert!(dimensions.contains(&json!(["userId", "bob"])), "{line}");
    }
    eventually(|| {
        service
            .allow(&json!({ "userId": format!("new-{}", allowed.lines().len()), "modelId": "m" }));
        !allowed.lines().is_empty()
    });
    assert!(allowed.lines().iter().all(|line| line.contains("\"allowed\":true")));
    assert_eq!(others.lines(), [""; 0]);
}

/// The first lines were decisions of the second before the start.
#[test]
fn decisions_before_the_start_are_printed_only_on_request() {
    let service = RunningService::start(CONFIG);
    for user in ["old-1", "old-2", "old-3"] {
        service.allow(&json!({ "userId": user, "modelId": "m" }));
    }
    let new = Tail::start(&service.admin, &["--json"]);
    let earlier = Tail::start(&service.admin, &["--json", "-n", "2"]);
    let mut one =
        Tail::start(&service.admin, &["--json", "--lines", "9", "--max", "1", "--user", "old-2"]);
    assert_eq!(one.code(), Some(0), "{}", one.notes());
    let users = |tail: &Tail| -> Vec<String> {
        let lines = tail.lines();
        let values = lines.iter().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let user = |value: Value| {
            value["dimensions"]
                .as_array()
                .expect("a list")
                .iter()
                .find(|pair| pair[0] == "userId")
                .expect("a user")[1]
                .as_str()
                .expect("a text")
                .to_owned()
        };
        values.map(user).collect()
    };
    eventually(|| users(&one) == ["old-2"]);
    eventually(|| users(&earlier).len() >= 2);
    assert_eq!(users(&earlier)[..2], ["old-2", "old-3"]);
    eventually(|| {
        service.allow(&json!({ "userId": "new", "modelId": "m" }));
        [&new, &earlier].iter().all(|tail| users(tail).iter().any(|user| user == "new"))
    });
    assert!(users(&new).iter().all(|user| user == "new"), "{:?}", users(&new));
    assert!(users(&earlier)[2..].iter().all(|user| user == "new"), "{:?}", users(&earlier));
    for tail in [new, earlier, one] {
        assert_eq!(tail.notes(), "", "no decision was missed");
    }
}

#[test]
fn a_flood_is_said_to_be_shown_in_part() {
    let service = RunningService::start(CONFIG);
    let tail = Tail::start(&service.admin, &["--user", "nobody"]);
    let body = json!({ "dimensions": { "userId": "ann", "modelId": "m" } }).to_string();
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    eventually(|| {
        for _ in 0..200 {
            let request = agent.post(format!("{}/v1/acquire", service.http));
            let mut answer =
                request.header("content-type", "application/json").send(&body).expect("an answer");
            answer.body_mut().read_to_string().expect("a body");
        }
        tail.notes().contains("or more decisions of this second are not shown")
    });
    assert_eq!(tail.lines(), [""; 0], "no decision is about nobody");
}

#[test]
fn a_lost_connection_is_said_and_opened_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("127.0.0.1:{}", free_port());
    let config = folder.path().join("sluicegate.yaml");
    let listen =
        format!("listen: {{http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '{address}'}}\n");
    std::fs::write(&config, format!("{listen}{CONFIG}")).expect("a file");
    let service = RunningService::with_file(&config);
    let admin = format!("http://{address}");
    let tail = Tail::start(&admin, &[]);
    tail.wait_for(&service, "denied");
    service.kill();
    tail.wait_for_note(&format!("note: connection to {admin} lost: "));
    let service = RunningService::with_file(&config);
    tail.wait_for_note(&format!("note: connected to {admin} again"));
    let before = tail.lines().len();
    eventually(|| {
        service.allow(&json!({ "userId": "cat", "modelId": "m" }));
        tail.lines()[before..].iter().any(|line| line.contains("userId=cat"))
    });
    let (code, err) = {
        let mut missing = Tail::start("http://127.0.0.1:1", &[]);
        (missing.code(), missing)
    };
    assert_eq!(code, Some(2), "an address that never answered is an error");
    err.wait_for_note("is `sluicegate serve` running?");
}

/// The reader is gone while there is nothing to write.
#[test]
fn it_ends_when_its_reader_is_gone() {
    let service = RunningService::start(CONFIG);
    let mut child = sluicegate()
        .args(["tail", "--json", "--user", "ann", "--admin", &service.admin])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut out = child.stdout.take().expect("piped");
    let reading = std::thread::spawn(move || {
        let mut byte = [0];
        out.read_exact(&mut byte).expect("a byte");
    });
    eventually(|| {
        service.allow(&json!({ "userId": "ann", "modelId": "m" }));
        reading.is_finished()
    });
    reading.join().expect("no panic");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("error"), "{said}");
}

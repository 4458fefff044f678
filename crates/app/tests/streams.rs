//! A service keeps working if its terminal is closed or its output is not read.

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use common::{get, post, sluicegate};
use serde_json::{Value, json};
use sluicegate_testkit::eventually;
use sluicegate_testkit::ports::free_port;

/// A service whose standard streams the test holds; killed on drop.
struct Service {
    child: Child,
    http: String,
    admin: String,
    config: PathBuf,
    folder: tempfile::TempDir,
}

impl Service {
    /// Starts it from a shell script that may redirect its streams; the command is `"$0" "$@"`.
    fn start(script: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("sluicegate.yaml");
        let [http, grpc, admin] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
        let usage = folder.path().join("usage");
        let text = format!(
            "listen: {{http: '{http}', grpc: '{grpc}', admin: '{admin}'}}\nlog: {{format: json}}\n\
             store: {{kind: memory, snapshot: {{path: '{}', every: 1h}}}}\n",
            usage.display()
        );
        std::fs::write(&config, text).expect("a file");
        let program = sluicegate().get_program().to_owned();
        let mut command = Command::new("env");
        // Like a daemon: SIGHUP is not ignored, and there is no terminal.
        command.args(["--default-signal=HUP", "setsid", "sh", "-c", script]).arg(program);
        command.args(["serve", "--config"]).arg(&config).env_remove("SLUICEGATE_CONFIG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("it starts");
        let [http, admin] = [http, admin].map(|address| format!("http://{address}"));
        let service = Self { child, http, admin, config, folder };
        let answers = || ureq::get(&format!("{}/health", service.http)).call().is_ok();
        eventually(answers);
        service
    }

    fn out(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("taken once")
    }

    fn err(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("taken once")
    }

    /// Sends this many requests, and expects a response to each.
    fn decide(&self, times: usize) {
        for _ in 0..times {
            let asked = json!({ "userId": "ann", "modelId": "gpt4" });
            let (status, _) = post(&format!("{}/rate-limit/allow", self.http), &asked, None);
            assert_eq!(status, 200);
        }
    }

    /// Reloads the configuration this many times; each reload is logged.
    fn log(&self, times: usize) {
        for _ in 0..times {
            assert_eq!(post(&format!("{}/reload", self.admin), &json!({}), None).0, 200);
        }
    }

    /// Reloads a file with two hundred errors this many times; all errors are logged each time.
    fn refuse(&self, times: usize) {
        let mut text = std::fs::read_to_string(&self.config).expect("a file");
        (0..200).for_each(|number| text.push_str(&format!("nonsense_{number}: 1\n")));
        std::fs::write(&self.config, text).expect("a file");
        for _ in 0..times {
            assert_eq!(post(&format!("{}/reload", self.admin), &json!({}), None).0, 422);
        }
    }

    fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// Asserts that it shuts down cleanly.
    fn ends(&mut self) {
        let mut status = None;
        let mut ended = || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        };
        eventually(&mut ended);
        assert_eq!(status.and_then(|status| status.code()), Some(0));
        assert!(self.folder.path().join("usage").exists(), "usage is saved at the end");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(name: &str, pid: u32) {
    let kill = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(kill.expect("kill").success());
}

const AS_IT_IS: &str = "exec \"$0\" \"$@\"";

#[test]
fn a_service_without_standard_streams_works_and_stops() {
    for script in [
        "exec \"$0\" \"$@\" 2>&-",
        "exec \"$0\" \"$@\" >&-",
        "exec \"$0\" \"$@\" <&- >&- 2>&-",
        "exec \"$0\" \"$@\" >/dev/full 2>/dev/full",
    ] {
        let mut service = Service::start(script);
        service.log(3);
        service.decide(3);
        service.signal("-TERM");
        service.ends();
    }
}

#[test]
fn a_closed_log_pipe_neither_stops_a_service_nor_delays_its_end() {
    for stop in ["-TERM", "-INT"] {
        let mut service = Service::start(AS_IT_IS);
        let mut lines = BufReader::new(service.err()).lines();
        lines.next().expect("a line").expect("text");
        drop(lines);
        service.log(20);
        service.decide(20);
        service.signal(stop);
        service.ends();
    }
}

#[test]
fn a_closed_decision_pipe_loses_only_its_lines() {
    let mut service = Service::start(AS_IT_IS);
    drop(service.out());
    service.decide(20);
    let dropped = || {
        let (_, metrics) = get(&format!("{}/metrics", service.admin));
        let line = metrics.lines().find(|line| line.starts_with("sluicegate_decision_log_dropped"));
        line.unwrap_or_else(|| panic!("{metrics}")).ends_with(" 20")
    };
    eventually(dropped);
    let mut log = service.err();
    service.signal("-TERM");
    service.ends();
    let mut text = String::new();
    log.read_to_string(&mut text).expect("text");
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let told = events.filter(|event| event["dropped"] == 20).count();
    assert_eq!(told, 1, "{text}");
}

#[test]
fn an_unread_log_blocks_nothing() {
    let mut service = Service::start(AS_IT_IS);
    let (log, out) = (service.err(), service.out());
    // Many times the size of a pipe; both readers exist, but do not read.
    service.refuse(100);
    service.decide(500);
    service.signal("-TERM");
    service.ends();
    drop((log, out));
}

#[test]
fn dropped_lines_are_reported_when_the_log_is_read_again() {
    let mut service = Service::start(AS_IT_IS);
    let log = service.err();
    // More than the pipe and the buffer in front of it can hold.
    service.refuse(200);
    let mut lines = BufReader::new(log).lines().map_while(Result::ok);
    let event = |line: String| serde_json::from_str::<Value>(&line).expect("whole lines of JSON");
    let told = lines.by_ref().map(event).find(|event| event["dropped"].is_u64());
    let told = told.expect("the log goes on");
    assert!(told["dropped"].as_u64() > Some(0), "{told}");
    service.signal("-TERM");
    for line in lines {
        event(line);
    }
    service.ends();
}

#[test]
fn a_service_without_a_terminal_reloads_its_configuration_on_sighup() {
    let mut service = Service::start(AS_IT_IS);
    service.signal("-HUP");
    let reloaded = || {
        let (_, metrics) = get(&format!("{}/metrics", service.admin));
        let version = metrics.lines().find(|line| line.starts_with("rate_limiter_config_version"));
        version.unwrap_or_else(|| panic!("{metrics}")).ends_with(" 2")
    };
    eventually(reloaded);
    service.signal("-TERM");
    service.ends();
}

#[test]
fn closing_the_terminal_stops_a_service_cleanly() {
    let mut service = Terminal::open("");
    service.close();
    service.ends();
    assert!(service.folder.path().join("usage").exists(), "usage is saved at the end");
}

#[test]
fn a_service_that_was_started_with_nohup_survives_its_terminal() {
    let mut service = Terminal::open("nohup");
    service.close();
    // It is still running after the signals of the closed terminal.
    for _ in 0..20 {
        assert_eq!(get(&format!("{}/health", service.http)).0, 200);
    }
    signal("-TERM", service.pid);
    service.ends();
}

#[test]
fn a_service_without_jobs_draws_no_progress_on_its_terminal() {
    let mut service = Terminal::open("");
    let path = service.folder.path().join("shown");
    // The file exists once the terminal has shown something.
    let read = || std::fs::read(&path).unwrap_or_default();
    let shown = || String::from_utf8_lossy(&read()).into_owned();
    eventually(|| shown().contains("listening"));
    service.close();
    service.ends();
    let shown = shown();
    let is_spinner = |c: char| ('\u{2800}'..='\u{28ff}').contains(&c);
    assert!(!shown.contains(is_spinner), "{shown}");
}

/// A service in a terminal of its own.
struct Terminal {
    /// The program `script`, which holds the other end of the terminal and records its output.
    screen: Child,
    pid: u32,
    http: String,
    folder: tempfile::TempDir,
}

impl Terminal {
    fn open(prefix: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let [http, grpc, admin] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
        let text = format!(
            "listen: {{http: '{http}', grpc: '{grpc}', admin: '{admin}'}}\n\
             store: {{kind: memory, snapshot: {{path: '{}', every: 1h}}}}\n",
            path("usage").display()
        );
        std::fs::write(path("sluicegate.yaml"), text).expect("a file");
        let program = sluicegate().get_program().to_owned();
        let command = format!(
            "echo $$ > '{}'; exec {prefix} '{}' serve --config '{}'",
            path("pid").display(),
            Path::new(&program).display(),
            path("sluicegate.yaml").display(),
        );
        let mut screen = Command::new("env");
        screen.args(["--default-signal=HUP", "script", "--quiet", "--flush", "--command"]);
        screen.arg(&command).arg(path("shown")).env_remove("SLUICEGATE_CONFIG");
        // nohup creates a file in the current directory.
        screen.env("SHELL", "/bin/sh").env("TERM", "xterm").current_dir(folder.path());
        screen.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let screen = screen.spawn().expect("script, of util-linux");
        let http = format!("http://{http}");
        eventually(|| ureq::get(&format!("{http}/health")).call().is_ok());
        let pid = std::fs::read_to_string(path("pid")).expect("a pid");
        Self { screen, pid: pid.trim().parse().expect("a number"), http, folder }
    }

    /// Closes the terminal as if its window was closed.
    fn close(&mut self) {
        self.screen.kill().expect("it runs");
        self.screen.wait().expect("it ends");
    }

    fn ends(&self) {
        eventually(|| !Path::new(&format!("/proc/{}", self.pid)).exists());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.screen.kill();
        let _ = self.screen.wait();
        let _ =
            Command::new("kill").args(["-9", &self.pid.to_string()]).stderr(Stdio::null()).status();
    }
}

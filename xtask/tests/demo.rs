//! Runs `cargo xtask demo`, looks at its dashboard, and checks that no process is left, however it
//! ends.
//!
//! The test program also replaces the simulators that the demo starts, as `demo simulators`. So it
//! has a `main` of its own.
#![allow(clippy::print_stdout, reason = "it is its own test harness")]

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use serde_json::Value;
use sluicegate_testkit::{eventually, eventually_get};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("simulators") {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let cli = <simulators::Cli as clap::Parser>::parse_from(std::env::args().skip(1));
        runtime.block_on(cli.run()).expect("it serves until it is killed");
        return ExitCode::SUCCESS;
    }
    everything_runs_until_ctrl_c();
    println!("everything_runs_until_ctrl_c: ok");
    a_demo_ends_after_its_time();
    println!("a_demo_ends_after_its_time: ok");
    a_killed_demo_leaves_no_process();
    println!("a_killed_demo_leaves_no_process: ok");
    ExitCode::SUCCESS
}

/// A running demo.
struct Demo {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    /// Address of the first dashboard.
    dashboard: String,
    folder: tempfile::TempDir,
}

impl Demo {
    /// Starts a demo and waits until it prints the address of its dashboard.
    fn start(arguments: &[&str]) -> Self {
        let xtask = Path::new(env!("CARGO_BIN_EXE_xtask"));
        let sluicegate = xtask.with_file_name("sluicegate");
        assert!(
            sluicegate.exists(),
            "run it by `cargo xtask test terminal`, which builds the binary"
        );
        let this = std::env::current_exe().expect("this program");
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(xtask)
            .args(["demo", "--folder"])
            .arg(folder.path())
            .args(arguments)
            .env("SLUICEGATE", sluicegate)
            .env("SIMULATORS", format!("{} simulators", this.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the demo starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        let dashboard = loop {
            line.clear();
            let read = out.read_line(&mut line).expect("text");
            assert!(read > 0, "the demo ended before it printed its address");
            print!("{line}");
            if let Some(url) = line.trim().strip_prefix("dashboard: http://") {
                break url.trim_end_matches('/').to_owned();
            }
        };
        Self { child, out, dashboard, folder }
    }

    /// Returns the processes of the demo: those that name its folder, and those that log into it.
    fn processes(&self) -> Vec<PathBuf> {
        let folder = self.folder.path().as_os_str().as_encoded_bytes();
        let is_ours = |path: &PathBuf| {
            let read = |name: &str| std::fs::read(path.join(name)).unwrap_or_default();
            let names_it = |text: Vec<u8>| text.windows(folder.len()).any(|part| part == folder);
            names_it(read("cmdline")) || names_it(read("environ")) || has_log_in(path, folder)
        };
        let processes = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
        let numbers = processes.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.bytes().all(|byte| byte.is_ascii_digit())
        });
        numbers.filter(is_ours).collect()
    }

    /// Runs the commands for the terminal that the demo prints, each with an option that ends it.
    fn run_printed_commands(&mut self) {
        let mut commands = Vec::new();
        loop {
            let mut line = String::new();
            assert!(
                self.out.read_line(&mut line).expect("text") > 0,
                "the demo prints its logs last"
            );
            let line = line.trim();
            if line.starts_with("logs:") {
                break;
            }
            let line = line.strip_prefix("terminal:").unwrap_or(line).trim();
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            if words.iter().any(|word| word == "top" || word == "tail") {
                commands.push(words);
            }
        }
        for (words, end) in commands.iter().zip([&["--once"][..], &["--max", "1"]]) {
            let output = Command::new(&words[0]).args(&words[1..]).args(end).output();
            let output = output.expect("the command starts");
            let [out, err] = [output.stdout, output.stderr]
                .map(|text| String::from_utf8_lossy(&text).into_owned());
            assert!(output.status.success() && !out.is_empty(), "{words:?}: {out}{err}");
        }
        assert_eq!(commands.len(), 2, "{commands:?}");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args([name, &pid]).status().expect("kill runs");
        assert!(killed.success());
    }

    /// Waits for the end of the demo; returns its exit code and the rest of its output.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("text");
        (self.child.wait().expect("it ends").code(), rest)
    }

    /// Waits for the end of the demo, which must leave no process.
    fn assert_ended(&mut self) {
        let (code, rest) = self.end();
        assert_eq!(code, Some(0), "{rest}");
        assert!(rest.ends_with("stopping\nstopped: no process is left\n"), "{rest}");
        assert_eq!(self.processes(), [] as [PathBuf; 0]);
    }

    fn get(&self, path: &str) -> Value {
        eventually_get(|| {
            let text = get(&self.dashboard, path).map_err(|error| error.to_string())?;
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            serde_json::from_str(body).map_err(|error| format!("{error}: {text}"))
        })
    }
}

/// Returns true if standard error of a process is a file in the folder.
fn has_log_in(process: &Path, folder: &[u8]) -> bool {
    let target = std::fs::read_link(process.join("fd/2")).unwrap_or_default();
    target.as_os_str().as_encoded_bytes().starts_with(folder)
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a GET request; returns the whole response.
fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the sum of a metric.
fn sum(metrics: &Value, name: &str) -> f64 {
    let all = metrics["metrics"].as_array().expect("a list");
    all.iter().filter(|one| one["name"] == name).filter_map(|one| one["value"].as_f64()).sum()
}

fn everything_runs_until_ctrl_c() {
    let mut demo = Demo::start(&[]);
    let page = get(&demo.dashboard, "/").expect("an answer");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<html"), "{page}");
    // Redis, three simulators and three nodes, each with its guard.
    assert!(demo.processes().len() >= 14, "{:?}", demo.processes());
    eventually(|| demo.get("/v1/dashboard/nodes")["nodes"].as_array().map(Vec::len) == Some(3));
    // The noisy tenant is denied most.
    eventually(|| {
        let limits = demo.get("/v1/dashboard/limits");
        limits["callers"]["tenantId"]["denied"][0]["value"] == "noisy-corp"
    });
    eventually(|| {
        let names = "sluicegate_gateway_%20sluicegate_worker_%20sluicegate_dispatch_";
        let metrics = demo.get(&format!("/v1/dashboard/metrics?names={names}"));
        ["sluicegate_gateway_requests_total", "sluicegate_worker_done_total"]
            .iter()
            .all(|name| sum(&metrics, name) > 0.0)
    });
    demo.run_printed_commands();
    demo.signal("-INT");
    demo.assert_ended();
    let log = std::fs::read_to_string(demo.folder.path().join("node-1.log")).expect("a log");
    assert!(log.contains("\"message\":\"stopped\""), "it ended by itself: {log}");
}

fn a_demo_ends_after_its_time() {
    Demo::start(&["--for", "2s"]).assert_ended();
}

/// It can't wait for its processes, but they end with it.
fn a_killed_demo_leaves_no_process() {
    let mut demo = Demo::start(&[]);
    demo.signal("-KILL");
    assert_eq!(demo.end().0, None);
    eventually(|| demo.processes().is_empty());
}

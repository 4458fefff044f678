//! [`Collector`]: a collector of traces in Python, on the messages and the gRPC of others.

use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use sluicegate_testkit::eventually_get;

/// A running collector, which ends when it is dropped.
pub(crate) struct Collector {
    /// Address for OTLP over HTTP.
    pub(crate) http: String,
    /// Address for OTLP over gRPC.
    pub(crate) grpc: String,
    spans: Arc<Mutex<Vec<Value>>>,
    child: Child,
    _stdin: ChildStdin,
}

fn python() -> Command {
    let program = std::env::var_os("SLUICEGATE_OTLP").expect("run it by `cargo xtask test traces`");
    let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/receiver.py");
    let mut command = Command::new(program);
    command.arg(script);
    command
}

/// Runs the script with arguments.
pub(crate) fn call(arguments: &[&str]) {
    let status = python().args(arguments).status().expect("Python starts");
    assert!(status.success(), "{arguments:?}: see above");
}

impl Collector {
    /// Starts a collector on free ports.
    pub(crate) fn start() -> Self {
        Self::start_with("http://127.0.0.1", &mut python())
    }

    /// Starts a collector that requires TLS, with these files.
    pub(crate) fn start_tls(certificate: &Path, key: &Path) -> Self {
        Self::start_with("https://localhost", python().arg("tls").arg(certificate).arg(key))
    }

    fn start_with(host: &str, command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let stdin = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut lines = lines
            .map_while(Result::ok)
            .map(|line| serde_json::from_str::<Value>(&line).unwrap_or_else(|_| panic!("{line}")));
        let ports = lines.next().expect("the collector starts: see above");
        let address = |protocol: &str| format!("{host}:{}", ports[protocol]);
        let (http, grpc) = (address("http"), address("grpc"));
        let spans = Arc::new(Mutex::new(Vec::new()));
        let received = spans.clone();
        std::thread::spawn(move || {
            for span in lines {
                received.lock().expect("the spans").push(span);
            }
        });
        Self { http, grpc, spans, child, _stdin: stdin }
    }

    /// Waits for spans and returns all that were received.
    pub(crate) fn wait_for(&self, arrived: impl Fn(&SpanTree) -> bool) -> SpanTree {
        eventually_get(|| {
            let spans = SpanTree(self.spans.lock().expect("the spans").clone());
            if arrived(&spans) { Ok(spans) } else { Err(spans) }
        })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Spans and their parents.
#[derive(Debug)]
pub(crate) struct SpanTree(Vec<Value>);

impl SpanTree {
    /// Returns the spans of one trace.
    pub(crate) fn of_trace(&self, trace: &str) -> Self {
        Self(self.iter().filter(|span| span["trace"] == trace).cloned().collect())
    }

    /// Returns the spans with a name, in the order of their start.
    pub(crate) fn named(&self, name: &str) -> Vec<&Value> {
        let mut spans: Vec<_> = self.iter().filter(|span| span["name"] == name).collect();
        spans.sort_by_key(|span| span["start"].as_u64());
        spans
    }

    /// Returns the children of a span.
    pub(crate) fn children(&self, parent: &Value) -> Vec<&Value> {
        self.iter().filter(|span| span["parent"] == parent["span"]).collect()
    }

    /// Returns the only child of a span with a name.
    #[track_caller]
    pub(crate) fn only_child(&self, parent: &Value, name: &str) -> &Value {
        let children = self.children(parent);
        let named: Vec<_> = children.iter().filter(|span| span["name"] == name).collect();
        assert_eq!(named.len(), 1, "{name} below {parent}: {self:#?}");
        named[0]
    }
}

impl Deref for SpanTree {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.0
    }
}

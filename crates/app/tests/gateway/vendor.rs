//! A fake vendor that records the arrival time of each request, as the kernel sees it: `vendor.py`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use sluicegate_core::Timestamp;

/// A vendor that runs until the end of the test.
#[derive(Clone)]
pub(crate) struct Vendor {
    pub(crate) port: u16,
    process: Arc<Mutex<VendorProcess>>,
}

struct VendorProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl VendorProcess {
    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "the vendor has ended");
        line
    }
}

impl Drop for VendorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Vendor {
    pub(crate) fn start() -> Self {
        Self::with_arguments(&[])
    }

    /// Starts a vendor that speaks TLS.
    pub(crate) fn with_tls(certificate: &Path, key: &Path) -> Self {
        Self::with_arguments(&[certificate, key])
    }

    fn with_arguments(arguments: &[&Path]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway/vendor.py");
        let mut child = Command::new("python3")
            .arg(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut process = VendorProcess { child, input, output };
        let port = process.read_line().trim().parse().expect("a port");
        Self { port, process: Arc::new(Mutex::new(process)) }
    }

    /// Closes every connection at the first byte.
    pub(crate) fn set_down(&self, down: bool) {
        self.command(&format!("down {}", u8::from(down)));
    }

    /// Sets the head of the response to the next request.
    pub(crate) fn answer_next(&self, head: &str) {
        self.command(&format!("answer {}", head.replace('\n', "\\n")));
    }

    /// Returns the arrival times of all requests, in order.
    pub(crate) fn arrivals(&self) -> Vec<Timestamp> {
        self.arrivals_if(|_| true)
    }

    /// Returns the arrival times of requests that other replicas forwarded, in order.
    pub(crate) fn arrivals_not_through(&self, url: &str) -> Vec<Timestamp> {
        self.arrivals_if(|through| through != url)
    }

    /// Returns the arrival times of requests whose header [`crate::replica::THROUGH`] counts.
    pub(crate) fn arrivals_if(&self, counts: impl Fn(&str) -> bool) -> Vec<Timestamp> {
        let arrivals: Vec<(u64, String)> =
            serde_json::from_str(&self.command("arrivals")).expect("arrivals");
        let counted = arrivals.iter().filter(|(_, through)| counts(through));
        let mut times: Vec<_> =
            counted.map(|(nanos, _)| Timestamp::from_micros(nanos / 1_000)).collect();
        times.sort_unstable();
        times
    }

    fn command(&self, line: &str) -> String {
        let mut process = self.process.lock().expect("the lock");
        writeln!(process.input, "{line}").expect("the vendor runs");
        process.read_line()
    }
}

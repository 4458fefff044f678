//! Tests of the decision log, with decisions of a real store.

mod content;
mod following;
#[path = "../observed/mod.rs"]
mod observed;
mod sampling;
mod writing;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use observed::{Ask, Limiter, all_of, rule};
use serde_json::Value;
use sluicegate_core::Span;
use sluicegate_server::decision_log::{DecisionLog, Options};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;

/// An output whose contents a test can read.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Page {
    /// Returns the lines of decisions.
    fn lines(&self) -> Vec<String> {
        let mut lines = self.all_lines();
        lines.retain(|line| !is_end(line));
        lines
    }

    /// Returns all lines, including the end line.
    fn all_lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().expect("no panic").clone()).expect("UTF-8");
        assert!(text.is_empty() || text.ends_with('\n'), "lines are whole");
        text.split_terminator('\n').map(str::to_owned).collect()
    }
}

fn is_end(line: &str) -> bool {
    line.contains(r#""operation":"end""#)
}

const KEY: [u8; 32] = [7; 32];

fn options() -> Options {
    Options::new(KEY)
}

/// Creates a log whose clock is a quarter of a second behind that of the store.
fn log(out: impl Write + Send + 'static, options: Options) -> DecisionLog {
    let clock = ManualClock::new(EPOCH - Span::from_millis(250));
    DecisionLog::new(Box::new(out), clock, options).expect("a thread")
}

/// Returns the log lines of some requests.
fn logged(limiter: &Limiter, options: Options, asks: &[Ask<'_>]) -> Vec<String> {
    let page = Page::default();
    let log = log(page.clone(), options);
    for ask in asks {
        limiter.ask(&log, ask);
    }
    log.close();
    assert_eq!(log.dropped(), 0);
    page.lines()
}

const WHO: &[(&str, &str)] = &[
    ("userId", "u1"),
    ("modelId", "gpt4"),
    ("tenantId", "acme"),
    ("apiKey", "sk-s3cret"),
    ("modelTier", "PREMIUM"),
    ("clientType", "EXTERNAL"),
    ("region", "eu"),
];

fn three_scopes() -> Limiter {
    Limiter::new(all_of([
        rule("USER_MODEL", &["userId", "modelId"], &["2/min", "100/h"]),
        rule("TENANT", &["tenantId"], &["5000/h"]),
        rule("BUDGET", &["userId"], &["5.00 USD/day"]),
    ]))
}

/// Returns a line with only these fields.
fn fields(line: &str, names: &[&str]) -> Value {
    let line: Value = serde_json::from_str(line).expect("a line is JSON");
    names.iter().map(|&name| (name.to_owned(), line[name].clone())).collect()
}

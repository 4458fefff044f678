//! `sluicegate test`: runs unit tests of rules, with a virtual clock.
//!
//! ```yaml
//! config: sluicegate.yaml            # relative to this file; or limits: … right here
//! env: {RATE: "5"}                   # variables of the configuration; the shell's are not used
//! tests:
//!   - name: the sixth call in five seconds is denied
//!     steps:
//!       - send: {userId: u1, modelId: gpt4}
//!         times: 5
//!       - at: 1s
//!         send: {userId: u1, modelId: gpt4}
//!         expect: {decision: deny, rule: USER_MODEL, retry_after: 4s}
//! ```
//!
//! Every test has a limiter of its own, with the rules, the memory store and the service layer of
//! `sluicegate serve`. Only the clock is virtual.

mod clock;
mod expect;
mod file;
mod problems;
mod report;
mod result;
mod runner;
mod step;
mod yaml;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use super::print;
use file::File;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate test tests.yaml               run every test of a file
  sluicegate test *.yaml --filter tenant   run the tests whose name contains \"tenant\"
  sluicegate test tests.yaml --json        print each test as one line of JSON

A test file:
  config: sluicegate.yaml            # relative to this file; or `limits:` right here
  env: {RATE: \"5\"}                   # variables of the configuration; the shell's are not used
  tests:
    - name: the sixth call in five seconds is denied
      steps:
        - send: {userId: u1, modelId: gpt4}
          times: 5                   # every: 100ms, cost: {usd: \"0.01\"}, hold: 30s, id: a
        - at: 1s                     # from the start of the test; after: 1s is from the previous step
          send: {userId: u1, modelId: gpt4}
          expect: {decision: deny, rule: USER_MODEL, retry_after: 4s}
        - usage: {userId: u1, modelId: gpt4}
          expect: {USER_MODEL: {5/5s: 5}}

Steps:
  send                            send a request and charge it if it is allowed
  check                           send a request without charging it
  usage, reset                    read or reset the counters of a request
  settle, release, renew, cancel  act on a reservation by the id of an earlier step

In values, <n> is replaced by the number of the call, from 1 to `times`.

Exit code: 0 all tests passed, 1 a test failed, 2 invalid test file";

#[derive(Args)]
pub(super) struct Test {
    /// Test files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Run only the tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print each test as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Test {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let files = load(&self.files)?;
        let chosen = |name: &str| self.filter.as_ref().is_none_or(|text| name.contains(text));
        let (mut passed, mut failed) = (0, 0);
        for file in &files {
            if files.len() > 1 && !self.json {
                print(&format!("\x1b[1m{}\x1b[0m", file.name));
            }
            for case in file.cases.iter().filter(|case| chosen(&case.name)) {
                let outcome = runner::run(&file.config, case);
                match &outcome {
                    Ok(()) => passed += 1,
                    Err(_) => failed += 1,
                }
                print(&match &outcome {
                    _ if self.json => {
                        let failure = outcome.as_ref().err().map(|failure| &**failure);
                        report::result_json(&case.name, &file.name, failure).to_string()
                    }
                    Ok(()) => report::passed(&case.name),
                    Err(failure) => report::failed(&case.name, &file.name, failure),
                });
            }
        }
        if passed + failed == 0 {
            bail!("no test name contains {:?} (--filter)", self.filter.unwrap_or_default());
        }
        if !self.json {
            print(&report::summary(passed, failed));
        }
        Ok(failed == 0)
    }
}

/// Loads all files before any test runs, so that errors in the files are printed first.
fn load(paths: &[PathBuf]) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut errors = Vec::new();
    for path in paths {
        match File::load(path) {
            Ok(file) => files.push(file),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    if !errors.is_empty() {
        bail!("{}", errors.join("\n"));
    }
    Ok(files)
}

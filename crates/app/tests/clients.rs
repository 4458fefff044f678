//! Runs the test suites of the client packages in `clients/` against the program of this build.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn python_package() {
    let python =
        std::env::var_os("SLUICEGATE_PYTHON").expect("run it by `cargo xtask test python`");
    let mut tests = Command::new(python);
    tests
        .args(["-m", "pytest", "-p", "no:cacheprovider", "-p", "sluicegate.pytest_plugin"])
        .env("PYTHONPATH", "src")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    run(tests, "python");
}

#[test]
fn node_package() {
    // Debian's Node is too old for the frameworks: `cargo xtask test node` installs another one.
    let node = clients().join("node/node_modules/.bin/node");
    assert!(node.exists(), "{} is missing: run it by `cargo xtask test node`", node.display());
    let mut build = Command::new(&node);
    build.arg("scripts/build.mjs");
    run(build, "node");
    let mut tests = Command::new(&node);
    tests.args(["--test", "--test-reporter=spec", "tests/*.test.mjs"]);
    run(tests, "node");
}

/// Runs the tests of a package in its folder, with the path of the program to test against.
fn run(mut tests: Command, package: &str) {
    let status = tests
        .current_dir(clients().join(package))
        .env("SLUICEGATE_PROGRAM", env!("CARGO_BIN_EXE_sluicegate"))
        .status()
        .expect("the test runner starts");
    assert!(status.success(), "tests of clients/{package} failed: see above");
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients")
}

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

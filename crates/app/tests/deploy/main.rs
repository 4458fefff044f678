//! Tests of the files in `deploy/` with the programs that read them: Prometheus, Alertmanager, NGINX,
//! HAProxy and the validators of Kubernetes and Terraform. `cargo xtask test deploy` installs these
//! programs and runs the tests.

mod alertmanager;
#[path = "../common/mod.rs"]
mod common;
mod compose;
mod files;
mod metrics;
mod process;
mod prometheus;
mod proxies;
mod selectors;
mod systems;
mod upstream;

use std::path::{Path, PathBuf};

/// Returns a path in the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the text of a file in the repository.
fn read(path: &str) -> String {
    let path = repository(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the Python with a parser of YAML, which is installed into the same directory as
/// kubernetes-validate.
fn python() -> PathBuf {
    let validator =
        std::env::var("SLUICEGATE_KUBERNETES_VALIDATE").expect("run `cargo xtask test deploy`");
    Path::new(&validator).with_file_name("python")
}

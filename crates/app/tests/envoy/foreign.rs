//! Tests with grpcio, a gRPC client that shares no code with ours and finds the service by
//! reflection.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::RunningService;
use crate::common::page::{Page, repository, run};

/// Returns the Python with grpcio, which is installed into the same directory as Envoy.
fn python() -> PathBuf {
    let envoy = std::env::var("SLUICEGATE_ENVOY").expect("run `cargo xtask test envoy`");
    Path::new(&envoy).with_file_name("python")
}

/// Runs `foreign.py` against a service with this configuration.
fn foreign(config: &str, args: &[&str]) {
    let service = RunningService::start(config);
    check(&service.grpc, args);
}

fn check(grpc: &str, args: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy/foreign.py");
    let address = grpc.trim_start_matches("http://");
    let output = Command::new(python()).arg(script).arg(address).args(args).output();
    let output = output.expect("python starts");
    let (out, err) = (&output.stdout, &output.stderr);
    let said = format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_foreign_client_finds_the_service_and_calls_it() {
    foreign("", &[]);
}

#[test]
fn a_foreign_client_needs_a_token_if_tokens_are_required() {
    foreign(
        "auth: {tokens: {python: a-long-enough-token-for-python-1}}\n",
        &["--token", "a-long-enough-token-for-python-1"],
    );
}

#[test]
fn a_foreign_client_comes_in_over_mutual_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let certificate = |name: &str| {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    };
    let (server, client) = (certificate("localhost"), certificate("client"));
    let (cert, key) = (file("cert.pem", &server.0), file("key.pem", &server.1));
    let (client_cert, client_key) = (file("client.pem", &client.0), file("client.key", &client.1));
    let path = folder.path().join("sluicegate.yaml");
    let tls = format!("{{cert: {cert}, key: {key}, client_ca: {client_cert}}}");
    let config = format!(
        "listen: {{http: '127.0.0.1:0', admin: '127.0.0.1:0', \
         grpc: {{address: '127.0.0.1:0', tls: {tls}}}}}\n"
    );
    std::fs::write(&path, config).expect("a file");
    let service = RunningService::with_file(&path);
    check(&service.grpc, &["--ca", &cert, "--cert", &client_cert, "--key", &client_key]);
}

/// Runs the commands of docs/grpc.md, whose client needs grpcio.
#[test]
fn the_page_of_the_grpc_api_works() {
    let bin = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_sluicegate"), bin.path().join("sluicegate")).expect("a link");
    // A link to Python would not find its packages.
    let program = bin.path().join("python3");
    let text = format!("#!/bin/sh\nexec {} \"$@\"\n", python().display());
    std::fs::write(&program, text).expect("a file");
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("a program");
    let page = std::fs::read_to_string(repository().join("docs/grpc.md")).expect("the page");
    let page = Page::read(&page).expect("a page");
    assert!(page.blocks >= 2, "{}", page.script);
    if let Err(failure) = run("docs/grpc.md", &page.script, bin.path()) {
        panic!("{failure}");
    }
}

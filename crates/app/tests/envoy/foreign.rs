//! Tests with grpcio, a gRPC client that shares no code with ours and finds the service by
//! reflection.

use std::path::Path;
use std::process::Command;

use crate::common::RunningService;

/// Runs `foreign.py` against a service with this configuration.
fn foreign(config: &str, args: &[&str]) {
    let service = RunningService::start(config);
    check(&service.grpc, args);
}

fn check(grpc: &str, args: &[&str]) {
    let envoy = std::env::var("SLUICEGATE_ENVOY").expect("run `cargo xtask test envoy`");
    // Installed into the same directory as Envoy.
    let python = Path::new(&envoy).with_file_name("python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy/foreign.py");
    let address = grpc.trim_start_matches("http://");
    let output = Command::new(python).arg(script).arg(address).args(args).output();
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

//! TLS and access tokens, with the key file of a service account. The trusted authorities and the
//! application default credentials come from the environment of a process, so these tests run
//! themselves again with another environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sluicegate_queue::pubsub::Options as Connection;
use sluicegate_queue::{Error, Message, Options, PubSub, Queue};
use sluicegate_testkit::pubsub::{PubSubServer, SecuredFiles};
use sluicegate_testkit::queue::run;

/// Variable that passes the address of the server to the child.
const ADDRESS: &str = "SLUICEGATE_PUBSUB";
/// Variable that passes the key file to the child, which writes it into its options.
const KEY_FILE: &str = "SLUICEGATE_PUBSUB_KEY_FILE";
/// Variable of the application default credentials, which Google's libraries read.
const DEFAULT_CREDENTIALS: &str = "GOOGLE_APPLICATION_CREDENTIALS";

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

/// Starts a server with TLS, and runs a test again as a process that trusts it and finds the key file in
/// this variable. Returns true if it passed, and its output.
fn run_trusting(test: &str, is_expired: bool, variable: &str) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut params = CertificateParams::new([]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let certificate = params.signed_by(&key, &authority).expect("signed");
    let files = SecuredFiles {
        certificate: write(folder.path(), "certificate.pem", &certificate.pem()),
        key: write(folder.path(), "key.pem", &key.serialize_pem()),
        account: folder.path().join("account.json"),
    };
    let server = PubSubServer::secured(&files, is_expired);
    let trusted = write(folder.path(), "trusted.pem", &authority.pem());
    let address = format!("https://127.0.0.1:{}", server.port);
    let mut child = Command::new(std::env::current_exe().expect("a path"));
    child.args(["--exact", test, "--nocapture"]);
    child.env(ADDRESS, address).env("SSL_CERT_FILE", trusted);
    // Only one of them, also on a machine that has credentials of its own.
    child.env_remove(DEFAULT_CREDENTIALS).env(variable, &files.account);
    let child = child.output().expect("the test starts itself");
    (child.status.success(), String::from_utf8_lossy(&child.stderr).into_owned())
}

/// Returns the options of a child.
fn given() -> Option<Connection> {
    let endpoint = std::env::var(ADDRESS).ok()?;
    let credentials = std::env::var_os(KEY_FILE).map(PathBuf::from);
    Some(Connection { endpoint: Some(endpoint), credentials, ..Connection::default() })
}

/// Logs in, sends a message and receives it. The options name no project: the credentials do.
fn send_and_receive(options: Connection) {
    run(async {
        let broker = PubSub::connect(options).await.expect("a login");
        let queue = Queue::new(std::sync::Arc::new(broker), "secured", Options::default());
        queue.create().await.expect("created");
        queue.send(Message::new("x")).await.expect("sent");
        let mut consumer = queue.consume(1).await.expect("a consumer");
        let delivery = consumer.receive_one().await.expect("one");
        assert_eq!(delivery.message().body, "x");
        delivery.ack().await.expect("acknowledged");
    });
}

#[test]
fn a_key_file_is_exchanged_for_tokens_and_names_the_project() {
    if let Some(options) = given() {
        assert!(options.credentials.is_some(), "they are written in the options");
        return send_and_receive(options);
    }
    let test = "login::a_key_file_is_exchanged_for_tokens_and_names_the_project";
    let (passed, output) = run_trusting(test, false, KEY_FILE);
    assert!(passed, "{output}");
}

#[test]
fn application_default_credentials_are_used_without_a_key_file() {
    if let Some(options) = given() {
        assert_eq!(options.credentials, None, "they are only in the environment");
        return send_and_receive(options);
    }
    let test = "login::application_default_credentials_are_used_without_a_key_file";
    let (passed, output) = run_trusting(test, false, DEFAULT_CREDENTIALS);
    assert!(passed, "{output}");
}

#[test]
fn an_expired_credential_is_an_error_at_the_start() {
    if let Some(options) = given() {
        return run(async {
            let error = PubSub::connect(options).await.expect_err("expired");
            assert!(matches!(error, Error::Refused { .. }), "{error}");
            assert!(error.to_string().contains("renew it"), "{error}");
        });
    }
    let test = "login::an_expired_credential_is_an_error_at_the_start";
    let (passed, output) = run_trusting(test, true, KEY_FILE);
    assert!(passed, "{output}");
}

#[test]
fn a_file_that_is_no_key_file_is_an_error_with_a_remedy() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broken = write(folder.path(), "broken.json", r#"{"type": "service_account"}"#);
        for path in [broken, folder.path().join("missing.json")] {
            let endpoint = Some("https://127.0.0.1:1".to_owned());
            let credentials = Some(path);
            let options = Connection { endpoint, credentials, ..Connection::default() };
            let error = PubSub::connect(options).await.expect_err("no key");
            assert!(matches!(error, Error::Refused { .. }), "{error}");
            assert!(error.to_string().contains("check queue.credentials"), "{error}");
        }
    });
}

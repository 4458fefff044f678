//! TLS, with generated certificates. The trusted authorities come from the environment of a
//! process, so this test runs itself again with another environment.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sluicegate_queue::rabbitmq::Options as Rabbit;
use sluicegate_queue::{Message, Options, Queue, RabbitMq};
use sluicegate_testkit::ports::free_port;
use sluicegate_testkit::queue::run;

use crate::support::calm;

/// Variable that passes the address of the node to the child.
const VARIABLE: &str = "SLUICEGATE_AMQPS";
const TEST: &str = "tls::a_connection_is_encrypted_and_the_certificate_is_checked";

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

/// Authority that signed the certificate of the node.
static OURS: LazyLock<CertifiedIssuer<'static, KeyPair>> = LazyLock::new(authority);
/// TLS port of the node.
static PORT: LazyLock<u16> = LazyLock::new(free_port);

/// Returns the settings of a node that accepts TLS as well.
pub(crate) fn settings(folder: &Path) -> String {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let certificate = params.signed_by(&key, &*OURS).expect("signed");
    let lines = [
        ("cacertfile", write(folder, "authority.pem", &OURS.pem())),
        ("certfile", write(folder, "certificate.pem", &certificate.pem())),
        ("keyfile", write(folder, "key.pem", &key.serialize_pem())),
    ];
    let lines = lines.map(|(name, path)| format!("ssl_options.{name} = {}\n", path.display()));
    format!("listeners.ssl.1 = 127.0.0.1:{}\n{}", *PORT, lines.concat())
}

#[test]
fn a_connection_is_encrypted_and_the_certificate_is_checked() {
    if let Ok(url) = std::env::var(VARIABLE) {
        return run(sends_and_receives(url));
    }
    calm();
    let url = format!("amqps://guest:guest@127.0.0.1:{}/%2f", *PORT);
    let folder = tempfile::tempdir().expect("a folder");
    let trusting = |authority: &CertifiedIssuer<'static, KeyPair>| {
        let trusted = write(folder.path(), "trusted.pem", &authority.pem());
        let mut child = Command::new(std::env::current_exe().expect("a path"));
        child.args(["--exact", TEST, "--nocapture"]);
        let child = child.env(VARIABLE, &url).env("SSL_CERT_FILE", trusted).output();
        let child = child.expect("the test starts itself");
        (child.status.success(), String::from_utf8_lossy(&child.stderr).into_owned())
    };
    let (passed, output) = trusting(&OURS);
    assert!(passed, "{output}");
    let (passed, output) = trusting(&authority());
    assert!(!passed && output.contains("set SSL_CERT_FILE to a file"), "{output}");
}

async fn sends_and_receives(url: String) {
    let broker =
        RabbitMq::connect(Rabbit::new(url)).await.unwrap_or_else(|error| panic!("{error}"));
    let queue = Queue::new(Arc::new(broker), "covered", Options::default());
    queue.create().await.expect("created");
    queue.send(Message::new("x")).await.expect("sent");
    let delivery = queue.consume(1).await.expect("a consumer").receive_one().await.expect("one");
    assert_eq!(delivery.message().body, "x");
    delivery.ack().await.expect("acknowledged");
}

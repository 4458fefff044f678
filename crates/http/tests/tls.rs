//! Tests of TLS over real sockets with generated certificates: client authentication, negotiation,
//! and replacing certificates without a restart.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the message")]

mod support;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use sluicegate_config::ListenerTls;
use sluicegate_http::listener::Options;
use sluicegate_http::tls::Tls;
use sluicegate_testkit::eventually_async;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use support::{Client, Gate, Http2, SHORT, Server, app, patient, soon};

/// A generated certificate authority.
struct Ca(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key as PEM, and the certificate as DER.
struct Identity {
    certificate: String,
    key: String,
    der: CertificateDer<'static>,
}

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let der = certificate.der().clone();
        Identity { certificate: certificate.pem(), key: key.serialize_pem(), der }
    }
}

/// A temporary folder with the files of a server.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn identity(&self, identity: &Identity) {
        self.write("cert.pem", &identity.certificate);
        self.write("key.pem", &identity.key);
    }

    /// Returns the paths of `cert.pem` and `key.pem`, and of `ca.pem` if it exists.
    fn files(&self) -> ListenerTls {
        let client_ca = Some(self.path("ca.pem")).filter(|path| path.exists());
        ListenerTls { cert: self.path("cert.pem"), key: self.path("key.pem"), client_ca }
    }
}

/// A server for `localhost` with its files and CA.
struct Running {
    folder: Folder,
    ca: Ca,
    tls: Arc<Tls>,
    server: Server,
}

/// Starts a server; with `client_ca`, clients need a certificate of it.
async fn start(client_ca: Option<&Ca>, options: Options) -> Running {
    let (folder, ca) = (Folder::new(), Ca::new());
    folder.identity(&ca.issue("localhost"));
    if let Some(client_ca) = client_ca {
        folder.write("ca.pem", &client_ca.0.pem());
    }
    let tls = Arc::new(Tls::load(folder.files()).unwrap());
    let server = Server::start(app(&Gate::new()), options, Some(Arc::clone(&tls))).await;
    Running { folder, ca, tls, server }
}

/// TLS options of a client.
struct Visit<'a> {
    identity: Option<&'a Identity>,
    version: &'static SupportedProtocolVersion,
    alpn: &'a [&'a str],
}

const PLAIN: Visit<'static> = Visit { identity: None, version: &TLS13, alpn: &[] };

impl Running {
    async fn connect(&self, visit: Visit<'_>) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.0.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[visit.version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match visit.identity {
            None => config.with_no_client_auth(),
            Some(Identity { der, key, .. }) => {
                let key = KeyPair::from_pem(key).unwrap().serialize_der();
                let key = PrivateKeyDer::try_from(key).unwrap();
                config.with_client_auth_cert(vec![der.clone()], key).unwrap()
            }
        };
        config.alpn_protocols = visit.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = self.server.tcp().await;
        soon(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
    }

    /// Returns true if a client is accepted. With TLS 1.3 it learns that only when it reads.
    async fn serves(&self, visit: Visit<'_>) -> bool {
        match self.connect(visit).await {
            Ok(stream) => Client::new(stream).try_get("/hello").await.is_some(),
            Err(_) => false,
        }
    }

    /// Returns the certificate that a new client receives.
    async fn shown(&self) -> CertificateDer<'static> {
        let stream = self.connect(PLAIN).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    }
}

#[tokio::test]
async fn both_versions_of_tls_are_served() {
    let running = start(None, patient()).await;
    assert!(running.serves(Visit { version: &TLS12, ..PLAIN }).await);
    assert!(running.serves(Visit { version: &TLS13, ..PLAIN }).await);
}

#[tokio::test]
async fn the_protocol_is_negotiated() {
    let running = start(None, patient()).await;
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some(&b"h2"[..])),
        (&["http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let stream = running.connect(Visit { alpn: offered, ..PLAIN }).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), chosen);
        if chosen == Some(b"h2") {
            let answer = Http2::new(stream).await.get("/hello").await;
            assert_eq!(answer, Some((200, "hello".to_owned())));
        } else {
            assert_eq!(Client::new(stream).get("/hello").await.body, "hello");
        }
    }
}

#[tokio::test]
async fn only_clients_with_a_certificate_of_their_ca_are_let_in() {
    let (clients, strangers) = (Ca::new(), Ca::new());
    let running = start(Some(&clients), patient()).await;
    let (client, stranger) = (clients.issue("client"), strangers.issue("client"));
    for version in [&TLS12, &TLS13] {
        let visit = |identity| Visit { identity, version, ..PLAIN };
        assert!(running.serves(visit(Some(&client))).await);
        assert!(!running.serves(visit(Some(&stranger))).await);
        assert!(!running.serves(visit(None)).await);
    }
    eventually_async(async || running.server.stats.counts().handshake_errors == 4).await;
}

#[tokio::test]
async fn who_does_not_shake_hands_is_dropped() {
    let running = start(None, Options { header_timeout: SHORT, ..patient() }).await;
    let mut silent = running.server.connect().await;
    assert_eq!(silent.closed().await, "");
    let mut partial = running.server.connect().await;
    partial.send(b"\x16\x03\x01\x02\x00").await;
    assert_eq!(partial.closed().await, "");
    let mut unencrypted = running.server.connect().await;
    assert_eq!(unencrypted.try_get("/hello").await, None);
    eventually_async(async || running.server.stats.counts().handshake_errors == 3).await;
    eventually_async(async || running.serves(PLAIN).await).await;
}

#[tokio::test]
async fn who_shakes_hands_and_keeps_silent_is_dropped() {
    let running = start(None, Options { header_timeout: SHORT, ..patient() }).await;
    let mut stream = running.connect(PLAIN).await.unwrap();
    let _ = soon(stream.read_to_end(&mut Vec::new())).await;
}

#[tokio::test]
async fn certificates_are_replaced_without_a_restart() {
    let running = start(None, patient()).await;
    let first = running.shown().await;
    let mut open = Client::new(running.connect(PLAIN).await.unwrap());
    open.get("/hello").await;

    let second = running.ca.issue("localhost");
    running.folder.identity(&second);
    assert_eq!(running.shown().await, first, "the files are not reloaded by themselves");
    running.tls.reload().unwrap();
    assert_eq!(running.shown().await, second.der);
    assert_eq!(open.get("/hello").await.status, 200);
}

#[tokio::test]
async fn files_that_are_wrong_leave_the_old_certificate_in_use() {
    let running = start(None, patient()).await;
    let first = running.shown().await;
    running.folder.write("cert.pem", "");
    assert!(running.tls.reload().is_err());
    assert_eq!(running.shown().await, first);
}

#[tokio::test]
async fn the_ca_of_clients_is_replaced_without_a_restart() {
    let (old, new) = (Ca::new(), Ca::new());
    let running = start(Some(&old), patient()).await;
    running.folder.write("ca.pem", &new.0.pem());
    running.tls.reload().unwrap();
    let (old, new) = (old.issue("client"), new.issue("client"));
    assert!(!running.serves(Visit { identity: Some(&old), ..PLAIN }).await);
    assert!(running.serves(Visit { identity: Some(&new), ..PLAIN }).await);
}

/// Checks the beginning of the error for a valid folder `DIR` after `spoil` has changed it.
#[track_caller]
fn check(spoil: impl FnOnce(&Folder), expected: &str) {
    let folder = Folder::new();
    let ca = Ca::new();
    folder.identity(&ca.issue("localhost"));
    folder.write("ca.pem", &ca.0.pem());
    let files = folder.files();
    assert!(Tls::load(files.clone()).is_ok());
    spoil(&folder);
    let error = Tls::load(files).unwrap_err().to_string();
    let dir = Path::new(folder.0.path()).display().to_string();
    let error = error.replace(&dir, "DIR");
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn what_is_wrong_with_the_files_is_told() {
    let remove = |name: &'static str| {
        move |folder: &Folder| std::fs::remove_file(folder.path(name)).unwrap()
    };
    let write = |name: &'static str, text: &'static str| {
        move |folder: &Folder| {
            folder.write(name, text);
        }
    };
    for name in ["cert.pem", "key.pem", "ca.pem"] {
        check(
            remove(name),
            &format!("cannot read DIR/{name}: check that it exists and that this user may read it"),
        );
    }
    for name in ["cert.pem", "ca.pem"] {
        check(
            write(name, "nothing"),
            &format!(
                "DIR/{name} contains no certificate: expected a block that begins with \
                 -----BEGIN CERTIFICATE-----"
            ),
        );
        check(
            write(name, "-----BEGIN CERTIFICATE-----\nAAAA\n"),
            &format!(
                "DIR/{name} is not valid PEM: the line -----END CERTIFICATE----- is missing: check"
            ),
        );
    }
    check(
        |folder| {
            std::fs::copy(folder.path("cert.pem"), folder.path("key.pem")).unwrap();
        },
        "DIR/key.pem contains no private key: expected a block that begins with \
         -----BEGIN PRIVATE KEY-----",
    );
    check(
        write("cert.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        "DIR/cert.pem contains a certificate that cannot be used: invalid",
    );
    check(
        write("ca.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        "DIR/ca.pem contains a certificate that cannot be used: invalid",
    );
    check(
        write("key.pem", "-----BEGIN PRIVATE KEY\nAAAA\n"),
        "DIR/key.pem is not valid PEM: cannot parse the line -----BEGIN PRIVATE KEY: check",
    );
    check(
        write("key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
        "DIR/key.pem contains a private key that cannot be used",
    );
    check(
        |folder| {
            folder.write("key.pem", &Ca::new().issue("localhost").key);
        },
        "the key in DIR/key.pem does not belong to the first certificate in DIR/cert.pem: \
         replace both files together",
    );
}

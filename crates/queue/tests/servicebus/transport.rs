//! TLS and WebSockets, with generated certificates, by proxies in front of the double. The trusted
//! authorities come from the environment of a process, so a test runs itself again with another
//! environment.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fe2o3_amqp_ws::tokio_tungstenite::accept_hdr_async;
use fe2o3_amqp_ws::tungstenite::Message as Frame;
use fe2o3_amqp_ws::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use futures_util::{SinkExt as _, StreamExt as _};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sluicegate_queue::servicebus::{Options, Transport};
use sluicegate_queue::{Message, Options as QueueOptions, Queue, ServiceBus};
use sluicegate_testkit::queue::run;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, crypto::ring};
use tokio_rustls::server::TlsStream;

use crate::support::calm;

/// Variable that passes port, address of the management API and transport to the child.
const VARIABLE: &str = "SLUICEGATE_AMQPS";

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

/// Starts a proxy that ends TLS, and WebSockets inside of it, in front of the double.
async fn start_proxy(ours: &CertifiedIssuer<'static, KeyPair>, transport: Transport) -> u16 {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let certificate = params.signed_by(&key, ours).expect("signed");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a certificate");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust us goes away.
                let Ok(client) = acceptor.accept(client).await else { return };
                let server = TcpStream::connect(("127.0.0.1", calm().port)).await.expect("it runs");
                match transport {
                    Transport::Tcp => bridge(client, server).await,
                    Transport::WebSockets => bridge_frames(client, server).await,
                }
            });
        }
    });
    port
}

async fn bridge(mut client: TlsStream<TcpStream>, mut server: TcpStream) {
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

#[expect(clippy::result_large_err, reason = "the type of the library")]
fn accept(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    assert_eq!(request.uri().path(), "/$servicebus/websocket");
    let protocol = request.headers()["sec-websocket-protocol"].clone();
    assert_eq!(protocol, "amqp");
    response.headers_mut().insert("sec-websocket-protocol", protocol);
    Ok(response)
}

async fn bridge_frames(client: TlsStream<TcpStream>, server: TcpStream) {
    let sockets = accept_hdr_async(client, accept).await.expect("a handshake");
    let ((mut out, mut inward), (mut from, mut to)) = (sockets.split(), server.into_split());
    let upwards = async {
        while let Some(Ok(frame)) = inward.next().await {
            if to.write_all(&frame.into_data()).await.is_err() {
                return;
            }
        }
    };
    let downwards = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(size @ 1..) = from.read(&mut buffer).await {
            if out.send(Frame::binary(buffer[..size].to_vec())).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = upwards => {}
        () = downwards => {}
    }
}

/// Sends and receives in a child that trusts our authority, and then one that trusts another.
fn is_encrypted_and_checked(test: &str, transport: Transport) {
    if let Ok(address) = std::env::var(VARIABLE) {
        return run(sends_and_receives(address, transport));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority();
    run(async {
        let port = start_proxy(&ours, transport).await;
        let trusting = |authority: &CertifiedIssuer<'static, KeyPair>| {
            let trusted = write(folder.path(), "trusted.pem", &authority.pem());
            let mut child = Command::new(std::env::current_exe().expect("a path"));
            child.args(["--exact", test, "--nocapture"]);
            child.env(VARIABLE, format!("{port} {}", calm().admin_url()));
            child.env("SSL_CERT_FILE", trusted);
            async {
                let output = tokio::task::spawn_blocking(move || child.output()).await;
                let output = output.expect("no panic").expect("the test starts itself");
                (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
            }
        };
        let (passed, output) = trusting(&ours).await;
        assert!(passed, "{output}");
        let (passed, output) = trusting(&authority()).await;
        assert!(!passed && output.contains("set SSL_CERT_FILE to a file"), "{output}");
    });
}

async fn sends_and_receives(address: String, transport: Transport) {
    let (port, admin_url) = address.split_once(' ').expect("two words");
    let text = format!(
        "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;\
         SharedAccessKey=c2VjcmV0"
    );
    let options = Options::from_connection_string(&text).expect("complete");
    let options = Options { transport, admin_url: Some(admin_url.to_owned()), ..options };
    let broker = ServiceBus::connect(options).await.unwrap_or_else(|error| panic!("{error}"));
    let name = format!("covered-{port}");
    let queue = Queue::new(Arc::new(broker), &name, QueueOptions::default());
    queue.create().await.expect("created");
    let body = "x".repeat(200_000);
    queue.send(Message::new(body.clone())).await.expect("sent");
    let delivery = queue.consume(1).await.expect("a consumer").receive_one().await.expect("one");
    assert_eq!(delivery.message().body, body);
    delivery.ack().await.expect("acknowledged");
}

#[test]
fn a_connection_is_encrypted_and_the_certificate_is_checked() {
    let test = "transport::a_connection_is_encrypted_and_the_certificate_is_checked";
    is_encrypted_and_checked(test, Transport::Tcp);
}

#[test]
fn websockets_are_encrypted_and_the_certificate_is_checked() {
    let test = "transport::websockets_are_encrypted_and_the_certificate_is_checked";
    is_encrypted_and_checked(test, Transport::WebSockets);
}

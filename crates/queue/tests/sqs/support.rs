//! SQS servers for the tests, and a network that can be cut.

use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use sluicegate_core::Span;
use sluicegate_queue::{Broker, Sqs};
use sluicegate_testkit::QueueSubject;
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::sqs::SqsServer;

static MOTO: LazyLock<SqsServer> = LazyLock::new(SqsServer::moto);
static FAUXQS: LazyLock<SqsServer> = LazyLock::new(SqsServer::fauxqs);

pub(crate) fn moto() -> &'static SqsServer {
    &MOTO
}

pub(crate) fn fauxqs() -> &'static SqsServer {
    &FAUXQS
}

/// Returns a client configuration for one of the servers, with a login that they accept.
pub(crate) fn config(port: u16) -> SdkConfig {
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let login = Credentials::new("test", "test", None, None, "tests");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(format!("http://127.0.0.1:{port}"))
        .http_client(http)
        .credentials_provider(SharedCredentialsProvider::new(login))
        .build()
}

/// A broker behind a network of its own.
pub(crate) struct Subject<S = Moto> {
    broker: Arc<Sqs>,
    network: FaultProxy,
    server: PhantomData<S>,
}

/// An SQS server.
pub(crate) trait Server {
    /// As in [`QueueSubject`].
    const DELIVERS_COPIES: bool;

    fn port() -> u16;
}

/// The server moto: it handles requests in several threads without a lock, so that two consumers
/// that poll at the same time may get the same message.
pub(crate) struct Moto;

impl Server for Moto {
    const DELIVERS_COPIES: bool = true;

    fn port() -> u16 {
        moto().port
    }
}

/// The server fauxqs: it has one thread.
pub(crate) struct Fauxqs;

impl Server for Fauxqs {
    const DELIVERS_COPIES: bool = false;

    fn port() -> u16 {
        fauxqs().port
    }
}

impl<S: Server> QueueSubject for Subject<S> {
    const VISIBILITY: Span = Span::from_secs(6);
    const DELAY: Span = Span::from_secs(1);
    const FENCES: bool = false;
    const DELIVERS_COPIES: bool = S::DELIVERS_COPIES;

    fn fresh() -> Self {
        let network = FaultProxy::start(S::port());
        let broker = Arc::new(Sqs::with_config(&config(network.port)).expect("a client"));
        Self { broker, network, server: PhantomData }
    }

    fn broker(&self) -> Arc<dyn Broker> {
        self.broker.clone()
    }

    async fn end_leases(&self) {
        self.pass(Self::VISIBILITY).await;
    }

    async fn restart(&self) {
        // The server keeps messages in memory, and AWS does not restart: the failure to test is the
        // network.
        self.network.set(NetworkState::Cut);
        self.network.set(NetworkState::Healthy);
    }
}

//! The Pub/Sub server of the tests, and a network that can be cut.

use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use sluicegate_core::Span;
use sluicegate_queue::pubsub::Options;
use sluicegate_queue::{Broker, PubSub};
use sluicegate_testkit::QueueSubject;
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::pubsub::PubSubServer;
use tokio::runtime::Handle;

static SERVER: LazyLock<PubSubServer> = LazyLock::new(PubSubServer::start);

pub(crate) fn server() -> &'static PubSubServer {
    &SERVER
}

/// Returns options for the server.
pub(crate) fn options() -> Options {
    options_for(server().endpoint())
}

/// Returns options for a server at an address.
pub(crate) fn options_for(endpoint: String) -> Options {
    Options {
        project: Some("tests".to_owned()),
        endpoint: Some(endpoint),
        visibility: Span::from_secs(10),
        ..Options::default()
    }
}

/// Connects to the server.
pub(crate) async fn connect(options: Options) -> Arc<PubSub> {
    Arc::new(PubSub::connect(options).await.expect("a client"))
}

/// A broker behind a network of its own.
pub(crate) struct Subject<D = AtLeastOnce> {
    broker: Arc<PubSub>,
    network: FaultProxy,
    delivery: PhantomData<D>,
}

/// The kind of a subscription.
pub(crate) trait Guarantee {
    const EXACTLY_ONCE: bool;
}

/// A usual subscription, which accepts receipts of leases that have ended.
pub(crate) struct AtLeastOnce;

impl Guarantee for AtLeastOnce {
    const EXACTLY_ONCE: bool = false;
}

/// A subscription with exactly-once delivery, which rejects them.
pub(crate) struct ExactlyOnce;

impl Guarantee for ExactlyOnce {
    const EXACTLY_ONCE: bool = true;
}

impl<D: Guarantee> QueueSubject for Subject<D> {
    const VISIBILITY: Span = Span::from_secs(6);
    const DELAY: Span = Span::from_secs(2);
    const FENCES: bool = D::EXACTLY_ONCE;
    const DELIVERS_COPIES: bool = false;

    fn fresh() -> Self {
        let network = FaultProxy::start(server().port);
        let options = options_for(format!("http://127.0.0.1:{}", network.port));
        let options = Options { exactly_once: D::EXACTLY_ONCE, ..options };
        let broker = tokio::task::block_in_place(|| Handle::current().block_on(connect(options)));
        Self { broker, network, delivery: PhantomData }
    }

    fn broker(&self) -> Arc<dyn Broker> {
        self.broker.clone()
    }

    async fn end_leases(&self) {
        self.pass(Self::VISIBILITY).await;
    }

    async fn restart(&self) {
        // The server keeps messages in memory, and Google does not restart: the failure to test is
        // the network.
        self.network.set(NetworkState::Cut);
        self.network.set(NetworkState::Healthy);
    }
}

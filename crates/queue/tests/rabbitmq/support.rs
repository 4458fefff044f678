//! RabbitMQ nodes for the tests, and a network that can be cut.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_queue::rabbitmq::{Options, QueueType};
use sluicegate_queue::{Broker, RabbitMq};
use sluicegate_testkit::QueueSubject;
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::rabbitmq::RabbitServer;

/// Node for tests that do not kill it.
static CALM: LazyLock<RabbitServer> =
    LazyLock::new(|| RabbitServer::start_with(crate::tls::settings));
/// Node for tests that kill it, one after the other.
static KILLED: LazyLock<Mutex<RabbitServer>> = LazyLock::new(|| Mutex::new(RabbitServer::start()));

/// Returns the node for tests that do not kill it.
pub(crate) fn calm() -> &'static RabbitServer {
    &CALM
}

/// Creates a broker on that node.
pub(crate) fn broker() -> RabbitMq {
    RabbitMq::new(options(CALM.url())).expect("an address")
}

/// Returns options without a wait for new delay queues: the node is not killed.
pub(crate) fn options(url: String) -> Options {
    Options { creation_flush: Span::ZERO, ..Options::new(url) }
}

/// A broker behind a network of its own, with queues of one type.
pub(crate) struct Subject<const QUORUM: bool> {
    broker: Arc<RabbitMq>,
    network: FaultProxy,
}

fn connect(port: u16, quorum: bool) -> (Arc<RabbitMq>, FaultProxy) {
    let network = FaultProxy::start(port);
    let mut options = options(format!("amqp://guest:guest@127.0.0.1:{}/%2f", network.port));
    options.queue_type = if quorum { QueueType::Quorum } else { QueueType::Classic };
    (Arc::new(RabbitMq::new(options).expect("an address")), network)
}

impl<const QUORUM: bool> QueueSubject for Subject<QUORUM> {
    const VISIBILITY: Span = Span::from_millis(300);
    const DELAY: Span = Span::from_millis(700);
    const FENCES: bool = true;
    const DELIVERS_COPIES: bool = false;

    fn fresh() -> Self {
        let (broker, network) = connect(CALM.port, QUORUM);
        Self { broker, network }
    }

    fn broker(&self) -> Arc<dyn Broker> {
        self.broker.clone()
    }

    async fn end_leases(&self) {
        self.network.set(NetworkState::Cut);
        self.network.set(NetworkState::Healthy);
    }

    async fn restart(&self) {
        unreachable!("the node is shared: see Killed");
    }
}

/// A broker on the node that is killed.
pub(crate) struct Killed<const QUORUM: bool> {
    subject: Subject<QUORUM>,
    node: Mutex<MutexGuard<'static, RabbitServer>>,
}

impl<const QUORUM: bool> QueueSubject for Killed<QUORUM> {
    const VISIBILITY: Span = Subject::<QUORUM>::VISIBILITY;
    const DELAY: Span = Subject::<QUORUM>::DELAY;
    const FENCES: bool = true;
    const DELIVERS_COPIES: bool = false;

    fn fresh() -> Self {
        let node = KILLED.lock().unwrap_or_else(PoisonError::into_inner);
        let (broker, network) = connect(node.port, QUORUM);
        Self { subject: Subject { broker, network }, node: Mutex::new(node) }
    }

    fn broker(&self) -> Arc<dyn Broker> {
        self.subject.broker()
    }

    async fn end_leases(&self) {
        self.subject.end_leases().await;
    }

    async fn restart(&self) {
        let mut node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        node.kill();
        node.restart();
    }
}

/// Maximum time that a test waits for a broker.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

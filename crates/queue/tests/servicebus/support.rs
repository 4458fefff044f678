//! Service Bus doubles for the tests, and a network that can be cut.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use sluicegate_core::Span;
use sluicegate_queue::servicebus::Options;
use sluicegate_queue::{Broker, ServiceBus};
use sluicegate_testkit::QueueSubject;
use sluicegate_testkit::proxy::FaultProxy;
use sluicegate_testkit::servicebus::{ServiceBusServer, connection_string, python};

/// Double for tests that do not kill it.
static CALM: LazyLock<ServiceBusServer> = LazyLock::new(ServiceBusServer::start);
/// Double for tests that kill it, one after the other.
static KILLED: LazyLock<Mutex<ServiceBusServer>> =
    LazyLock::new(|| Mutex::new(ServiceBusServer::start()));

/// Returns the double for tests that do not kill it.
pub(crate) fn calm() -> &'static ServiceBusServer {
    &CALM
}

/// Returns options for a double.
pub(crate) fn options(server: &ServiceBusServer) -> Options {
    let options = Options::from_connection_string(&server.connection_string()).expect("complete");
    Options { admin_url: Some(server.admin_url()), ..options }
}

/// Returns options for a double behind a network.
pub(crate) fn options_behind(server: &ServiceBusServer, network: &FaultProxy) -> Options {
    Options { port: Some(network.port), ..options(server) }
}

/// Returns options for a double with another key.
pub(crate) fn options_with_key(server: &ServiceBusServer, name: &str, secret: &str) -> Options {
    let text = connection_string(server.port, name, secret);
    let other = Options::from_connection_string(&text).expect("complete");
    Options { credential: other.credential, ..options(server) }
}

/// Creates a broker that connects when it is used.
pub(crate) fn broker(options: Options) -> Arc<ServiceBus> {
    Arc::new(ServiceBus::new(options).expect("valid options"))
}

/// A broker on the double that is not killed.
pub(crate) struct Subject(Arc<ServiceBus>);

impl QueueSubject for Subject {
    const VISIBILITY: Span = Span::from_secs(6);
    const DELAY: Span = Span::from_millis(700);
    const FENCES: bool = true;
    const DELIVERS_COPIES: bool = false;

    fn fresh() -> Self {
        Self(broker(options(calm())))
    }

    fn broker(&self) -> Arc<dyn Broker> {
        self.0.clone()
    }

    async fn end_leases(&self) {
        self.pass(Self::VISIBILITY).await;
    }

    async fn restart(&self) {
        unreachable!("the double is shared: see Killed");
    }
}

/// A broker on the double that is killed.
pub(crate) struct Killed {
    broker: Arc<ServiceBus>,
    server: Mutex<MutexGuard<'static, ServiceBusServer>>,
}

impl QueueSubject for Killed {
    const VISIBILITY: Span = Subject::VISIBILITY;
    const DELAY: Span = Subject::DELAY;
    const FENCES: bool = true;
    const DELIVERS_COPIES: bool = false;

    fn fresh() -> Self {
        let server = KILLED.lock().unwrap_or_else(PoisonError::into_inner);
        Self { broker: broker(options(&server)), server: Mutex::new(server) }
    }

    fn broker(&self) -> Arc<dyn Broker> {
        self.broker.clone()
    }

    async fn end_leases(&self) {
        self.pass(Self::VISIBILITY).await;
    }

    async fn restart(&self) {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.kill();
        server.restart();
    }
}

/// Deletes a queue by the management API.
pub(crate) fn delete(server: &ServiceBusServer, queue: &str) {
    let program = "import sys; from azure.servicebus.management import ServiceBusAdministrationClient as A\n\
        from azure.core.pipeline.transport import RequestsTransport as T\n\
        class P(T):\n \
            def send(self, r, **o): r.url = r.url.replace('https:', 'http:', 1); return super().send(r, **o)\n\
        A.from_connection_string(sys.argv[1], transport=P()).delete_queue(sys.argv[2])";
    let text = connection_string(server.admin_port, "RootManageSharedAccessKey", "c2VjcmV0");
    let deleted = python().args(["-c", program, &text, queue]).output().expect("it runs");
    let said = String::from_utf8_lossy(&deleted.stderr);
    assert!(deleted.status.success(), "{said}");
}

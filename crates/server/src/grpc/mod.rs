//! gRPC: `sluicegate.v1.RateLimiterService`, with health and reflection.
//!
//! The same road as REST, in other bytes. What listens, who may come in and how it ends is the
//! business of the listener, as it is for every protocol.

mod deadline;
mod decode;
mod encode;
mod health;
mod limiter;
pub mod proto;
mod status;

use std::sync::Arc;

use axum::Router;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_reflection::server::Builder as Reflection;

use self::deadline::Deadlines;
use self::health::Probed;
use self::limiter::Limiter;
use self::proto::sluicegate::v1::rate_limiter_service_server::RateLimiterServiceServer;
use crate::envoy::{self, EnvoyRls};
use crate::probe::Probe;
use crate::service::Service;

/// What this listener serves besides health and reflection.
const SERVICES: [&str; 2] = ["sluicegate.v1.RateLimiterService", envoy::SERVICE];

/// Every gRPC service, as a value that tests call without a socket.
///
/// A message above `bytes_max` is refused before it is read. `rls` is the limiter as Envoy sees
/// it. Whoever mounts it puts the
/// [`Caller`](crate::auth::Caller) into the extensions of each request. `shutdown` ends the
/// streams of whoever watches the health.
pub fn router(
    service: Arc<Service>,
    rls: EnvoyRls,
    bytes_max: usize,
    ready: Probe,
    shutdown: CancellationToken,
) -> Router {
    let limiter = RateLimiterServiceServer::new(Limiter::new(service));
    let mut routes = Routes::builder();
    routes
        .add_service(limiter.max_decoding_message_size(bytes_max))
        .add_service(rls.server(bytes_max))
        .add_service(Probed::server(ready, shutdown))
        .add_service(reflection().build_v1().expect(DESCRIBED))
        // Most clients that are about still ask for the version before.
        .add_service(reflection().build_v1alpha().expect(DESCRIBED));
    routes.routes().into_axum_router().layer(Deadlines)
}

const DESCRIBED: &str = "the build wrote these descriptors";

fn reflection() -> Reflection<'static> {
    Reflection::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

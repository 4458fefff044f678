//! gRPC: `sluicegate.v1.RateLimiterService`, with health and reflection.
//!
//! Requests take the same path as in REST, with another encoding. Connections, authentication and
//! shutdown are the job of the listener, as for every protocol.

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

use self::deadline::DeadlineLayer;
use self::health::HealthService;
use self::limiter::GrpcLimiter;
use self::proto::sluicegate::v1::rate_limiter_service_server::RateLimiterServiceServer;
use crate::envoy::{self, EnvoyRls};
use crate::probe::Probe;
use crate::service::Service;

/// Services of this listener besides health and reflection.
const SERVICES: [&str; 2] = ["sluicegate.v1.RateLimiterService", envoy::SERVICE];

/// Returns a router with every gRPC service; tests call it without a socket.
///
/// A message above `bytes_max` is refused before it is read. `rls` is the rate limit service for
/// Envoy. The caller of this function adds a layer that sets the [`Caller`](crate::auth::Caller) in
/// the extensions of each request. `shutdown` ends the streams of health watchers.
pub fn router(
    service: Arc<Service>,
    rls: EnvoyRls,
    bytes_max: usize,
    ready: Probe,
    shutdown: CancellationToken,
) -> Router {
    let limiter = RateLimiterServiceServer::new(GrpcLimiter::new(service));
    let mut routes = Routes::builder();
    routes
        .add_service(limiter.max_decoding_message_size(bytes_max))
        .add_service(rls.server(bytes_max))
        .add_service(HealthService::server(ready, shutdown))
        .add_service(reflection().build_v1().expect(DESCRIBED))
        // Many clients still use the previous version.
        .add_service(reflection().build_v1alpha().expect(DESCRIBED));
    routes.routes().into_axum_router().layer(DeadlineLayer)
}

const DESCRIBED: &str = "the build script wrote valid descriptors";

fn reflection() -> Reflection<'static> {
    Reflection::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

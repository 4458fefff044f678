//! `grpc.health.v1`: the health of the service, as gRPC clients query it.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::SERVICES;
use crate::probe::{Probe, Readiness};

/// Interval at which a watched status is checked.
const PERIOD: Duration = Duration::from_secs(1);

/// The health service: answers checks and streams changes to watchers.
pub(super) struct HealthService {
    ready: Probe,
    shutdown: CancellationToken,
}

impl HealthService {
    /// Creates the service. `shutdown` ends every watch, which would otherwise keep its connection
    /// open.
    pub(super) fn server(ready: Probe, shutdown: CancellationToken) -> HealthServer<Self> {
        HealthServer::new(Self { ready, shutdown })
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(&request.get_ref().service) {
            return Err(Status::not_found("unknown service"));
        }
        Ok(Response::new(response(status(&self.ready, &self.shutdown))))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = is_known(&request.get_ref().service);
        let (ready, shutdown) = (self.ready.clone(), self.shutdown.clone());
        let states = unfold(None, move |last| {
            let (ready, shutdown) = (ready.clone(), shutdown.clone());
            async move {
                let next = if known {
                    next_status(last, &ready, &shutdown).await?
                } else {
                    // The protocol allows a service to appear later; ours are all here.
                    last.is_none().then_some(ServingStatus::ServiceUnknown)?
                };
                Some((Ok(response(next)), Some(next)))
            }
        });
        Ok(Response::new(Box::pin(states)))
    }
}

/// Waits for a status other than the last one; `None` if there will be none.
async fn next_status(
    last: Option<ServingStatus>,
    ready: &Probe,
    shutdown: &CancellationToken,
) -> Option<ServingStatus> {
    loop {
        let now = status(ready, shutdown);
        if Some(now) != last {
            return Some(now);
        }
        if shutdown.is_cancelled() {
            return None;
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

fn status(ready: &Probe, shutdown: &CancellationToken) -> ServingStatus {
    match ready() {
        _ if shutdown.is_cancelled() => ServingStatus::NotServing,
        Readiness::Ready | Readiness::Degraded(_) => ServingStatus::Serving,
        Readiness::Unhealthy(_) => ServingStatus::NotServing,
    }
}

/// Returns true for a service of this server. The empty name means the whole server.
fn is_known(service: &str) -> bool {
    service.is_empty() || SERVICES.contains(&service)
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

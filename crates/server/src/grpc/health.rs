//! `grpc.health.v1`: the probes of the other listeners, in the words of gRPC.

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

/// How often a watched state is looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// Whether decisions can be made, for whoever asks and for whoever watches.
pub(super) struct Probed {
    ready: Probe,
    shutdown: CancellationToken,
}

impl Probed {
    /// The service. `shutdown` ends every watch, which would otherwise hold its connection open.
    pub(super) fn server(ready: Probe, shutdown: CancellationToken) -> HealthServer<Self> {
        HealthServer::new(Self { ready, shutdown })
    }
}

#[tonic::async_trait]
impl Health for Probed {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(&request.get_ref().service) {
            return Err(Status::not_found("there is no such service here"));
        }
        Ok(Response::new(told(status(&self.ready, &self.shutdown))))
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
                    changed(last, &ready, &shutdown).await?
                } else {
                    // A service may come later, says the protocol; ours are all here.
                    last.is_none().then_some(ServingStatus::ServiceUnknown)?
                };
                Some((Ok(told(next)), Some(next)))
            }
        });
        Ok(Response::new(Box::pin(states)))
    }
}

/// Waits for a state that is not the last one; `None` when there will be no other.
async fn changed(
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

/// The empty name is the server as a whole.
fn is_known(service: &str) -> bool {
    service.is_empty() || SERVICES.contains(&service)
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

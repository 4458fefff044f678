//! [`Route`]: a configured route with its connection pool, credentials, queue and metrics.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http::response::Parts;
use hyper::body::Incoming;
use sluicegate_config::{GatewayOptions, RouteOptions};
use sluicegate_http::upstream::{
    CaError, ClientOptions, ConnectionPool, CredentialsError, Signer, Upstream, is_address,
};
use sluicegate_pace::{Lane, LaneOptions, LeaseTimes, Pacer};
use sluicegate_service::Service;
use sluicegate_vendors::{AdviceContext, UpstreamResponse};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::announcements::{Announcements, RouteAnnouncements};
use crate::forward::{BufferedBody, Places, target};
use crate::metrics::{Metrics, QueueReading, RouteMetrics};
use crate::reserve::RouteWork;

/// Maximum number of bytes read from a rate-limit response to find its retry hint.
const HINT_BYTES: usize = 8 << 10;
const HINT_TIMEOUT: Duration = Duration::from_secs(1);

/// A route on this replica.
pub(crate) struct Route {
    pub(crate) options: RouteOptions,
    /// Value of the [`ROUTE`](sluicegate_config::ROUTE) dimension.
    pub(crate) key: String,
    pub(crate) lane: Arc<Lane<RouteWork>>,
    /// Times for which requests held leases that are not those of a turn in the lane.
    pub(crate) lease_times: Arc<LeaseTimes>,
    pub(crate) target: target::Upstream,
    pub(crate) upstream: Upstream,
    /// The connections to the address of the upstream.
    pub(crate) pool: ConnectionPool,
    /// Connections of requests that are not admitted yet.
    pub(crate) places: Places,
    pub(crate) signer: Signer,
    pub(crate) metrics: RouteMetrics,
    ways: ClientOptions,
    service: Arc<Service>,
    /// Number of consecutive rate-limit responses from the upstream.
    refusals: AtomicU32,
    announcements: Arc<Announcements>,
}

/// The reason why a route can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The upstream has no valid address.
    #[error("upstream: not an address: write http://host or https://host")]
    Address,
    /// The certificate authorities of the upstream can't be used.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The credentials can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// Returns the settings of the queue in which requests of a route wait.
pub(crate) fn lane_options(route: &RouteOptions) -> LaneOptions {
    let wait = &route.wait;
    LaneOptions::new(&route.limits, wait.max.into(), wait.depth, wait.order.clone())
}

impl Route {
    /// Creates a route. It takes over from `before` what does not change: waiting requests and open
    /// connections.
    pub(crate) fn new(
        gateway: &GatewayOptions,
        options: &RouteOptions,
        service: &Arc<Service>,
        metrics: &Metrics,
        before: Option<&Self>,
    ) -> Result<Self, RouteError> {
        let key = gateway.route_key(options);
        let gateway = &gateway.name;
        let address = &options.upstream.uri;
        let target = target::Upstream::new(address, options.upstream.has_path);
        let target = target.filter(|_| is_address(address)).ok_or(RouteError::Address)?;
        let ways = ClientOptions {
            connect_timeout: options.connect_timeout.into(),
            http2_only: options.http2,
            ca: options.ca.clone(),
        };
        let upstream = match before.filter(|before| before.ways == ways) {
            Some(before) => before.upstream.clone(),
            None => Upstream::new(&ways)?,
        };
        let pool = upstream.pool(address).ok_or(RouteError::Address)?;
        let signer = Signer::new(options.credentials.as_ref())?;
        let lane = match before {
            Some(before) => before.lane.clone(),
            None => {
                let pacer = Pacer::new(service.clone(), key.clone());
                let (service, key) = (service.clone(), key.clone());
                let work = RouteWork { service, key, lease_times: Arc::default() };
                let lane = Lane::new(pacer, work, lane_options(options));
                let watched = Arc::downgrade(&lane);
                metrics.watch(gateway, &options.name, move || {
                    let lane = watched.upgrade()?;
                    let (depth, oldest, pacing) = (lane.depth(), lane.oldest(), lane.pacing());
                    Some(QueueReading { depth, oldest, pacing })
                });
                lane
            }
        };
        Ok(Self {
            options: options.clone(),
            key,
            lane,
            lease_times: before.map_or_else(Arc::default, |before| before.lease_times.clone()),
            target,
            upstream,
            pool,
            places: Places::new(&options.limits, options.connect_timeout.into()),
            signer,
            metrics: metrics.route(gateway, &options.name),
            ways,
            service: service.clone(),
            refusals: AtomicU32::new(0),
            announcements: before.map_or_else(Arc::default, |before| before.announcements.clone()),
        })
    }

    /// Returns true if a response may contain information about limits; most do not.
    pub(crate) fn has_limit_info(&self, head: &Parts) -> bool {
        let said =
            || head.headers.keys().any(|name| sluicegate_vendors::is_limit_header(name.as_str()));
        let has_limit_info = matches!(head.status.as_u16(), 403 | 429 | 503) || said();
        if !has_limit_info && self.refusals.load(Ordering::Relaxed) != 0 {
            self.refusals.store(0, Ordering::Relaxed);
        }
        has_limit_info
    }

    /// Reads the limits that the upstream reports, and pauses the route on all replicas if the
    /// upstream asks for it.
    pub(crate) async fn learn(&self, head: &Parts, body: &mut BufferedBody<Incoming>) {
        let Some(learn) = self.options.learn else { return };
        let fields = head
            .headers
            .iter()
            .filter(|(name, _)| sluicegate_vendors::is_limit_header(name.as_str()));
        let headers: Vec<_> = fields
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
            .collect();
        let status = head.status.as_u16();
        let mut answer =
            UpstreamResponse { status, headers: &headers, body: &[], at: self.service.now() };
        let refused = sluicegate_vendors::is_refusal(&answer);
        let hint = if refused {
            // A hint that does not arrive in time is ignored; the caller still receives the whole
            // body.
            let _ = timeout(HINT_TIMEOUT, body.read_beginning(HINT_BYTES)).await;
            body.beginning()
        } else {
            Vec::new()
        };
        answer.body = &hint;
        let refusals = match refused {
            true => self.refusals.fetch_add(1, Ordering::Relaxed),
            false => self.refusals.swap(0, Ordering::Relaxed),
        };
        let watch = AdviceContext { below: learn.below, refusals };
        let chance = RandomState::new().build_hasher().finish();
        let span = sluicegate_vendors::pause(&answer, watch, learn.pause_max, chance);
        self.announcements.record(&answer);
        let Some(span) = span else { return };
        self.metrics.paused();
        match self.lane.close(span).await {
            Ok(shut) => {
                let reason = sluicegate_vendors::pause_reason(&answer);
                self.announcements.closed(shut.until, reason);
                info!(route = self.key, until = %shut.until, status, "upstream asked for a pause");
            }
            Err(error) => {
                warn!(route = self.key, %error, "pause not stored: other replicas keep sending")
            }
        }
    }

    /// Returns the limits that the upstream has announced to this replica.
    pub(crate) fn announced(&self) -> RouteAnnouncements {
        self.announcements.read()
    }
}

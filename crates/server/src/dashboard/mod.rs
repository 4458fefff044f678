//! The dashboard on the admin listener: pages at `/`, an API below `/v1/dashboard`, and sessions for
//! browsers.
//!
//! The pages show what the [`Recorder`] keeps. Every action on them is a call of the API that the
//! command line uses as well: `/v1/overrides`, `/v1/reset`, `/v1/reservations`, `/reload`, and the
//! dead letters.

pub(crate) mod access;
mod api;
mod assets;
mod events;
mod login;
mod nodes;
mod problems;
mod summary;
mod together;

use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::extract::FromRef;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluicegate_core::Timestamp;
use tokio_util::sync::CancellationToken;

pub use access::BrowserAccess;

use crate::auth::Tokens;
use crate::recorder::Recorder;
use crate::rest::decode::BodyLimit;
use crate::rest::only;
use crate::service::Service;
use events::EventStreams;
use nodes::SummaryAnswers;
pub use nodes::{SUMMARY_EVERY, SUMMARY_LASTS};

/// Maximum size of a login.
const BODY_LIMIT: usize = 16 * 1_024;
/// Maximum number of pauses in a summary.
const PAUSES_MAX: usize = 50;

/// The parts of the process behind the dashboard.
pub struct DashboardSources {
    /// The limiter.
    pub service: Arc<Service>,
    /// The recorded data.
    pub recorder: Recorder,
    /// The tokens that people log in with.
    pub tokens: Arc<ArcSwapOption<Tokens>>,
    /// The sessions of browsers.
    pub browsers: Arc<BrowserAccess>,
    /// Names of the parts that this process runs, such as `gateway`.
    pub roles: Vec<String>,
    /// Id of this node in summaries.
    pub id: String,
    /// The summaries of all nodes, if they share a store.
    pub nodes: Option<Arc<dyn NodeSummaries>>,
    /// The gateways of this process.
    pub gateways: Arc<dyn GatewayStates>,
}

/// The gateways of a process.
pub trait GatewayStates: Send + Sync {
    /// Asks the store for the states of all routes.
    fn read(&self) -> RouteStatesFuture<'_>;

    /// Returns the pauses that upstreams have asked this process for.
    fn pauses(&self) -> Vec<RoutePause>;
}

/// The states of all routes.
pub type RouteStatesFuture<'a> = Pin<Box<dyn Future<Output = Vec<RouteReading>> + Send + 'a>>;

/// The state of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteReading {
    /// Name of the gateway.
    pub gateway: String,
    /// Name of the route.
    pub route: String,
    /// Time until which the route is closed on all nodes; an error if the store did not answer.
    pub closed_until: Result<Option<Timestamp>, String>,
    /// The windows that the upstream has described to this process, as JSON.
    pub windows: Vec<Value>,
    /// Time of the response that described them.
    pub seen: Option<Timestamp>,
}

/// A pause that an upstream has asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutePause {
    /// Name of the gateway.
    pub gateway: String,
    /// Name of the route.
    pub route: String,
    /// End of the pause.
    pub until: String,
    /// The reason in words.
    pub reason: String,
}

/// The texts that nodes on one store exchange.
pub trait NodeSummaries: Send + Sync {
    /// Returns the summaries of all nodes that wrote one recently.
    fn read(&self) -> SummariesFuture<'_>;
}

/// The summaries of all nodes, or the reason why they can't be read.
pub type SummariesFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<String>, String>> + Send + 'a>>;

impl DashboardSources {
    /// Returns the pauses of this process that are not over.
    fn pauses(&self) -> Vec<RoutePause> {
        let now = self.recorder.now();
        let mut pauses = self.gateways.pauses();
        pauses.retain(|pause| pause.until.parse::<Timestamp>().is_ok_and(|until| until > now));
        pauses.truncate(PAUSES_MAX);
        pauses
    }
}

#[derive(Clone)]
struct DashboardState {
    sources: Arc<DashboardSources>,
    streams: EventStreams,
    answers: SummaryAnswers,
}

impl FromRef<DashboardState> for SummaryAnswers {
    fn from_ref(state: &DashboardState) -> Self {
        state.answers.clone()
    }
}

impl FromRef<DashboardState> for Arc<DashboardSources> {
    fn from_ref(state: &DashboardState) -> Self {
        state.sources.clone()
    }
}

impl FromRef<DashboardState> for EventStreams {
    fn from_ref(state: &DashboardState) -> Self {
        state.streams.clone()
    }
}

impl BodyLimit for DashboardState {
    fn body_limit(&self) -> usize {
        BODY_LIMIT
    }
}

/// Returns the routes of the dashboard. Open event streams end at the shutdown.
pub fn router(sources: Arc<DashboardSources>, shutdown: CancellationToken) -> Router {
    let state = DashboardState {
        sources,
        streams: EventStreams::new(shutdown),
        answers: SummaryAnswers::default(),
    };
    Router::new()
        .route("/", only(get(assets::index)))
        .route("/assets/{*file}", only(get(assets::file)))
        .route("/login", only(get(login::session).post(login::login)))
        .route("/logout", only(post(login::logout)))
        .route("/v1/dashboard/overview", only(get(api::overview)))
        .route("/v1/dashboard/series", only(get(api::series)))
        .route("/v1/dashboard/limits", only(get(api::limits)))
        .route("/v1/dashboard/metrics", only(get(api::metrics)))
        .route("/v1/dashboard/activity", only(get(api::activity)))
        .route("/v1/dashboard/audit", only(get(api::audit)))
        .route("/v1/dashboard/nodes", only(get(nodes::nodes)))
        .route("/v1/dashboard/summary", only(get(nodes::summary)))
        .route("/v1/dashboard/gateways", only(get(api::gateways)))
        .route("/v1/dashboard/events", only(get(api::events)))
        .with_state(state)
}

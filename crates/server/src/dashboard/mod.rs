//! The dashboard on the admin listener: pages at `/`, an API below `/v1/dashboard`, and sessions for
//! browsers.
//!
//! The pages show what the [`Recorder`] keeps. Every action on them is a call of the API that the
//! command line uses as well: `/v1/overrides`, `/v1/reset`, `/reload`, and the dead letters.

pub(crate) mod access;
mod api;
mod assets;
mod events;
mod login;
mod problems;

use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::extract::FromRef;
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;

pub use access::BrowserAccess;
pub(crate) use api::rankings;

use crate::auth::Tokens;
use crate::recorder::Recorder;
use crate::rest::decode::BodyLimit;
use crate::rest::only;
use crate::service::Service;
use events::EventStreams;

/// Maximum size of a login.
const BODY_LIMIT: usize = 16 * 1_024;

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
    /// Returns the summary of this node.
    pub fn summary(&self) -> String {
        let problems: Vec<_> =
            problems::of(&self.recorder).into_iter().map(|problem| problem.title).collect();
        self.recorder.summary(&self.id, &problems)
    }
}

#[derive(Clone)]
struct DashboardState {
    sources: Arc<DashboardSources>,
    streams: EventStreams,
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
    let streams = EventStreams::new(shutdown);
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
        .route("/v1/dashboard/nodes", only(get(api::nodes)))
        .route("/v1/dashboard/events", only(get(api::events)))
        .with_state(DashboardState { sources, streams })
}

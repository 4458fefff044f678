//! Configuration of a gateway and its routes, as plain values.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, Method, Uri};
pub use sluicegate_config::LearnOptions;
use sluicegate_core::limit::Limit;
use sluicegate_http::tokens::Tokens;
pub use sluicegate_http::upstream::{Credentials, Login, Secret};
use sluicegate_pace::LaneOptions;
pub use sluicegate_pace::Order;

/// One gateway: a listener with routes behind it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the gateway, unique in the configuration.
    pub name: String,
    /// Authentication of callers; `None` lets every caller in.
    pub auth: Option<Auth>,
    /// Dimensions of a request and the header fields that they are read from.
    pub dimensions: Vec<DimensionSource>,
    /// Number of proxies in front of this one whose `X-Forwarded-*` header fields are trusted.
    pub trusted_hops: usize,
    /// Value of the `event` field in the request log.
    pub event: String,
    /// Routes in order of precedence; the first match is used.
    pub routes: Vec<Route>,
}

/// A dimension that is read from a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimensionSource {
    /// Name of the dimension.
    pub name: String,
    /// Header field that contains its value.
    pub header: HeaderName,
    /// True if a request without the header field is rejected.
    pub required: bool,
}

impl DimensionSource {
    /// Returns the value of the dimension, or `None` if the header field is missing, empty or not
    /// ASCII.
    pub(crate) fn value<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        headers.get(&self.header)?.to_str().ok().filter(|value| !value.is_empty())
    }
}

/// Authentication of callers by token.
#[derive(Clone, Debug)]
pub struct Auth {
    /// Header field that contains the token.
    pub header: HeaderName,
    /// Accepted tokens.
    pub tokens: Arc<Tokens>,
}

/// A route: the requests it matches, their upstream and their limits.
#[derive(Clone, Debug)]
pub struct Route {
    /// Name of the route, unique in its gateway.
    pub name: String,
    /// Paths that the route matches.
    pub path: PathPattern,
    /// Methods that the route accepts; empty accepts all methods.
    pub methods: Vec<Method>,
    /// Address of the upstream.
    pub upstream: Uri,
    /// True if the path of the upstream replaces the part that [`Route::path`] matched. This is the
    /// case if the configured address has a path, even `/`.
    pub replaces_path: bool,
    /// Use HTTP/2 without negotiation, also over plain TCP.
    pub http2_only: bool,
    /// PEM file with the certificate authorities that the upstream's certificate is checked
    /// against, instead of those of the system.
    pub ca: Option<PathBuf>,
    /// Credentials that are sent to the upstream.
    pub credentials: Option<Credentials>,
    /// Limits of the route, used to estimate the waiting time from the length of the queue. The
    /// rules that enforce them are part of the ruleset; empty if the limits are not enforced.
    pub limits: Vec<Limit>,
    /// Queueing of requests over the limit.
    pub wait: Wait,
    /// Timeouts of the route.
    pub timeouts: Timeouts,
    /// Maximum size of a request body, in bytes.
    pub body_limit: u64,
    /// Size up to which a request body is read completely before the request asks for its turn, in
    /// bytes.
    pub body_buffer: usize,
    /// Maximum number of retries of an idempotent request that got no response.
    pub retries: u32,
    /// Refund a request that the upstream did not answer with 2xx.
    pub count_if_ok: bool,
    /// True if connections may be upgraded (WebSocket).
    pub upgrades: bool,
    /// True if bodies are GraphQL, so that the log can name the operation.
    pub graphql: bool,
    /// Learning of limits from upstream responses; `None` turns it off.
    pub learn: Option<LearnOptions>,
}

/// The paths that a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// Exactly this path.
    Exact(String),
    /// All paths with this prefix.
    Prefix(String),
}

impl PathPattern {
    /// Returns the part of the path after the match, or `None` if the path does not match.
    pub fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self {
            Self::Exact(exact) => (path == exact).then_some(""),
            Self::Prefix(prefix) => path.strip_prefix(prefix.as_str()),
        }
    }
}

/// Queueing of requests over the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Maximum time a request waits for its turn; zero rejects it at once.
    pub max: Duration,
    /// Maximum number of waiting requests.
    pub depth: usize,
    /// Order in which waiting requests are served.
    pub order: Order,
}

impl Route {
    /// Returns the settings of the queue of waiting requests.
    pub(crate) fn lane(&self) -> LaneOptions {
        let Wait { max, depth, order } = self.wait.clone();
        LaneOptions::new(&self.limits, max, depth, order)
    }
}

/// Timeouts of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time to connect to the upstream.
    pub connect: Duration,
    /// Time from sending a request to the head of its response.
    pub first_byte: Duration,
    /// Time between two chunks of a body.
    pub idle: Duration,
    /// Time from the arrival of a request to the head of its response, queueing included.
    pub total: Option<Duration>,
}

/// Returns the value of the [`ROUTE`] dimension, by which the rules of a route are found.
pub fn route_key(gateway: &str, route: &str) -> String {
    format!("{gateway}/{route}")
}

/// Dimension by which the rules of a route are found.
pub const ROUTE: &str = "@route";
/// Dimension that contains the name of the caller's token.
pub const CALLER: &str = "caller";

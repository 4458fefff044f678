//! What a gateway is told to do, as plain values.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, Method, Uri};
pub use sluicegate_config::LearnOptions;
use sluicegate_core::limit::Limit;
use sluicegate_http::tokens::Tokens;
pub use sluicegate_http::upstream::{Credentials, Login, Secret};

/// One gateway: a listener with routes behind it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, unique in the configuration.
    pub name: String,
    /// Who may come in; everybody, without it.
    pub auth: Option<Auth>,
    /// Dimensions of a request that are read from header fields.
    pub dimensions: Vec<(String, HeaderName)>,
    /// How many proxies before this one are ours, so that what they say of the client holds.
    pub trusted_hops: usize,
    /// What the log calls a request.
    pub event: String,
    /// In this order; the first that matches is taken.
    pub routes: Vec<Route>,
}

/// Who may come in.
#[derive(Clone, Debug)]
pub struct Auth {
    /// The header field with the token.
    pub header: HeaderName,
    /// The tokens.
    pub tokens: Arc<Tokens>,
}

/// What is proxied where, and how fast.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its name, unique in its gateway.
    pub name: String,
    /// Which paths.
    pub path: PathPattern,
    /// Which methods; all, if it is empty.
    pub methods: Vec<Method>,
    /// Where to.
    pub upstream: Uri,
    /// Whether its path takes the place of what [`Route::path`] matched: where one is written, be
    /// it `/`.
    pub replaces_path: bool,
    /// HTTP/2 without asking, also in the clear.
    pub http2_only: bool,
    /// The authorities that its certificate is checked against, in PEM, instead of those of the
    /// system.
    pub ca: Option<PathBuf>,
    /// What the upstream wants to see.
    pub credentials: Option<Credentials>,
    /// Its limits, by which the length of a queue becomes a time. The rules that enforce them are
    /// part of the ruleset; where they are not enforced, there are none here either.
    pub limits: Vec<Limit>,
    /// What happens over the limit.
    pub wait: Wait,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// The longest body of a request.
    pub body_limit: u64,
    /// How often a request is sent again that can't do harm twice and got no answer.
    pub retries: u32,
    /// Give a request back that the upstream did not answer with 2xx.
    pub count_if_ok: bool,
    /// Whether connections may be taken over (WebSocket).
    pub upgrades: bool,
    /// Whether bodies are GraphQL, so that the log can name the operation.
    pub graphql: bool,
    /// What is learned from answers; nothing, without it.
    pub learn: Option<LearnOptions>,
}

/// Which paths a route takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// This one.
    Exact(String),
    /// All that begin like this.
    Prefix(String),
}

impl PathPattern {
    /// What comes after the part that matches, if it does.
    pub fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self {
            Self::Exact(exact) => (path == exact).then_some(""),
            Self::Prefix(prefix) => path.strip_prefix(prefix.as_str()),
        }
    }
}

/// What happens over the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long a request may wait for its turn; zero refuses at once.
    pub max: Duration,
    /// How many may wait.
    pub depth: usize,
    /// Who is next.
    pub order: Order,
}

/// Who is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Who came first.
    Fifo,
    /// By turns over the values of a dimension.
    Fair {
        /// The dimension; those without it share a turn.
        by: String,
        /// How many go in a turn; one, if nothing is said.
        weights: HashMap<String, u32>,
        /// Who goes before others, the largest first; zero, if nothing is said.
        priorities: HashMap<String, u8>,
    },
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect to the upstream.
    pub connect: Duration,
    /// From sending a request to the head of its answer.
    pub first_byte: Duration,
    /// Between two parts of a body.
    pub idle: Duration,
    /// From the arrival of a request to the head of its answer, waiting included.
    pub total: Option<Duration>,
}

/// The name under which a route's rules are found: the value of their dimension.
pub fn route_key(gateway: &str, route: &str) -> String {
    format!("{gateway}/{route}")
}

/// The dimension by which the rules of a route are found.
pub const ROUTE: &str = "@route";
/// The dimension that holds the name of the token.
pub const CALLER: &str = "caller";

//! [`GatewayOptions`] and [`RouteOptions`]: options of the gateways, which forward requests to
//! upstreams at the rate that the limits of the upstreams allow.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use http::{HeaderName, Method, Uri};
use sluicegate_core::algorithm::bucket;
use sluicegate_core::limit::{Amount, Unit};
use sluicegate_core::{Limit, Span};

use super::{Auth, ByteSize, Listener, Secret};

/// Options of one gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayOptions {
    /// Name in logs and metrics.
    pub name: String,
    /// Address that the gateway listens on, separate from the other listeners.
    pub listen: Listener,
    /// Header field that carries the caller's token. Default: x-internal-token.
    pub token_header: HeaderName,
    /// Tokens of callers. Default: none, so that every client that can reach the gateway is
    /// admitted.
    pub auth: Auth,
    /// Dimensions that are read from header fields. Default: none; `caller` is the name of the
    /// token.
    pub dimensions: BTreeMap<String, HeaderDimension>,
    /// Number of our own proxies in front of the gateway. Default: 0, so that addresses which
    /// clients claim for themselves are ignored.
    pub trusted_hops: usize,
    /// Event name of a request in the log. Default: gateway_request.
    pub event: String,
    /// Routes; the first that matches a path is used.
    pub routes: Vec<RouteOptions>,
}

/// Dimension by which the rules of a route are found.
pub const ROUTE: &str = "@route";
/// Dimension that contains the name of the caller's token.
pub const CALLER: &str = "caller";

impl GatewayOptions {
    /// Returns the value of the dimension [`ROUTE`] for a route.
    pub fn route_key(&self, route: &RouteOptions) -> String {
        route_key(&self.name, &route.name)
    }
}

/// Returns the value of the dimension [`ROUTE`].
pub(crate) fn route_key(gateway: &str, route: &str) -> String {
    format!("{gateway}/{route}")
}

/// A dimension that a gateway reads from a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderDimension {
    /// Header field that contains its value.
    pub header: HeaderName,
    /// True if a request without the header field is refused. Default: true if `dimensions` of the
    /// file marks the dimension as required.
    pub required: bool,
}

/// Options of one route: the requests that it matches, their upstream and their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// Name of the route. Default: its path.
    pub name: String,
    /// Paths to match.
    pub path: PathPattern,
    /// Methods to match. Default: all.
    pub methods: Vec<Method>,
    /// Upstream address. A path in it replaces the part of the request's path that matched.
    pub upstream: UpstreamUrl,
    /// True if the upstream speaks HTTP/2 without negotiation. Default: false; over TLS both sides
    /// negotiate the version.
    pub http2: bool,
    /// Certificate authorities of the upstream, in PEM. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// Credentials for the upstream. Default: none.
    pub credentials: Option<Credentials>,
    /// Limits for all callers together. Default: none.
    pub limits: Vec<Limit>,
    /// Waiting queue for requests that are over the limit.
    pub wait: WaitOptions,
    /// Timeout for opening a connection. Default: 5s.
    pub connect_timeout: Span,
    /// Timeout from sending a request to the head of its response. Default: 60s.
    pub timeout: Span,
    /// Maximum time without data while a body is transferred. Default: 60s.
    pub idle_timeout: Span,
    /// Maximum time from the arrival of a request to the head of its response, waiting included.
    /// Default: none.
    pub deadline: Option<Span>,
    /// Maximum size of a request body. Default: 1MB.
    pub body_limit: ByteSize,
    /// Size up to which a request body is read completely before the request asks for its turn.
    /// Default: 64KB, or `body_limit` if that is smaller; 0B streams all bodies.
    pub body_buffer: ByteSize,
    /// Number of retries for an idempotent request that got no response. Default: 0.
    pub retries: u32,
    /// True if only requests with a 2xx response count. Default: false, because most contracts
    /// count every request that was sent.
    pub count_if_ok: bool,
    /// True if connections may be upgraded, to WebSocket for instance. Default: false.
    pub upgrades: bool,
    /// True if bodies are GraphQL. Default: true if the path ends with /graphql.
    pub graphql: bool,
    /// Reaction to rate-limit information in responses. Default: routes with a limit pause for at
    /// most an hour.
    pub learn: Option<LearnOptions>,
}

/// The paths that a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// Exactly this path.
    Exact(String),
    /// All paths with this prefix; written with `*` at its end.
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

/// The address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    /// The address.
    pub uri: Uri,
    /// True if it has a path, even if that is `/`.
    pub has_path: bool,
}

/// Credentials for an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// `Authorization: Basic`.
    Basic {
        /// User name.
        user: SecretSource,
        /// Password.
        password: SecretSource,
    },
    /// `Authorization: Bearer`.
    Bearer(SecretSource),
    /// Header fields with secret values.
    Headers(Vec<(HeaderName, SecretSource)>),
    /// A token that is fetched from a login endpoint.
    Login(Box<Login>),
}

/// A login endpoint that issues tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Address of the endpoint, called with POST.
    pub url: Uri,
    /// Body of the login request.
    pub body: SecretSource,
    /// Media type of the body. Default: application/json.
    pub content_type: String,
    /// JSON pointer to the token in the response. Default: /access_token.
    pub token: String,
    /// JSON pointer to the lifetime in seconds in the response. Default: /expires_in.
    pub expires_in: String,
    /// Lifetime of a token if the response does not state one. Default: 10min.
    pub ttl: Span,
    /// Header field that carries the token to the upstream. Default: authorization.
    pub header: HeaderName,
    /// Word before the token in that header field. Default: Bearer.
    pub scheme: String,
}

/// A secret, or the file that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// The secret.
    Value(Secret),
    /// The file. Line breaks at its end are not part of the secret.
    File(PathBuf),
}

impl From<&str> for SecretSource {
    fn from(secret: &str) -> Self {
        Self::Value(Secret::new(secret))
    }
}

/// Options of the queue in which requests over the limit wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitOptions {
    /// Maximum waiting time of a request. Default: 60s; 0s refuses at once.
    pub max: Span,
    /// Maximum number of waiting requests. Default: 1000.
    pub depth: usize,
    /// Maximum number of requests that start together; later ones are spread evenly. Default: 1 if
    /// the shortest window of an exact limit is at most 10s, otherwise starts are not spread.
    pub burst: Option<u64>,
    /// Order in which waiting requests are served. Default: first in, first out.
    pub order: WaitOrder,
}

impl WaitOptions {
    /// Default of [`WaitOptions::max`].
    pub const MAX: Span = Span::from_secs(60);
    /// Longest window whose starts are spread by default: a longer one would make requests wait
    /// that its limit admits.
    const SPREAD_MAX: Span = Span::from_secs(10);

    /// Returns the limit that spreads the starts of requests with these limits: the rate of the
    /// shortest window. `None` if requests do not wait, if all may start together, or if that limit
    /// has a shape of its own and no burst is set.
    pub(crate) fn spread(&self, limits: &[Limit]) -> Option<Limit> {
        let rates = limits.iter().filter_map(|limit| match limit {
            Limit::Exact(rate) => Some((rate, true)),
            Limit::Bucket { rate, .. } | Limit::Windowed(rate) => Some((rate, false)),
            _ => None,
        });
        let requests = rates.filter(|(rate, _)| rate.unit == Unit::Requests);
        let (&rate, is_exact) = requests.min_by_key(|(rate, _)| rate.window.span())?;
        if self.burst.is_none() && !(is_exact && rate.window.span() <= Self::SPREAD_MAX) {
            return None;
        }
        let capacity = Amount::new(self.burst.unwrap_or(1))?;
        // A rate that a bucket can't meter is too fast to be spread.
        bucket::BucketQuota::new(rate, capacity)?;
        let spreads = self.max > Span::ZERO && capacity < rate.amount;
        spreads.then_some(Limit::Bucket { rate, capacity })
    }
}

/// The order in which waiting requests are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WaitOrder {
    /// First in, first out.
    #[default]
    Fifo,
    /// Fair queueing: the values of a dimension take turns.
    Fair {
        /// The dimension; requests without it share one queue.
        by: String,
        /// Requests that each value may start per round. Default: 1.
        weights: HashMap<String, u32>,
        /// Priority by value; higher ones go first. Default: 0.
        priorities: HashMap<String, u8>,
    },
}

/// Reaction to rate-limit information in the upstream's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnOptions {
    /// Remaining requests below which a window of the upstream counts as used up. Default: 1.
    pub below: u64,
    /// Maximum pause. Default: 1h.
    pub pause_max: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limit that spreads starts under `limits`.
    fn spread(limits: &[&str], burst: Option<u64>, max: Span) -> Option<Limit> {
        let limits: Vec<Limit> = limits.iter().map(|text| text.parse().expect(text)).collect();
        let options = WaitOptions { max, depth: 1, burst, order: WaitOrder::Fifo };
        options.spread(&limits)
    }

    #[test]
    fn starts_are_spread_if_the_shortest_window_is_short() {
        let minute = Span::from_secs(60);
        for (limits, burst, expected) in [
            // By default one at a time, up to windows of 10 s.
            (&["25/s"][..], None, Some("25/s burst 1")),
            (&["1000/10s"], None, Some("1000/10s burst 1")),
            (&["1000/11s"], None, None),
            (&["500/min"], None, None),
            (&["100/day"], None, None),
            // Of several windows, only the shortest.
            (&["500/min", "25/s"], None, Some("25/s burst 1")),
            (&["25/s", "500/min", "10000/day"], None, Some("25/s burst 1")),
            (&["500/min", "10000/day"], None, None),
            // Limits with a shape of their own keep it, and others are not limits of a rate.
            (&["25/s burst 25"], None, None),
            (&["25/s smooth"], None, None),
            (&["25/s windowed"], None, None),
            (&["25/s burst 25", "200/10s"], None, None),
            (&["25/s", "100/10s burst 50"], None, Some("25/s burst 1")),
            (&["10 concurrent"], None, None),
            (&["10 concurrent", "25/s"], None, Some("25/s burst 1")),
            // A burst that is set applies to every window.
            (&["25/s"], Some(5), Some("25/s burst 5")),
            (&["500/min"], Some(20), Some("500/min burst 20")),
            (&["25/s burst 25"], Some(1), Some("25/s burst 1")),
            (&["500/min", "25/s"], Some(5), Some("25/s burst 5")),
            // As many as the limit are no spread.
            (&["25/s"], Some(25), None),
            (&["1/s"], None, None),
            (&["0"], None, None),
        ] {
            let expected = expected.map(|text| text.parse::<Limit>().expect(text));
            assert_eq!(spread(limits, burst, minute), expected, "{limits:?}, burst {burst:?}");
        }
        assert_eq!(spread(&["25/s"], None, Span::ZERO), None, "requests do not wait");
    }
}

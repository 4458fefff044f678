//! [`EnvoyOptions`]: options of the responses to Envoy.

/// Options of the responses to Envoy's rate limit requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvoyOptions {
    /// True if responses carry `X-RateLimit-*`, `RateLimit` and `Retry-After`, which Envoy adds to
    /// its own response. Default: true; set it to false where `enable_x_ratelimit_headers` does
    /// that in Envoy.
    pub headers: bool,
    /// Response while the outage policy is closed. Default: over_limit.
    pub closed: EnvoyClosedReply,
}

/// Response to Envoy while the outage policy is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvoyClosedReply {
    /// A denial: requests are refused whatever Envoy does on errors.
    OverLimit,
    /// An error: Envoy's `failure_mode_deny` decides.
    Unavailable,
}

impl Default for EnvoyOptions {
    fn default() -> Self {
        Self { headers: true, closed: EnvoyClosedReply::OverLimit }
    }
}

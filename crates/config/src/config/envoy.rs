//! What Envoy is answered.

/// What Envoy is answered besides yes and no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envoy {
    /// Whether answers carry `X-RateLimit-*`, `RateLimit` and `Retry-After`, which Envoy adds to
    /// its own. Default: true; turn it off where `enable_x_ratelimit_headers` does that in Envoy.
    pub headers: bool,
    /// How Envoy is told that the outage policy is to refuse. Default: over_limit.
    pub closed: EnvoyClosed,
}

/// How Envoy is told that the outage policy is to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvoyClosed {
    /// As a denial: it stays closed whatever Envoy does without an answer.
    OverLimit,
    /// As an error: `failure_mode_deny` decides.
    Unavailable,
}

impl Default for Envoy {
    fn default() -> Self {
        Self { headers: true, closed: EnvoyClosed::OverLimit }
    }
}

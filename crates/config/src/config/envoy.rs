//! What Envoy is answered.

/// What Envoy is answered besides yes and no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envoy {
    /// Whether answers carry `X-RateLimit-*`, `RateLimit` and `Retry-After`, which Envoy adds to
    /// its own. Default: true; turn it off where `enable_x_ratelimit_headers` does that in Envoy.
    pub headers: bool,
}

impl Default for Envoy {
    fn default() -> Self {
        Self { headers: true }
    }
}

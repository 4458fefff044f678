//! [`RateLimitLayer`]: adds a limiter to a service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{request, response};
use tower_layer::Layer;

use super::key::Key;
use super::service::RateLimit;
use crate::cost::Cost;
use crate::limiter::Limiter;

/// A layer that limits the requests of a service: see the [module](super).
#[derive(Clone)]
pub struct RateLimitLayer {
    options: LayerOptions,
}

/// Options of a layer. A layer is cloned for each service, so they are shared.
#[derive(Clone)]
pub(super) struct LayerOptions {
    pub(super) limiter: Limiter,
    pub(super) keys: Vec<(&'static str, Arc<dyn Key>)>,
    pub(super) skip: Option<RequestFilter>,
    pub(super) cost: Option<RequestCost>,
    /// True if the cost is an estimate that is settled.
    pub(super) reserves: bool,
    pub(super) hold: Option<Duration>,
    pub(super) settle: Option<ResponseCost>,
}

/// Returns true for requests that are not limited.
type RequestFilter = Arc<dyn Fn(&request::Parts) -> bool + Send + Sync>;

/// Returns the cost of a request.
type RequestCost = Arc<dyn Fn(&request::Parts) -> Cost + Send + Sync>;

/// Returns the actual cost from the head of a response, if it is known.
type ResponseCost = Arc<dyn Fn(&response::Parts) -> Option<Cost> + Send + Sync>;

impl RateLimitLayer {
    /// Creates a layer that asks `limiter`, which may be in this process or remote.
    pub fn new(limiter: Limiter) -> Self {
        Self {
            options: LayerOptions {
                limiter,
                keys: Vec::new(),
                skip: None,
                cost: None,
                reserves: false,
                hold: None,
                settle: None,
            },
        }
    }

    /// Adds a dimension and the source of its value.
    #[must_use]
    pub fn key(mut self, dimension: &'static str, key: impl Key) -> Self {
        self.options.keys.push((dimension, Arc::new(key)));
        self
    }

    /// Does not limit requests for which `skip` returns true.
    #[must_use]
    pub fn skip(mut self, skip: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.options.skip = Some(Arc::new(skip));
        self
    }

    /// Sets the cost of a request that is known before it is handled. With
    /// [`RateLimitLayer::settle`] it is an estimate.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&request::Parts) -> Cost + Send + Sync + 'static) -> Self {
        self.options.cost = Some(Arc::new(cost));
        self
    }

    /// Reserves an estimate that is settled when the body of the response ends: with the cost that
    /// the handler set on its [`CostMeter`](super::CostMeter), or with the result of
    /// [`RateLimitLayer::settle`]. Without either, the estimate stays charged.
    #[must_use]
    pub fn reserve(
        mut self,
        estimate: impl Fn(&request::Parts) -> Cost + Send + Sync + 'static,
    ) -> Self {
        self.options.cost = Some(Arc::new(estimate));
        self.options.reserves = true;
        self
    }

    /// Sets the time after which a reservation ends if this process dies. Default: 5 minutes.
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.options.hold = Some(hold);
        self
    }

    /// Takes the actual cost from the head of the response, unless the handler sets it.
    #[must_use]
    pub fn settle(
        mut self,
        actual: impl Fn(&response::Parts) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
        self.options.settle = Some(Arc::new(actual));
        self.options.reserves = true;
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::new(self.options.clone()))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.options.keys.iter().map(|(name, _)| name).collect();
        f.debug_struct("RateLimitLayer").field("keys", &keys).finish_non_exhaustive()
    }
}

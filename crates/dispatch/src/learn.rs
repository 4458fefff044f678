//! [`LimitObserver`]: reads a provider's limits from its responses, for all workers of that
//! provider.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use sluicegate_config::LearnOptions;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_vendors::{AdviceContext, UpstreamResponse};

use crate::handler::RateLimitInfo;

/// Reads the limits of one provider from its responses.
#[derive(Debug, Default)]
pub(crate) struct LimitObserver {
    learn: Option<LearnOptions>,
    /// Number of consecutive rate-limit responses.
    refusals: AtomicU32,
}

impl LimitObserver {
    pub(crate) fn new(learn: Option<LearnOptions>) -> Self {
        Self { learn, refusals: AtomicU32::new(0) }
    }

    /// Returns the time for which a response pauses the provider, if it does.
    pub(crate) fn pause(&self, rate_limit_info: &RateLimitInfo, at: Timestamp) -> Option<Span> {
        let learn = self.learn?;
        let headers: Vec<_> = rate_limit_info
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let answer = UpstreamResponse {
            status: rate_limit_info.status,
            headers: &headers,
            body: &rate_limit_info.body,
            at,
        };
        let refusals = match sluicegate_vendors::is_refusal(&answer) {
            true => self.refusals.fetch_add(1, Ordering::Relaxed),
            false => self.refusals.swap(0, Ordering::Relaxed),
        };
        let watch = AdviceContext { below: learn.below, refusals };
        let chance = RandomState::new().build_hasher().finish();
        sluicegate_vendors::pause(&answer, watch, learn.pause_max, chance)
    }
}

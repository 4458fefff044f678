//! What the answers of a provider say of its limits, for all workers of it.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use sluicegate_config::LearnOptions;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_vendors::{AdviceContext, UpstreamResponse};

use crate::handler::Heard;

/// Listens to one provider.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    learn: Option<LearnOptions>,
    /// Refusals in a row.
    refusals: AtomicU32,
}

impl Ear {
    pub(crate) fn new(learn: Option<LearnOptions>) -> Self {
        Self { learn, refusals: AtomicU32::new(0) }
    }

    /// For how long an answer closes the provider, if it does.
    pub(crate) fn pause(&self, heard: &Heard, at: Timestamp) -> Option<Span> {
        let learn = self.learn?;
        let headers: Vec<_> =
            heard.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let answer =
            UpstreamResponse { status: heard.status, headers: &headers, body: &heard.body, at };
        let refusals = match sluicegate_vendors::is_refusal(&answer) {
            true => self.refusals.fetch_add(1, Ordering::Relaxed),
            false => self.refusals.swap(0, Ordering::Relaxed),
        };
        let watch = AdviceContext { below: learn.below, refusals };
        let chance = RandomState::new().build_hasher().finish();
        sluicegate_vendors::pause(&answer, watch, learn.pause_max, chance)
    }
}

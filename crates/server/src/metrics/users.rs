//! Distribution of the usage of users. No user becomes a label.
//!
//! Each admission observes the number of requests of its user in the window so far, and their cost.
//! A user who sends a hundred requests per hour is observed with 1 to 100, so the upper buckets
//! fill only if users reach them.

use std::sync::OnceLock;

use sluicegate_core::limit::Unit;
use sluicegate_core::{Decision, Plan};
use sluicegate_service::metrics::{Histogram, HistogramVec, Registry};

use crate::window::NamedWindow;

/// The dimension that names a user.
const USER: &str = "userId";

const REQUESTS: [f64; 13] =
    [1., 2., 5., 10., 20., 50., 100., 200., 500., 1_000., 2_000., 5_000., 10_000.];
const DOLLARS: [f64; 13] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1., 2., 5., 10., 20., 50., 100.];

/// Requests and costs of users, by the windows of their limits.
pub(super) struct UserMetrics {
    requests: ByWindow,
    costs: ByWindow,
}

struct ByWindow {
    all: HistogramVec,
    /// Resolved once, so that a decision needs no lookup; not before the first value.
    each: [OnceLock<Histogram>; NamedWindow::ALL.len()],
}

impl ByWindow {
    fn new(registry: &Registry, name: &str, help: &str, bounds: &[f64]) -> Self {
        let all = registry.histograms(name, help, &["window"], bounds);
        Self { all, each: Default::default() }
    }

    fn observe(&self, window: NamedWindow, value: f64) {
        let one = || self.all.with_label_values(&[window.name()]);
        self.each[window as usize].get_or_init(one).observe(value);
    }
}

impl UserMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            requests: ByWindow::new(
                registry,
                "sluicegate_user_requests",
                "Requests of a user in a window, as each of its admissions saw them.",
                &REQUESTS,
            ),
            costs: ByWindow::new(
                registry,
                "sluicegate_user_cost_usd",
                "Dollars of a user in a window, as each of its admissions saw them.",
                &DOLLARS,
            ),
        }
    }

    /// Observes the usage of the user of an admission.
    pub(super) fn admitted(&self, plan: &Plan<'_>, decision: &Decision) {
        for ((charge, limit), reading) in plan.scopes().zip(decision.readings()) {
            let by_user = charge.rule().per.iter().any(|dimension| dimension == USER);
            let Some(window) = NamedWindow::of(limit).filter(|_| by_user) else { continue };
            match limit.unit() {
                Unit::Requests => self.requests.observe(window, reading.used as f64),
                Unit::Usd => self.costs.observe(window, reading.used as f64 / 1e9),
                _ => {}
            }
        }
    }
}

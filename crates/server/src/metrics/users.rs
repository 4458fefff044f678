//! How much users use, without telling which: no user becomes a label.
//!
//! Each admission shows how many requests its user has in a window by then, and what they cost. So
//! a user who sends a hundred an hour is seen from 1 to 100, and the upper buckets fill only where
//! somebody goes that far.

use std::sync::OnceLock;

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, HistogramVec};
use sluicegate_core::limit::Unit;
use sluicegate_core::{Decision, Plan};

use crate::window::Window;

/// The dimension that names a user.
const USER: &str = "userId";

const REQUESTS: [f64; 13] =
    [1., 2., 5., 10., 20., 50., 100., 200., 500., 1_000., 2_000., 5_000., 10_000.];
const DOLLARS: [f64; 13] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1., 2., 5., 10., 20., 50., 100.];

/// Requests and costs of users, by the windows that their limits have.
pub(super) struct Users {
    requests: ByWindow,
    costs: ByWindow,
}

struct ByWindow {
    all: HistogramVec,
    /// Found once, so that a decision looks nothing up; not before there is something to show.
    each: [OnceLock<Histogram>; Window::ALL.len()],
}

impl ByWindow {
    fn new(name: &str, help: &str, bounds: &[f64]) -> Self {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        let all = HistogramVec::new(options, &["window"]).expect("names and bounds are valid");
        Self { all, each: Default::default() }
    }

    fn seen(&self, window: Window, value: f64) {
        let one = || self.all.with_label_values(&[window.name()]);
        self.each[window as usize].get_or_init(one).observe(value);
    }
}

impl Users {
    pub(super) fn new() -> Self {
        Self {
            requests: ByWindow::new(
                "sluicegate_user_requests",
                "Requests of a user in a window, as each of its admissions saw them.",
                &REQUESTS,
            ),
            costs: ByWindow::new(
                "sluicegate_user_cost_usd",
                "Dollars of a user in a window, as each of its admissions saw them.",
                &DOLLARS,
            ),
        }
    }

    pub(super) fn collectors(&self) -> [Box<dyn Collector>; 2] {
        [Box::new(self.requests.all.clone()), Box::new(self.costs.all.clone())]
    }

    /// Takes note of what an admission shows of its user.
    pub(super) fn admitted(&self, plan: &Plan<'_>, decision: &Decision) {
        for ((charge, limit), reading) in plan.scopes().zip(decision.readings()) {
            let by_user = charge.rule().per.iter().any(|dimension| dimension == USER);
            let Some(window) = Window::of(limit).filter(|_| by_user) else { continue };
            match limit.unit() {
                Unit::Requests => self.requests.seen(window, reading.used as f64),
                Unit::Usd => self.costs.seen(window, reading.used as f64 / 1e9),
                _ => {}
            }
        }
    }
}

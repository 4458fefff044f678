//! Builds the gateways of a configuration, and prepares their changes on a reload.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_config::{Config, GatewayOptions};
use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::{Ruleset, Timestamp};
use sluicegate_gateway::{AnnouncedWindow, Gateway, Metrics, PreparedSettings};
use sluicegate_http::probe::{Probe, Readiness};
use sluicegate_server::dashboard::{GatewayStates, RoutePause, RouteReading, RouteStatesFuture};
use sluicegate_service::Service;
use tokio_util::sync::CancellationToken;

use crate::store::{self, SHUTTING_DOWN};

/// Time to send the last rejections at shutdown.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// The running gateways of a process, by name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Gateways(Arc<Mutex<NamedGateways>>);

/// Gateways with their names.
type NamedGateways = Vec<(String, Arc<Gateway>)>;

/// Changes of a reload that are ready to apply, by gateway.
pub(crate) type Changes = Vec<(Arc<Gateway>, PreparedSettings)>;

impl Gateways {
    /// Builds a gateway.
    pub(crate) fn add(
        &self,
        config: &Config,
        gateway: &GatewayOptions,
        service: &Arc<Service>,
        metrics: &Metrics,
    ) -> anyhow::Result<Arc<Gateway>> {
        let options = effective(config, gateway);
        let made = Gateway::new(&options, service.clone(), metrics.clone())?;
        self.lock().push((gateway.name.clone(), made.clone()));
        Ok(made)
    }

    /// Prepares a new configuration for all running gateways, without applying it.
    pub(crate) fn prepare(&self, config: &Config) -> anyhow::Result<Changes> {
        let running = self.lock();
        let mut changes = Vec::new();
        for gateway in &config.gateways {
            let Some(made) = running.iter().find(|(name, _)| *name == gateway.name) else {
                // This process does not run it: a new gateway needs a restart, see `crate::restart`.
                continue;
            };
            let made = &made.1;
            changes.push((made.clone(), made.prepare(&effective(config, gateway))?));
        }
        Ok(changes)
    }

    /// Drains all gateways before the process stops. New requests are rejected at once; requests
    /// without a response are rejected when `grace` is over or `now` is cancelled. It ends a little
    /// before `grace`, because a rejection needs a moment to arrive.
    pub(crate) async fn drain(&self, grace: Duration, now: CancellationToken) {
        let gateways: Vec<_> = self.lock().iter().map(|(_, gateway)| gateway.clone()).collect();
        let grace = grace.saturating_sub(ANSWER_TIME.min(grace / 10));
        let grace_over = async {
            // Cancelled or not, the grace period is over.
            let _ = now.run_until_cancelled(tokio::time::sleep(grace)).await;
        };
        for gateway in &gateways {
            gateway.start_draining();
        }
        grace_over.await;
        self.cut_off();
    }

    /// Rejects all requests that have no response yet, and closes all tunnels.
    pub(crate) fn cut_off(&self) {
        self.lock().iter().for_each(|(_, gateway)| gateway.cut_off());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, NamedGateways> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GatewayStates for Gateways {
    fn read(&self) -> RouteStatesFuture<'_> {
        let gateways = self.lock().clone();
        Box::pin(async move {
            let mut readings = Vec::new();
            for (gateway, running) in gateways {
                let states = running.route_states().await.into_iter();
                readings.extend(states.map(|state| RouteReading {
                    gateway: gateway.clone(),
                    route: state.route,
                    closed_until: state.closed_until,
                    windows: state.announced.windows.iter().map(window_json).collect(),
                    seen: state.announced.seen,
                }));
            }
            readings
        })
    }

    fn pauses(&self) -> Vec<RoutePause> {
        let gateways = self.lock();
        let of_gateway = |(gateway, running): &(String, Arc<Gateway>)| {
            let pause = |(route, until, reason): (String, Timestamp, String)| RoutePause {
                gateway: gateway.clone(),
                route,
                until: until.to_string(),
                reason,
            };
            running.pauses().into_iter().map(pause).collect::<Vec<_>>()
        };
        gateways.iter().flat_map(of_gateway).collect()
    }
}

fn window_json(window: &AnnouncedWindow) -> Value {
    json!({
        "name": window.name,
        "limit": window.limit,
        "remaining": window.remaining,
        "resetSeconds": window.reset.map(|reset| reset.as_micros() as f64 / 1e6),
    })
}

/// Returns the readiness probe of a gateway. While the store is down, the outage policies of its
/// routes decide; at shutdown it is not ready.
pub(crate) fn probe(
    gateway: &GatewayOptions,
    service: &Arc<Service>,
    shutdown: CancellationToken,
) -> Probe {
    let keys: Vec<_> = gateway.routes.iter().map(|route| gateway.route_key(route)).collect();
    let service = service.clone();
    Arc::new(move || {
        if shutdown.is_cancelled() {
            return Readiness::Unhealthy(SHUTTING_DOWN);
        }
        let rules = service.limiter().rules();
        let policies: Vec<_> = keys.iter().map(|key| policy(&rules, key)).collect();
        if policies.iter().all(Option::is_none) {
            return Readiness::Ready;
        }
        let some = policies.iter().any(|policy| *policy != Some(OutagePolicy::Closed));
        store::readiness_if(service.limiter().store(), some)
    })
}

/// Returns the outage policy of a route, or `None` if the route has no limit.
fn policy(rules: &Ruleset, key: &str) -> Option<OutagePolicy> {
    let mut rules_of = rules.groups().flat_map(|(_, rules)| rules);
    let rule = rules_of.find(|rule| rule.name == key)?;
    Some(rule.outage.unwrap_or(rules.outage().default))
}

/// Returns the options of a gateway. If limits are disabled, its routes have none and no dimension is
/// required.
fn effective(config: &Config, gateway: &GatewayOptions) -> GatewayOptions {
    let mut options = gateway.clone();
    if !config.enabled {
        options.routes.iter_mut().for_each(|route| route.limits.clear());
        options.dimensions.values_mut().for_each(|dimension| dimension.required = false);
    }
    options
}

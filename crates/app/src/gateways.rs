//! Builds the gateways of a configuration, and prepares their changes on a reload.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::http::Method;
use sluicegate_config::{self as config, Config};
use sluicegate_core::Ruleset;
use sluicegate_core::outage::OutagePolicy;
use sluicegate_gateway::options::{
    Auth, DimensionSource, Options, Order, PathPattern, Route, Timeouts, Wait, route_key,
};
use sluicegate_gateway::{Gateway, Metrics, PreparedSettings};
use sluicegate_http::probe::{Probe, Readiness};
use sluicegate_server::auth::Tokens;
use sluicegate_service::Service;
use tokio_util::sync::CancellationToken;

use crate::store::{self, SHUTTING_DOWN};
use crate::upstream::{credentials, header, uri};

/// Time to send the last rejections at shutdown.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// The running gateways of a process, by name.
#[derive(Default)]
pub(crate) struct Gateways(Mutex<Vec<(String, Arc<Gateway>)>>);

/// Changes of a reload that are ready to apply, by gateway.
pub(crate) type Changes = Vec<(Arc<Gateway>, PreparedSettings)>;

impl Gateways {
    /// Builds a gateway.
    pub(crate) fn add(
        &self,
        config: &Config,
        gateway: &config::Gateway,
        service: &Arc<Service>,
        metrics: &Metrics,
    ) -> anyhow::Result<Arc<Gateway>> {
        let tls = gateway.listen.tls.is_some();
        let made = Gateway::new(&options(config, gateway)?, service.clone(), metrics.clone(), tls)?;
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
            changes.push((made.clone(), made.prepare(&options(config, gateway)?)?));
        }
        Ok(changes)
    }

    /// Answers the callers of all gateways before the process stops: new requests are rejected at
    /// once, and those without a response when `grace` is over or `now` is cancelled. A rejection
    /// needs a moment to arrive, so this ends a little before `grace` does.
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
        for gateway in &gateways {
            gateway.cut_off();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(String, Arc<Gateway>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the readiness probe of a gateway. While the store is down, the outage policies of its
/// routes decide; at shutdown it is not ready.
pub(crate) fn probe(
    gateway: &config::Gateway,
    service: &Arc<Service>,
    shutdown: CancellationToken,
) -> Probe {
    let keys = gateway.routes.iter().map(|route| route_key(&gateway.name, &route.name));
    let keys: Vec<String> = keys.collect();
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

fn options(config: &Config, gateway: &config::Gateway) -> anyhow::Result<Options> {
    let name = &gateway.name;
    let tokens =
        gateway.auth.tokens.iter().flat_map(|(name, hashes)| {
            hashes.iter().map(move |hash| (name.as_str(), hash.to_bytes()))
        });
    let auth = match gateway.auth.tokens.is_empty() {
        true => None,
        false => Some(Auth {
            header: header(&gateway.token_header)?,
            tokens: Arc::new(Tokens::new(tokens).with_context(|| format!("gateway {name}: auth"))?),
        }),
    };
    let dimension = |(name, of): (&String, &config::HeaderDimension)| {
        let (header, required) = (header(&of.header)?, of.required && config.enabled);
        Ok(DimensionSource { name: name.clone(), header, required })
    };
    Ok(Options {
        name: name.clone(),
        auth,
        dimensions: gateway.dimensions.iter().map(dimension).collect::<anyhow::Result<_>>()?,
        trusted_hops: gateway.trusted_hops,
        event: gateway.event.clone(),
        routes: gateway
            .routes
            .iter()
            .map(|of| route(of, config.enabled))
            .collect::<anyhow::Result<_>>()?,
    })
}

fn route(route: &config::Route, enabled: bool) -> anyhow::Result<Route> {
    let method = |name: &String| name.parse::<Method>().context("methods");
    let order = match &route.wait.fair {
        None => Order::Fifo,
        Some(fair) => Order::Fair {
            by: fair.by.clone(),
            weights: fair.weights.clone(),
            priorities: fair.priorities.clone(),
        },
    };
    Ok(Route {
        name: route.name.clone(),
        path: match route.path.strip_suffix('*') {
            Some(prefix) => PathPattern::Prefix(prefix.to_owned()),
            None => PathPattern::Exact(route.path.clone()),
        },
        methods: route.methods.iter().map(method).collect::<anyhow::Result<_>>()?,
        upstream: uri(&route.upstream)?,
        replaces_path: route.upstream.has_path,
        http2_only: route.http2,
        ca: route.ca.clone(),
        credentials: route.credentials.as_ref().map(credentials).transpose()?,
        limits: if enabled { route.limits.clone() } else { Vec::new() },
        wait: Wait { max: route.wait.max.into(), depth: route.wait.depth, order },
        timeouts: Timeouts {
            connect: route.connect_timeout.into(),
            first_byte: route.timeout.into(),
            idle: route.idle_timeout.into(),
            total: route.deadline.map(Into::into),
        },
        body_limit: route.body_limit.0,
        body_buffer: usize::try_from(route.body_buffer.0).unwrap_or(usize::MAX),
        retries: route.retries,
        count_if_ok: route.count_if_ok,
        upgrades: route.upgrades,
        graphql: route.graphql,
        learn: route.learn,
    })
}

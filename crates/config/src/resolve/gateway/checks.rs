//! Finds options of routes that have no effect, or not the effect that their author expects.
//!
//! An option that can never have an effect is an error. Options that contradict each other, and
//! often come from different variables, are warnings.

use http::{Method, Uri};
use sluicegate_core::{Limit, Span};

use super::super::item::Item;
use super::super::limits::option;
use super::super::warnings::warn_of_zero_shares;
use super::Context;
use super::route::{FurtherLimit, Owner, located};
use crate::config::{Credentials, OutagePolicy, PathPattern, RouteOptions};
use crate::report::Report;

/// Methods that the gateway repeats if they get no response.
const RETRIED: [Method; 5] =
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE];

/// A route, and the node that it was read from.
pub(super) struct ReadRoute<'r, 'n> {
    pub(super) item: &'r Item<'n>,
    pub(super) route: &'r RouteOptions,
    pub(super) outage: Option<OutagePolicy>,
    pub(super) further: &'r [FurtherLimit<'n>],
}

/// Checks the options of a route.
pub(super) fn route(read: &ReadRoute<'_, '_>, owner: &Owner<'_>, report: &mut Report) {
    read.without_limit(report);
    read.retries(report);
    read.ca(report);
    if read.is_paced() && read.route.wait.max > Span::ZERO {
        read.slack(owner.context, report);
        read.deadline(report);
        read.shutdown_grace(owner.context, report);
    }
    read.outage_shares(owner.context, report);
}

impl<'n> ReadRoute<'_, 'n> {
    fn option(&self, key: &str) -> Option<Item<'n>> {
        option(self.item, key)
    }

    /// Returns true if requests can wait for the limit of the route.
    fn is_paced(&self) -> bool {
        // A limit may have an error, or come from a variable that is empty now.
        self.option("limit").is_some()
    }

    /// Reports `wait` and `outage` of a route without a limit.
    fn without_limit(&self, report: &mut Report) {
        if self.is_paced() {
            return;
        }
        if let Some(wait) = self.option("wait") {
            let message = "requests wait for `limit` of the route, and the route has none";
            wait.fail(report, message, "add limit, such as limit: 25/s, or remove wait");
        }
        // The pauses that the upstream asks for are in the store as well.
        let uses_store = self.option("limits").is_some() || self.route.learn.is_some();
        if let Some(outage) = self.option("outage").filter(|_| !uses_store) {
            let message = "applies to limits of the route, and the route has none";
            outage.fail(report, message, "add limit, such as limit: 25/s, or remove outage");
        }
    }

    /// Reports retries of a route whose methods are never repeated.
    fn retries(&self, report: &mut Report) {
        let methods = &self.route.methods;
        let never = !methods.is_empty() && methods.iter().all(|method| !RETRIED.contains(method));
        if let Some(retries) = self.option("retries").filter(|_| never && self.route.retries > 0) {
            let message = "the methods of the route are never repeated, because the upstream \
                           might do the work twice";
            retries.fail(report, message, "remove retries, or allow a method such as GET or PUT");
        }
    }

    /// Warns about certificate authorities for an upstream without TLS.
    fn ca(&self, report: &mut Report) {
        let login = match &self.route.credentials {
            Some(Credentials::Login(login)) => Some(&login.url),
            _ => None,
        };
        let encrypted = |url: &Uri| url.scheme_str() == Some("https");
        if let Some(ca) = self.option("ca").filter(|_| self.route.ca.is_some())
            && !encrypted(&self.route.upstream.uri)
            && !login.is_some_and(encrypted)
        {
            let message = "has no effect: the URL of the upstream begins with http://";
            ca.warn(report, message, "write https:// in upstream, or remove ca");
        }
    }

    /// Reports limits whose window is not longer than the time during which a turn may be used.
    fn slack(&self, context: &Context<'_>, report: &mut Report) {
        let (Some(slack), Some(item)) = (context.settings.slack, self.option("limit")) else {
            return;
        };
        for (limit, item) in located(&self.route.limits, &item) {
            let window = limit.window();
            if window == Span::ZERO || slack < window {
                continue;
            }
            let remedy = "lower booking.slack, or leave it out";
            if matches!(limit, Limit::Calendar { .. }) {
                let message = "booking.slack is not shorter than this window, so requests over the \
                               limit never get a turn";
                item.fail(report, message, remedy);
            } else {
                let message = "booking.slack is not shorter than this window, so waiting requests \
                               can use at most half of the limit";
                item.warn(report, message, remedy);
            }
        }
    }

    /// Warns about a deadline that ends before the longest wait.
    fn deadline(&self, report: &mut Report) {
        let wait = self.option("wait").and_then(|wait| option(&wait, "max"));
        let (Some(deadline), Some(_)) = (self.route.deadline, wait) else { return };
        if let Some(item) = self.option("deadline").filter(|_| deadline <= self.route.wait.max) {
            let message = "not longer than wait.max, so a request that waits that long has no time \
                           left for the upstream";
            item.warn(report, message, "raise it above wait.max, or lower wait.max");
        }
    }

    /// Warns if a shutdown ends before the longest wait. Says nothing if the file sets neither.
    fn shutdown_grace(&self, context: &Context<'_>, report: &mut Report) {
        let (max, deadline) = (self.route.wait.max, self.route.deadline);
        if deadline.map_or(max, |deadline| max.min(deadline)) <= context.shutdown_grace {
            return;
        }
        let remedy = "raise server.shutdown_grace, or lower wait.max";
        if let Some(max) = self.option("wait").and_then(|wait| option(&wait, "max")) {
            let message = "longer than server.shutdown_grace: when the process stops, requests \
                           that still wait after that time get 503";
            max.warn(report, message, remedy);
        } else if let Some(grace) = &context.grace_option {
            let message = format!(
                "shorter than wait.max of {}: when the process stops, requests that still wait \
                 after this time get 503",
                self.item.path
            );
            grace.warn(report, message, remedy);
        }
    }

    /// Warns about limits whose share per replica is 0 while Redis is unavailable.
    fn outage_shares(&self, context: &Context<'_>, report: &mut Report) {
        let own = self.option("limit").map(|item| located(&self.route.limits, &item));
        let further = self.further.iter().flat_map(|of| located(&of.limits, &of.item));
        let limits: Vec<_> = own.into_iter().flatten().chain(further).collect();
        let outage = &context.settings.outage;
        warn_of_zero_shares(&limits, self.outage, outage, context.store, report);
    }
}

/// Reports routes that no request reaches, because an earlier route matches all their paths.
pub(super) fn unreachable(routes: &[(RouteOptions, Item<'_>)], report: &mut Report) {
    for (number, (route, item)) in routes.iter().enumerate() {
        let mut earlier = routes[..number].iter();
        let Some((first, first_item)) = earlier.find(|(first, _)| covers(&first.path, &route.path))
        else {
            continue;
        };
        let line = first_item.node.at.line;
        let path = option(item, "path").unwrap_or_else(|| item.clone());
        if first.path == route.path {
            let message = format!(
                "the route is never used: the route on line {line} has the same path, and only the \
                 path selects a route"
            );
            path.fail(report, message, "write all methods of a path in one route");
        } else {
            let message = format!(
                "the route is never used: the route on line {line} comes first and matches all its \
                 paths"
            );
            path.fail(report, message, "move this route above it, or remove it");
        }
    }
}

/// Returns true if one path matches everything that another matches.
fn covers(path: &PathPattern, other: &PathPattern) -> bool {
    let (PathPattern::Exact(text) | PathPattern::Prefix(text)) = other;
    match path {
        PathPattern::Prefix(prefix) => text.starts_with(prefix),
        PathPattern::Exact(_) => path == other,
    }
}

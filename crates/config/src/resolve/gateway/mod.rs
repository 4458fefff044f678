//! Reads `gateways`: their listeners and routes, and builds the rules for the limits of routes.

mod checks;
mod provided;
mod route;
mod wait;

use std::collections::HashSet;

use http::HeaderName;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Group, Span};

use super::item::{Fields, Item};
use super::upstream::header;
use super::{auth, listen, scalar};
use crate::config::{Auth, GatewayOptions, Listeners, RouteOptions, StoreOptions};
use crate::report::Report;
pub(super) use provided::NamedDimensions;
use provided::ProvidedDimensions;
pub(super) use route::learn;

const KNOWN: [&str; 7] =
    ["name", "listen", "auth", "dimensions", "trusted_hops", "event", "routes"];

/// The parts of the configuration that gateways depend on.
pub(super) struct Context<'c> {
    pub(super) listen: &'c Listeners,
    /// Dimensions that the section `dimensions` marks as required.
    pub(super) required: &'c [String],
    pub(super) settings: &'c Settings,
    pub(super) store: &'c StoreOptions,
    pub(super) shutdown_grace: Span,
    /// The option `server.shutdown_grace`, if the file sets it.
    pub(super) grace_option: Option<Item<'c>>,
}

/// Reads the section `gateways`. Also returns the groups of rules that limit their routes.
pub(super) fn gateways(
    item: &Item<'_>,
    context: &Context<'_>,
    report: &mut Report,
) -> (Vec<GatewayOptions>, Vec<Group>) {
    let form = "write a list of gateways, each with name, listen and routes";
    let items = item.list(report, form).unwrap_or_default();
    let mut gateways: Vec<GatewayOptions> = Vec::new();
    let mut groups = Vec::new();
    for item in items {
        let Some((gateway, of_routes)) = gateway(item.clone(), context, report) else { continue };
        let taken = [&context.listen.http, &context.listen.grpc, &context.listen.admin];
        let taken = taken.into_iter().chain(gateways.iter().map(|other| &other.listen));
        if taken.into_iter().any(|other| gateway.listen.address.collides_with(&other.address)) {
            item.fail(
                report,
                "another listener has the same address",
                "give each listener its own port",
            );
        }
        if gateways.iter().any(|other| other.name == gateway.name) {
            item.fail(report, "another gateway has the same name", "rename one of them");
        }
        gateways.push(gateway);
        groups.extend(of_routes);
    }
    (gateways, groups)
}

fn gateway(
    item: Item<'_>,
    context: &Context<'_>,
    report: &mut Report,
) -> Option<(GatewayOptions, Vec<Group>)> {
    let fields = Fields::open(item, &KNOWN, report)?;
    let name = fields.require("name", "write a name, such as name: vendor", report);
    let name = name.and_then(|item| name_of(&item, report)).unwrap_or_default();
    let (token_header, auth) = tokens(fields.get("auth"), report);
    let remedy = "write the address to listen on, such as listen: 127.0.0.1:3001";
    let listen = fields.require("listen", remedy, report);
    let listen = listen.and_then(|item| {
        let listener = listen::listener(&item, report)?;
        listen::check_access(&item, &listener, !auth.tokens.is_empty(), report);
        Some(listener)
    });
    let provided = ProvidedDimensions::read(&fields, context.required, report);
    let hops = |item: &Item<'_>, report: &mut Report| scalar::count(item, report, 0..=16);
    let trusted_hops = fields.read("trusted_hops", 0, report, hops);
    let event = fields.read("event", "gateway_request".to_owned(), report, scalar::text);

    let remedy = "write a list of routes, each with path and upstream";
    let routes = fields.require("routes", remedy, report);
    let items = routes.and_then(|item| item.list(report, remedy)).unwrap_or_default();
    let mut routes: Vec<(RouteOptions, Item<'_>)> = Vec::new();
    let mut groups = Vec::new();
    let mut names = HashSet::new();
    for item in items {
        let owner = route::Owner { name: &name, provided: &provided, context };
        let Some((route, of_route)) = route::route(&item, &owner, report) else { continue };
        if !names.insert(route.name.clone()) {
            item.fail(report, "another route has the same name", "give each route its own name");
        }
        routes.push((route, item));
        groups.extend(of_route);
    }
    checks::unreachable(&routes, report);
    let gateway = GatewayOptions {
        name,
        listen: listen?,
        token_header,
        auth,
        dimensions: provided.dimensions,
        trusted_hops,
        event,
        routes: routes.into_iter().map(|(route, _)| route).collect(),
    };
    Some((gateway, groups))
}

/// Reads a name that becomes part of a key and of a metric.
pub(super) fn name_of(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let name = scalar::text(item, report)?;
    if name.len() > 30 || name.contains('/') {
        item.fail(report, "invalid name", "write at most 30 characters other than /");
        return None;
    }
    Some(name)
}

fn tokens(item: Option<Item<'_>>, report: &mut Report) -> (HeaderName, Auth) {
    let default = HeaderName::from_static("x-internal-token");
    let fields = item.and_then(|item| Fields::open(item, &["header", "tokens"], report));
    let Some(fields) = fields else { return (default, Auth::default()) };
    let header = fields.read("header", default, report, header);
    (header, auth::tokens_of(&fields, report))
}

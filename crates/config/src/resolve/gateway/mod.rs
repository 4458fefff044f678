//! Reads `gateways`: their listeners and routes, and builds the rules for the limits of routes.

mod route;
mod wait;

use std::collections::{BTreeMap, HashSet};

use sluicegate_core::Group;

use super::item::{Fields, Item};
use super::upstream::header;
use super::{auth, dimensions, listen, scalar};
use crate::config::{Gateway, Listeners, Route};
use crate::report::Report;
pub(super) use route::learn;

const KNOWN: [&str; 7] =
    ["name", "listen", "auth", "dimensions", "trusted_hops", "event", "routes"];

/// Reads the section `gateways`. Also returns the groups of rules that limit their routes.
pub(super) fn gateways(
    item: &Item<'_>,
    others: &Listeners,
    report: &mut Report,
) -> (Vec<Gateway>, Vec<Group>) {
    let form = "write a list of gateways, each with name, listen and routes";
    let items = item.list(report, form).unwrap_or_default();
    let mut gateways: Vec<Gateway> = Vec::new();
    let mut groups = Vec::new();
    for item in items {
        let Some((gateway, of_routes)) = gateway(item.clone(), report) else { continue };
        let taken = [&others.http, &others.grpc, &others.admin];
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

fn gateway(item: Item<'_>, report: &mut Report) -> Option<(Gateway, Vec<Group>)> {
    let fields = Fields::open(item, &KNOWN, report)?;
    let name = fields.require("name", "write a name, such as name: vendor", report);
    let name = name.and_then(|item| name_of(&item, report)).unwrap_or_default();
    let (token_header, auth) =
        fields.get("auth").map(|item| tokens(item, report)).unwrap_or_default();
    let remedy = "write the address to listen on, such as listen: 127.0.0.1:3001";
    let listen = fields.require("listen", remedy, report);
    let listen = listen.and_then(|item| {
        let listener = listen::listener(&item, report)?;
        listen::check_access(&item, &listener, !auth.tokens.is_empty(), report);
        Some(listener)
    });
    let dimensions = fields.read("dimensions", BTreeMap::new(), report, from_headers);
    let hops = |item: &Item<'_>, report: &mut Report| scalar::count(item, report, 0..=16);
    let trusted_hops = fields.read("trusted_hops", 0, report, hops);
    let event = fields.read("event", "gateway_request".to_owned(), report, scalar::text);

    let remedy = "write a list of routes, each with path and upstream";
    let routes = fields.require("routes", remedy, report);
    let items = routes.and_then(|item| item.list(report, remedy)).unwrap_or_default();
    let mut routes: Vec<Route> = Vec::new();
    let mut groups = Vec::new();
    let mut names = HashSet::new();
    for item in items {
        let Some((route, of_route)) = route::route(&item, &name, report) else { continue };
        if !names.insert(route.name.clone()) {
            item.fail(report, "another route has the same name", "give each route its own name");
        }
        routes.push(route);
        groups.extend(of_route);
    }
    let gateway = Gateway {
        name,
        listen: listen?,
        token_header,
        auth,
        dimensions,
        trusted_hops,
        event,
        routes,
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

fn tokens(item: Item<'_>, report: &mut Report) -> (String, crate::config::Auth) {
    let default = "x-internal-token".to_owned();
    let Some(fields) = Fields::open(item, &["header", "tokens"], report) else {
        return (default, crate::config::Auth::default());
    };
    let header = fields.read("header", default, report, header);
    (header, auth::tokens_of(&fields, report))
}

fn from_headers(item: &Item<'_>, report: &mut Report) -> Option<BTreeMap<String, String>> {
    let form = "write a map from dimensions to header fields, such as tenantId: x-tenant-id";
    let mut found = BTreeMap::new();
    for (key, item) in item.entries(report, form)? {
        dimensions::check_name(&key.text, &item, report);
        if key.text == "caller" {
            item.fail(report, "caller is always the name of the token", "choose another name");
        }
        if let Some(header) = header(&item, report) {
            found.insert(key.text.clone(), header);
        }
    }
    Some(found)
}

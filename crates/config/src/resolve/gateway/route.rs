//! Reads one route of a gateway, and builds the rules for its limits.

use http::{Method, Uri};
use sluicegate_core::limit::Unit;
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::{RulesetProblem, Settings};
use sluicegate_core::{Group, Limit, Rule, Ruleset, Span};

use super::super::item::{Fields, Item};
use super::super::upstream::{credentials, url};
use super::super::{rule, scalar};
use super::provided::ProvidedDimensions;
use super::{Context, checks, name_of, wait};
use crate::config::{
    ByteSize, LearnOptions, PathPattern, ROUTE, RouteOptions, UpstreamUrl, route_key,
};
use crate::raw::Value;
use crate::report::Report;

const KNOWN: [&str; 22] = [
    "name",
    "path",
    "methods",
    "upstream",
    "http2",
    "ca",
    "credentials",
    "limit",
    "limits",
    "outage",
    "wait",
    "connect_timeout",
    "timeout",
    "idle_timeout",
    "deadline",
    "body_limit",
    "body_buffer",
    "retries",
    "count_if",
    "upgrades",
    "graphql",
    "learn",
];

/// The gateway that a route belongs to.
pub(super) struct Owner<'g> {
    pub(super) name: &'g str,
    pub(super) provided: &'g ProvidedDimensions,
    pub(super) context: &'g Context<'g>,
}

/// A limit that counts by further dimensions.
pub(super) struct FurtherLimit<'n> {
    per: Vec<String>,
    pub(super) limits: Vec<Limit>,
    /// The option `limit`.
    pub(super) item: Item<'n>,
}

/// Reads a route, and reports all its mistakes. Also returns the groups of rules that limit it.
/// Returns `None` if the path has an error, because the other routes can't be compared with it.
pub(super) fn route(
    item: &Item<'_>,
    owner: &Owner<'_>,
    report: &mut Report,
) -> Option<(RouteOptions, Vec<Group>)> {
    let fields = Fields::open(item.clone(), &KNOWN, report)?;
    let path = fields.require("path", "write a path, such as /graphql or /v1/*", report);
    let path = path.and_then(|item| path_of(&item, report));
    let from_path = path.as_ref().map(name_from).unwrap_or_default();
    let name = fields.read("name", from_path, report, name_of);
    let upstream =
        fields.require("upstream", "write a URL, such as https://api.vendor.example", report);
    let upstream = upstream.and_then(|item| url(&item, report));

    let limits = fields.get("limit").map(|item| request_limits(&item, report)).unwrap_or_default();
    let outage = fields.read_some("outage", report, scalar::outage);
    let further = fields.get("limits");
    let further = further.map(|item| further_limits(&item, owner.provided, report));
    let further = further.unwrap_or_default();
    let learn = learn(&fields, !limits.is_empty(), report);
    let key = route_key(owner.name, &name);
    if key.len() > 56 {
        let message = "the names of gateway and route have more than 55 characters in total";
        item.fail(report, message, "write a shorter name");
    }
    let mut groups = Vec::new();
    let own = |mut rule: Rule| {
        rule.outage = outage;
        rule.when(ROUTE, Pattern::exactly(key.clone()))
    };
    if !limits.is_empty() || learn.is_some() {
        let rule = match limits.is_empty() {
            true => Rule::unlimited(key.clone()),
            false => Rule::new(key.clone(), limits.clone()),
        };
        groups.push(Group::new(key.clone(), [own(rule.per(&[ROUTE]).gated())]));
    }
    let wait = wait::wait(fields.get("wait"), owner.provided, report);
    if let Some(limit) = wait.spread(&limits) {
        let name = format!("{key}/spread");
        let rule = Rule { spreads: true, ..Rule::new(name.clone(), [limit]) };
        groups.push(Group::new(name, [own(rule.per(&[ROUTE]))]));
    }
    for (number, FurtherLimit { per, limits, .. }) in further.iter().enumerate() {
        let name = format!("{key}/{}", number + 1);
        let per: Vec<&str> = std::iter::once(ROUTE).chain(per.iter().map(String::as_str)).collect();
        groups.push(Group::new(name.clone(), [own(Rule::new(name, limits.clone()).per(&per))]));
    }
    let errors = Ruleset::new(groups.clone(), Settings::default()).err().unwrap_or_default();
    if errors.iter().any(|error| matches!(error.problem, RulesetProblem::SameWindow(..))) {
        let message = "two limits of the route have the same window";
        item.fail(report, message, "remove the larger one");
    }
    let least = |item: &Item<'_>, report: &mut Report| {
        scalar::span_from(item, report, Span::from_millis(1), "write at least 1ms")
    };
    let span = |key: &str, default: u64, report: &mut Report| {
        fields.read(key, Span::from_secs(default), report, least)
    };
    let body_limit = fields.read("body_limit", ByteSize(1 << 20), report, scalar::size);
    let body_buffer = fields.get("body_buffer").and_then(|item| {
        let size = scalar::size_or_zero(&item, report)?;
        if size > body_limit {
            let message = "larger than body_limit, so that a part of it can never be used";
            item.fail(report, message, "write at most the value of body_limit");
        }
        Some(size)
    });
    let graphql = matches!(&path, Some(PathPattern::Exact(path)) if path.ends_with("/graphql"));
    let counts = [("2xx", true), ("any", false)];
    let route = RouteOptions {
        name,
        methods: fields.read("methods", Vec::new(), report, methods),
        upstream: upstream.unwrap_or_else(unusable_upstream),
        http2: fields.read("http2", false, report, scalar::boolean),
        ca: fields.read_some("ca", report, scalar::path),
        credentials: fields.read_some("credentials", report, credentials),
        limits,
        wait,
        connect_timeout: span("connect_timeout", 5, report),
        timeout: span("timeout", 60, report),
        idle_timeout: span("idle_timeout", 60, report),
        deadline: fields.read_some("deadline", report, least),
        body_limit,
        body_buffer: body_buffer.unwrap_or(ByteSize(64 << 10).min(body_limit)),
        retries: fields.read("retries", 0, report, |item, report| {
            scalar::whole(item, report, 0..=10).and_then(|number| u32::try_from(number).ok())
        }),
        count_if_ok: fields.read("count_if", false, report, |i, r| scalar::word(i, r, &counts)),
        upgrades: fields.read("upgrades", false, report, scalar::boolean),
        graphql: fields.read("graphql", graphql, report, scalar::boolean),
        learn,
        path: path.clone().unwrap_or(PathPattern::Exact(String::new())),
    };
    checks::route(
        &checks::ReadRoute { item, route: &route, outage, further: &further },
        owner,
        report,
    );
    path.map(|_| (route, groups))
}

/// Placeholder for an upstream with an error. It begins with https://, so that `ca` is not reported
/// as well.
fn unusable_upstream() -> UpstreamUrl {
    UpstreamUrl { uri: Uri::from_static("https://upstream.invalid"), has_path: false }
}

/// Returns the name of a route that has none: its path.
fn name_from(path: &PathPattern) -> String {
    let (PathPattern::Exact(path) | PathPattern::Prefix(path)) = path;
    match path.trim_matches('/') {
        "" => "all".to_owned(),
        path => path.replace('/', "-"),
    }
}

/// Reads a path such as `/graphql`, or `/v1/*` for all paths that start with `/v1/`.
fn path_of(item: &Item<'_>, report: &mut Report) -> Option<PathPattern> {
    let form = "write a path such as /graphql, or /v1/* for all paths that start with /v1/";
    let path = scalar::text(item, report)?;
    let prefix = path.strip_suffix('*');
    let fixed = prefix.unwrap_or(&path);
    let plain = fixed.chars().all(|c| c.is_ascii_graphic() && !"*?#".contains(c));
    if !fixed.starts_with('/') || !plain {
        item.fail(report, "not a valid path", form);
        return None;
    }
    if ["/health", "/ready"].contains(&path.as_str()) {
        item.fail(report, "the gateway itself serves this path", "choose another path");
        return None;
    }
    Some(match prefix {
        Some(prefix) => PathPattern::Prefix(prefix.to_owned()),
        None => PathPattern::Exact(path),
    })
}

fn methods(item: &Item<'_>, report: &mut Report) -> Option<Vec<Method>> {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];
    let known = known.map(|method| (method, method));
    let items = item.one_or_more();
    let found = items.iter().filter_map(|item| scalar::word(item, report, &known)?.parse().ok());
    Some(found.collect())
}

/// Reads the limits of a route. Limits on tokens or money are errors: a gateway does not know the
/// cost of a request.
fn request_limits(item: &Item<'_>, report: &mut Report) -> Vec<Limit> {
    let limits = rule::limits(item, report);
    for (limit, item) in located(&limits, item) {
        if !matches!(limit.unit(), Unit::Requests | Unit::Slots) {
            let remedy = "write a limit of requests, such as 25/s, or of concurrency, such as \
                          10 concurrent";
            item.fail(report, "a gateway can't count tokens or money", remedy);
        }
    }
    limits
}

/// Returns each limit with its location; nothing if some limits could not be read.
pub(super) fn located<'l, 'n>(limits: &'l [Limit], item: &Item<'n>) -> Vec<(&'l Limit, Item<'n>)> {
    let items = item.one_or_more();
    match items.len() == limits.len() {
        true => limits.iter().zip(items).collect(),
        false => Vec::new(),
    }
}

/// Reads the list of limits that count by further dimensions.
fn further_limits<'n>(
    item: &Item<'n>,
    provided: &ProvidedDimensions,
    report: &mut Report,
) -> Vec<FurtherLimit<'n>> {
    let form = "write a list, each with per and limit";
    let items = item.list(report, form).unwrap_or_default();
    let one = |item: Item<'n>| {
        let fields = Fields::open(item, &["per", "limit"], report)?;
        let per = fields.require(
            "per",
            "write the dimensions to count by, such as per: [tenantId]",
            report,
        );
        let per = per.and_then(|item| item.list(report, form)).unwrap_or_default();
        let per = per.iter().filter_map(|item| provided.name(item, report)).collect();
        let item = fields.require("limit", "write a limit, such as limit: 5/s", report)?;
        Some(FurtherLimit { per, limits: request_limits(&item, report), item })
    };
    items.into_iter().filter_map(one).collect()
}

/// Reads the option `learn`. Default: on if there is a limit.
pub(in super::super) fn learn(
    fields: &Fields<'_>,
    limited: bool,
    report: &mut Report,
) -> Option<LearnOptions> {
    let default = LearnOptions { below: 1, pause_max: Span::from_secs(3_600) };
    let Some(item) = fields.get("learn") else { return limited.then_some(default) };
    if !matches!(item.node.value, Value::Map(_)) {
        return scalar::boolean(&item, report)?.then_some(default);
    }
    let fields = Fields::open(item, &["below", "max"], report)?;
    let below =
        |item: &Item<'_>, report: &mut Report| scalar::whole(item, report, 1..=1_000_000_000);
    Some(LearnOptions {
        below: fields.read("below", default.below, report, below),
        pause_max: fields.read("max", default.pause_max, report, scalar::span),
    })
}

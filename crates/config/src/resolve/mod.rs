//! Turns the tree into a [`Config`]. Each module reads one section and reports all its mistakes; a
//! section with mistakes is replaced by its default, so that the other sections can be checked too.

mod auth;
mod compile;
mod dimensions;
mod dispatch;
mod environment;
mod envoy;
mod gateway;
mod handler;
mod item;
mod limits;
mod listen;
mod outage;
mod prices;
mod queue;
mod rate_limits;
mod redact;
mod redis;
mod rule;
mod scalar;
mod service;
mod store;
mod traces;
mod unreachable;
mod upstream;
mod warnings;

use std::sync::Arc;

use sluicegate_core::ruleset::{Settings, needs};
use sluicegate_core::{Group, Ruleset};

use crate::Format;
use crate::config::{Config, StoreOptions};
use crate::location::Path;
use crate::raw::{Node, Value};
use crate::report::Report;
use item::{Fields, Item};
use limits::DraftGroup;

pub use environment::VariableError;
pub(crate) use environment::store as store_from_environment;
pub(crate) use rate_limits::file as rate_limits_file;
pub(crate) use store::SelectedStore;

const KNOWN: [&str; 19] = [
    "enabled",
    "listen",
    "auth",
    "store",
    "queue",
    "dimensions",
    "outage",
    "limits",
    "booking",
    "prices",
    "log",
    "metrics",
    "traces",
    "server",
    "envoy",
    "compat",
    "gateways",
    "dispatch",
    "workers",
];

/// Detects the format of a file by its keys.
pub(crate) fn format(root: &Node) -> Format {
    match &root.value {
        Value::Map(entries) if entries.iter().any(|(key, _)| key.text == "domain") => Format::Envoy,
        _ if rate_limits::is_old_format(root) => Format::RateLimits,
        _ => Format::Sluicegate,
    }
}

/// Reads a file of envoyproxy/ratelimit: its limits, and defaults for everything else.
pub(crate) fn envoy_file(root: &Node, report: &mut Report) -> Option<Config> {
    let empty = Node { at: root.at, value: Value::Map(Vec::new()) };
    let selected = SelectedStore {
        reason: "a file of envoyproxy/ratelimit has no section store",
        ..SelectedStore::default()
    };
    let config = config(&empty, &|_| None, selected, report)?;
    let item = Item { node: root, path: Path::default() };
    let compat = envoy::compat(limits::option(&item, "compat"), report);
    let imported = envoy::groups(vec![item.clone()], compat, report);
    let settings =
        Settings { required: Vec::new(), needs: Vec::new(), ..config.settings().clone() };
    let sections = [Section { groups: imported, item: Some(item), message: None }];
    let ruleset = compile(&sections, None, &settings, report);
    Some(Config { groups: all_groups(&sections), default_groups: 0, ruleset, ..config })
}

/// Reads a file of our own format. `env` looks up a variable that replaces an option; `selected` is the
/// store if the file has no section for it. The result is usable only if no error was reported.
pub(crate) fn config(
    root: &Node,
    env: &dyn Fn(&str) -> Option<String>,
    selected: SelectedStore,
    report: &mut Report,
) -> Option<Config> {
    let empty = Node { at: root.at, value: Value::Map(Vec::new()) };
    let is_nothing = matches!(&root.value, Value::Scalar(scalar) if scalar.is_null());
    let node = if is_nothing { &empty } else { root };
    let item = Item { node, path: Path::default() };
    let fields = Fields::open(item, &KNOWN, report)?;
    let part = |key: &str| fields.get(key);

    let auth = part("auth").map(|item| auth::auth(item, report)).unwrap_or_default();
    let authenticated = !auth.tokens.is_empty();
    let listen = listen::listen(part("listen"), authenticated, report);
    let jobs = part("dispatch").is_some() || part("workers").is_some();
    let SelectedStore { options: store, reason: store_reason } =
        part("store").map_or(selected, |item| store::store(item, jobs, report));
    let dimensions = part("dimensions").map(|item| dimensions::dimensions(&item, report));
    let mut dimensions = dimensions.unwrap_or_default();
    let marked_required = dimensions.required.clone();
    let mut settings = Settings::default();
    if let Some(item) = part("outage") {
        settings.outage = outage::outage(item, report);
    }
    if let StoreOptions::Redis(redis) = &store {
        settings.partition.clone_from(&redis.partition);
        settings.outage.nodes_max = redis.nodes_max;
    }
    if let Some(item) = part("booking") {
        service::booking(item, &mut settings, report);
    }
    let (prices, book) =
        part("prices").map(|item| prices::prices(&item, report)).unwrap_or_default();
    settings.prices = Arc::new(book);
    let compat = envoy::compat(part("compat"), report);
    let (envoy, imported) =
        part("envoy").map(|item| envoy::envoy(item, compat, report)).unwrap_or_default();
    let drafts = part("limits").map(|item| limits::limits(&item, report));
    if drafts.is_none() && imported.is_empty() {
        dimensions.require_for_default_rule(&default_dimensions(), report);
    }
    settings.required.clone_from(&dimensions.required);
    settings.optional = dimensions.optional();
    settings.secret.extend(dimensions.secret.iter().filter(|&name| name != "apiKey").cloned());
    let server = part("server").map(|item| service::server(item, report)).unwrap_or_default();
    let context = gateway::Context {
        listen: &listen,
        required: &marked_required,
        settings: &settings,
        store: &store,
        shutdown_grace: server.shutdown_grace,
        grace_option: part("server").and_then(|item| limits::option(&item, "shutdown_grace")),
    };
    let gateways = part("gateways").map(|item| gateway::gateways(&item, &context, report));
    let (gateways, of_routes) = gateways.unwrap_or_default();
    let groups = match &drafts {
        Some(drafts) => drafts.iter().map(DraftGroup::group).collect(),
        None if imported.is_empty() => default_groups(),
        None => Vec::new(),
    };
    let default_groups = if drafts.is_none() { groups.len() } else { 0 };
    let dispatch = part("dispatch")
        .and_then(|item| dispatch::dispatch(&item, &store, part("workers").as_ref(), report));
    let (dispatch, of_providers) = dispatch.unzip();
    let workers = part("workers").map(|item| dispatch::workers(&item, dispatch.as_ref(), report));
    let (workers, of_workers) = workers.unwrap_or_default();
    let of_jobs = of_providers.unwrap_or_default().into_iter().chain(of_workers).collect();
    // Names may come from variables, so the messages do not repeat them.
    let of_routes_message =
        "the name <gateway>/<route> of a route is also the name of a group or rule in limits";
    let of_jobs_message = "a rule or key of the file has the name dispatch/<provider> or \
                           worker/<provider>, which is reserved for the limits of providers";
    let section = |groups, item, message| Section { groups, item, message };
    let sections = [
        section(groups, part("limits"), None),
        section(imported, part("envoy"), None),
        section(of_routes, part("gateways"), Some(of_routes_message)),
        section(of_jobs, part("dispatch").or(part("workers")), Some(of_jobs_message)),
    ];
    let groups = all_groups(&sections);
    settings.needs = needs(&groups, &settings.optional);
    let ruleset = compile(&sections, drafts.as_deref(), &settings, report);
    if let Some(drafts) = &drafts {
        // Requests of Envoy and of gateways need not have the required dimensions.
        let others = part("envoy").is_some() || part("gateways").is_some();
        unreachable::check(drafts, if others { &[] } else { &settings.required }, report);
        let partition = part("store").and_then(|item| limits::option(&item, "partition"));
        let (dimensions, outage, store) = (&dimensions, &settings.outage, &store);
        let gateways = gateway::NamedDimensions::of(&gateways);
        let context = warnings::Context { dimensions, outage, store, partition, gateways };
        warnings::add_warnings(drafts, &context, report);
    }
    Some(Config {
        enabled: fields.read("enabled", true, report, scalar::boolean),
        listen,
        auth,
        store,
        store_reason,
        queue: part("queue").map(|item| queue::queue(item, env, report)),
        prices,
        log: part("log").map(|item| service::log(item, report)).unwrap_or_default(),
        metrics: part("metrics").map(|item| service::metrics(item, report)).unwrap_or_default(),
        traces: part("traces").and_then(|item| traces::traces(item, report)),
        envoy,
        gateways,
        dispatch,
        workers,
        server,
        groups,
        default_groups,
        ruleset,
    })
}

/// The groups of one section of a file.
struct Section<'n> {
    groups: Vec<Group>,
    /// The section, if the file has it.
    item: Option<Item<'n>>,
    /// Message if a name conflicts with an earlier section; `None` shows the errors of the compiler.
    message: Option<&'static str>,
}

/// Compiles the groups of all sections together. If that fails, finds the mistake: compiles the
/// `drafts` of the section `limits` alone, and then adds one section after the other.
fn compile(
    sections: &[Section<'_>],
    drafts: Option<&[DraftGroup<'_>]>,
    settings: &Settings,
    report: &mut Report,
) -> Ruleset {
    let fits = compile::dimensions_fit(drafts.unwrap_or_default(), report);
    if report.errors() == 0
        && let Ok(ruleset) = Ruleset::new(all_groups(sections), settings.clone())
    {
        return ruleset;
    }
    if let Some(drafts) = drafts.filter(|_| fits) {
        compile::check(drafts, settings, report);
    }
    for (number, Section { item, message, .. }) in sections.iter().enumerate() {
        let Some(item) = item.as_ref().filter(|_| report.errors() == 0) else { continue };
        let compiled = Ruleset::new(all_groups(&sections[..=number]), settings.clone());
        let errors = compiled.err().unwrap_or_default();
        let mut messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        if let Some(message) = message.filter(|_| !errors.is_empty()) {
            messages = vec![message.to_owned()];
        }
        for message in messages {
            item.fail(report, message, "rename one of them");
        }
    }
    // Never used, because the file has errors.
    Ruleset::default_rules()
}

fn all_groups(sections: &[Section<'_>]) -> Vec<Group> {
    sections.iter().flat_map(|section| section.groups.clone()).collect()
}

/// Returns the groups that apply if a file has no limits.
fn default_groups() -> Vec<Group> {
    let default = Ruleset::default_rules();
    default.groups().map(|(name, rules)| Group::new(name, rules.cloned())).collect()
}

fn default_dimensions() -> Vec<String> {
    default_groups().into_iter().flat_map(|group| group.rules).flat_map(|rule| rule.per).collect()
}

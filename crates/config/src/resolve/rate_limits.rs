//! Reads the `config.yaml` of the inference limiter that Sluicegate replaces: `redis` and
//! `rate_limits`. Other sections of our own format may stand beside them.
//!
//! | scope type | group | counted by |
//! |---|---|---|
//! | `API_KEY_MODEL` | caller | apiKey, modelId |
//! | `USER_MODEL` | caller | userId, modelId |
//! | `TENANT_MODEL_TIER` | tenant | tenantId, modelTier |
//! | `TENANT_GLOBAL` | tenant | tenantId |
//! | `GLOBAL_MODEL` | model | modelId |
//!
//! `default` is the last rule of the group caller. Scopes of one type and tier are one rule with
//! several windows. In a group, the order of the table decides, and a scope with a tier comes before
//! one without.

use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::{Settings, needs};
use sluicegate_core::{Group, Limit, Rule, Ruleset};

use super::item::{Fields, Item};
use super::store::SelectedStore;
use super::{Section, all_groups, compile, config, environment, redis, rule, scalar};
use crate::config::{Config, RedisStore, RedisTopology, StoreOptions};
use crate::location::{Location, Path};
use crate::raw::{Node, Value};
use crate::report::Report;

/// Sections of the old format.
const SECTIONS: [&str; 2] = ["redis", "rate_limits"];
/// Sections of our own format that would contradict the old ones.
const REPLACED: [&str; 3] = ["store", "limits", "dimensions"];
/// Dimensions that requests to the old limiter may leave out.
const OPTIONAL: [&str; 3] = ["apiKey", "tenantId", "modelTier"];
/// Largest limit, and longest window in milliseconds (285 years).
const NUMBER_MAX: u64 = 9_000_000_000_000;

/// The type of a scope, in the order in which scopes of a group are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ScopeType {
    ApiKeyModel,
    UserModel,
    TenantModelTier,
    TenantGlobal,
    GlobalModel,
}

impl ScopeType {
    const ALL: [(&'static str, Self); 5] = [
        ("API_KEY_MODEL", Self::ApiKeyModel),
        ("USER_MODEL", Self::UserModel),
        ("TENANT_MODEL_TIER", Self::TenantModelTier),
        ("TENANT_GLOBAL", Self::TenantGlobal),
        ("GLOBAL_MODEL", Self::GlobalModel),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    fn group(self) -> &'static str {
        match self {
            Self::ApiKeyModel | Self::UserModel => "caller",
            Self::TenantModelTier | Self::TenantGlobal => "tenant",
            Self::GlobalModel => "model",
        }
    }

    fn per(self) -> &'static [&'static str] {
        match self {
            Self::ApiKeyModel => &["apiKey", "modelId"],
            Self::UserModel => &["userId", "modelId"],
            Self::TenantModelTier => &["tenantId", "modelTier"],
            Self::TenantGlobal => &["tenantId"],
            Self::GlobalModel => &["modelId"],
        }
    }
}

/// All scopes of one type and tier.
struct Scope {
    kind: ScopeType,
    tier: Option<String>,
    limits: Vec<Limit>,
    reason: Option<String>,
}

/// Returns true if the file has the sections of the old format.
pub(super) fn is_old_format(root: &Node) -> bool {
    let Value::Map(entries) = &root.value else { return false };
    entries.iter().any(|(key, _)| key.text == "rate_limits")
}

/// Reads a file of the old format. The variables select the store before the section `redis` does.
pub(crate) fn file(
    root: &Node,
    env: &dyn Fn(&str) -> Option<String>,
    report: &mut Report,
) -> Option<Config> {
    let item = Item { node: root, path: Path::default() };
    let part = |key: &str| super::limits::option(&item, key);
    for key in REPLACED {
        if let Some(other) = part(key) {
            let message = "can't be combined with rate_limits";
            let remedy = "remove it, or write the whole file in the current format";
            other.fail(report, message, remedy);
        }
    }
    let from_file = part("redis").and_then(|item| redis_section(item, report));
    let selected = match environment::store(env) {
        Ok(selected) => selected.or(from_file),
        Err(error) => {
            let location = Location { position: root.at, path: Path::default() };
            report.error(&location, error.to_string(), "");
            None
        }
    };
    let groups = part("rate_limits").map(|item| groups(&item, report)).unwrap_or_default();
    let Value::Map(entries) = &root.value else { return None };
    let is_ours = |key: &str| !SECTIONS.contains(&key) && !REPLACED.contains(&key);
    let ours = entries.iter().filter(|(key, _)| is_ours(&key.text)).cloned().collect();
    let ours = Node { at: root.at, value: Value::Map(ours) };
    let default = SelectedStore {
        reason: "the file has no section redis and REDIS_URL is not set",
        ..SelectedStore::default()
    };
    let config = config(&ours, env, selected.unwrap_or(default), report)?;
    let mut settings: Settings = config.settings().clone();
    settings.optional = OPTIONAL.map(str::to_owned).into();
    settings.needs = needs(&groups, &settings.optional);
    let sections = [Section { groups, item: part("rate_limits"), message: None }];
    let ruleset = compile(&sections, None, &settings, report);
    Some(Config { groups: all_groups(&sections), default_groups: 0, ruleset, ..config })
}

/// Reads `redis: {cluster_mode, endpoints, timeout_ms}`.
fn redis_section(item: Item<'_>, report: &mut Report) -> Option<SelectedStore> {
    let fields = Fields::open(item, &["cluster_mode", "endpoints", "timeout_ms"], report)?;
    let in_cluster = fields.read("cluster_mode", false, report, scalar::boolean);
    let timeout = fields.read_some("timeout_ms", report, |item, report| {
        scalar::whole(item, report, 1..=60_000).map(sluicegate_core::Span::from_millis)
    });
    let remedy = "write the servers, such as endpoints: [\"127.0.0.1:6379\"]";
    let endpoints = fields.require("endpoints", remedy, report)?;
    let mut servers = Vec::new();
    for item in endpoints.one_or_more() {
        servers.extend(redis::addresses(&item, report)?);
    }
    let topology = match (in_cluster, servers.len()) {
        (_, 0) => {
            endpoints.fail(report, "empty list of servers", remedy);
            return None;
        }
        (true, _) => RedisTopology::Cluster(servers),
        (false, 1) => RedisTopology::Single(servers.remove(0)),
        (false, _) => {
            let remedy = "write cluster_mode: true if they are one Redis Cluster, or one server";
            endpoints.fail(report, "more than one server", remedy);
            return None;
        }
    };
    let mut store = RedisStore { topology, timeout, ..RedisStore::default() };
    // Two attempts and the pause between them must fit.
    store.deadline = timeout.map(|timeout| {
        let attempts = u64::from(store.retries) + 1;
        let pauses = u64::from(store.retries) * super::store::BACKOFF_MAX.as_micros();
        sluicegate_core::Span::from_micros(attempts * timeout.as_micros() + pauses)
    });
    Some(SelectedStore {
        options: StoreOptions::Redis(store),
        reason: "the section redis names the servers",
    })
}

/// Reads `rate_limits: {default, scopes}`.
fn groups(item: &Item<'_>, report: &mut Report) -> Vec<Group> {
    let null = matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_null());
    let fields = match null {
        true => None,
        false => Fields::open(item.clone(), &["default", "scopes"], report),
    };
    let default = fields.as_ref().and_then(|fields| fields.get("default"));
    let default_limit = default.as_ref().and_then(|item| default_limit(item, report));
    let items = fields.and_then(|fields| fields.get("scopes")).and_then(|item| {
        item.list(report, "write a list of scopes, each with type, limit and window_ms")
    });
    let mut scopes = scopes(items.unwrap_or_default(), report);
    match scopes.iter().find(|scope| scope.kind == ScopeType::UserModel && scope.tier.is_none()) {
        Some(scope) => {
            let differs = default_limit.filter(|limit| scope.limits != [limit.clone()]);
            if let (Some(item), Some(_)) = (&default, differs) {
                let message = "never applies, because the scope USER_MODEL matches every request";
                item.warn(report, message, "remove it, or the scope USER_MODEL");
            }
        }
        None => {
            let limits = match default_limit {
                Some(limit) => vec![limit],
                None => system_default(),
            };
            let kind = ScopeType::UserModel;
            scopes.push(Scope { kind, tier: None, limits, reason: None });
        }
    }
    scopes.sort_by_key(|scope| (scope.kind, scope.tier.is_none()));
    let mut groups: Vec<Group> = Vec::new();
    for scope in &scopes {
        let rule = to_rule(scope, &scopes);
        let name = scope.kind.group();
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.rules.push(rule),
            None => groups.push(Group { effective: name == "caller", ..Group::new(name, [rule]) }),
        }
    }
    groups
}

/// Returns the limits that apply if the file has no default.
fn system_default() -> Vec<Limit> {
    let rules = Ruleset::default_rules();
    let limits = rules.groups().flat_map(|(_, rules)| rules).map(|rule| rule.limits.clone());
    limits.flatten().collect()
}

fn default_limit(item: &Item<'_>, report: &mut Report) -> Option<Limit> {
    let fields = Fields::open(item.clone(), &["limit", "window_ms"], report)?;
    limit(&fields, report)
}

/// Reads `limit` and `window_ms` of a map.
fn limit(fields: &Fields<'_>, report: &mut Report) -> Option<Limit> {
    let amount = fields.require("limit", "write a number of requests, such as 100", report);
    let window = fields.require("window_ms", "write milliseconds, such as 3600000", report);
    let number =
        |item: Option<Item<'_>>, report: &mut Report| scalar::whole(&item?, report, 1..=NUMBER_MAX);
    let (amount, window) = (number(amount, report), number(window, report));
    let text = format!("{}/{}ms", amount?, window?);
    match text.parse() {
        Ok(limit) => Some(limit),
        Err(error) => {
            report.error(&fields.location(), error.to_string(), "");
            None
        }
    }
}

fn scopes(items: Vec<Item<'_>>, report: &mut Report) -> Vec<Scope> {
    let known = ["type", "limit", "window_ms", "tier", "reason"];
    let mut scopes: Vec<Scope> = Vec::new();
    for item in items {
        let Some(fields) = Fields::open(item.clone(), &known, report) else { continue };
        let kind = fields.require("type", "write a type, such as USER_MODEL", report);
        let kind = kind.and_then(|item| scalar::word(&item, report, &ScopeType::ALL));
        let limit = limit(&fields, report);
        let tier = fields.read_some("tier", report, scalar::text);
        let reason = fields.read_some("reason", report, rule::reason);
        let (Some(kind), Some(limit)) = (kind, limit) else { continue };
        let same = scopes.iter_mut().find(|scope| scope.kind == kind && scope.tier == tier);
        let Some(scope) = same else {
            scopes.push(Scope { kind, tier, limits: vec![limit], reason });
            continue;
        };
        if scope.limits.iter().any(|other| other.window() == limit.window()) {
            let message = "duplicate scope: an earlier one has the same type, tier and window";
            item.fail(report, message, "remove one of them");
        }
        scope.limits.push(limit);
        scope.reason = scope.reason.take().or(reason);
    }
    scopes
}

/// Returns the rule of a scope. Names of rules are unique, so the tier is part of the name if several
/// scopes have the same type; denials have the reason of the type nevertheless.
fn to_rule(scope: &Scope, scopes: &[Scope]) -> Rule {
    let kind = scope.kind;
    let is_only = scopes.iter().filter(|other| other.kind == kind).count() == 1;
    let tier = scope.tier.as_deref().filter(|_| !is_only);
    let name = match tier {
        Some(tier) => format!("{}_{tier}", kind.name()),
        None => kind.name().to_owned(),
    };
    let mut rule = Rule::new(name, scope.limits.clone()).per(kind.per());
    if let Some(tier) = &scope.tier {
        rule = rule.when("modelTier", Pattern::exactly(tier.clone()));
    }
    let of_type = || tier.map(|_| format!("HIT_{}_LIMIT", kind.name()));
    rule.reason = scope.reason.clone().or_else(of_type);
    rule
}

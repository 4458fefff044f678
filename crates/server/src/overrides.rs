//! [`Overrides`]: limits set at run time on one node, kept in the override store, and applied by
//! every node within a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use sluicegate_core::override_store::{OverrideStore, OverridesVersion};
use sluicegate_core::overrides::Override;
use sluicegate_core::query::VALUE_BYTES_MAX;
use sluicegate_core::rule::{Pattern, SecretHasher};
use sluicegate_core::ruleset::{RulesetProblem, Settings};
use sluicegate_core::store;
use sluicegate_core::{Id, Limit, Ruleset, Span, Timestamp};
use tokio::sync::Mutex;
use tracing::{debug, info, warn};

use crate::former_limits::{self, LimitsInUse};
use crate::refusal::{Refusal, RefusalKind};
use crate::service::{AuditEntry, Service};

/// Maximum length of the reason, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 500;
/// Maximum number of conditions or limits of one override.
const PARTS_MAX: usize = 10;
/// Marks the hash of a secret value in a condition: API keys are not stored in clear.
const HASH: &str = "hash:";
/// The word for no limit.
const UNLIMITED: &str = "unlimited";

/// The overrides of a service.
pub struct Overrides {
    service: Arc<Service>,
    store: Arc<dyn OverrideStore>,
    cache: Mutex<OverrideCache>,
    /// True if the limits of the rules must still be written to the store.
    limits_unwritten: AtomicBool,
}

/// The overrides as last read from the store.
#[derive(Default)]
struct OverrideCache {
    version: Option<OverridesVersion>,
    entries: Vec<CachedOverride>,
    /// True if the last read failed.
    stale: bool,
    /// The limits of all rules in the store.
    limits: Option<LimitsInUse>,
}

struct CachedOverride {
    document: OverrideDocument,
    meaning: Override,
    /// End by the clock of this node, so that it applies also while the store does not answer.
    ends: Option<Timestamp>,
}

/// The request to set an override.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OverrideBody {
    rule: String,
    #[serde(default)]
    when: BTreeMap<String, OneOrMore>,
    #[serde(deserialize_with = "limit")]
    limit: OneOrMore,
    expires_in: Option<String>,
    reason: String,
}

/// An override as it is stored and returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OverrideDocument {
    id: String,
    rule: String,
    when: BTreeMap<String, OneOrMore>,
    limit: OneOrMore,
    reason: String,
    by: String,
    since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

/// One text or a list of texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be a string or an array of strings")]
pub(crate) enum OneOrMore {
    /// A single text.
    One(String),
    /// A list.
    More(Vec<String>),
}

/// Deserializes the limit of an override; a ban may be written as the number 0.
fn limit<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<OneOrMore, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be a limit such as \"100/h\", an array of limits, or 0")]
    enum Limit {
        Number(u64),
        Text(OneOrMore),
    }
    Ok(match Limit::deserialize(deserializer)? {
        Limit::Number(number) => OneOrMore::One(number.to_string()),
        Limit::Text(text) => text,
    })
}

/// An override in a listing, with the reason if it has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedOverride {
    #[serde(flatten)]
    document: OverrideDocument,
    /// The reason why it has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Overrides {
    /// Creates the overrides of a service.
    pub fn new(service: Arc<Service>, store: Arc<dyn OverrideStore>) -> Self {
        let limits_unwritten = AtomicBool::new(true);
        Self { service, store, cache: Mutex::default(), limits_unwritten }
    }

    /// Reads the store and applies its overrides. While the store does not answer, the overrides
    /// from the last read stay in force, each until its own end.
    pub async fn refresh(&self) {
        let cache = &mut *self.cache.lock().await;
        let read = self.store.read(cache.version).await;
        let failed = read.is_err();
        match read {
            Ok(Some(contents)) => {
                let here = self.service.now();
                let limits = contents.texts.iter().find_map(|text| LimitsInUse::parse(text));
                let texts = contents.texts.iter().filter(|text| LimitsInUse::parse(text).is_none());
                let rules = self.service.limiter().rules();
                let entries = texts.filter_map(|text| {
                    let times = (contents.at, here);
                    let entry = CachedOverride::read(text, times, rules.settings());
                    if entry.is_none() {
                        warn!(%text, "cannot parse an override: it may be from another version");
                    }
                    entry
                });
                cache.entries = entries.collect();
                cache.version = Some(contents.version);
                self.apply(cache);
                if let Some(limits) =
                    limits.as_ref().filter(|limits| cache.limits.as_ref() != Some(limits))
                {
                    self.service.limiter().carry_over(&limits.until(here), here);
                }
                cache.limits = limits;
            }
            Ok(None) => {}
            Err(problem) if !cache.stale => {
                warn!(%problem, "can't read overrides: using the last known ones");
            }
            Err(_) => {}
        }
        cache.stale = failed;
        let now = self.service.now();
        let before = cache.entries.len();
        cache.entries.retain(|entry| entry.ends.is_none_or(|ends| ends > now));
        if cache.entries.len() < before {
            self.apply(cache);
        }
        if !cache.stale && self.limits_unwritten.swap(false, Ordering::AcqRel) {
            self.write_limits(cache).await;
        }
    }

    /// Makes the next refresh write the limits of the rules, which have changed.
    pub fn limits_changed(&self) {
        self.limits_unwritten.store(true, Ordering::Release);
    }

    /// Writes the limits of the rules, for nodes that start later with other limits.
    async fn write_limits(&self, cache: &mut OverrideCache) {
        let rules = self.service.limiter().rules();
        let limits = LimitsInUse::of(&rules, rules.former_limits());
        if cache.limits.as_ref() == Some(&limits) {
            return;
        }
        let text = serde_json::to_string(&limits).expect("a map of texts");
        match self.store.put(former_limits::NAME, &text, None).await {
            Ok(()) => cache.limits = Some(limits),
            Err(problem) => {
                debug!(%problem, "cannot write the limits of the rules to the override store");
                // The next refresh retries.
                self.limits_changed();
            }
        }
    }

    fn apply(&self, cache: &OverrideCache) {
        let meanings: Vec<_> = cache.entries.iter().map(|entry| entry.meaning.clone()).collect();
        self.service.limiter().set_overrides(&meanings, self.service.now());
    }

    /// Returns all overrides.
    pub(crate) async fn list(&self) -> Vec<ListedOverride> {
        self.refresh().await;
        let cache = self.cache.lock().await;
        let rules = self.service.limiter().rules();
        let mut shown: Vec<_> = cache.entries.iter().collect();
        shown.sort_by_key(|entry| entry.meaning.since);
        let problem = |id: Id| {
            let misfit = rules.ineffective_overrides().iter().find(|(other, _)| *other == id);
            misfit.map(|(_, error)| error.to_string())
        };
        shown
            .into_iter()
            .map(|entry| ListedOverride {
                document: entry.document.clone(),
                problem: problem(entry.meaning.id),
            })
            .collect()
    }

    /// Sets an override. It applies on this node when the call returns.
    pub(crate) async fn set(
        &self,
        body: OverrideBody,
        by: &str,
    ) -> Result<OverrideDocument, Refusal> {
        let (id, now) = (self.service.request_id().id, self.service.now());
        let (mut document, lasts) = body.document(id, by, now)?;
        let rules = self.service.limiter().rules();
        // Checks the values before their hashes replace them.
        document.meaning(rules.settings())?;
        document.hash_secrets(rules.settings())?;
        let meaning = document.meaning(rules.settings())?;
        check_names(&meaning, &rules)?;
        check_units(&meaning, &rules)?;
        let rules = rules.with_overrides(&[meaning]);
        if let Some((_, error)) = rules.ineffective_overrides().first() {
            let kind = match error.problem {
                RulesetProblem::NoSuchRule => RefusalKind::Unknown,
                _ => RefusalKind::Invalid,
            };
            return Err(Refusal::new(kind, error.to_string()));
        }
        let text = serde_json::to_string(&document).map_err(|error| {
            Refusal::new(RefusalKind::Internal, format!("cannot write the override: {error}"))
        })?;
        self.store.put(id, &text, lasts).await.map_err(store_error)?;
        info!(
            id = %document.id, rule = %document.rule, override = %text, by, reason = %document.reason,
            "override set"
        );
        self.audit("override set", &document, by, &document.reason);
        self.refresh().await;
        Ok(document)
    }

    /// Removes an override.
    pub(crate) async fn remove(&self, id: &str, by: &str, reason: &str) -> Result<(), Refusal> {
        let unknown = || {
            Refusal::new(
                RefusalKind::Unknown,
                "unknown override id: `sluicegate override list` shows all",
            )
        };
        let name: Id = id.parse().map_err(|_| unknown())?;
        if name == former_limits::NAME {
            return Err(unknown());
        }
        let known = {
            let cache = self.cache.lock().await;
            let entry = cache.entries.iter().find(|entry| entry.meaning.id == name);
            entry.map(|entry| entry.document.clone())
        };
        if !self.store.remove(name).await.map_err(store_error)? {
            return Err(unknown());
        }
        info!(id, by, "override removed");
        if let Some(document) = known {
            self.audit("override removed", &document, by, reason);
        }
        self.refresh().await;
        Ok(())
    }

    /// Writes an action to the audit log.
    fn audit(&self, action: &'static str, document: &OverrideDocument, by: &str, reason: &str) {
        let condition = |(name, values): (&String, &OneOrMore)| {
            let values = values.texts().join("|");
            format!("{name}={values}")
        };
        let conditions: Vec<_> = document.when.iter().map(condition).collect();
        let conditions =
            if conditions.is_empty() { "all requests".to_owned() } else { conditions.join(" ") };
        let limit = document.limit.texts().join(", ");
        let end = document.expires_at.as_deref().map(|at| format!(" until {at}"));
        self.service.audit().record(AuditEntry {
            at: self.service.now(),
            by: by.to_owned(),
            action,
            target: document.rule.clone(),
            reason: reason.to_owned(),
            detail: format!("{conditions}: {limit}{}", end.unwrap_or_default()),
        });
    }
}

/// Refuses a condition on a dimension that no rule has, if it is a misspelling of one that a rule has:
/// the override would match no request.
fn check_names(meaning: &Override, rules: &Ruleset) -> Result<(), Refusal> {
    let mut known: Vec<&str> = vec!["userId", "modelId"];
    for (_, rules) in rules.groups() {
        for rule in rules {
            known.extend(rule.per.iter().map(String::as_str));
            known.extend(rule.when.iter().map(|(name, _)| name.as_str()));
        }
    }
    for (name, _) in &meaning.when {
        let is_misspelled =
            |word: &&&str| strsim::osa_distance(&name.to_lowercase(), &word.to_lowercase()) <= 1;
        if !known.contains(&name.as_str())
            && let Some(meant) = known.iter().find(is_misspelled)
        {
            let right = format!("unknown dimension: did you mean {meant}?");
            return Err(Refusal::field(format!("when.{name}"), right).into_conflict());
        }
    }
    Ok(())
}

/// Refuses limits that leave out a unit of the rule: the override replaces all of its limits, so a
/// budget would silently be without limit.
fn check_units(meaning: &Override, rules: &Ruleset) -> Result<(), Refusal> {
    let is_ban = meaning.limits.iter().any(|limit| matches!(limit, Limit::Banned { .. }));
    if meaning.limits.is_empty() || is_ban {
        return Ok(());
    }
    let mut all = rules.groups().flat_map(|(_, rules)| rules);
    let limits = all.find(|rule| rule.name == meaning.rule).map(|rule| &rule.limits);
    let is_lost = |limit: &&Limit| {
        !matches!(limit, Limit::Banned { .. })
            && meaning.limits.iter().all(|other| other.unit() != limit.unit())
    };
    let Some(lost) = limits.and_then(|limits| limits.iter().find(is_lost)) else { return Ok(()) };
    let right = format!(
        "the override replaces all limits of the rule, and has none for {}: list it as well, such as \
         \"{lost}\"",
        lost.unit()
    );
    Err(Refusal::field("limit", right).into_conflict())
}

/// Converts an error of the override store, which has fewer kinds of errors than a store.
fn store_error(error: store::Error) -> Refusal {
    match error {
        store::Error::Full => Refusal::new(
            RefusalKind::Conflict,
            "the maximum number of overrides is reached: remove some",
        ),
        other => Refusal::new(RefusalKind::Unavailable, other.to_string()),
    }
}

impl OverrideBody {
    fn document(
        self,
        id: Id,
        by: &str,
        now: Timestamp,
    ) -> Result<(OverrideDocument, Option<Span>), Refusal> {
        let reason = self.reason.trim().to_owned();
        if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
            let right =
                format!("must have 1 to {REASON_BYTES_MAX} bytes: say why the override is set");
            return Err(Refusal::field("reason", right));
        }
        let lasts = match &self.expires_in {
            None => None,
            Some(text) => match text.parse::<Span>() {
                Ok(span) if span > Span::ZERO => Some(span),
                Ok(_) => return Err(Refusal::field("expiresIn", "must be longer than 0")),
                Err(error) => return Err(Refusal::field("expiresIn", error.to_string())),
            },
        };
        let document = OverrideDocument {
            id: id.to_string(),
            rule: self.rule,
            when: self.when,
            limit: self.limit,
            reason,
            by: by.to_owned(),
            since: now.to_string(),
            expires_at: lasts.map(|lasts| (now + lasts).to_string()),
        };
        Ok((document, lasts))
    }
}

impl OneOrMore {
    fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::More(texts) => texts,
        }
    }

    fn texts_mut(&mut self) -> &mut [String] {
        match self {
            Self::One(text) => std::slice::from_mut(text),
            Self::More(texts) => texts,
        }
    }
}

/// Returns the hash in a condition on a secret dimension, if the value is one.
fn hash_of(value: &str) -> Option<&str> {
    let hash = value.strip_prefix(HASH)?;
    let is_hash = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(hash)
}

impl OverrideDocument {
    /// Replaces values of secret dimensions by their hashes.
    fn hash_secrets(&mut self, settings: &Settings) -> Result<(), Refusal> {
        let secrets = SecretHasher::new(settings.hash_key);
        for (name, values) in &mut self.when {
            if !settings.secret.contains(name) {
                continue;
            }
            if matches!(values, OneOrMore::One(text) if text.contains(['*', '?'])) {
                let right = "values of this dimension are secret and stored as hashes, so a \
                             pattern can't match them: write the whole value";
                return Err(Refusal::field(format!("when.{name}"), right));
            }
            for value in values.texts_mut() {
                if hash_of(value).is_none() {
                    *value = format!("{HASH}{}", secrets.hash(value));
                }
            }
        }
        Ok(())
    }

    /// Parses the document into an override.
    fn meaning(&self, settings: &Settings) -> Result<Override, Refusal> {
        let unreadable = |field: &str| Refusal::field(field, "cannot be parsed");
        Ok(Override {
            id: self.id.parse().map_err(|_| unreadable("id"))?,
            rule: self.rule.clone(),
            when: self.conditions(settings)?,
            limits: self.limits()?,
            since: self.since.parse().map_err(|_| unreadable("since"))?,
            until: None,
        })
    }

    fn conditions(&self, settings: &Settings) -> Result<Vec<(String, Pattern)>, Refusal> {
        if self.when.len() > PARTS_MAX {
            return Err(Refusal::field("when", format!("has more than {PARTS_MAX} conditions")));
        }
        let mut conditions = Vec::new();
        for (dimension, values) in &self.when {
            let field = || format!("when.{dimension}");
            if dimension.is_empty() || dimension.len() > VALUE_BYTES_MAX {
                let right =
                    format!("the name of a dimension must have 1 to {VALUE_BYTES_MAX} bytes");
                return Err(Refusal::field(field(), right));
            }
            for value in values.texts() {
                if value.is_empty() || value.len() > VALUE_BYTES_MAX {
                    let right = format!("a value must have 1 to {VALUE_BYTES_MAX} bytes");
                    return Err(Refusal::field(field(), right));
                }
            }
            let is_secret = settings.secret.contains(dimension);
            let hashes = values.texts().iter().map(|text| hash_of(text).map(str::to_owned));
            let hashes = hashes.collect::<Option<Vec<_>>>();
            let hashes = hashes.filter(|_| is_secret);
            let pattern = match (hashes, values) {
                (Some(hashes), _) => Pattern::Hashed(SecretHasher::new(settings.hash_key), hashes),
                (None, OneOrMore::One(text)) => Pattern::from_text(text.clone()),
                (None, OneOrMore::More(texts)) => Pattern::OneOf(texts.clone()),
            };
            conditions.push((dimension.clone(), pattern));
        }
        Ok(conditions)
    }

    fn limits(&self) -> Result<Vec<Limit>, Refusal> {
        let texts = self.limit.texts();
        if texts.is_empty() || texts.len() > PARTS_MAX {
            let right = format!(
                "write 1 to {PARTS_MAX} limits such as 100/min, {UNLIMITED}, or 0 for a ban"
            );
            return Err(Refusal::field("limit", right));
        }
        if texts == [UNLIMITED] {
            return Ok(Vec::new());
        }
        let limit = |text: &String| {
            let parsed = text.parse::<Limit>();
            parsed.map_err(|error| Refusal::field("limit", error.to_string()))
        };
        texts.iter().map(limit).collect()
    }
}

impl CachedOverride {
    /// Parses a document of the store. `there` is the time of the store and `here` the time of this
    /// node, at the same instant.
    fn read(
        text: &str,
        (there, here): (Timestamp, Timestamp),
        settings: &Settings,
    ) -> Option<Self> {
        let document: OverrideDocument = serde_json::from_str(text).ok()?;
        let ends = match &document.expires_at {
            None => None,
            Some(at) => Some(here + at.parse::<Timestamp>().ok()?.since(there)),
        };
        let meaning = Override { until: ends, ..document.meaning(settings).ok()? };
        Some(Self { document, meaning, ends })
    }
}

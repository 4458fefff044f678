//! `POST /v1/reset`: deletes usage.
//!
//! A request may be charged on counters that others share, such as that of its tenant. So the
//! caller selects the rules:
//!
//! | parameters | deleted |
//! |---|---|
//! | `?rule=NAME`, also several | the counters of these rules |
//! | `?all=true` | every counter that the request is charged on |
//! | none | the counters, if all of them belong to one rule; otherwise a 400 that names the rules |
//! | `?dry_run=true` in addition | nothing: the answer lists what would be deleted |
//! | `?reason=TEXT` in addition | the reason is written to the audit log; a request of a web page needs one |

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query as Parameters, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;
use sluicegate_core::Plan;
use sluicegate_core::query::RuleScope;

use super::decode::JsonBody;
use super::problem::Problem;
use super::{decode, reason, usage};
use crate::auth::Caller;
use crate::request::Request;
use crate::service::{AuditEntry, Service};

/// Deletes the usage of the counters that a request is charged on.
pub(super) async fn reset(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    parameters: Result<Parameters<Vec<(String, String)>>, QueryRejection>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let Parameters(parameters) =
        parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
    let mut selection = RuleSelection::read(parameters)?;
    if !selection.dry_run {
        selection.reason = reason::of_action(&headers, &selection.reason)?;
    }
    let request: Request = decode::shaped(&body)?;
    let mut query = usage::unpriced(request.query(caller.name(), service.request_id())?);
    // A reset needs only the dimensions of the counters that it selects.
    query.rule_scope = RuleScope::View;
    let counters = service.with_plan(&query, async |_, _, plan| Ok(counters(plan))).await?;
    selection.check(&counters)?;
    if selection.dry_run {
        let would = counters.iter().filter(|(rule, _)| selection.takes(rule));
        let would: Vec<_> = would.map(|(rule, key)| json!({ "rule": rule, "key": key })).collect();
        return Ok(super::json(json!({ "reset": [], "wouldReset": would }).to_string()));
    }
    let keys = |plan: &Plan<'_>| -> Vec<String> {
        plan.charges().iter().map(|charge| charge.key.to_string()).collect()
    };
    let reset = service.reset(&query, |rule| selection.takes(rule), keys).await?;
    service.audit().record(AuditEntry {
        at: service.now(),
        by: caller.name().to_owned(),
        action: "reset",
        target: reset.join(", "),
        reason: selection.reason,
        detail: format!("counters: {}", reset.len()),
    });
    Ok(super::json(json!({ "reset": reset }).to_string()))
}

/// Returns the counters of a plan, each with its rule.
fn counters(plan: &Plan<'_>) -> Vec<(String, String)> {
    let counter =
        |charge: &sluicegate_core::Charge<'_>| (charge.rule().name.clone(), charge.key.to_string());
    plan.charges().iter().map(counter).collect()
}

/// The selected rules.
#[derive(Debug, Default)]
struct RuleSelection {
    rules: Vec<String>,
    all: bool,
    dry_run: bool,
    /// Reason for the audit log.
    reason: String,
}

impl RuleSelection {
    fn read(parameters: Vec<(String, String)>) -> Result<Self, Problem> {
        let mut selection = Self::default();
        for (name, value) in parameters {
            match (name.as_str(), value.as_str()) {
                ("rule", _) => selection.rules.push(value),
                ("reason", _) => selection.reason = value,
                ("all", "true" | "false") => selection.all = value == "true",
                ("dry_run", "true" | "false") => selection.dry_run = value == "true",
                ("all" | "dry_run", _) => {
                    return Err(Problem::field(name, "write true or false"));
                }
                _ => {
                    let right =
                        "is unknown: write rule=NAME, all=true, dry_run=true or reason=TEXT";
                    return Err(Problem::field(name, right));
                }
            }
        }
        if selection.all && !selection.rules.is_empty() {
            return Err(Problem::field("all", "contradicts rule: write one of them"));
        }
        Ok(selection)
    }

    /// Returns true if the rule is selected.
    fn takes(&self, rule: &str) -> bool {
        self.rules.is_empty() || self.rules.iter().any(|name| name == rule)
    }

    /// Refuses an ambiguous selection, or a rule that does not charge the request.
    fn check(&self, counters: &[(String, String)]) -> Result<(), Problem> {
        let mut rules: Vec<&str> = counters.iter().map(|(rule, _)| rule.as_str()).collect();
        rules.dedup();
        let listed = if rules.is_empty() { "none".to_owned() } else { rules.join(", ") };
        if let Some(unknown) = self.rules.iter().find(|name| !rules.contains(&name.as_str())) {
            let right = format!("{unknown} does not charge this request: its rules are {listed}");
            return Err(Problem::field("rule", right));
        }
        if self.rules.is_empty() && !self.all && !self.dry_run && rules.len() > 1 {
            let right = format!(
                "this would reset the counters of {listed}, which others may share: select the rules \
                 with ?rule=NAME, or send ?all=true"
            );
            return Err(Problem::field("rule", right));
        }
        Ok(())
    }
}

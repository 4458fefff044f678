//! `POST /v1/explain`: explains a decision by its groups, rules, keys and usage.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use sluicegate_core::query::Query;
use sluicegate_core::ruleset::explain::{AppliedRule, SkippedRule};
use sluicegate_core::store::Store;
use sluicegate_core::{Charge, Plan, Ruleset};

use super::decode::JsonBody;
use super::problem::Problem;
use super::{decode, encode};
use crate::answer::{Answer, AnswerContext};
use crate::auth::Caller;
use crate::json::object;
use crate::request::Request;
use crate::service::Service;

/// Returns the decision that a request would get, with its reasons. Charges nothing.
pub(super) async fn explain(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let request: Request = decode::shaped(&body)?;
    let queries = [request.query(caller.name(), service.request_id())?];
    let answered = service.with_plan(&queries[0], async |store, rules, plan| {
        let (checked_plan, decision) = match plan.ban(service.now()) {
            Some(banned) => banned,
            None => (plan.clone(), store.peek(plan).await?),
        };
        let answer =
            Answer::new(rules, &checked_plan, &decision).with_context(AnswerContext::of(&queries));
        Ok(super::json(object(|json| {
            json.object("decision", |json| encode::native_fields(&answer, None, json));
            json.value("groups", &groups(rules, &queries[0], plan));
        })))
    });
    Ok(answered.await?)
}

/// Returns each group with the rule that applies, the shadow rules before it, their counters and
/// overrides, and the reasons why the others do not apply.
fn groups(rules: &Ruleset, query: &Query<'_>, plan: &Plan<'_>) -> Vec<Value> {
    let explained = rules.explain(query).into_iter().enumerate().map(|(number, group)| {
        let mut matched = Vec::new();
        for applied in &group.applied {
            let charges = plan.charges().iter();
            let of_rule = |charge: &&Charge<'_>| {
                charge.group() == number && charge.rule().name == applied.rule.name
            };
            let before = matched.len();
            matched.extend(charges.filter(of_rule).map(|charge| counter(charge, applied)));
            if matched.len() == before {
                // Nothing is counted: the rule, or its override, has no limit.
                let mut rule = json!({ "rule": applied.rule.name, "limits": [], "unlimited": true });
                describe(&mut rule, applied);
                matched.push(rule);
            }
        }
        let skip = |skipped: &SkippedRule<'_>| {
            json!({ "rule": skipped.rule, "because": skipped.because.to_string() })
        };
        let skipped: Vec<_> = group.skipped.iter().map(skip).collect();
        let mut answered = json!({
            "group": group.name,
            "rules": group.rules,
            "matched": matched,
            "skipped": skipped,
        });
        if group.skipped_more > 0 {
            answered["skippedMore"] = group.skipped_more.into();
        }
        answered
    });
    explained.collect()
}

fn counter(charge: &Charge<'_>, applied: &AppliedRule<'_>) -> Value {
    let limits: Vec<_> = charge.limits().iter().map(ToString::to_string).collect();
    let mut answered = json!({
        "rule": charge.rule().name,
        "key": charge.key.to_string(),
        "limits": limits,
        "needs": charge.need,
        "takes": charge.take,
        "shadow": charge.shadow(),
    });
    describe(&mut answered, applied);
    answered
}

/// Adds the description and the reason of the rule, and the override that is in force, if any.
fn describe(rule: &mut Value, applied: &AppliedRule<'_>) {
    if let Some(description) = &applied.rule.description {
        rule["description"] = description.as_str().into();
    }
    if let Some(reason) = &applied.rule.reason {
        rule["reason"] = reason.as_str().into();
    }
    let Some(one) = applied.overridden else { return };
    rule["override"] = json!({ "id": one.id.to_string(), "since": one.since.to_string() });
    if let Some(until) = one.until {
        rule["override"]["until"] = until.to_string().into();
    }
}

//! Why a query is decided as it is: groups, rules, keys, usage, verdict.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use sluicegate_core::store::Store;
use sluicegate_core::time::Clock;
use sluicegate_core::{Plan, Ruleset};

use super::decode::JsonBody;
use super::problem::Problem;
use super::{decode, encode};
use crate::answer::{Answer, Asked};
use crate::auth::Caller;
use crate::request::Request;
use crate::service::Service;

/// Tells what would be decided, and why. Consumes nothing.
pub(super) async fn explain<S: Store, C: Clock>(
    State(service): State<Arc<Service<S, C>>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let request: Request = decode::shaped(&body)?;
    let queries = [request.query(caller.name(), service.request_id())?];
    let told = service.with_plan(&queries[0], async |store, rules, plan| {
        let (asked, decision) = match plan.ban(service.now()) {
            Some(banned) => banned,
            None => (plan.clone(), store.peek(plan).await?),
        };
        let verdict =
            encode::native(&Answer::new(rules, &asked, &decision).to(Asked::by(&queries)), None);
        let verdict: Value = serde_json::from_slice(&verdict).unwrap_or_default();
        let told = json!({ "groups": groups(rules, plan), "decision": verdict });
        Ok(super::json(told.to_string().into_bytes()))
    });
    Ok(told.await?)
}

/// Each group with the rule that applies in it, the shadow rules before it, and their counters.
fn groups(rules: &Ruleset, plan: &Plan<'_>) -> Vec<Value> {
    let explained = rules.groups().enumerate().map(|(number, (name, rules))| {
        let matched = plan.charges().iter().filter(|charge| charge.group() == number);
        let matched: Vec<Value> = matched
            .map(|charge| {
                let limits: Vec<_> = charge.limits().iter().map(ToString::to_string).collect();
                json!({
                    "rule": charge.rule().name,
                    "key": charge.key.to_string(),
                    "limits": limits,
                    "needs": charge.need,
                    "takes": charge.take,
                    "shadow": charge.shadow(),
                })
            })
            .collect();
        json!({ "group": name, "rules": rules.count(), "matched": matched })
    });
    explained.collect()
}

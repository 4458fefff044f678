//! Endpoints that return the usage of limits. Reading charges nothing.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query as Parameters, State};
use axum::response::Response;
use sluicegate_core::limit::Unit;
use sluicegate_core::query::{Query, RuleScope};
use sluicegate_core::store::Store;

use super::decode::JsonBody;
use super::problem::Problem;
use super::{decode, encode};
use crate::answer::{self, Answer, Scope};
use crate::auth::Caller;
use crate::json::{JsonObject, object};
use crate::request::Request;
use crate::service::Service;
use crate::window::NamedWindow;

/// The subject of a usage answer: its dimension, and the field that repeats its name.
#[derive(Clone, Copy)]
struct UsageSubject {
    dimension: &'static str,
    field: &'static str,
}

const USER: UsageSubject = UsageSubject { dimension: "userId", field: "user_id" };
const TENANT: UsageSubject = UsageSubject { dimension: "tenantId", field: "tenant_id" };
const MODEL: UsageSubject = UsageSubject { dimension: "modelId", field: "model_id" };

/// Sets the cost in money to 0 if it is unknown: reading and resetting need no price.
pub(super) fn unpriced(mut query: Query<'_>) -> Query<'_> {
    query.cost.money = Some(query.cost.money.unwrap_or_default());
    query
}

/// Returns the usage of every limit of a request.
pub(super) async fn usage(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let request: Request = decode::shaped(&body)?;
    let query = unpriced(request.query(caller.name(), service.request_id())?);
    let answered = service.with_plan(&query, async |store, rules, plan| {
        let usage = store.usage(plan).await?;
        let at = usage.at;
        let shown = answer::usage_as_decision(usage);
        Ok(super::json(encode::usage(at, Answer::new(rules, plan, &shown).scopes())))
    });
    Ok(answered.await?)
}

type Name = Result<Path<String>, PathRejection>;
type FurtherDimensions = Result<Parameters<Vec<(String, String)>>, QueryRejection>;

/// Returns the usage of a user.
pub(super) async fn of_user(
    State(service): State<Arc<Service>>,
    name: Name,
    further: FurtherDimensions,
) -> Result<Response, Problem> {
    of(USER, &service, name, further).await
}

/// Returns the usage of a tenant.
pub(super) async fn of_tenant(
    State(service): State<Arc<Service>>,
    name: Name,
    further: FurtherDimensions,
) -> Result<Response, Problem> {
    of(TENANT, &service, name, further).await
}

/// Returns the usage of a model.
pub(super) async fn of_model(
    State(service): State<Arc<Service>>,
    name: Name,
    further: FurtherDimensions,
) -> Result<Response, Problem> {
    of(MODEL, &service, name, further).await
}

/// Returns the limits that count by the subject, under the names of their windows.
///
/// Query parameters are further dimensions, for rules that require more. There is no path for API
/// keys, because paths appear in logs: `/v1/usage` accepts them.
async fn of(
    subject: UsageSubject,
    service: &Service,
    name: Name,
    further: FurtherDimensions,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|error| Problem::field(subject.dimension, error.body_text()))?;
    let Parameters(further) = further.map_err(|error| Problem::bad_request(error.body_text()))?;
    let mut query = Query::new(service.request_id()).with(subject.dimension, name.as_str())?;
    for (name, value) in further {
        query.insert(name, value)?;
    }
    // A view: dimensions that a request would have to name are not required for reading.
    query.rule_scope = RuleScope::View;
    let answered = service.with_plan(&query, async |store, rules, plan| {
        let usage = store.usage(plan).await?;
        let at = usage.at;
        let shown = answer::usage_as_decision(usage);
        let answer = Answer::new(rules, plan, &shown);
        let body = object(|json| {
            json.string(subject.field, &name);
            json.instant("timestamp", at);
            json.object("limits", |json| {
                for window in NamedWindow::ALL {
                    if let Some(scope) = tightest(&answer, subject, Unit::Requests, window) {
                        json.object(window.name(), |json| counted("current", &scope, json));
                    }
                }
            });
            if let Some(scope) = tightest(&answer, subject, Unit::Usd, NamedWindow::Day) {
                json.object("cost", |json| counted("today", &scope, json));
            }
        });
        Ok(super::json(body))
    });
    Ok(answered.await?)
}

fn counted(used: &str, scope: &Scope<'_, '_>, json: &mut JsonObject<'_>) {
    let unit = scope.limit.unit();
    json.amount(used, scope.reading.used, unit);
    json.amount("limit", scope.amount(), unit);
    json.amount("remaining", scope.remaining(), unit);
}

/// Returns the limit with the least remaining, of those that count by this dimension over this
/// window.
fn tightest<'a, 'p>(
    answer: &Answer<'a, 'p>,
    subject: UsageSubject,
    unit: Unit,
    window: NamedWindow,
) -> Option<Scope<'a, 'p>> {
    let counted_by = |scope: &Scope<'_, '_>| {
        scope.charge.rule().per.iter().any(|name| name == subject.dimension)
    };
    let asked = |scope: &Scope<'_, '_>| {
        scope.limit.unit() == unit && NamedWindow::of(scope.limit) == Some(window)
    };
    let scopes = answer.scopes().filter(|scope| !scope.charge.shadow());
    scopes.filter(counted_by).filter(asked).min_by_key(Scope::remaining)
}

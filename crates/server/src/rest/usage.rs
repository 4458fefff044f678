//! How far limits are used. Reading it consumes nothing.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query as Parameters, State};
use axum::response::Response;
use sluicegate_core::Limit;
use sluicegate_core::limit::{Period, Unit};
use sluicegate_core::query::Query;
use sluicegate_core::store::Store;
use sluicegate_core::time::{Clock, Span};

use super::decode::JsonBody;
use super::encode::Json;
use super::problem::Problem;
use super::{decode, encode};
use crate::answer::{self, Answer, Scope};
use crate::auth::Caller;
use crate::request::Request;
use crate::service::Service;

/// The dimension that names a user.
const USER: &str = "userId";

/// What every limit of a request shows.
pub(super) async fn usage<S: Store, C: Clock>(
    State(service): State<Arc<Service<S, C>>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let request: Request = decode::shaped(&body)?;
    let query = request.query(caller.name(), service.request_id())?;
    let told = service.with_plan(&query, async |store, rules, plan| {
        let usage = store.usage(plan).await?;
        let at = usage.at;
        let shown = answer::shown(usage);
        Ok(super::json(encode::usage(at, Answer::new(rules, plan, &shown).scopes())))
    });
    Ok(told.await?)
}

/// Where one user stands: the limits that count by user, under the names of their windows.
///
/// Parameters are further dimensions, for rules that ask for more than the user.
pub(super) async fn of_user<S: Store, C: Clock>(
    State(service): State<Arc<Service<S, C>>>,
    user: Result<Path<String>, PathRejection>,
    parameters: Result<Parameters<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Problem> {
    let Path(user) = user.map_err(|error| Problem::field(USER, error.body_text()))?;
    let Parameters(parameters) =
        parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
    let mut query = Query::new(service.request_id()).with(USER, user.as_str())?;
    for (name, value) in parameters {
        query.insert(name, value)?;
    }
    let told = service.with_plan(&query, async |store, rules, plan| {
        let usage = store.usage(plan).await?;
        let at = usage.at;
        let shown = answer::shown(usage);
        let answer = Answer::new(rules, plan, &shown);
        let mut json = Json::object();
        json.text("user_id", &user);
        json.instant("timestamp", at);
        json.object_of("limits", |json| {
            for window in [Window::Minute, Window::Hour, Window::Day] {
                if let Some(scope) = tightest(&answer, Unit::Requests, window) {
                    json.object_of(window.name(), |json| counted("current", &scope, json));
                }
            }
        });
        if let Some(scope) = tightest(&answer, Unit::Usd, Window::Day) {
            json.object_of("cost", |json| counted("today", &scope, json));
        }
        Ok(super::json(json.end()))
    });
    Ok(told.await?)
}

fn counted(used: &str, scope: &Scope<'_, '_>, json: &mut Json) {
    let unit = scope.limit.unit();
    json.amount(used, scope.reading.used, unit);
    json.amount("limit", scope.amount(), unit);
    json.amount("remaining", scope.remaining(), unit);
}

/// Of the limits that count by user, the one over this window that leaves least.
fn tightest<'a, 'p>(answer: &Answer<'a, 'p>, unit: Unit, window: Window) -> Option<Scope<'a, 'p>> {
    let by_user = |scope: &Scope<'_, '_>| scope.charge.rule().per.iter().any(|name| name == USER);
    let asked = |scope: &Scope<'_, '_>| {
        scope.limit.unit() == unit && Window::of(scope.limit) == Some(window)
    };
    let scopes = answer.scopes().filter(|scope| !scope.charge.shadow());
    scopes.filter(by_user).filter(asked).min_by_key(Scope::remaining)
}

/// The windows that people speak of by name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Window {
    Minute,
    Hour,
    Day,
}

impl Window {
    fn of(limit: &Limit) -> Option<Self> {
        const MINUTE: Span = Span::from_secs(60);
        const HOUR: Span = Span::from_secs(3_600);
        const DAY: Span = Span::from_secs(86_400);
        match limit {
            Limit::Calendar { calendar, .. } => {
                (calendar.period == Period::Day).then_some(Self::Day)
            }
            _ => match limit.window() {
                MINUTE => Some(Self::Minute),
                HOUR => Some(Self::Hour),
                DAY => Some(Self::Day),
                _ => None,
            },
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

//! [`Engine`]: the backend that decides in this process.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::store::Store as _;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Charge, Plan, Ruleset, query};
use sluicegate_pace::Pacer;
use sluicegate_service::answer::{Answer, usage_as_decision};
use sluicegate_service::{DecisionMode, Service};
use sluicegate_store::AnyStore;

use super::builder;
use super::outcome::outcome;
use super::waiting;
use crate::backend::{AdmissionHandle, Backend, EndMode, Operation, Outcome};
use crate::clock::TimeSource;
use crate::cost::Cost;
use crate::error::Error;
use crate::explanation::{Explanation, GroupExplanation, MatchedRule, SkippedRule};
use crate::request::Request;
use crate::scope::Scope;
use crate::settlement::Settlement;

/// The engine in this process.
pub(super) struct Engine {
    pub(super) service: Arc<Service>,
    pub(super) pacer: Arc<Pacer>,
    pub(super) clock: TimeSource,
}

impl Engine {
    pub(super) fn new(service: Arc<Service>, clock: TimeSource) -> Self {
        let pacer = Arc::new(Pacer::new(service.clone(), "library".to_owned()));
        Self { service, pacer, clock }
    }

    /// Returns true if the store is in this process.
    pub(super) fn has_local_store(&self) -> bool {
        matches!(self.service.limiter().store(), AnyStore::Memory(_) | AnyStore::Custom(_))
    }

    async fn decide(&self, request: &Request<'_>, mode: DecisionMode) -> Result<Outcome, Error> {
        let id = request.request_id(self.service.request_id())?;
        let queries = [request.query(id)?];
        let decided = self.service.decide(&queries, mode, |answer| {
            let plan = answer.plan();
            let held = mode == DecisionMode::Acquire && plan.needs_record();
            outcome(answer, held.then(|| plan.handle()))
        });
        Ok(decided.await?)
    }
}

impl Backend for Engine {
    fn acquire<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome> {
        Box::pin(self.decide(request, DecisionMode::Acquire))
    }

    fn check<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome> {
        Box::pin(self.decide(request, DecisionMode::Peek))
    }

    fn until_ready<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Outcome> {
        Box::pin(waiting::until_ready(self, request))
    }

    fn settle<'a>(
        &'a self,
        handle: &'a AdmissionHandle,
        cost: &'a Cost,
    ) -> Operation<'a, Settlement> {
        Box::pin(async move {
            let (handle, origin) = of_store(handle)?;
            let stated = cost.read_actual()?;
            let actual = origin.cost(&stated, self.service.limiter().rules().prices())?;
            let ended = self.service.settle(handle, &actual).await?;
            Ok(Settlement {
                recorded: true,
                replayed: ended.replayed,
                duration: Some(ended.at.since(origin.start).into()),
                cost: actual.money,
                query_tokens: stated.query_tokens,
                context_tokens: stated.context_tokens,
                output_tokens: stated.cost.output_tokens,
            })
        })
    }

    fn end<'a>(&'a self, handle: &'a AdmissionHandle, how: EndMode) -> Operation<'a, bool> {
        Box::pin(async move {
            let (handle, _) = of_store(handle)?;
            match how {
                EndMode::Release => self.service.release(handle).await?,
                EndMode::Cancel => self.service.cancel(handle).await?,
            };
            Ok(true)
        })
    }

    fn renew<'a>(&'a self, handle: &'a AdmissionHandle) -> Operation<'a, Duration> {
        Box::pin(async move {
            let renewed = self.service.renew(of_store(handle)?.0).await?;
            Ok(renewed.until.since(renewed.at).into())
        })
    }

    fn usage<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Vec<Scope>> {
        Box::pin(async move {
            let query = request.query(self.service.request_id())?;
            let read = self.service.with_plan(&query, async |store, rules, plan| {
                let usage = store.usage(plan).await?;
                let at = usage.at;
                let decision = usage_as_decision(usage);
                let answer = Answer::new(rules, plan, &decision);
                Ok(answer.scopes().map(|scope| Scope::of(&scope, at)).collect())
            });
            Ok(read.await?)
        })
    }

    fn explain<'a>(&'a self, request: &'a Request<'_>) -> Operation<'a, Explanation> {
        Box::pin(async move {
            let query = request.query(self.service.request_id())?;
            let rules = self.service.limiter().rules();
            let plan = rules.plan(&query, &self.clock).map_err(Error::invalid)?;
            Ok(explanation(&rules, &query, &plan))
        })
    }

    fn reload(&self, yaml: &str) -> Result<(), Error> {
        let rules = builder::load(yaml)?.active_ruleset();
        self.service.limiter().replace(&rules, self.service.now());
        Ok(())
    }

    fn ends_at_once(&self) -> bool {
        self.has_local_store()
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.clock.sleep_until(self.clock.now() + time.into()))
    }
}

/// Returns the name of an admission in the store.
fn of_store(
    handle: &AdmissionHandle,
) -> Result<(&sluicegate_core::plan::Handle, &sluicegate_service::cost::Origin), Error> {
    match handle {
        AdmissionHandle::Store(handle, origin) => Ok((handle, origin)),
        #[cfg(feature = "remote")]
        AdmissionHandle::Remote(_) => {
            Err(Error::invalid("the admission belongs to another limiter"))
        }
    }
}

fn explanation(rules: &Ruleset, query: &query::Query<'_>, plan: &Plan<'_>) -> Explanation {
    let groups = rules.explain(query).into_iter().enumerate().map(|(number, group)| {
        let matched = group.applied.iter().flat_map(|applied| {
            let shadow = applied.rule.shadow;
            let of_rule = |charge: &&Charge<'_>| {
                charge.group() == number && charge.rule().name == applied.rule.name
            };
            let mut counters: Vec<_> = plan
                .charges()
                .iter()
                .filter(of_rule)
                .map(|charge| MatchedRule {
                    rule: applied.rule.name.clone(),
                    key: Some(charge.key.to_string()),
                    limits: charge.limits().iter().map(ToString::to_string).collect(),
                    shadow,
                })
                .collect();
            if counters.is_empty() {
                let rule = applied.rule.name.clone();
                counters.push(MatchedRule { rule, key: None, limits: Vec::new(), shadow });
            }
            counters
        });
        let skipped = group.skipped.iter().map(|skipped| SkippedRule {
            rule: skipped.rule.to_owned(),
            because: skipped.because.to_string(),
        });
        GroupExplanation {
            group: group.name.to_owned(),
            matched: matched.collect(),
            skipped: skipped.collect(),
        }
    });
    Explanation { groups: groups.collect() }
}

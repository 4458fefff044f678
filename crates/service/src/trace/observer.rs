//! [`SpanObserver`]: turns the events of the limiter into spans.
//!
//! | span | event |
//! |---|---|
//! | `decision` | a decision, or a request that got none |
//! | `settle`, `release`, `renew`, … | a change of an earlier admission |
//! | `store …` | the store call of either, as its child |

use sluicegate_core::Decision;
use sluicegate_core::time::{Span, Timestamp};

use super::span::{AttributeValue, SpanKind, SpanRecord};
use super::tracer::{EventTrace, Tracer, finished};
use crate::observer::{
    ChangeEvent, DecisionEvent, FailureEvent, Observer, Operation, StoreCallEvent,
};

/// An observer that records decisions and store calls as spans.
pub(crate) struct SpanObserver {
    tracer: Tracer,
    /// Kind of the store.
    store: &'static str,
}

impl SpanObserver {
    pub(crate) const fn new(tracer: Tracer, store: &'static str) -> Self {
        Self { tracer, store }
    }

    /// Returns the span of an event, if it is recorded.
    fn span(
        name: &'static str,
        operation: Operation,
        trace: Option<&EventTrace>,
        (started, latency): (Timestamp, Span),
    ) -> Option<SpanRecord> {
        let EventTrace { context, parent } = trace.filter(|trace| trace.context.sampled)?.clone();
        let times = (started, started + latency);
        let mut span = finished(name, SpanKind::Internal, (context, parent), times);
        let operation = AttributeValue::Word(operation.name());
        span.attributes.push(("sluicegate.operation", operation));
        Some(span)
    }
}

impl Observer for SpanObserver {
    fn on_decision(&self, event: &DecisionEvent<'_, '_, '_>) {
        let times = (event.started, event.latency);
        let Some(mut span) = Self::span("decision", event.operation, event.trace, times) else {
            return;
        };
        let decision = match event.answer.decision() {
            Decision::Allow(_) if event.answer.is_allowed() => "allow",
            Decision::Allow(_) | Decision::Deny(_) => "deny",
            Decision::Never(_) => "never",
            Decision::Closed(_) => "closed",
        };
        span.attributes.push(("sluicegate.decision", decision.into()));
        if let Some(hit) = event.answer.hit() {
            span.attributes.push(("sluicegate.rule", hit.name().to_owned().into()));
        }
        if let Some(policy) = event.answer.outage() {
            span.attributes.push(("sluicegate.outage", policy.word().into()));
        }
        self.tracer.record(span);
    }

    fn on_change(&self, event: &ChangeEvent<'_, '_>) {
        let times = (event.started, event.latency);
        let name = event.operation.name();
        if let Some(span) = Self::span(name, event.operation, event.trace, times) {
            self.tracer.record(span);
        }
    }

    fn on_failure(&self, event: &FailureEvent<'_, '_, '_>) {
        let times = (event.started, event.latency);
        if let Some(mut span) = Self::span("decision", event.operation, event.trace, times) {
            span.error = Some("the store failed".to_owned());
            self.tracer.record(span);
        }
    }

    fn on_store_call(&self, event: &StoreCallEvent<'_>) {
        let Some(context) = self.tracer.below(&event.trace.context) else { return };
        let StoreCallEvent { operation, started, latency, .. } = *event;
        // A failed operation may have no span of its own; its parent is used instead.
        let parent = if event.is_ok { event.trace.context.span } else { event.trace.parent };
        let times = (started, started + latency);
        let mut span = finished("store", SpanKind::Client, (context, parent), times);
        span.name = format!("store {}", operation.name()).into();
        span.attributes.push(("db.system.name", self.store.into()));
        span.attributes.push(("db.operation.name", operation.name().into()));
        if !event.is_answered {
            span.error = Some("no answer: the store failed or the caller disconnected".to_owned());
        } else if !event.is_ok {
            span.error = Some("the store refused the call".to_owned());
        }
        self.tracer.record(span);
    }
}

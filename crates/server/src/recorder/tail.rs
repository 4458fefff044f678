//! [`Tail`]: the last decisions of the sample, for the live tail.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;
use sluicegate_core::time::Timestamp;

use super::sampling::SampledClass;
use crate::decision_log::SecretDimensions;
use crate::json::{JsonObject, object, quote};
use crate::service::DecisionEvent;

/// Number of decisions that are kept.
const DECISIONS_MAX: usize = 1_000;
/// Maximum number of decisions of each class per second, so that a person can follow them.
const PER_SECOND_MAX: u32 = 50;

/// The last decisions, as JSON objects.
#[derive(Debug, Default)]
pub(super) struct Tail {
    decisions: VecDeque<Arc<str>>,
    /// Number of decisions since the last tick.
    new: usize,
    taken: [u32; 2],
    /// Decisions of each class that were left out since the last tick.
    skipped: u64,
    number: u64,
}

impl Tail {
    /// Records a decision, unless there were enough since the last tick.
    pub(super) fn record(
        &mut self,
        event: &DecisionEvent<'_, '_, '_>,
        class: SampledClass,
        now: Timestamp,
        secrets: &SecretDimensions,
    ) {
        let taken = &mut self.taken[class as usize];
        if *taken == PER_SECOND_MAX {
            self.skipped += 1;
            return;
        }
        *taken += 1;
        self.number += 1;
        let line = object(|json| decision(event, self.number, now, secrets, json));
        let Ok(line) = String::from_utf8(line) else { return };
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(line.into());
        self.new += 1;
    }

    /// Returns the decisions since the last call as JSON, with the shares of admissions and of denials
    /// that they were chosen from.
    pub(super) fn take_new(&mut self, (admissions, denials): (f64, f64)) -> String {
        let new = std::mem::take(&mut self.new).min(self.decisions.len());
        self.taken = [0; 2];
        let list = list(self.decisions.iter().skip(self.decisions.len() - new));
        let skipped = std::mem::take(&mut self.skipped);
        let sampled = format!(r#"{{"admissions":{admissions},"denials":{denials}}}"#);
        format!(r#"{{"skipped":{skipped},"sampled":{sampled},"decisions":{list}}}"#)
    }

    /// Returns the newest decisions as JSON, the newest first.
    pub(super) fn newest(&self, count: usize) -> Vec<Value> {
        let newest = self.decisions.iter().rev().take(count);
        newest.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns all decisions as a JSON list.
    pub(super) fn all(&self) -> String {
        list(self.decisions.iter())
    }
}

fn list<'a>(lines: impl Iterator<Item = &'a Arc<str>>) -> String {
    let mut text = String::from("[");
    for line in lines {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(line);
    }
    text.push(']');
    text
}

fn decision(
    event: &DecisionEvent<'_, '_, '_>,
    number: u64,
    now: Timestamp,
    secrets: &SecretDimensions,
    json: &mut JsonObject<'_>,
) {
    let answer = &event.answer;
    json.number("n", number);
    json.instant("at", now);
    json.quoted("id", answer.plan().id.id);
    json.word("operation", event.operation.name());
    json.raw("allowed", answer.is_allowed());
    if let Some(reason) = answer.reason() {
        json.text("reason", &reason);
    }
    if let Some(hit) = answer.hit() {
        json.string("rule", hit.name());
    }
    json.number("latencyUs", event.latency.as_micros());
    json.list("dimensions", event.query.dimensions(), |(name, value), out| {
        out.push(b'[');
        quote(name, out);
        out.push(b',');
        quote(&secrets.shown(name, value), out);
        out.push(b']');
    });
    json.list("scopes", answer.scopes(), |scope, out| {
        let mut one = JsonObject::begin(out);
        one.string("rule", scope.name());
        one.string("limit", scope.text);
        one.amount("used", scope.reading.used, scope.limit.unit());
        one.amount("of", scope.amount(), scope.limit.unit());
        one.end();
    });
}

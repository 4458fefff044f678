//! [`Selector`]: chooses the provider of a message.
//!
//! | strategy | the provider |
//! |---|---|
//! | `FIXED` | always the same provider |
//! | `ROUND_ROBIN` | each in turn |
//! | `WEIGHTED` | in proportion to the weights, interleaved |
//! | `COST_OPTIMIZED` | the first in the option `priority`; without it, the cheapest |
//! | `QUALITY_FIRST` | the one with the highest quality |
//! | `PRIORITY_ORDER` | the first in the option `priority` |
//! | `MESSAGE_BASED` | the one that the message names; without a name, the fixed one |
//! | `HEADROOM` | the one with the most room; the only strategy that tries the next provider before it delays |

use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use sluicegate_config::{Dispatch, Strategy};

/// Chooses a provider for each message, by its index in the list of candidates.
#[derive(Debug)]
pub struct Selector {
    strategy: Strategy,
    names: Vec<String>,
    fixed: usize,
    /// Indices sorted best first, for the strategies with a fixed order.
    order: Vec<usize>,
    rotation: Mutex<RotationState>,
}

/// State of the strategies that rotate.
#[derive(Debug)]
struct RotationState {
    next: usize,
    /// Weight and credit of each provider.
    saved: Vec<(i64, i64)>,
}

/// The result of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This provider, whatever its limits.
    One(usize),
    /// Any provider with room.
    Any,
    /// The message names a provider that is not configured.
    Unknown(String),
}

impl Selector {
    /// Creates the selector of a dispatcher, which has at least one provider.
    pub fn new(options: &Dispatch) -> Self {
        let Dispatch { strategy, providers: candidates, fixed, priority: order, .. } = options;
        let names: Vec<_> = candidates.iter().map(|candidate| candidate.name.clone()).collect();
        let place = |name: &str| names.iter().position(|other| other == name);
        let fixed = fixed.as_deref().and_then(place).unwrap_or_default();
        let wanted = |number: usize| {
            order.iter().position(|name| *name == names[number]).unwrap_or(order.len())
        };
        let mut sorted: Vec<usize> = (0..names.len()).collect();
        // Stable sort: equal providers stay in the order of the configuration.
        match strategy {
            Strategy::CostOptimized => sorted.sort_by(|&a, &b| {
                let by_cost = candidates[a].cost.total_cmp(&candidates[b].cost);
                wanted(a).cmp(&wanted(b)).then(by_cost)
            }),
            Strategy::QualityFirst => {
                sorted.sort_by(|&a, &b| candidates[b].quality.total_cmp(&candidates[a].quality));
            }
            Strategy::Fixed
            | Strategy::RoundRobin
            | Strategy::Weighted
            | Strategy::PriorityOrder
            | Strategy::MessageBased { .. }
            | Strategy::Headroom => sorted.sort_by_key(|&number| wanted(number)),
        }
        let saved = candidates.iter().map(|candidate| (i64::from(candidate.weight), 0)).collect();
        let rotation = Mutex::new(RotationState { next: 0, saved });
        Self { strategy: strategy.clone(), names, fixed, order: sorted, rotation }
    }

    /// Chooses a provider for a message with this body.
    pub fn choose(&self, body: &Value) -> Choice {
        match &self.strategy {
            Strategy::Fixed => Choice::One(self.fixed),
            Strategy::RoundRobin => Choice::One(self.rotation().next(self.names.len())),
            Strategy::Weighted => Choice::One(self.rotation().heaviest()),
            Strategy::CostOptimized | Strategy::QualityFirst | Strategy::PriorityOrder => {
                Choice::One(self.order.first().copied().unwrap_or(self.fixed))
            }
            Strategy::MessageBased { field } => self.named(body, field),
            Strategy::Headroom => Choice::Any,
        }
    }

    /// Returns true if the choice depends on the body of the message.
    pub const fn reads_body(&self) -> bool {
        matches!(self.strategy, Strategy::MessageBased { .. })
    }

    /// Returns the indices of all providers, the preferred one first.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    fn named(&self, body: &Value, field: &str) -> Choice {
        let found = field.split('.').try_fold(body, |value, member| value.get(member));
        match found {
            None | Some(Value::Null) => Choice::One(self.fixed),
            Some(value) => {
                let name = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let known = self.names.iter().position(|other| other.eq_ignore_ascii_case(&name));
                known.map_or(Choice::Unknown(name), Choice::One)
            }
        }
    }

    fn rotation(&self) -> std::sync::MutexGuard<'_, RotationState> {
        self.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RotationState {
    fn next(&mut self, count: usize) -> usize {
        let next = self.next % count.max(1);
        self.next = next + 1;
        next
    }

    /// Smooth weighted round robin: each provider gains its weight in credit; the one with the most
    /// credit is chosen and pays the sum of all weights. Heavy providers come more often, and no
    /// provider comes many times in a row.
    fn heaviest(&mut self) -> usize {
        let mut total = 0;
        let mut heaviest = 0;
        for number in 0..self.saved.len() {
            let (weight, saved) = &mut self.saved[number];
            *saved += *weight;
            total += *weight;
            if self.saved[number].1 > self.saved[heaviest].1 {
                heaviest = number;
            }
        }
        if let Some((_, saved)) = self.saved.get_mut(heaviest) {
            *saved -= total;
        }
        heaviest
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluicegate_config::{DelayMode, Provider};
    use sluicegate_core::query::Cost;

    use super::*;

    fn options(strategy: Strategy, fixed: Option<&str>, order: &[&str]) -> Dispatch {
        let provider = |name: &str, cost, quality, weight| Provider {
            name: name.to_owned(),
            queue: name.to_owned(),
            limits: Vec::new(),
            cost,
            quality,
            weight,
            estimate: Cost::default(),
        };
        Dispatch {
            id: "d".to_owned(),
            enabled: true,
            source: "raw".to_owned(),
            dead_letter: None,
            strategy,
            fixed: fixed.map(str::to_owned),
            priority: order.iter().map(|name| (*name).to_owned()).collect(),
            delay: DelayMode::Booked,
            prefetch: 1,
            providers: vec![
                provider("openai", 3.0, 8.0, 50),
                provider("gemini", 1.0, 7.0, 30),
                provider("anthropic", 5.0, 9.0, 20),
            ],
        }
    }

    fn check(strategy: Strategy, order: &[&str], bodies: &[Value], expected: &[&str]) {
        let options = options(strategy.clone(), Some("gemini"), order);
        let selector = Selector::new(&options);
        let chosen: Vec<_> = bodies
            .iter()
            .map(|body| match selector.choose(body) {
                Choice::One(number) => options.providers[number].name.clone(),
                Choice::Any => "any".to_owned(),
                Choice::Unknown(name) => format!("no {name}"),
            })
            .collect();
        assert_eq!(chosen, expected, "{strategy:?}");
    }

    #[test]
    fn every_strategy_chooses_as_its_table_says() {
        let four = vec![Value::Null; 4];
        check(Strategy::Fixed, &[], &four[..2], &["gemini", "gemini"]);
        check(Strategy::RoundRobin, &[], &four, &["openai", "gemini", "anthropic", "openai"]);
        check(Strategy::CostOptimized, &[], &four[..1], &["gemini"]);
        check(Strategy::CostOptimized, &["anthropic", "openai"], &four[..1], &["anthropic"]);
        check(Strategy::QualityFirst, &["gemini"], &four[..1], &["anthropic"]);
        check(Strategy::PriorityOrder, &["gemini", "openai"], &four[..2], &["gemini", "gemini"]);
        check(Strategy::PriorityOrder, &[], &four[..1], &["openai"]);
        check(Strategy::Headroom, &[], &four[..1], &["any"]);
    }

    #[test]
    fn a_message_names_its_provider() {
        let bodies = [
            json!({"options": {"provider": "openai"}}),
            json!({"options": {"provider": "Anthropic"}}),
            json!({"options": {}}),
            json!([1]),
            json!({"options": {"provider": "mistral"}}),
            json!({"options": {"provider": 7}}),
        ];
        let field = "options.provider".to_owned();
        let expected = ["openai", "anthropic", "gemini", "gemini", "no mistral", "no 7"];
        check(Strategy::MessageBased { field }, &[], &bodies, &expected);
    }

    #[test]
    fn weights_hold_over_any_hundred_messages_and_are_mixed() {
        let selector = Selector::new(&options(Strategy::Weighted, None, &[]));
        let mut counts = [0; 3];
        let mut row = 0;
        let mut last = None;
        for _ in 0..1_000 {
            let Choice::One(chosen) = selector.choose(&Value::Null) else { panic!("one of three") };
            counts[chosen] += 1;
            row = if last == Some(chosen) { row + 1 } else { 1 };
            last = Some(chosen);
            assert!(row <= 2, "{counts:?}");
        }
        assert_eq!(counts, [500, 300, 200]);
    }
}

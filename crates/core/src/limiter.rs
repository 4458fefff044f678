//! The rules in force and the store that they are kept by.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::ruleset::Ruleset;

/// What every front door asks: rules that can be swapped, over one store.
///
/// A decision takes the rules once and sees the same ones to its end, whatever is swapped in
/// meanwhile; nobody waits for a swap.
#[derive(Debug)]
pub struct Limiter<S> {
    rules: ArcSwap<Ruleset>,
    store: S,
}

impl<S> Limiter<S> {
    /// A limiter with its first rules.
    pub fn new(rules: Ruleset, store: S) -> Self {
        Self { rules: ArcSwap::from_pointee(rules), store }
    }

    /// The rules in force.
    pub fn rules(&self) -> Guard<Arc<Ruleset>> {
        self.rules.load()
    }

    /// Puts other rules in force. Usage stays where it is: counters go by their keys.
    pub fn replace(&self, rules: Ruleset) -> Arc<Ruleset> {
        self.rules.swap(Arc::new(rules))
    }

    /// Where usage is kept.
    pub const fn store(&self) -> &S {
        &self.store
    }
}

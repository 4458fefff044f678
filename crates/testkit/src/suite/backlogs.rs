//! Tests of the backlogs that queues exchange through a store.

use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::{Id, Span, Store};

use super::{StoreBench, StoreSubject, TestRequest, ask};

impl<S: StoreSubject> StoreBench<S> {
    /// Reports the backlog of a queue for a second; returns those of other queues.
    fn exchange(&self, ask: &TestRequest, queue: u128, backlog: Backlog) -> Vec<Backlog> {
        let queue = Id::from_bits(queue);
        let report = BacklogReport { queue, backlog, expires_after: Span::from_secs(1) };
        let others =
            self.with(ask, async |store, plan| store.exchange_backlogs(plan, &report).await);
        let mut others = others.expect("an answer");
        others.sort_by_key(Backlog::waiting);
        others
    }
}

fn waiting(count: u64) -> Backlog {
    Backlog::new([("a flow", count), ("", 1)], count)
}

pub fn each_queue_learns_the_backlogs_of_the_others<S: StoreSubject>() {
    let bench = StoreBench::<S>::of(&["5/s"]);
    assert_eq!(bench.exchange(&ask(1), 1, waiting(1)), []);
    assert_eq!(bench.exchange(&ask(2), 2, waiting(2)), [waiting(1)]);
    assert_eq!(bench.exchange(&ask(3), 3, waiting(3)), [waiting(1), waiting(2)]);
    assert_eq!(bench.exchange(&ask(4), 1, waiting(4)), [waiting(2), waiting(3)]);
    assert_eq!(bench.exchange(&ask(5), 2, waiting(2)), [waiting(3), waiting(4)]);
    // Those of other counters do not matter, and no decision depends on them.
    assert_eq!(bench.exchange(&ask(6).by("bob"), 9, waiting(9)), []);
    assert_eq!((bench.admitted((10..20).map(ask)), bench.used(&ask(7))), (5, vec![5]));
}

pub fn a_backlog_is_forgotten_when_it_expires_or_is_empty<S: StoreSubject>() {
    let mut bench = StoreBench::<S>::of(&["5/s"]);
    bench.exchange(&ask(1), 1, waiting(1));
    bench.exchange(&ask(2), 2, waiting(2));
    bench.at_ms(600).exchange(&ask(3), 2, waiting(3));
    assert_eq!(bench.at_ms(999).exchange(&ask(4), 9, Backlog::default()), [waiting(1), waiting(3)]);
    assert_eq!(bench.at_ms(1_000).exchange(&ask(5), 9, Backlog::default()), [waiting(3)]);
    bench.exchange(&ask(6), 2, Backlog::default());
    assert_eq!(bench.exchange(&ask(7), 9, Backlog::default()), []);
}

pub fn a_plan_without_a_limit_has_no_backlogs<S: StoreSubject>() {
    let bench = StoreBench::<S>::new([]);
    bench.exchange(&ask(1), 1, waiting(1));
    assert_eq!(bench.exchange(&ask(2), 2, waiting(2)), []);
}

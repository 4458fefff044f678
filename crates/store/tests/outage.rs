//! Outage policies: requests that a node admits on its own while the store does not answer.

use std::sync::Arc;

use pollster::block_on;
use sluicegate_core::limiter::Verdict;
use sluicegate_core::outage::{OutagePolicies, OutagePolicy};
use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::{EndResult, Error};
use sluicegate_core::{Decision, Id, Limit, Limiter, Span};
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::suite::EPOCH;
use sluicegate_testkit::{ManualClock, SwitchableStore};

type ClockedMemory = Memory<Arc<ManualClock>>;

struct Node {
    limiter: Limiter<SwitchableStore<ClockedMemory>>,
    clock: Arc<ManualClock>,
    id: std::cell::Cell<u128>,
}

fn rule(name: &str, limit: &str) -> Rule {
    Rule::new(name, [limit.parse::<Limit>().expect("a limit")])
}

impl Node {
    /// Returns one of four nodes.
    fn new(rules: Vec<Rule>, default: OutagePolicy) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let memory = || Memory::with_clock(Capacity::default(), clock.clone());
        let internal = ("INTERNAL".to_owned(), OutagePolicy::Open);
        let outage = OutagePolicies { default, by_client_type: [internal].into(), nodes_max: 4 };
        let groups = rules.into_iter().map(|rule| Group::new(rule.name.clone(), [rule]));
        let settings = Settings { outage, ..Settings::default() };
        let rules = Ruleset::new(groups.collect(), settings).expect("rules");
        let limiter = Limiter::new(rules, SwitchableStore::new(memory()))
            .with_fallback(SwitchableStore::new(memory()), clock.clone());
        Self { limiter, clock, id: 0.into() }
    }

    fn query(&self, hold: Option<Span>) -> Query<'static> {
        self.id.set(self.id.get() + 1);
        let mut query = Query::new(RequestId::ours(Id::from_bits(self.id.get())));
        query.hold = hold;
        query
    }

    fn ask(&self, query: &Query<'_>) -> Verdict {
        let rules = self.limiter.rules();
        let plan = rules.plan(query, EPOCH).expect("a plan");
        let peeked = block_on(self.limiter.peek(&plan)).expect("a verdict");
        let verdict = block_on(self.limiter.acquire(&plan)).expect("a verdict");
        let kinds = [&peeked, &verdict].map(|v| (std::mem::discriminant(&v.decision), v.outage));
        assert_eq!(kinds[0], kinds[1], "peek returns what acquire returns");
        verdict
    }

    fn admitted(&self, tries: usize) -> usize {
        (0..tries).filter(|_| self.ask(&self.query(None)).decision.is_allowed()).count()
    }

    fn cut(&self) {
        self.limiter.store().set_on(false);
    }

    fn see(&self, nodes: u32) {
        self.limiter.store().set_nodes(nodes);
    }

    fn restore(&self) {
        self.limiter.store().set_on(true);
    }
}

#[test]
fn each_policy_lets_through_its_share_and_says_so() {
    use OutagePolicy::{Closed, Local, Open, Unlimited};
    for limit in ["100/min", "100/min windowed", "100/min burst 30", "100 concurrent"] {
        for (policy, share) in [(Closed, 0), (Local, 12), (Open, 250), (Unlimited, 400)] {
            let node = Node::new(vec![rule("ALL", limit)], policy);
            node.cut();
            assert_eq!(node.admitted(400), share, "{limit} {policy:?}");
            let verdict = node.ask(&node.query(None));
            assert_eq!(verdict.outage, Some(policy), "{limit}");
            match (&verdict.decision, policy) {
                (Decision::Closed(_), Closed) | (Decision::Allow(_), Unlimited) => {}
                (Decision::Deny(deny), Local | Open) => assert!(deny.start > deny.at, "{limit}"),
                (other, _) => panic!("{limit} {policy:?}: {other:?}"),
            }
            node.restore();
            assert_eq!(node.ask(&node.query(None)).outage, None, "{limit}");
        }
    }
}

#[test]
fn more_nodes_than_were_declared_share_what_there_is() {
    let node = Node::new(vec![rule("ALL", "100/min")], OutagePolicy::Local);
    for (seen, share) in [(1, 12), (4, 12), (10, 5), (50, 1), (51, 0)] {
        node.see(seen);
        node.cut();
        assert_eq!(node.admitted(20), share, "{seen} nodes");
        node.restore();
        node.clock.advance(Span::from_secs(60));
    }
}

#[test]
fn a_store_that_comes_and_goes_lets_through_no_more_than_one_that_stays_away() {
    let node = Node::new(vec![rule("ALL", "100/min")], OutagePolicy::Local);
    let mut alone = 0;
    for _ in 0..10 {
        node.cut();
        alone += node.admitted(5);
        node.restore();
        assert_eq!(node.admitted(1), 1);
        node.clock.advance(Span::from_secs(1));
    }
    assert_eq!(alone, 12);
    node.clock.advance(Span::from_secs(60));
    node.cut();
    assert_eq!(node.admitted(50), 12, "a window later");
}

#[test]
fn the_strictest_policy_of_a_plan_holds_and_a_rule_comes_before_the_client_type() {
    let internal = |node: &Node| node.query(None).with("clientType", "INTERNAL").expect("a value");
    let node = Node::new(vec![rule("ALL", "100/min")], OutagePolicy::Closed);
    node.cut();
    assert_eq!(node.ask(&internal(&node)).outage, Some(OutagePolicy::Open));
    assert_eq!(node.ask(&node.query(None)).outage, Some(OutagePolicy::Closed));

    let money = Rule { outage: Some(OutagePolicy::Local), ..rule("MONEY", "100/min") };
    let shadow =
        Rule { outage: Some(OutagePolicy::Closed), shadow: true, ..rule("SHADOW", "1/min") };
    let node = Node::new(vec![rule("ALL", "100/min"), money, shadow], OutagePolicy::Open);
    node.cut();
    assert_eq!(node.ask(&internal(&node)).outage, Some(OutagePolicy::Local));
    assert_eq!(node.admitted(50), 11, "with the one before");
}

#[test]
fn a_share_of_nothing_is_closed_and_so_is_more_than_the_share() {
    let node = Node::new(vec![rule("ALL", "7/min")], OutagePolicy::Local);
    node.cut();
    assert!(matches!(node.ask(&node.query(None)).decision, Decision::Closed(_)));
    let node = Node::new(vec![rule("ALL", "100 tokens/min")], OutagePolicy::Local);
    node.cut();
    let mut query = node.query(None);
    query.cost = Cost { input_tokens: Some(13), ..Cost::default() };
    assert!(matches!(node.ask(&query).decision, Decision::Closed(_)));
    query.cost.input_tokens = Some(12);
    assert!(node.ask(&query).decision.is_allowed());
}

#[test]
fn an_admission_of_the_fallback_is_settled_in_the_fallback() {
    let node = Node::new(vec![rule("SLOTS", "8 concurrent")], OutagePolicy::Local);
    let before = node.query(None);
    assert!(node.ask(&before).decision.is_allowed());
    node.cut();
    let alone = node.query(None);
    assert!(node.ask(&alone).decision.is_allowed());
    assert_eq!(node.admitted(1), 0);
    let handle =
        |query: &Query<'_>| node.limiter.rules().plan(query, EPOCH).expect("a plan").handle();
    let ended = Ok(EndResult { at: EPOCH, replayed: false });
    assert!(block_on(node.limiter.renew(&handle(&alone))).is_ok());
    assert_eq!(block_on(node.limiter.release(&handle(&alone))), ended);
    assert!(matches!(block_on(node.limiter.release(&handle(&before))), Err(Error::Unavailable(_))));
    assert_eq!(node.admitted(1), 1, "the slot is free again");
    node.restore();
    assert_eq!(block_on(node.limiter.release(&handle(&before))), ended);

    let node = Node::new(vec![rule("ALL", "8/min")], OutagePolicy::Local);
    node.cut();
    let held = node.query(Some(Span::from_secs(30)));
    assert!(node.ask(&held).decision.is_allowed());
    assert_eq!(node.admitted(1), 0);
    node.restore();
    assert_eq!(block_on(node.limiter.cancel(&handle(&held))), ended);
    node.cut();
    assert_eq!(node.admitted(1), 1, "it was given back");
}

#[test]
fn without_a_fallback_an_outage_stays_an_error() {
    let rules = Ruleset::new(vec![Group::new("g", [rule("ALL", "8/min")])], Settings::default());
    let store = SwitchableStore::new(Memory::new(Capacity::default()));
    let limiter = Limiter::new(rules.expect("rules"), store);
    limiter.store().set_on(false);
    let query = Query::new(RequestId::ours(Id::from_bits(1)));
    let rules = limiter.rules();
    let plan = rules.plan(&query, EPOCH).expect("a plan");
    assert!(matches!(block_on(limiter.acquire(&plan)), Err(Error::Unavailable(_))));
    limiter.store().set_on(true);
    assert!(block_on(limiter.acquire(&plan)).is_ok_and(|verdict| verdict.outage.is_none()));
}

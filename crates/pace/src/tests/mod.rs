//! Lanes in virtual time: replicas that share a store, requests that wait, requests that leave.

mod clock;
mod fleet;
mod leases;
mod network;
mod replicas;

use std::sync::Arc;
use std::time::Duration;

use sluicegate_checker::Checker;
use sluicegate_config::WaitOrder;
use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Query, RequestId, RuleScope};
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::time::Clock;
use sluicegate_core::{Group, Limit, Limiter, Rule, Ruleset, Span, Timestamp};
use sluicegate_service::Service;
use sluicegate_service::answer::Answer;
use sluicegate_store::memory::Capacity;
use sluicegate_store::{AnyStore, Memory};
use sluicegate_testkit::{DistantStore, Network, SimulatedProcess, SwitchableStore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::clock::RuntimeClock;
use crate::{Lane, LaneOptions, PacedWork, Pacer, StartAttempt, WaitError, Waited};

type Store = SwitchableStore<Memory<RuntimeClock>>;
type TestLane = Arc<Lane<TestWork>>;

const KEY: &str = "vendor/graphql";
const ROUTE: &str = "@route";
const MINUTE: Duration = Duration::from_secs(60);

/// Replicas over one store.
struct World {
    clock: RuntimeClock,
    store: Store,
    limit: Limit,
    /// Rule that spreads the starts, if there is one.
    spread: Option<Limit>,
    outage: OutagePolicy,
    network: Network,
}

/// The requests of one route.
struct TestWork(Arc<Service>);

/// An admission. Dropping it gives the turn back, unless the request was sent.
struct TestPass {
    service: Arc<Service>,
    handle: Option<Handle>,
}

impl TestPass {
    fn left(&mut self) {
        self.handle = None;
    }
}

impl Drop for TestPass {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            let service = self.service.clone();
            tokio::spawn(async move { service.cancel(&handle).await });
        }
    }
}

impl PacedWork for TestWork {
    type Admission = TestPass;
    type Refusal = ();

    fn query(&self, id: RequestId) -> Query<'_> {
        let mut query = Query::new(id);
        query.insert_own(ROUTE, KEY);
        query.rule_scope = RuleScope::Own;
        query
    }

    fn admitted(&self, _: &Answer<'_, '_>, handle: Option<Handle>) -> TestPass {
        TestPass { service: self.0.clone(), handle }
    }

    fn refused(&self, _: &Answer<'_, '_>) {}
}

/// A request that waits for its turn and is sent in its window. Returns the time at which it was
/// sent, or `None` if it got no turn.
async fn send(lane: TestLane, flow: &str, clock: RuntimeClock) -> Option<Timestamp> {
    let since = clock.now();
    let mut waited = lane.wait(flow, Span::ZERO, MINUTE).await.ok()?;
    loop {
        if waited.window.start(|| clock.now()).await.is_some() {
            waited.admission.left();
            return Some(clock.now());
        }
        drop(waited);
        waited = lane.wait_again(since, MINUTE).await.ok()?;
    }
}

/// Waits for a turn with an empty flow and uses it.
async fn go(lane: &TestLane) -> Result<Span, WaitError<()>> {
    let Waited { mut admission, window, took } = lane.wait("", Span::ZERO, MINUTE).await?;
    window.start(|| lane.pacer().service().now()).await.expect("it is not too late");
    admission.left();
    Ok(took)
}

impl World {
    fn new(limit: &str) -> Self {
        let clock = RuntimeClock::new();
        let capacity = Capacity { keys_max: 1_000, records_max: 100_000 };
        let store = SwitchableStore::new(Memory::with_clock(capacity, clock));
        let limit = limit.parse().expect("a limit");
        let (spread, outage, network) = (None, OutagePolicy::Closed, Network::default());
        Self { clock, store, limit, spread, outage, network }
    }

    /// Spreads the starts.
    fn spread(mut self, limit: &str) -> Self {
        self.spread = Some(limit.parse().expect("a limit"));
        self
    }

    fn replica(&self, depth: usize, order: WaitOrder) -> TestLane {
        self.distant_replica(depth, order, 0)
    }

    fn distant_replica(&self, depth: usize, order: WaitOrder, seed: u64) -> TestLane {
        let store = DistantStore::new(self.store.clone(), self.network, seed);
        self.replica_on(store, depth, order, self.clock)
    }

    /// Returns a replica with this connection to the store and this clock.
    fn replica_on(
        &self,
        store: DistantStore<Store>,
        depth: usize,
        order: WaitOrder,
        clock: impl Clock + Copy + std::fmt::Debug + 'static,
    ) -> TestLane {
        let of_route = |rule: Rule| {
            let mut rule = rule.per(&[ROUTE]).when(ROUTE, Pattern::exactly(KEY));
            rule.outage = Some(self.outage);
            Group::new(rule.name.clone(), [rule])
        };
        let spread = self.spread.clone().map(|limit| {
            of_route(Rule { spreads: true, ..Rule::new(format!("{KEY}/spread"), [limit]) })
        });
        let groups = [of_route(Rule::new(KEY, [self.limit.clone()]).gated())];
        let groups = groups.into_iter().chain(spread).collect();
        let rules = Ruleset::new(groups, Settings::default());
        let capacity = Capacity { keys_max: 1_000, records_max: 100_000 };
        let limiter = Limiter::new(rules.expect("rules"), AnyStore::custom(store))
            .with_fallback(AnyStore::custom(Memory::with_clock(capacity, clock)), clock);
        let service = Arc::new(Service::new(limiter, clock, Vec::new()));
        let options = LaneOptions::new(std::slice::from_ref(&self.limit), MINUTE, depth, order);
        let pacer = Pacer::new(service.clone(), KEY.to_owned());
        Lane::new(pacer, TestWork(service), options)
    }

    fn lane(&self) -> TestLane {
        self.replica(100_000, WaitOrder::Fifo)
    }

    /// Returns the times at which `count` requests that come at once are sent.
    async fn all(&self, lanes: &[TestLane], count: usize) -> Vec<Timestamp> {
        let mut waiting = JoinSet::new();
        for number in 0..count {
            let (lane, clock) = (lanes[number % lanes.len()].clone(), self.clock);
            waiting.spawn(send(lane, "", clock));
        }
        let mut went: Vec<_> = waiting.join_all().await.into_iter().flatten().collect();
        went.sort_unstable();
        went
    }

    /// Checks that no window was exceeded.
    fn prove(&self, went: &[Timestamp]) {
        let mut checker = Checker::new();
        checker.scope(KEY, self.limit.clone()).expect("a scope");
        for at in went {
            checker.admit(KEY, *at, 1).expect("an event");
        }
        checker.check().expect("events").proven().unwrap_or_else(|violation| panic!("{violation}"));
    }
}

fn fair() -> WaitOrder {
    WaitOrder::Fair {
        by: "t".to_owned(),
        weights: Default::default(),
        priorities: Default::default(),
    }
}

fn millis(from: Timestamp, to: Timestamp) -> u64 {
    to.since(from).as_micros() / 1_000
}

#[tokio::test(start_paused = true)]
async fn a_contract_lets_a_window_through_at_a_time() {
    let world = World::new("25/s");
    let began = world.clock.now();
    let went = world.all(&[world.lane()], 75).await;
    world.prove(&went);
    assert_eq!(went.len(), 75);
    assert!(millis(began, went[0]) < 60, "{}", millis(began, went[0]));
    let at = |number: usize| millis(went[0], went[number]);
    // One was booked before the distance of the store was known.
    assert!(
        at(23) < 20 && at(24) < 60 && (1_000..1_060).contains(&at(25)),
        "{} {}",
        at(24),
        at(25)
    );
    // It has the slack of an unknown distance, and may delay one start in each window.
    assert!((2_000..2_150).contains(&at(74)), "{}", at(74));
}

#[tokio::test(start_paused = true)]
async fn a_bucket_lets_them_through_one_by_one() {
    let world = World::new("25/s burst 25");
    let began = world.clock.now();
    let went = world.all(&[world.lane()], 50).await;
    world.prove(&went);
    assert_eq!(went.len(), 50);
    assert!(millis(began, went[24]) < 120, "{}", millis(began, went[24]));
    for pair in went[25..].windows(2) {
        assert!((30..80).contains(&millis(pair[0], pair[1])), "{}", millis(pair[0], pair[1]));
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_use_the_whole_limit_together_and_no_more() {
    for limit in ["25/s", "25/s burst 25"] {
        let world = World::new(limit);
        let began = world.clock.now();
        let lanes: Vec<_> = (0..3).map(|_| world.lane()).collect();
        let went = world.all(&lanes, 1_450).await;
        world.prove(&went);
        assert_eq!(went.len(), 1_450, "{limit}");
        let seconds = went[1_449].since(began).as_micros() as f64 / 1e6;
        let used = 1_450.0 / 25.0 / seconds;
        assert!(used >= 0.97, "{limit}: {used}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_known_to_be_too_long_is_refused_at_once() {
    let world = World::new("1/s");
    let lane = world.lane();
    let mut waiting = JoinSet::new();
    for _ in 0..30 {
        let lane = lane.clone();
        waiting.spawn(async move { go(&lane).await });
    }
    sleep(Duration::from_millis(50)).await;
    let before = world.clock.now();
    let refusal = lane.wait("", Span::ZERO, Duration::from_secs(20)).await.err();
    assert_eq!(world.clock.now(), before);
    let Some(WaitError::Limited(wait)) = refusal else { panic!("{refusal:?}") };
    // 29 are before it, a second apart.
    assert!((28..=31).contains(&wait.as_secs_ceil()), "{wait}");
    // And it is true: after it, there is room.
    sleep(wait.into()).await;
    assert!(lane.wait("", Span::ZERO, Duration::from_secs(20)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_is_refused_then() {
    let world = World::new("1/h");
    let lane = world.lane();
    go(&lane).await.expect("the first");
    // Nothing is booked yet, so nobody knows how long it takes.
    let refusal = lane.wait("", Span::ZERO, Duration::from_millis(1)).await.err();
    assert!(matches!(refusal, Some(WaitError::Limited(_))), "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_lets_the_others_move_up_and_costs_nothing() {
    let world = World::new("1/s");
    let lane = world.lane();
    go(&lane).await.expect("the first");
    let began = world.clock.now();
    let mut leaving = Vec::new();
    for _ in 0..10 {
        let lane = lane.clone();
        leaving.push(tokio::spawn(async move { lane.wait("", Span::ZERO, MINUTE).await.is_ok() }));
    }
    tokio::task::yield_now().await;
    let stays = {
        let lane = lane.clone();
        tokio::spawn(async move { go(&lane).await })
    };
    sleep(Duration::from_millis(20)).await;
    assert_eq!(lane.depth(), 11);
    for task in &leaving {
        task.abort();
    }
    assert!(stays.await.expect("it runs").is_ok());
    let moved_up = millis(began, world.clock.now());
    assert!((900..1_100).contains(&moved_up), "{moved_up}");
    assert_eq!(lane.depth(), 0);
    // What was booked for those who left is free again.
    let next = world.clock.now();
    go(&lane).await.expect("the next");
    assert!(millis(next, world.clock.now()) < 1_100);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_nobody_takes_is_given_back() {
    let world = World::new("1/h");
    let lane = world.lane();
    // A turn that comes, and whose request goes away before it is sent.
    drop(lane.wait("", Span::ZERO, MINUTE).await.expect("a turn"));
    sleep(Duration::from_millis(1)).await;
    assert!(lane.wait("", Span::ZERO, Duration::from_secs(1)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_held_up_until_its_turn_is_over_gets_the_next() {
    let world = World::new("10/s");
    let lane = world.lane();
    let mut went = world.all(std::slice::from_ref(&lane), 10).await;
    let held_up = {
        let (lane, clock) = (lane.clone(), world.clock);
        tokio::spawn(async move {
            let waited = lane.wait("", Span::ZERO, MINUTE).await.expect("a turn");
            assert!(!waited.window.is_over(clock.now()));
            sleep(Duration::from_millis(300)).await;
            assert!(waited.window.is_over(clock.now()));
            drop(waited);
            let mut waited = lane.wait_again(clock.now(), MINUTE).await.expect("another");
            waited.window.start(|| clock.now()).await.expect("it is not too late");
            waited.admission.left();
            (waited.took, clock.now())
        })
    };
    tokio::task::yield_now().await;
    went.extend(world.all(&[lane], 100).await);
    let (took, at) = held_up.await.expect("it runs");
    // With the next ones that opened.
    assert!(took < Span::from_secs(1), "{took}");
    went.push(at);
    world.prove(&went);
    assert_eq!(went.len(), 111);
}

#[tokio::test(start_paused = true)]
async fn a_second_wait_that_ends_early_gives_its_booking_back() {
    let world = World::new("1/s");
    let lane = world.lane();
    go(&lane).await.expect("the first");
    let began = world.clock.now();
    let refusal = lane.wait_again(began, Duration::from_millis(100)).await.err();
    assert!(matches!(refusal, Some(WaitError::Limited(_))), "{refusal:?}");
    go(&lane).await.expect("the next");
    let waited = millis(began, world.clock.now());
    assert!((900..1_100).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_wait_and_a_third_leaves() {
    let world = World::new("1000/s");
    let lane = world.lane();
    let mut waiting = JoinSet::new();
    let mut leaving = Vec::new();
    for number in 0..10_000 {
        let (lane, clock) = (lane.clone(), world.clock);
        let come = send(lane, "", clock);
        if number % 3 == 0 { leaving.push(tokio::spawn(come)) } else { drop(waiting.spawn(come)) }
    }
    while lane.depth() < 8_000 {
        tokio::task::yield_now().await;
    }
    let left: Vec<_> = leaving.iter().filter(|task| !task.is_finished()).collect();
    left.iter().for_each(|task| task.abort());
    let mut went: Vec<_> = waiting.join_all().await.into_iter().flatten().collect();
    assert_eq!(went.len(), 6_666);
    for task in leaving {
        went.extend(task.await.ok().flatten());
    }
    world.prove(&went);
    assert_eq!(lane.depth(), 0);
    let last = went.iter().max().expect("some went").since(*went.iter().min().expect("some went"));
    assert!(last < Span::from_secs(9), "{last}: those who left took turns");
}

#[tokio::test(start_paused = true)]
async fn a_noisy_tenant_does_not_delay_a_quiet_one() {
    for (order, quiet_waits) in [(fair(), 100..1_300), (WaitOrder::Fifo, 15_000..25_000)] {
        let world = World::new("25/s");
        let lane = world.replica(10_000, order);
        let mut noisy = JoinSet::new();
        for _ in 0..500 {
            let lane = lane.clone();
            noisy.spawn(send(lane, "noisy", world.clock));
        }
        sleep(Duration::from_millis(100)).await;
        let mut waited = lane.wait("quiet", Span::ZERO, MINUTE).await.expect("a turn");
        waited.admission.left();
        let took = waited.took.as_micros() / 1_000;
        assert!(quiet_waits.contains(&took), "{took}");
        noisy.abort_all();
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_upstream_is_waited_for_by_every_replica() {
    let world = World::new("25/s");
    let lanes = [world.lane(), world.lane()];
    let began = world.clock.now();
    lanes[0].close(Span::from_secs(10)).await.expect("closed");
    let went = world.all(&lanes, 10).await;
    assert_eq!(went.len(), 10);
    assert!(millis(began, went[0]) >= 10_000, "{}", millis(began, went[0]));
    assert!(millis(began, went[9]) < 10_200, "{}", millis(began, went[9]));
}

#[tokio::test(start_paused = true)]
async fn without_the_store_a_closed_route_refuses_those_who_wait() {
    let world = World::new("1/s");
    let lane = world.lane();
    go(&lane).await.expect("the first");
    let waiting = {
        let lane = lane.clone();
        tokio::spawn(async move { lane.wait("", Span::ZERO, MINUTE).await.err() })
    };
    sleep(Duration::from_millis(100)).await;
    world.store.set_on(false);
    assert_eq!(waiting.await.expect("it runs"), Some(WaitError::StoreUnavailable));
    // From then on nobody waits for it in vain.
    let now = world.clock.now();
    let refusal = lane.wait("", Span::ZERO, MINUTE).await.err();
    assert_eq!((refusal, world.clock.now()), (Some(WaitError::StoreUnavailable), now));
    world.store.set_on(true);
    assert!(lane.wait("", Span::ZERO, MINUTE).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_for_a_store_that_is_gone_is_no_limit() {
    let world = World::new("10/s");
    let lane = world.lane();
    world.store.set_on(false);
    let refusal = lane.wait("", Span::ZERO, Duration::from_millis(500)).await.err();
    assert_eq!(refusal, Some(WaitError::StoreUnavailable));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_gone_for_a_moment_costs_nobody_a_turn() {
    let world = World::new("10/s");
    let lane = world.lane();
    let store = world.store.clone();
    let blink = tokio::spawn(async move {
        sleep(Duration::from_millis(500)).await;
        store.set_on(false);
        sleep(Duration::from_millis(1_500)).await;
        store.set_on(true);
    });
    let went = world.all(&[lane], 50).await;
    assert_eq!(went.len(), 50);
    world.prove(&went);
    blink.await.expect("it runs");
}

#[tokio::test(start_paused = true)]
async fn requests_with_a_booked_turn_get_their_share_when_the_store_is_lost() {
    let mut world = World::new("40/s");
    world.outage = OutagePolicy::Local;
    let lane = world.lane();
    let mut waiting = JoinSet::new();
    for _ in 0..60 {
        waiting.spawn(send(lane.clone(), "", world.clock));
    }
    // Some have gone, and a second of turns is booked.
    sleep(Duration::from_millis(500)).await;
    world.store.set_on(false);
    let went: Vec<_> = waiting.join_all().await.into_iter().flatten().collect();
    assert_eq!(went.len(), 60, "none is refused");
}

#[tokio::test(start_paused = true)]
async fn without_the_store_each_replica_paces_its_share() {
    let mut world = World::new("40/s");
    world.outage = OutagePolicy::Local;
    let lane = world.lane();
    world.store.set_on(false);
    let began = world.clock.now();
    // Half of 40 over four nodes: 5 a second.
    let went = world.all(std::slice::from_ref(&lane), 20).await;
    assert_eq!(went.len(), 20);
    assert!((2_900..3_500).contains(&millis(began, went[19])), "{}", millis(began, went[19]));
    world.store.set_on(true);
    assert_eq!(world.all(&[lane], 10).await.len(), 10);
}

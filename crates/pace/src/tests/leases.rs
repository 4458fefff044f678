//! Requests that wait for leases, under a limit such as `2 concurrent`.

use super::*;
use crate::LeaseTimes;

/// The requests of a route with leases.
struct LeaseWork {
    service: Arc<Service>,
    times: Arc<LeaseTimes>,
}

/// A request that holds a lease.
struct LeasePass {
    service: Arc<Service>,
    times: Arc<LeaseTimes>,
    handle: Handle,
    began: Timestamp,
}

impl LeasePass {
    /// Ends the request.
    async fn end(self) {
        self.service.release(&self.handle).await.expect("released");
        self.times.ended(Some(self.service.now().since(self.began)));
    }
}

impl PacedWork for LeaseWork {
    type Admission = LeasePass;
    type Refusal = ();

    fn query(&self, id: RequestId) -> Query<'_> {
        let mut query = Query::new(id);
        query.insert_own(ROUTE, KEY);
        query.rule_scope = RuleScope::Own;
        query
    }

    fn admitted(&self, _: &Answer<'_, '_>, handle: Option<Handle>) -> LeasePass {
        LeasePass {
            service: self.service.clone(),
            times: self.times.clone(),
            handle: handle.expect("a lease has a record"),
            began: self.service.now(),
        }
    }

    fn refused(&self, _: &Answer<'_, '_>) {}

    fn lease_times(&self) -> Option<&LeaseTimes> {
        Some(&self.times)
    }
}

/// Returns a replica whose requests wait for leases.
fn replica(world: &World) -> Arc<Lane<LeaseWork>> {
    let service = world.lane().pacer().service().clone();
    let limits = std::slice::from_ref(&world.limit);
    let options = LaneOptions::new(limits, MINUTE, 1_000, WaitOrder::Fifo);
    let times = Arc::default();
    let pacer = Pacer::new(service.clone(), KEY.to_owned());
    Lane::new(pacer, LeaseWork { service, times }, options)
}

async fn start(lane: &Arc<Lane<LeaseWork>>) -> LeasePass {
    lane.wait("", Span::ZERO, MINUTE).await.expect("a lease").admission
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_starts_when_another_one_of_its_replica_ends() {
    let world = World::new("2 concurrent");
    let lane = replica(&world);
    let (first, _second) = (start(&lane).await, start(&lane).await);
    let third = {
        let lane = lane.clone();
        tokio::spawn(async move { start(&lane).await.began })
    };
    // Long enough for the first polls, and not a multiple of their interval.
    sleep(Duration::from_millis(1_110)).await;
    assert!(!third.is_finished());
    let ended = world.clock.now();
    first.end().await;
    let waited = millis(ended, third.await.expect("it runs"));
    assert!(waited < 30, "{waited}");
}

#[tokio::test(start_paused = true)]
async fn leases_are_used_one_after_the_other_without_a_pause() {
    let world = World::new("2 concurrent");
    let lane = replica(&world);
    let began = world.clock.now();
    let mut running = JoinSet::new();
    for _ in 0..40 {
        let lane = lane.clone();
        running.spawn(async move {
            let pass = start(&lane).await;
            sleep(Duration::from_millis(100)).await;
            pass.end().await;
        });
    }
    running.join_all().await;
    let took = millis(began, world.clock.now());
    // 20 times 100 ms, and the way to the store and back.
    assert!((2_000..2_600).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_replica_frees_is_found() {
    let world = World::new("1 concurrent");
    let (one, other) = (replica(&world), replica(&world));
    let first = start(&one).await;
    let second = tokio::spawn(async move { start(&other).await.began });
    sleep(Duration::from_millis(700)).await;
    let ended = world.clock.now();
    first.end().await;
    let waited = millis(ended, second.await.expect("it runs"));
    assert!(waited < 300, "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_leases_is_told_by_how_long_they_were_held() {
    let world = World::new("2 concurrent");
    let lane = replica(&world);
    for _ in 0..3 {
        let pass = start(&lane).await;
        sleep(Duration::from_secs(10)).await;
        pass.end().await;
    }
    let _running = [start(&lane).await, start(&lane).await];
    let mut waiting = JoinSet::new();
    for _ in 0..4 {
        let lane = lane.clone();
        waiting.spawn(async move { drop(start(&lane).await) });
    }
    sleep(Duration::from_millis(100)).await;
    // Four wait before it, and each of two leases is held for 10 s.
    let before = world.clock.now();
    let refusal = lane.wait("", Span::ZERO, Duration::from_secs(15)).await.err();
    assert_eq!(world.clock.now(), before, "it is known to take too long");
    let Some(WaitError::Limited(wait)) = refusal else { panic!("{refusal:?}") };
    assert!((Span::from_secs(19)..Span::from_secs(21)).contains(&wait), "{wait}");
    // A wait that ends without a lease tells when one should be free.
    let refusal = replica(&world).wait("", Span::ZERO, Duration::from_millis(500)).await.err();
    let Some(WaitError::Limited(wait)) = refusal else { panic!("{refusal:?}") };
    assert!((Span::from_millis(400)..Span::from_secs(5)).contains(&wait), "{wait}");
}

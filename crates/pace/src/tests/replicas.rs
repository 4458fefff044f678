//! Several replicas whose requests wait for the same limit: each knows what waits on the others.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A limit of 25/s with even starts, and a store that is a round trip of 10 ms away.
fn world() -> World {
    let mut world = World::new("25/s").spread("25/s burst 1");
    world.network = network::network(10, 0);
    world
}

/// Keeps `count` requests of a flow waiting on a lane.
fn flood(callers: &mut JoinSet<()>, lane: &TestLane, flow: &'static str, count: usize) {
    for _ in 0..count {
        let (lane, clock) = (lane.clone(), lane.pacer().service().clone());
        callers.spawn(async move {
            loop {
                match lane.wait(flow, Span::ZERO, MINUTE).await {
                    Ok(waited) => use_turn(waited, &clock).await,
                    Err(_) => sleep(SECOND).await,
                }
            }
        });
    }
}

async fn use_turn(mut waited: Waited<TestPass>, service: &Service) {
    sleep(waited.window.wait(service.now()).into()).await;
    waited.admission.left();
}

#[tokio::test(start_paused = true)]
async fn a_light_tenant_on_another_replica_waits_about_as_long_as_on_the_same() {
    for heavy_replicas in [1, 2, 5] {
        let world = world();
        let mut callers = JoinSet::new();
        for seed in 0..heavy_replicas {
            flood(&mut callers, &world.distant_replica(10_000, fair(), seed), "heavy", 100);
        }
        let light = world.distant_replica(10_000, fair(), 99);
        sleep(SECOND * 3).await;
        let mut waits = Vec::new();
        for _ in 0..20 {
            let waited = light.wait("light", Span::ZERO, MINUTE).await.expect("a turn");
            waits.push(waited.took.as_micros() / 1_000);
            use_turn(waited, light.pacer().service()).await;
            sleep(SECOND).await;
        }
        println!("{heavy_replicas}: {waits:?}");
        assert!(waits.iter().all(|wait| *wait < 1_000), "{heavy_replicas}: {waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn flows_share_the_limit_evenly_wherever_they_wait() {
    let world = world();
    let lanes: Vec<_> = (0..3).map(|seed| world.distant_replica(10_000, fair(), seed)).collect();
    let served: Arc<std::sync::Mutex<std::collections::BTreeMap<&str, usize>>> = Arc::default();
    let mut callers = JoinSet::new();
    // Flow a waits on all replicas, b on two, and c on one.
    for (lane, flow) in [(0, "a"), (1, "a"), (2, "a"), (0, "b"), (1, "b"), (1, "c")] {
        for _ in 0..200 {
            let (lane, served) = (lanes[lane].clone(), served.clone());
            callers.spawn(async move {
                loop {
                    let waited = lane.wait(flow, Span::ZERO, MINUTE).await.expect("a turn");
                    use_turn(waited, lane.pacer().service()).await;
                    *served.lock().expect("the lock").entry(flow).or_default() += 1;
                }
            });
        }
    }
    sleep(SECOND * 30).await;
    let served = served.lock().expect("the lock").clone();
    println!("{served:?}");
    let total: usize = served.values().sum();
    assert!(total >= 720, "{served:?}");
    assert!(served.values().all(|count| (220..=280).contains(count)), "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_too_long_because_of_other_replicas_is_refused_at_once() {
    for (arrivals, name) in [(1, "a burst"), (40, "a steady stream")] {
        let world = world();
        let lanes: Vec<_> =
            (0..3).map(|seed| world.distant_replica(10_000, WaitOrder::Fifo, seed)).collect();
        let patience = SECOND * 5;
        let mut callers = JoinSet::new();
        for _ in 0..arrivals {
            for number in 0..(1_200 / arrivals) {
                let lane = lanes[number % 3].clone();
                callers.spawn(async move {
                    let service = lane.pacer().service().clone();
                    let began = service.now();
                    match lane.wait("", Span::ZERO, patience).await {
                        Ok(waited) => {
                            use_turn(waited, &service).await;
                            None
                        }
                        Err(_) => Some(millis(began, service.now())),
                    }
                });
            }
            sleep(SECOND * 10 / arrivals as u32).await;
        }
        let ends = callers.join_all().await;
        let served = ends.iter().filter(|end| end.is_none()).count();
        let refused: Vec<u64> = ends.into_iter().flatten().collect();
        let late = refused.iter().filter(|after| **after > 1_000).count();
        println!("{name}: served {served}, refused {}, late {late}", refused.len());
        assert!(late * 20 <= refused.len(), "{name}: {late} of {}", refused.len());
        assert!(served >= 115, "{name}: {served}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_gone_is_forgotten_after_a_second() {
    let world = world();
    let (gone, stays) = (world.lane(), world.lane());
    let mut callers = JoinSet::new();
    flood(&mut callers, &gone, "", 1_000);
    flood(&mut callers, &stays, "", 10);
    sleep(SECOND * 2).await;
    let refusal = stays.wait("", Span::ZERO, SECOND * 20).await.err();
    assert!(matches!(refusal, Some(WaitError::Limited(_))), "{refusal:?}");
    // Its bookings stay, but nobody waits behind them.
    world.store.set_on(false);
    callers.abort_all();
    while callers.join_next().await.is_some() {}
    sleep(SECOND * 2).await;
    world.store.set_on(true);
    assert!(stays.wait("", Span::ZERO, SECOND * 5).await.is_ok());
}

//! Lanes whose store is a round trip away: the limits hold and are used, whatever the distance.

use super::*;

/// Time for which each lane is overloaded.
const RUN: Span = Span::from_secs(30);
/// Number of requests that wait at any time, per replica.
const WAITING: usize = 60;

/// Result of an overloaded run.
struct Overload {
    /// Part of the limit that was used. What a bucket had saved up before may make it more than 1.
    used: f64,
    /// Largest number of requests in a second.
    most: usize,
}

pub(super) fn network(millis: u64, lost_per_mille: u64) -> Network {
    let round_trip = Span::from_millis(millis);
    let jitter = Span::from_micros(millis * 50);
    Network { round_trip, jitter, lost_per_mille, ..Network::default() }
}

/// Overloads replicas for a while. Requests are sent again and again, so that each replica always
/// has some waiting.
async fn overload(world: &World, replicas: u64, order: &WaitOrder) -> Overload {
    let began = world.clock.now();
    let mut callers = JoinSet::new();
    for replica in 0..replicas {
        let lane = world.distant_replica(100_000, order.clone(), replica);
        for number in 0..WAITING {
            let (lane, clock) = (lane.clone(), world.clock);
            // Some flows wait on all replicas, and some on one.
            let flow = match number % 2 {
                0 => format!("{}", number % 10),
                _ => format!("{replica}/{}", number % 10),
            };
            callers.spawn(async move {
                let mut went = Vec::new();
                while clock.now().since(began) < RUN {
                    went.extend(send(lane.clone(), &flow, clock).await);
                }
                went
            });
        }
    }
    let mut went: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    went.sort_unstable();
    world.prove(&went);
    let end = began + RUN;
    // The first second is for learning the distance.
    let from = began + Span::from_secs(1);
    let counted = went.iter().filter(|at| (from..end).contains(*at)).count();
    let expected = 25.0 * (RUN.as_micros() as f64 / 1e6 - 1.0);
    let second = Span::from_secs(1);
    let in_second = |first: &Timestamp| {
        went.iter().filter(|at| (*first..*first + second).contains(*at)).count()
    };
    let most = went.iter().map(in_second).max().unwrap_or_default();
    Overload { used: counted as f64 / expected, most }
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_kept_and_used_however_far_away_the_store_is() {
    println!("| round trip | replicas | limit | used | most in 1.000 s |");
    println!("|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (millis, goal) in [(0, 0.97), (2, 0.97), (10, 0.97), (20, 0.95), (50, 0.92), (100, 0.88)] {
        for replicas in [1, 3, 10] {
            // By default, only starts under exact limits are spread.
            for (limit, is_spread) in [("25/s", true), ("25/s burst 25", false)] {
                let mut world = World::new(limit);
                if is_spread {
                    world = world.spread("25/s burst 1");
                }
                world.network = network(millis, 0);
                let Overload { used, most } = overload(&world, replicas, &WaitOrder::Fifo).await;
                let row = format!("| {millis} ms | {replicas} | {limit} | {used:.3} | {most} |");
                println!("{row}");
                if used < goal {
                    missed.push(row);
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_without_room_is_kept_and_used_however_far_away_the_store_is() {
    println!("| round trip | replicas | limit | used | most in 1.000 s |");
    println!("|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (millis, goal) in [(0, 0.97), (10, 0.97), (20, 0.95), (50, 0.92)] {
        for replicas in [1, 3] {
            for limit in ["25/s smooth", "25/s burst 2"] {
                let mut world = World::new(limit);
                world.network = network(millis, 0);
                let Overload { used, most } = overload(&world, replicas, &WaitOrder::Fifo).await;
                let row = format!("| {millis} ms | {replicas} | {limit} | {used:.3} | {most} |");
                println!("{row}");
                if used < goal {
                    missed.push(row);
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_single_request_under_a_bucket_without_room_does_not_wait_for_a_run() {
    let mut world = World::new("25/s smooth");
    world.network = network(10, 0);
    let busy = world.distant_replica(1_000, WaitOrder::Fifo, 1);
    let mut others = JoinSet::new();
    for _ in 0..200 {
        others.spawn(send(busy.clone(), "", world.clock));
    }
    sleep(Duration::from_secs(3)).await;
    let quiet = world.distant_replica(1_000, WaitOrder::Fifo, 2);
    let began = world.clock.now();
    let went = send(quiet, "", world.clock).await.expect("a turn");
    // At most the second of turns that the other replica has booked ahead.
    assert!(millis(began, went) < 1_150, "{}", millis(began, went));
    others.abort_all();
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_late_delays_the_next_one_on_its_replica() {
    let mut world = World::new("10/s smooth");
    world.network = network(20, 0);
    let lane = world.lane();
    let mut went = world.all(std::slice::from_ref(&lane), 20).await;
    let (clock, next) = (world.clock, lane.clone());
    let next = tokio::spawn(async move {
        let mut second = next.wait("", Span::ZERO, MINUTE).await.expect("a turn");
        let late = second.window.start(|| clock.now()).await.expect("it is not too late");
        second.admission.left();
        (late, clock.now())
    });
    let mut first = lane.wait_again(clock.now(), MINUTE).await.expect("a turn");
    // Held up until the last moment.
    while !first.window.is_over(clock.now() + Span::from_millis(1)) {
        sleep(Duration::from_millis(1)).await;
    }
    let late = first.window.start(|| clock.now()).await.expect("it is not too late");
    first.admission.left();
    went.push(clock.now());
    let (next_late, at) = next.await.expect("it runs");
    assert!(late > Span::ZERO && next_late > Span::ZERO, "{late} {next_late}");
    went.push(at);
    world.prove(&went);
}

/// A connection that turns out to be closed used to cost a second turn.
#[tokio::test(start_paused = true)]
async fn a_start_that_did_not_happen_may_be_repeated_in_the_same_window() {
    let mut world = World::new("10/s smooth");
    world.network = network(20, 0);
    let lane = world.lane();
    world.all(std::slice::from_ref(&lane), 3).await;
    let waited = lane.wait("", Span::ZERO, MINUTE).await.expect("a turn");
    waited.window.start(|| world.clock.now()).await.expect("it is not too late");
    // Nothing was sent.
    waited.window.take_back_start();
    sleep(Duration::from_millis(1)).await;
    let again = waited.window.try_start(world.clock.now());
    assert!(matches!(again, StartAttempt::Started(_)), "{again:?}");
    let at = world.clock.now();
    // The next one keeps its distance from the start that did happen.
    let mut next = lane.wait("", Span::ZERO, MINUTE).await.expect("a turn");
    next.window.start(|| world.clock.now()).await.expect("it is not too late");
    next.admission.left();
    let distance = world.clock.now().since(at);
    assert!(distance >= Span::from_millis(100), "{distance}");
    assert!(distance < Span::from_millis(150), "{distance}: a turn was lost");
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_kept_and_used_in_fair_order() {
    for (millis, goal) in [(0, 0.97), (10, 0.97), (20, 0.95), (50, 0.92), (100, 0.88)] {
        for replicas in [1, 3, 10] {
            let mut world = World::new("25/s").spread("25/s burst 1");
            world.network = network(millis, 0);
            let Overload { used, most } = overload(&world, replicas, &fair()).await;
            println!("| {millis} ms | {replicas} | 25/s, fair | {used:.3} | {most} |");
            assert!(used >= goal, "{millis} ms, {replicas}: {used}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_network_with_changing_delays_costs_no_more_than_its_shortest_round_trips() {
    // A turn that is lost to a slow packet weighs more among ten replicas: each has few of them.
    for (replicas, goal) in [(1, 0.97), (3, 0.97), (10, 0.94)] {
        for (order, name) in [(WaitOrder::Fifo, "fifo"), (fair(), "fair")] {
            let mut world = World::new("25/s").spread("25/s burst 1");
            // Half of the round trips take 8 to 12 ms, and one in fifty 40 ms more.
            world.network = Network {
                round_trip: Span::from_millis(5),
                jitter: Span::from_millis(5),
                delayed_per_mille: 10,
                delay: Span::from_millis(40),
                ..Network::default()
            };
            let Overload { used, most } = overload(&world, replicas, &order).await;
            println!("| 5 to 15 ms, 2 % 55 ms | {replicas} | 25/s, {name} | {used:.3} | {most} |");
            assert!(used >= goal, "{replicas}, {name}: {used}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lost_packets_cost_their_own_turns_and_break_no_limit() {
    for replicas in [1, 3] {
        let mut world = World::new("25/s").spread("25/s burst 1");
        world.network = network(10, 20);
        let Overload { used, .. } = overload(&world, replicas, &WaitOrder::Fifo).await;
        assert!(used > 0.85, "{replicas}: {used}");
    }
}

#[tokio::test(start_paused = true)]
async fn starts_are_spread_evenly() {
    let mut world = World::new("25/s").spread("25/s burst 1");
    world.network = network(10, 0);
    let went = world.all(&[world.lane()], 100).await;
    // The first one has the slack of an unknown distance, and delays the one a window later.
    for pair in went[30..].windows(2) {
        assert!((25..60).contains(&millis(pair[0], pair[1])), "{}", millis(pair[0], pair[1]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_all_replicas_within_a_lead() {
    let mut world = World::new("25/s").spread("25/s burst 1");
    world.network = network(20, 0);
    let lanes: Vec<_> =
        (0..3).map(|seed| world.distant_replica(1_000, WaitOrder::Fifo, seed)).collect();
    let mut waiting = JoinSet::new();
    for number in 0..300 {
        waiting.spawn(send(lanes[number % 3].clone(), "", world.clock));
    }
    sleep(Duration::from_secs(3)).await;
    let closed = lanes[0].close(Span::from_secs(5)).await.expect("closed");
    let mut went: Vec<_> = waiting.join_all().await.into_iter().flatten().collect();
    went.sort_unstable();
    world.prove(&went);
    assert_eq!(went.len(), 300);
    let pacing = lanes[0].pacer().round_trips().pacing();
    let last = closed.at + pacing.lead + pacing.slack;
    let inside: Vec<_> = went.iter().filter(|at| (closed.at..closed.until).contains(*at)).collect();
    assert!(inside.iter().all(|at| **at <= last), "{inside:?}");
    // A lead at 25/s is one turn, and each replica may have claimed one more.
    assert!(inside.len() <= 4, "{}", inside.len());
}

/// Of the other replicas, those that have claimed a turn still use it.
#[tokio::test(start_paused = true)]
async fn a_replica_that_closes_the_gate_uses_no_turn_that_it_claimed_before() {
    let mut world = World::new("25/s").spread("25/s burst 1");
    world.network = network(50, 0);
    let lane = world.distant_replica(1_000, WaitOrder::Fifo, 1);
    let mut waiting = JoinSet::new();
    for _ in 0..200 {
        waiting.spawn(send(lane.clone(), "", world.clock));
    }
    sleep(Duration::from_secs(3)).await;
    let closed = lane.close(Span::from_secs(5)).await.expect("closed");
    let known = world.clock.now();
    let went = waiting.join_all().await;
    let went: Vec<_> = went.into_iter().flatten().collect();
    assert_eq!(went.len(), 200);
    let after = went.iter().filter(|at| (known..closed.until).contains(*at)).count();
    assert_eq!(after, 0, "requests went after the replica had closed the gate");
}

/// The call that closes the gate may take as long as the store allows it.
#[tokio::test(start_paused = true)]
async fn a_claimed_turn_is_not_used_while_the_gate_is_being_closed() {
    let mut world = World::new("25/s");
    world.network = network(200, 0);
    let lane = world.distant_replica(1_000, WaitOrder::Fifo, 1);
    let claimed = lane.wait("", Span::ZERO, MINUTE).await.expect("a turn");
    assert!(!claimed.window.is_over(world.clock.now()));
    tokio::select! {
        biased;
        _ = lane.close(Span::from_secs(5)) => panic!("the store is far away"),
        () = sleep(Duration::from_millis(1)) => {}
    }
    assert!(claimed.window.is_over(world.clock.now()));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_dies_costs_at_most_a_second_of_turns() {
    let mut world = World::new("25/s").spread("25/s burst 1");
    world.network = network(10, 0);
    let alive = world.lane();
    // What a replica that dies leaves behind: as many bookings as a lane makes ahead.
    let dead = world.distant_replica(1_000, WaitOrder::Fifo, 7);
    for _ in 0..25 {
        let id = dead.pacer().service().request_id();
        let work = TestWork(dead.pacer().service().clone());
        assert!(matches!(dead.pacer().book(&work, &work, id).await, crate::Turn::Booked(_)));
    }
    let began = world.clock.now();
    let went = world.all(&[alive], 100).await;
    world.prove(&went);
    let took = millis(began, *went.last().expect("all went"));
    // Four seconds for a hundred, one for the turns that nobody uses, and 3 % for the slack.
    assert!(took < 5_250, "{took}");
}
